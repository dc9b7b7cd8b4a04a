"""What a variant of an op says, and how it is written: the scaling of float8, the modifications of attention."""

from __future__ import annotations

from typing import NamedTuple

SCALINGS = ("tensor", "row")
"""What has a scale: each of A and B, or each row of A and each column of B."""

RESULT_DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes of scaled_mm's result."""


class Scaling(NamedTuple):
    """What a variant of scaled_mm says: one of SCALINGS, one of RESULT_DTYPES, a bias, and fast accumulation.

    A bias has the result's dtype, which is not float32 then.
    """

    per: str
    result: str
    bias: bool = False
    fast: bool = False

    @classmethod
    def of(cls, variant: str) -> Scaling:
        """The meaning of one of VARIANTS["scaled_mm"]."""
        per, result, *flags = variant.split("-")
        return cls(per, result, "bias" in flags, "fast" in flags)

    def __str__(self) -> str:
        flags = ("bias",) * self.bias + ("fast",) * self.fast
        return "-".join((self.per, self.result, *flags))


MASKS = ("full", "causal", "computed", "captured")
"""What attention is masked by: nothing; query not before key, and nothing else; something computed from the indices,
such as a sliding window; something that reads tensors, such as the document of each index."""

SCORES = ("plain", "computed", "captured")
"""How attention's scores are modified: not at all; by something computed from them and the indices, such as a soft cap;
by something that reads tensors, such as a bias for each head."""


class Modifications(NamedTuple):
    """What a variant of ATTENTION says: one of MASKS, and one of SCORES, which is left out where it is ``plain``."""

    mask: str
    score: str = SCORES[0]

    @classmethod
    def of(cls, variant: str) -> Modifications:
        """The meaning of one of VARIANTS["flex_attention"]."""
        mask, *score = variant.split("-score-")
        return cls(mask, *score)

    def __str__(self) -> str:
        return self.mask if self.score == SCORES[0] else f"{self.mask}-score-{self.score}"
