"""Ops beside those that tables know: what computes them today, what a table could have instead, and real sizes.

Operands are random and in bfloat16, or int8. Sizes are those of one layer of a public model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from modelbench.ways import Way
from torch import Tensor

Operands = tuple[Tensor, ...]

TRITON: dict[str, Any] = {
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "triton.enable_persistent_tma_matmul": True,
    "max_epilogue_benchmarked_choices": 4,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}
"""Options with which Inductor takes the fastest of its Triton kernels."""

AS_MM = {"conv_1x1_as_mm": True}
LIBRARY, HOOK, KERNEL = "library", "diode_lut", "triton"

Sizes = tuple[Any, ...]


class Op(NamedTuple):
    """An op: operands of given sizes, functions of them that compute the same, and the result in float64.

    ``ways`` are ways to compile the functions by name, ``today`` those of them that need no new table. ``only_cuda``
    names the functions that a CPU does not have, ``template`` the one whose configs are searched.
    """

    make: Callable[..., Operands]
    functions: Mapping[str, Callable[..., Tensor]]
    exact: Callable[..., Tensor]
    ways: Mapping[str, Way]
    today: tuple[str, ...]
    cases: Mapping[str, Sizes]
    tiny: Sizes
    only_cuda: tuple[str, ...] = ()
    template: str = "triton_mm"

    def ways_on(self, device: str) -> dict[str, Way]:
        """The ways that a device has: a CPU has no Triton kernels to choose from."""
        no_triton = device == "cpu"
        return {
            name: way
            for name, way in self.ways.items()
            if not (no_triton and (way.options.get("max_autotune") or way.function in self.only_cuda))
        }


def random(*shape: int) -> Tensor:
    """Normally distributed, in bfloat16."""
    return torch.randn(shape, dtype=torch.bfloat16)


def stored(layout: str, rows: int, columns: int) -> Tensor:
    """A random matrix, for the layout ``t`` stored by columns."""
    return random(rows, columns) if layout == "n" else random(columns, rows).t()


def _two_products(layout: str, m: int, n: int, k: int) -> Operands:
    return random(m, k), stored(layout, k, n), random(m, k), stored(layout, k, n)


def _sum_of_products(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return a @ b + c @ d


SUM = Op(
    make=_two_products,
    functions={"sum": _sum_of_products},
    exact=_sum_of_products,
    ways={LIBRARY: Way("sum"), HOOK: Way("sum", "pick"), KERNEL: Way("sum", options=TRITON)},
    today=(LIBRARY, HOOK),
    cases={
        "gate, up backward of Llama 8B, 2048 tokens": ("n", 2048, 4096, 14336),
        "LSTM of 1024, batch 64": ("t", 64, 4096, 1024),
        "k, v backward of BERT-base, 16x384": ("n", 6144, 768, 768),
        "gate, up backward of Llama 1B, 512 tokens": ("n", 512, 2048, 8192),
        "k, v backward of Llama 8B, 2048 tokens": ("n", 2048, 4096, 1024),
        "LSTM of 512, batch 256": ("t", 256, 2048, 512),
    },
    tiny=("t", 32, 48, 64),
)
"""``a @ b + c @ d``: gradients of an input of two layers, recurrent cells."""


def _integers(m: int, n: int, k: int) -> Operands:
    a, weight = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((m, k), (n, k)))
    return a, weight.t()


def _integers_and_scales(m: int, n: int, k: int) -> Operands:
    return *_integers(m, n, k), torch.rand(m, 1) / k, torch.rand(n).bfloat16()


def _scaled(product: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return (product * rows).to(columns.dtype) * columns


def _int_mm_scaled(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return _scaled(torch._int_mm(a, b), rows, columns)


_INT_WAYS = {LIBRARY: Way("int"), KERNEL: Way("int", options=TRITON)}
INT_MM = Op(
    make=_integers,
    functions={"int": torch._int_mm},
    exact=torch.mm,
    ways=_INT_WAYS,
    today=(LIBRARY,),
    cases={
        "down of Llama 8B, 32 tokens": (32, 4096, 14336),
        "o of Llama 8B, 2048 tokens": (2048, 4096, 4096),
    },
    tiny=(32, 48, 64),
)
"""int8 by int8, added up in int32."""

SCALED_INT_MM = INT_MM._replace(
    make=_integers_and_scales,
    functions={"int": _int_mm_scaled},
    exact=lambda a, b, rows, columns: a @ b * rows * columns,
    cases={
        "q, k, v of Llama 8B, 32 tokens": (32, 6144, 4096),
        "gate, up of Llama 8B, 2048 tokens": (2048, 28672, 4096),
        "down of BERT-base, 16x384": (6144, 768, 3072),
        "gate, up of Llama 8B, 128 tokens": (128, 28672, 4096),
        "down of Llama 8B, 512 tokens": (512, 4096, 14336),
        "o of Llama 8B, 64 tokens": (64, 4096, 4096),
    },
)
"""The same with a scale for each row and column, as linear layers in int8 have it."""


def _mm_to_float32(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b, out_dtype=torch.float32)


def _bmm_to_float32(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b, out_dtype=torch.float32)


def _then_cast(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b).float()


TYPED_MM = Op(
    make=lambda m, n, k: (random(m, k), random(n, k).t()),
    functions={"typed": _mm_to_float32, "cast": _then_cast},
    exact=torch.matmul,
    ways={LIBRARY: Way("typed"), "library, then cast": Way("cast"), KERNEL: Way("cast", options=TRITON)},
    today=(LIBRARY, "library, then cast"),
    cases={
        "router of Mixtral, 4096 tokens": (4096, 8, 4096),
        "vocabulary of Llama 8B, 16 tokens": (16, 128256, 4096),
        "router of DeepSeek-V3, 4096 tokens": (4096, 256, 7168),
        "vocabulary of Llama 1B, 1024 tokens": (1024, 128256, 2048),
        "router of Qwen3-30B-A3B, 64 tokens": (64, 128, 2048),
    },
    tiny=(32, 48, 64),
    only_cuda=("typed",),
)
"""bfloat16 with a result in float32. A Triton kernel that casts its sum stands for one that has this result."""

TYPED_BMM = TYPED_MM._replace(
    make=lambda b, m, n, k: (random(b, m, k), random(b, n, k).mT),
    functions={"typed": _bmm_to_float32, "cast": _then_cast},
    cases={
        "scores of BERT-base, 16x384": (192, 384, 384, 64),
        "scores of Llama 8B, 1024 tokens": (32, 1024, 1024, 128),
        "scores of ViT-B, 32x197": (384, 197, 197, 64),
    },
    tiny=(2, 32, 48, 64),
    template="triton_bmm",
)


def _image(batch: int, channels: int, size: int, out: int) -> Operands:
    x, weight = random(batch, channels, size, size), random(out, channels, 1, 1) / channels**0.5
    last = torch.channels_last
    return x.contiguous(memory_format=last), weight.contiguous(memory_format=last), random(out)


CONVOLUTION = Op(
    make=_image,
    functions={"convolution": torch.conv2d},
    exact=lambda x, weight, bias: torch.einsum("bchw,oc->bohw", x, weight[:, :, 0, 0]) + bias[:, None, None],
    ways={
        LIBRARY: Way("convolution"),
        "as mm": Way("convolution", options=AS_MM),
        "as mm, diode_lut": Way("convolution", "pick", AS_MM),
        KERNEL: Way("convolution", options={**TRITON, **AS_MM}),
    },
    today=(LIBRARY,),
    cases={
        "ResNet-50, 32 x 64 to 256, 56x56": (32, 64, 56, 256),
        "UNet, 8 x 640 to 320, 64x64": (8, 640, 64, 320),
        "ConvNeXt-T, 32 x 384 to 1536, 14x14": (32, 384, 14, 1536),
        "MobileNetV2, 32 x 32 to 192, 56x56": (32, 32, 56, 192),
        "ResNet-50, 32 x 1024 to 256, 14x14": (32, 1024, 14, 256),
        "UNet, 8 x 1280 to 1280, 16x16": (8, 1280, 16, 1280),
        "ResNet-50, 32 x 2048 to 512, 7x7": (32, 2048, 7, 512),
        "ConvNeXt-T, 32 x 384 to 96, 56x56": (32, 384, 56, 96),
    },
    tiny=(2, 16, 5, 24),
)
"""A convolution of 1x1 with a bias, channels last."""


def _routed(tokens: int, experts: int) -> Tensor:
    """Where the rows of each expert end, for tokens that are routed at random, some experts more often than others."""
    generator = torch.Generator().manual_seed(0)
    likely = torch.softmax(torch.randn(experts, generator=generator, device="cpu", dtype=torch.float32) / 2, 0)
    chosen = torch.multinomial(likely, tokens, replacement=True, generator=generator)
    ends = torch.bincount(chosen, minlength=experts).cumsum(0)
    return ends.to(torch.get_default_device(), torch.int32)


def _experts(experts: int, rows: int, n: int, k: int) -> Operands:
    return random(rows, k), (random(experts, n, k) / k**0.5).mT, _routed(rows, experts)


def _weights(experts: int, rows: int, n: int, k: int) -> Operands:
    ends = _routed(rows, experts) // 8 * 8  # parts of what is added up have to be aligned
    ends[-1] = rows
    return random(rows, n).t(), random(rows, k), ends


def _grouped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(a, b, offs=ends)


def _one_by_one(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return torch.cat([a[begin:end] @ one for one, (begin, end) in zip(b, _parts(ends), strict=True)])


def _sums_one_by_one(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in _parts(ends)])


def _parts(ends: Tensor) -> Iterator[tuple[int, int]]:
    return pairwise([0, *ends.int().tolist()])


GROUPED = Op(
    make=_experts,
    functions={"grouped": _grouped},
    exact=_one_by_one,
    ways={LIBRARY: Way("grouped"), KERNEL: Way("grouped", options=TRITON)},
    today=(LIBRARY,),
    cases={
        "gate, up of Mixtral 8x7B, 64 tokens": (8, 128, 28672, 4096),
        "gate, up of Qwen3-30B-A3B, 2048 tokens": (128, 16384, 1536, 2048),
        "down of DeepSeek-V3, 32 of 256 experts, 4096 tokens": (32, 4096, 7168, 2048),
        "gate, up of Qwen3-30B-A3B, 32 tokens": (128, 256, 1536, 2048),
        "down of Mixtral 8x7B, 4096 tokens": (8, 8192, 4096, 14336),
        "gate, up of DeepSeek-V2-Lite, 1024 tokens": (64, 6144, 2816, 2048),
        "down of Qwen3-30B-A3B, 2048 tokens": (128, 16384, 2048, 768),
        "gate, up of DeepSeek-V3, 32 of 256 experts, 128 tokens": (32, 128, 4096, 7168),
    },
    tiny=(4, 40, 48, 64),
)
"""The rows of each expert by its weights."""

GROUPED_WEIGHTS = GROUPED._replace(
    make=_weights,
    exact=_sums_one_by_one,
    cases={
        "weights of gate, up of Qwen3-30B-A3B, 2048 tokens": (128, 16384, 1536, 2048),
        "weights of down of DeepSeek-V2-Lite, 4096 tokens": (64, 24576, 2048, 1408),
    },
)
"""Gradients of the weights: columns of each expert by its rows."""

OPS = {
    "mm_plus_mm": SUM,
    "int_mm": INT_MM,
    "int_mm scaled": SCALED_INT_MM,
    "mm to float32": TYPED_MM,
    "bmm to float32": TYPED_BMM,
    "1x1 convolution": CONVOLUTION,
    "grouped_mm": GROUPED,
    "grouped_mm weights": GROUPED_WEIGHTS,
}
"""By name."""
