"""All differences between the supported releases of PyTorch. Other modules read as for one release.

Importing this module imports nothing of PyTorch. These are the differences, with their remedies:

- torch 2.11 keys Inductor's caches by the pickle of the factory of choices handlers, and its repro scripts name the
  factory by its ``__name__``. Later releases copy the factory for each thread, and key the caches by its handlers'
  ``uuid()``. The factory in ``patches`` serves both.
- Since torch 2.13, configuration is kept per thread: ``set_choices_factory``.
- Since torch 2.13, Inductor asks its handler up to three times about one ``addmm``, before then once. ``handler``
  answers when the library is offered, in all releases.
- Since torch 2.15, handlers are also told the length when they are asked for configs of flex attention. ``handler``
  passes on all arguments, and ``attention`` reads the problem off the graph.
- Since torch 2.15, template heuristics are in another package. Their earlier name still works, and is used here.
- Not every release has all settings: ``choices`` takes a missing setting for one that is off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

from diode_lut.errors import let_pass
from diode_lut.templates.config import TEMPLATES
from diode_lut.templates.template import PAD

OLDEST, NEWEST = (2, 11), (2, 15)  # the releases of PyTorch the hook was made for


def release() -> tuple[int, int]:
    """Return the release of PyTorch: its first two numbers."""
    import torch

    major, minor, *_ = re.findall(r"\d+", torch.__version__)
    return int(major), int(minor)


def set_choices_factory(config: Any, factory: Callable[[], Any]) -> None:
    """Make ``factory`` the factory of all threads, given ``torch._inductor.config``. New threads read the default."""
    config._config["inductor_choices_class"].default = factory
    config.inductor_choices_class = factory


def uuid_of(handler: Any) -> Any:
    """Return the key of another library's choices handler in Inductor's caches. None if it has none, as in 2.11."""
    uuid = getattr(handler, "uuid", None)
    return uuid() if uuid else None


def require_same_parameters(ours: Callable[..., Any], inductors: Callable[..., Any]) -> None:
    """Raise ImportError unless Inductor's function has the parameters of ours, as in every supported release."""
    known, found = (list(signature(method).parameters) for method in (ours, inductors))
    if known != found:
        raise ImportError(f"{inductors.__qualname__}: expected the parameters {known}, found {found}")


def hint_of(size: Any) -> int | None:
    """Return the value of a size, or the first value of a dynamic size. None if it has no first value."""
    from torch import SymInt
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if not isinstance(size, SymInt):
        return int(size)
    return None if free_unbacked_symbols(size) else size.node.hint


@cache
def splits_large_batches() -> bool:
    """Return whether ``triton::bmm`` spreads a large batch over two dimensions of the grid, unlike in torch 2.11."""
    from torch._inductor.kernel import bmm

    return hasattr(bmm, "get_max_y_grid")


indexes_in_64_bits = cpp_wrappers_have_scratch = subgraphs_keep_sizes_dynamic = cache(lambda: release() >= (2, 13))
"""Three changes of torch 2.13: templates compute indices along K in 64 bits for large matrices; C++ wrappers give every
program of a kernel memory for tensor descriptors; graphs as choices leave sizes dynamic, whose hints were constants."""


FLEX = ("triton_flex_attention", "triton_flex_attention_backward", "triton_flex_decoding")
"""The templates of attention: Inductor's configs for them have fields with our names of the tunables."""

KEEPS_R = {"looped_reduction": False, "persistent_reduction": True}  # whether a reduction's template is persistent

FORMS = {
    "POINTWISE": "pointwise",
    **{"PERSISTENT_REDUCTION" if keeps else "REDUCTION": template for template, keeps in KEEPS_R.items()},
}
"""The templates of generated kernels, by names of HeuristicType. Kernels with a fixed config are of type FIXED."""
FIXED = "FIXED"

_KWARGS = {
    **{name: name.upper() for name in ("block_m", "block_n", "block_k", "group_m")},
    "block_x": "XBLOCK",
    "block_y": "YBLOCK",
    "block_r": "R0_BLOCK",
}
"""Inductor's names of tunables that are not ours."""

KWARGS: dict[str, dict[str, str]] = {
    template: {
        name: name if template in (*FLEX, "quack_gemm") else _KWARGS.get(name, name)
        for name in kernel.names
        if name != PAD.name
    }
    for template, kernel in TEMPLATES.items()
}
"""Inductor's keyword arguments for each template, by our names of the tunables."""

UIDS: dict[str, dict[str, tuple[str, ...]]] = {
    **{template: {} for template in TEMPLATES},
    "aten": {
        "mm": ("aten::mm",),
        "addmm": ("aten::addmm", "aten::bias_addmm"),
        "bmm": ("aten::bmm",),
        "baddbmm": ("aten::baddbmm",),
        "scaled_mm": ("aten::_scaled_mm", "aten::_scaled_mm_v2"),
        "int_mm": ("aten::_int_mm",),
    },
    "triton_mm": dict.fromkeys(("mm", "addmm", "scaled_mm", "int_mm"), ("triton::mm",)),
    "triton_bmm": dict.fromkeys(("bmm", "baddbmm"), ("triton::bmm",)),
    "triton_mm_persistent_tma": {
        **dict.fromkeys(("mm", "addmm"), ("triton::mm_persistent_tma",)),
        "scaled_mm": ("triton::scaled_mm_device_tma_epilogue_scaling",),
    },
    "decompose_k": {"mm": ("decompose_k",)},
    "triton_few_rows": dict.fromkeys(("mm", "addmm"), ("triton::diode_lut_few_rows",)),
}
"""The uids of a template for each op that it can compute. The first is the usual uid.

``cpp_gemm`` has none: Inductor adds its C++ choices outside the choices handler, so they are in TEMPLATE_OF_CLASS.
Attention has none, because Inductor asks the handler for configs, nor have generated kernels, because it asks for
arguments. It does not ask about grouped matmuls. Matmuls are joined before it asks.
"""

TEMPLATE_OF_UID: dict[str, str] = {
    uid: template for template, uids_of_op in UIDS.items() for uids in uids_of_op.values() for uid in uids
}
"""Our name of a template, by uid."""

TEMPLATE_OF_CLASS = {"CppGemmTemplate": "cpp_gemm", "CppBmmTemplate": "cpp_gemm"}  # for choices without uid

TEMPLATES_OF_CHOICES = {
    "decompose_k": re.compile(r"decompose_k_mm_(?P<k_split>\d+)_split\b"),
    "cpp_gemm": re.compile("CppMicroGemm"),
}
"""Patterns for the beginnings of names of choices in Inductor's cache, by template. Groups are tunables.

There, the names of Triton's choices are the places of their sources.
"""

_REASONS = {
    "out of resource: shared memory": "shared_memory",
    "out of memory": "out_of_memory",
    "can't allocate memory": "out_of_memory",
    "timed out": "timeout",
}
"""The reason for a failure, by a part of a message of Triton, CUDA or PyTorch. Messages arrive wrapped in various
errors."""


def failure_reason(error: Exception, stage: str) -> str:
    """Return the reason, of ``dataset.REASONS``, for an error.

    ``stage`` is ``compile`` or ``launch``, and the answer if the error says nothing better. Errors from
    signal handlers are raised again, because the choice has not failed.
    """
    let_pass(error)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, AssertionError) and stage == "launch":  # raised by Inductor's own check of results
        return "wrong_result"
    text = str(error).lower()
    return next((reason for part, reason in _REASONS.items() if part in text), stage)
