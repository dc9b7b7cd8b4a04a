"""Named sets of problems of newer ops, for the sizes of public models; in each the most useful problems come first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from diode_lut.domain.ops import INT8, NO_EPILOGUE
from diode_lut.domain.problem import Problem

_INT8_LAYERS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
)
"""N and K of Llama 3 8B and 70B: queries, keys and values; what follows attention; gate and up; down."""

_INT8_ROWS = ((32, 17, 64, 128), (512, 2048, 8192))
"""M: tokens of a batch, those whose kernels gain most first; PyTorch multiplies no fewer than 17 rows on a GPU."""


def int8_problems() -> Iterator[Problem]:
    """About 100 problems in blocks, each alone and with scales of rows and columns behind it, as models run them."""
    for rows in _INT8_ROWS:
        for epilogue in (NO_EPILOGUE, "light"):
            for m, (n, k) in product(rows, _INT8_LAYERS):
                yield Problem.of("int_mm", m, n, k, dtype=INT8, layout="nt", epilogue=epilogue)


_GROUPED_ROWS = (64, 256, 1024, 4096, 16384)
"""Tokens times experts of a token, together for all experts."""


class _Experts(NamedTuple):
    """Experts of a layer, the model's width, an expert's width, and how B is stored."""

    experts: int
    hidden: int
    intermediate: int
    layout: str = "nt"


_GROUPED_MODELS = {
    "Mixtral 8x7B": _Experts(8, 4096, 14336),
    "Qwen3-30B-A3B": _Experts(128, 2048, 768),
    "gpt-oss-20b": _Experts(32, 2880, 2880, "nn"),
    "DeepSeek-V2-Lite": _Experts(64, 2048, 1408),
    "OLMoE-1B-7B": _Experts(64, 2048, 1024),
    "Llama 4 Scout": _Experts(16, 5120, 8192, "nn"),
}
"""Their configurations as published."""


def grouped_problems() -> Iterator[Problem]:
    """60 problems in bfloat16, gate and up in one matmul and down, those of few rows first: there gains are largest."""
    for rows in _GROUPED_ROWS:
        for experts, hidden, intermediate, layout in _GROUPED_MODELS.values():
            for n, k in ((2 * intermediate, hidden), (hidden, intermediate)):
                yield Problem.of("grouped_mm", rows, n, k, dtype="bfloat16", layout=layout, b=experts)


HEAD_DIMS = (64, 128, 96, 256, 192)
"""Elements of a head, those of most models first."""

_LENGTHS = (4096, 1024, 8192, 2048, 512, 128, 32768)
_TOKENS = 16384
"""Queries of all batches together, where one sequence has fewer."""

_HEADS = 16
_LARGEST_BATCH = 16


def attention_problems() -> Iterator[Problem]:
    """Over 200 problems in bfloat16, the most common first."""
    yield from _forward(("causal",), _LENGTHS)
    yield from _forward(("computed", "captured"), _LENGTHS)
    for k, n in product(HEAD_DIMS, (8192, 1024, 32768)):
        yield _problem("flex_decoding", 1, n, k, "full", b=8, h=32, g=8)
        yield _problem("flex_decoding", 16, n, k, "full", b=1, h=32, g=4)
    yield from _backward(("causal", "captured"), (4096, 1024))
    yield from _forward(("full",), (2048, 512, 8192))
    yield from _forward(("causal-score-computed", "full-score-captured"), (2048, 512, 8192))
    yield from _backward(("computed",), (2048,))
    for length in (1024, 4096, 16384):  # heads of multi-head latent attention
        yield _problem("flex_attention", length, length, 192, "causal", h=32, v=128)
    for k in HEAD_DIMS:  # so few heads that a GPU has multiprocessors left
        yield _problem("flex_decoding", 1, 4096, k, "full", b=1, h=32, g=8)
        for length, variant in product((512, 2048), ("causal", "computed")):
            yield _problem("flex_attention", length, length, k, variant, h=8, g=_group(k))


def _forward(variants: tuple[str, ...], lengths: tuple[int, ...]) -> Iterator[Problem]:
    for length, k, variant in product(lengths, HEAD_DIMS, variants):
        yield _of_model("flex_attention", length, k, variant)


def _backward(variants: tuple[str, ...], lengths: tuple[int, ...]) -> Iterator[Problem]:
    for length, k, variant in product(lengths, HEAD_DIMS, variants):
        yield _of_model("flex_attention_backward", length, k, variant)


def _of_model(op: str, length: int, k: int, variant: str) -> Problem:
    """As many batches as make _TOKENS; heads of 128 elements and more share keys, as in language models."""
    batch = min(max(1, _TOKENS // length), _LARGEST_BATCH)
    return _problem(op, length, length, k, variant, b=batch, h=_HEADS, g=_group(k))


def _group(k: int) -> int:
    return 4 if k >= 128 else 1


def _problem(
    op: str, m: int, n: int, k: int, variant: str, *, b: int = 1, h: int = 1, g: int = 1, v: int | None = None
) -> Problem:
    return Problem.of(op, m, n, k, dtype="bfloat16", layout="nt", variant=variant, b=b, h=h, g=g, v=v)
