"""Which Triton kernels max-autotune tries: Inductor's own, or those that tables have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch._inductor.lowering  # noqa: F401 (registers all templates)
from torch._inductor import config as inductor_config
from torch._inductor.template_heuristics.registry import get_template_heuristic
from torch._inductor.template_heuristics.triton import GemmConfig

from diode_lut.collect.search_space import read_default_search_space

SPACES = ("known", "default", "exhaustive")
"""``known`` are the configs that sweeps of GEMMs found to matter, also for ops of which Inductor knows ten; the others
are Inductor's, of which the largest takes minutes for each GEMM."""

ARCH = "sm_90"
_PLAIN = {"triton::mm": ("mm", "addmm", "int_mm"), "triton::bmm": ("bmm",), "triton::mm_plus_mm": ("mm_plus_mm",)}
_SEARCHED: tuple[tuple[tuple[str, ...], dict[str, tuple[str, ...]]], ...] = (
    (("triton_mm", "triton_bmm"), _PLAIN),
    (("triton_mm_persistent_tma",), {"triton::mm_persistent_tma": ("mm", "addmm")}),
)
"""Our names of templates, and Inductor's of those that search the configs of these, with its names of ops.

Inductor has the same configs for ``mm`` and ``bmm``.
"""


@contextmanager
def searching(space: str) -> Iterator[None]:
    """What is compiled within it under max-autotune tries the kernels of one of SPACES."""
    if space != "known":
        with inductor_config.patch(max_autotune_gemm_search_space=space.upper()):
            yield
        return
    with ExitStack() as stack:
        for templates, uids in _SEARCHED:
            for uid, op in ((uid, op) for uid, ops in uids.items() for op in ops):
                heuristic: Any = get_template_heuristic(uid, "cuda", op)
                stack.callback(setattr, heuristic, "exhaustive_configs", heuristic.exhaustive_configs)
                heuristic.exhaustive_configs = _known(templates, factor=2 if op == "int_mm" else 1)
        with inductor_config.patch(max_autotune_gemm_search_space="EXHAUSTIVE"):
            yield


def _known(templates: Sequence[str], factor: int) -> list[GemmConfig]:
    """As Inductor writes them; elements of half the size have blocks that are ``factor`` times as long."""
    configs = (config for config in read_default_search_space()[ARCH] if config.template in templates)
    return [
        GemmConfig(
            tiles.block_m,
            tiles.block_n,
            tiles.block_k * factor,
            tiles.num_stages,
            tiles.num_warps,
            group_m=tiles.group_m,
        )
        for tiles in sorted({config.tiles for config in configs})
    ]
