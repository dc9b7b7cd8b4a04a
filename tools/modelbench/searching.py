"""Which Triton kernels max-autotune tries: Inductor's own, or those that tables have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch._inductor.lowering  # noqa: F401 (registers all templates)
from torch._inductor import config as inductor_config
from torch._inductor.template_heuristics.registry import get_template_heuristic
from torch._inductor.template_heuristics.triton import GemmConfig

from diode_lut.hook.versions import TEMPLATE_OF_UID
from diode_lut.measure.search_space import read_default_search_space

SPACES = ("known", "default", "exhaustive")
"""``known`` are the configs that sweeps of GEMMs found to matter, also for ops of which Inductor knows ten; the others
are Inductor's, of which the largest takes minutes for each GEMM."""

ARCH = "sm_90"
_OPS = {
    "triton::mm": ("mm", "addmm", "int_mm"),
    "triton::bmm": ("bmm",),
    "triton::mm_plus_mm": ("mm_plus_mm",),
    "triton::mm_persistent_tma": ("mm", "addmm"),
}
"""By Inductor's name of a template, its names of the ops that it searches for. Some share their configs."""


@contextmanager
def searching(space: str, template: str = "triton_mm") -> Iterator[None]:
    """What is compiled within it under max-autotune tries the kernels of one of SPACES.

    The ``known`` ones are those of our ``template``, for Inductor's template with tensor descriptors its own.
    """
    if space != "known":
        with inductor_config.patch(max_autotune_gemm_search_space=space.upper()):
            yield
        return
    with ExitStack() as stack:
        for uid, op in ((uid, op) for uid, ops in _OPS.items() for op in ops):
            heuristic: Any = get_template_heuristic(uid, "cuda", op)
            stack.callback(setattr, heuristic, "exhaustive_configs", heuristic.exhaustive_configs)
            own = TEMPLATE_OF_UID[uid] if uid.endswith("tma") else template
            heuristic.exhaustive_configs = _known(own, factor=2 if op == "int_mm" else 1)
        with inductor_config.patch(max_autotune_gemm_search_space="EXHAUSTIVE"):
            yield


def _known(template: str, factor: int) -> list[GemmConfig]:
    """As Inductor writes them; elements of half the size have blocks that are ``factor`` times as long."""
    configs = (config for config in read_default_search_space()[ARCH] if config.template == template)
    return [
        GemmConfig(
            tiles.block_m,
            tiles.block_n,
            tiles.block_k * factor,
            tiles.num_stages,
            tiles.num_warps,
            group_m=tiles.group_m,
        )
        for tiles in sorted(config.tiles for config in configs)
    ]
