"""Lower 1x1 convolutions to matmuls, if a kernel of the tables also does the pointwise work that follows.

CuDNN leaves this work to another kernel, and is otherwise as fast as a matmul. So rows for a matmul with its epilogue
decide. Models do not, because none was measured against cuDNN. The matmul then gets its kernel like any other. Images
must be channels last, so that nothing is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.kernel.conv import convert_1x1_conv_to_mm
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V

from diode_lut.hook.choices import in_force, is_on
from diode_lut.hook.epilogues import epilogue_ahead
from diode_lut.hook.problems import dtype_of, is_plain
from diode_lut.hook.snapshot import autotuning
from diode_lut.problem import Operand, problem_of
from diode_lut.settings import MODEL
from diode_lut.templates.config import ATEN

aten = torch.ops.aten

_PLAIN = [[1, 1], [1, 1], [0, 0], [1, 1], [0, 0]]  # window, stride, padding, dilation, output padding of a matmul
_DTYPES = (torch.float16, torch.bfloat16)  # types of one precision for convolutions and matmuls, in all settings


def as_matmul(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Return the result of a convolution lowered to a matmul, or None if Inductor should lower it.

    As Inductor does for cuDNN, add the bias as pointwise work, and store the inputs. Inductor's own way to a matmul
    does not store them, so each reader would compute them again.
    """
    now, device, sizes = in_force(), x.get_device(), [*x.get_size(), *weight.get_size()]
    if now is None or now.settings.policy != "pick" or now.settings.top_k > 1 or not now.settings.epilogues:
        return None
    if inductor_config.conv_1x1_as_mm or autotuning() or is_on("triton.native_matmul"):
        return None
    if torch.version.hip or device.type != "cuda" or not V.graph.is_inference:
        return None
    if len(sizes) != 8 or not is_plain(sizes) or 0 in sizes:
        return None
    images, channels, height, width, results, _, *window = map(int, sizes)
    given = [window, *map(list, (stride, padding, dilation, output_padding))]
    if given != _PLAIN or transposed or groups != 1:
        return None
    kinds = {x.get_dtype(), weight.get_dtype()}
    dtype, epilogue = dtype_of(kinds, device.type), epilogue_ahead(V.graph.current_node)
    if dtype is None or not kinds.issubset(_DTYPES) or epilogue is None:
        return None
    a = Operand((images * height * width, channels), (channels, 1))
    problem = problem_of("mm", dtype, a, Operand((channels, results), (1, channels)))
    decision = now.answers(problem, device, padding=False).with_epilogue(epilogue)
    best = next(iter(decision.configs), ATEN)
    if best == ATEN or best.pad > 1 or decision.tier == MODEL:
        return None
    x.realize()
    weight.realize()
    if not _is_channels_last(x, channels, height, width) or not _is_channels_last(weight, channels, 1, 1):
        return None
    result = convert_1x1_conv_to_mm(x, weight, None)  # type: ignore[no-untyped-call]
    return result if bias is None else lowerings[aten.add](result, lowerings[aten.view](bias, [results, 1, 1]))


def _is_channels_last(node: Any, channels: int, height: int, width: int) -> bool:
    """Return whether a tensor is channels last without gaps, or will be, because its layout is open."""
    if not ir.is_storage_and_layout(node):
        return False
    layout = node.get_layout()
    if isinstance(layout, ir.FlexibleLayout):
        return bool(V.graph.layout_opt)
    strides = height * width * channels, 1, width * channels, channels
    steps = zip(layout.size, layout.stride, strides, strict=True)
    return all(size == 1 or step == wanted for size, step, wanted in steps)
