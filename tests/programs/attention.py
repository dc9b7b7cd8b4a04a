"""Runs flex attention with rows for its kernels on the interpreter's device; tests/interpreter/test_attention.py reads.

``python attention.py DIRECTORY [CASE]...``: tables go there. Prints, by case, whether the rows' kernels ran, and the
largest errors of the result and of each gradient, against float64.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.interpreter.device import interpreter_cuda

HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}
ROWS = [
    {
        "op": "flex_attention",
        "configs": [
            {"template": "triton_flex_attention", "block_m": 64, "block_n": 32, "num_stages": 2, "num_warps": 4}
        ],
    },
    {
        "op": "flex_attention_backward",
        "configs": [
            {
                "template": "triton_flex_attention_backward",
                "block_m1": 16,
                "block_n1": 64,
                "block_m2": 64,
                "block_n2": 32,
                "num_stages": 2,
                "num_warps": 4,
            }
        ],
    },
    {
        "op": "flex_decoding",
        "configs": [{"template": "triton_flex_decoding", "block_n": 32, "num_stages": 2, "num_warps": 4}],
    },
]
"""The forward pass fits in the shared memory of an H200 for heads of up to 256 elements, in float32 too."""


class Case(NamedTuple):
    """An attention with m queries and n keys of ``k`` elements, values of ``v``, and ``h`` heads in groups of ``g``."""

    m: int
    n: int
    k: int = 16
    v: int = 16
    h: int = 2
    g: int = 1
    mask: str = "causal"
    capped: bool = False
    gradients: bool = False

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Those of queries, keys and values."""
        shared = self.h // self.g
        return [(self.h, self.m, self.k), (shared, self.n, self.k), (shared, self.n, self.v)]


CASES = {
    "causal": Case(130, 130, gradients=True),
    "window, soft cap, shared keys": Case(128, 128, 32, 16, 4, 2, "window", capped=True),
    "documents": Case(140, 140, mask="documents"),
    "no mask": Case(130, 70, mask="none", gradients=True),
    "decoding": Case(3, 100, h=4, g=2, mask="none"),
}


def run(case: Case, dtype: str = "float32") -> dict[str, Any]:
    """The blocks of the kernels that ran for the case on "cuda", and the errors of the result and the gradients.

    Errors are the largest of an element, over the largest element or 1.
    """
    import torch
    from torch._inductor.utils import run_and_get_code
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    documents = torch.arange(max(case.m, case.n)) // 48
    doubles = [torch.randn(1, *shape, dtype=torch.float64).requires_grad_() for shape in case.shapes]
    inputs = [each.detach().to("cuda", getattr(torch, dtype)).requires_grad_(case.gradients) for each in doubles]
    for double, ours in zip(doubles, inputs, strict=True):
        double.data = ours.detach().cpu().double()
    mask = _mask(case, documents.to("cuda"))
    blocks = None if mask is None else create_block_mask(mask, None, None, case.m, case.n, device="cuda")

    def attention(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, _capped if case.capped else None, blocks, enable_gqa=case.g > 1)

    expected = _exact(case, documents, *doubles)
    result, codes = run_and_get_code(torch.compile(attention), *inputs)
    pairs = [(result, expected)]
    if case.gradients:
        gradient = torch.randn_like(expected)
        expected.backward(gradient)
        _, more = run_and_get_code(lambda: result.backward(gradient.to("cuda", result.dtype)))
        codes = [*codes, *more]
        pairs += [(ours.grad, double.grad) for ours, double in zip(inputs, doubles, strict=True)]
    errors = [
        float((ours.detach().cpu() - exact.detach()).abs().max() / max(1.0, float(exact.detach().abs().max())))
        for ours, exact in pairs
    ]
    code = "\n".join(codes)
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
    return {"errors": errors, "blocks": {name: block for name in names if (block := _constant(code, name))}}


def _mask(case: Case, documents: Any) -> Any:
    return {
        "causal": lambda b, h, m, n: m >= n,
        "window": lambda b, h, m, n: (m >= n) & (m - n < 40),
        "documents": lambda b, h, m, n: documents[m] == documents[n],
        "none": None,
    }[case.mask]


def _capped(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    import torch

    del b, h, m, n
    return torch.tanh(score / 2) * 2


def _exact(case: Case, documents: Any, q: Any, k: Any, v: Any) -> Any:
    import torch

    scores = q @ k.repeat_interleave(case.g, 1).transpose(-1, -2) / math.sqrt(case.k)
    scores = _capped(scores, 0, 0, 0, 0) if case.capped else scores
    mask = _mask(case, documents)
    if mask is not None:
        seen = mask(0, 0, torch.arange(case.m)[:, None], torch.arange(case.n)[None])
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v.repeat_interleave(case.g, 1)


def main(directory: Path, *names: str) -> dict[str, Any]:
    """For these cases, or all, the blocks that ran, and the errors."""
    from torch._inductor.utils import fresh_cache

    import diode_lut

    table = directory / "attention.json"
    table.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": ROWS}), encoding="utf-8")
    with fresh_cache(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
        found: dict[str, Any] = {name: run(CASES[name]) for name in names or CASES}
    return {**found, "hits": sorted(problem for problem, *_ in _hits())}


def _constant(code: str, name: str) -> int | None:
    _, _, rest = code.partition(f"{name} : tl.constexpr = ")
    return int(rest.split()[0]) if rest else None


def _hits() -> list[tuple[str, int]]:
    """The problems that rows answered, as the receipt of this process has them."""
    from diode_lut.receipts.recorder import own_receipt

    return [
        (str(hit.problem), calls) for device in own_receipt().devices.values() for hit, calls in device.hits.items()
    ]


if __name__ == "__main__":
    with interpreter_cuda():
        answer = main(Path(sys.argv[1]), *sys.argv[2:])
    print(json.dumps(answer))
