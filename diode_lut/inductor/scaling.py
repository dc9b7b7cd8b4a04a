"""What Inductor's templates for scaled_mm, which multiplies float8, are told besides their tunables."""

from __future__ import annotations

from typing import Any

from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V

from diode_lut.domain.variants import Scaling
from diode_lut.inductor.answer import CannotRun
from diode_lut.kernels.config import Config
from diode_lut.kernels.tiles import is_precise

_RECIPES = {"tensor": 0, "row": 1}
"""PyTorch's numbers for what has a scale: ``torch.nn.functional.ScalingType``."""

_LEAST_K = 32
"""K of the smallest matrix instruction for float8."""


def scaling_options(config: Config, inputs: MMKernelInputs, variant: str) -> dict[str, Any]:
    """The options; CannotRun where the template would not compute what is asked."""
    scaling, block_k = Scaling.of(variant), config.tiles.block_k
    if not is_precise(block_k, variant):
        raise CannotRun(f"with block_k={block_k} it cannot multiply float8, or is less precise than the library")
    if not V.graph.sizevars.statically_known_true(inputs.mnk_symbolic()[2] >= _LEAST_K):
        raise CannotRun(f"K is less than {_LEAST_K}")
    if not config.kernel.tma:
        return {"USE_FAST_ACCUM": scaling.fast}
    if scaling.bias:
        raise CannotRun("the template with tensor descriptors adds no bias")
    recipe = _RECIPES[scaling.per]
    return {"USE_FAST_ACCUM": scaling.fast, "SCALE_RECIPE_A": recipe, "SCALE_RECIPE_B": recipe}
