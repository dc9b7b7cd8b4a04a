"""The named set of grouped matmuls: the experts of public models, for few tokens and for many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diode_lut.domain.problem import Problem

_ROWS = (64, 256, 1024, 4096, 16384)
"""Tokens times experts of a token, together for all experts."""


class _Model(NamedTuple):
    """Experts of a layer, the model's width, an expert's width, and how B is stored."""

    experts: int
    hidden: int
    intermediate: int
    layout: str = "nt"


_MODELS = {
    "Mixtral 8x7B": _Model(8, 4096, 14336),
    "Qwen3-30B-A3B": _Model(128, 2048, 768),
    "gpt-oss-20b": _Model(32, 2880, 2880, "nn"),
    "DeepSeek-V2-Lite": _Model(64, 2048, 1408),
    "OLMoE-1B-7B": _Model(64, 2048, 1024),
    "Llama 4 Scout": _Model(16, 5120, 8192, "nn"),
}
"""Their configurations as published."""


def grouped_problems() -> Iterator[Problem]:
    """60 problems in bfloat16, gate and up in one matmul and down, those of few rows first: there gains are largest."""
    for rows in _ROWS:
        for experts, hidden, intermediate, layout in _MODELS.values():
            for n, k in ((2 * intermediate, hidden), (hidden, intermediate)):
                yield Problem.of("grouped_mm", rows, n, k, dtype="bfloat16", layout=layout, b=experts)
