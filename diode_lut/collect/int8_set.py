"""The named set of int8 problems: linear layers of language models whose weights and activations are quantized."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from diode_lut.domain.ops import INT8, NO_EPILOGUE
from diode_lut.domain.problem import Problem

_LAYERS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
)
"""N and K of Llama 3 8B and 70B: queries, keys and values; what follows attention; gate and up; down."""

_ROWS = ((32, 17, 64, 128), (512, 2048, 8192))
"""M: tokens of a batch, those whose kernels gain most first; PyTorch multiplies no fewer than 17 rows on a GPU."""


def int8_problems() -> Iterator[Problem]:
    """About 100 problems in blocks, each alone and with scales of rows and columns behind it, as models run them."""
    for rows in _ROWS:
        for epilogue in (NO_EPILOGUE, "light"):
            for m, (n, k) in product(rows, _LAYERS):
                yield Problem.of("int_mm", m, n, k, dtype=INT8, layout="nt", epilogue=epilogue)
