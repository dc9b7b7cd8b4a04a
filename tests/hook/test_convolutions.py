"""1x1 convolutions, which Inductor lowers to GEMMs with its option ``conv_1x1_as_mm``; nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch.nn import functional

from tests.fake_cuda import Input, Lowered, compile_triton, lower

pytestmark = [
    pytest.mark.usefixtures("h200"),
    pytest.mark.skipif(
        torch.version.cuda is not None and not torch.cuda.is_available(), reason="PyTorch asks for cuDNN's version"
    ),
]

Rows = Callable[..., None]
BATCH, CHANNELS, RESULTS, HEIGHT, WIDTH = 4, 64, 256, 14, 16


def triton(block_m: int) -> dict[str, Any]:
    blocks = {"block_m": block_m, "block_n": 64, "block_k": 32}
    return {"template": "triton_mm", **blocks, "group_m": 8, "num_stages": 3, "num_warps": 4}


def images(*, last: bool = True) -> Input:
    strides = (HEIGHT * WIDTH * CHANNELS, 1, WIDTH * CHANNELS, CHANNELS) if last else None
    return Input((BATCH, CHANNELS, HEIGHT, WIDTH), torch.bfloat16, strides)


WEIGHT, BIAS = Input((RESULTS, CHANNELS, 1, 1)), Input((RESULTS,))


def lowered(function: Callable[..., torch.Tensor], *inputs: Input, as_mm: bool = True) -> Lowered:
    with inductor_config.patch(conv_1x1_as_mm=as_mm):
        return lower(function, *inputs)


def test_gemm(rows: Rows, tmp_path: Path) -> None:
    """A 1x1 convolution is an mm of all pixels with the weight, which is column-major, and its rows answer."""
    sizes = {"m": [BATCH * HEIGHT * WIDTH] * 2, "n": [RESULTS] * 2, "k": [CHANNELS] * 2}
    rows({"op": "mm", "dtype": "bfloat16", "layout": "nt", "align": 16, **sizes, "configs": [triton(64)]})
    made = lowered(functional.conv2d, images(), WEIGHT)
    (kernel,) = made.triton_kernels
    assert made.extern == []
    assert "BLOCK_M : tl.constexpr = 64\n" in kernel
    compile_triton(kernel, tmp_path)


def test_bias(rows: Rows) -> None:
    """With a bias it is an addmm."""
    rows({"op": "addmm", "configs": [triton(64)]})
    assert len(lowered(functional.conv2d, images(), WEIGHT, BIAS).triton_templates) == 1


def test_epilogue(rows: Rows, tmp_path: Path) -> None:
    """Pointwise work behind it is an epilogue of the GEMM, with rows of its own."""
    rows({"op": "mm", "configs": [triton(64)]}, {"op": "mm", "epilogue": "light", "configs": [triton(128)]})
    made = lowered(
        lambda x, first, second: functional.conv2d(functional.conv2d(x, first).relu(), second),
        *(images(), WEIGHT, Input((CHANNELS, RESULTS, 1, 1))),
    )
    first, second = made.triton_kernels
    assert "BLOCK_M : tl.constexpr = 128\n" in first
    assert "BLOCK_M : tl.constexpr = 64\n" in second
    for kernel in (first, second):
        compile_triton(kernel, tmp_path)


def test_images_whose_channels_come_first(rows: Rows) -> None:
    """Inductor copies such images before the GEMM."""
    rows({"op": "mm", "configs": [triton(64)]})
    made = lowered(functional.conv2d, images(last=False), WEIGHT)
    assert len(made.triton_templates) == 1
    assert len(made.triton_kernels) == 2


def test_without_the_option(rows: Rows) -> None:
    """Without the option a convolution is the library's."""
    rows({"configs": [triton(64)]})
    assert lowered(functional.conv2d, images(), WEIGHT, as_mm=False).extern == ["convolution"]
