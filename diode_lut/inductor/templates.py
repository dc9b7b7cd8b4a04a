"""Our template names against what Inductor calls the same things: the one place that knows both.

``uid`` is Inductor's identity of a kernel template (``KernelTemplate.uid``, ``ExternKernelChoice.uid``), the same in
torch 2.11, 2.13 and 2.15 for everything named here.
"""

from __future__ import annotations

_TRITON_KWARGS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps")

KWARGS: dict[str, tuple[str, ...]] = {
    "aten": (),
    "triton_mm": _TRITON_KWARGS,
    "triton_bmm": _TRITON_KWARGS,
    "triton_mm_persistent_tma": _TRITON_KWARGS,
    "decompose_k": ("k_split",),
    "cpp_gemm": (),
}
"""The keyword arguments that Inductor gives a template, in the order of ``Config.params``."""

UIDS: dict[str, dict[str, tuple[str, ...]]] = {
    "aten": {
        "mm": ("aten::mm",),
        "addmm": ("aten::addmm", "aten::bias_addmm"),
        "bmm": ("aten::bmm",),
        "baddbmm": ("aten::baddbmm",),
    },
    "triton_mm": {"mm": ("triton::mm",), "addmm": ("triton::mm",)},
    "triton_bmm": {"bmm": ("triton::bmm",), "baddbmm": ("triton::bmm",)},
    "triton_mm_persistent_tma": {"mm": ("triton::mm_persistent_tma",), "addmm": ("triton::mm_persistent_tma",)},
    "decompose_k": {"mm": ("decompose_k",)},
    "cpp_gemm": {},
}
"""The uids that stand for a template, for each op that it can compute; the first is the usual one.

``cpp_gemm`` has none: Inductor adds its C++ callers outside the choices hook, so they are known by their class.
"""

TEMPLATE_OF_UID: dict[str, str] = {
    uid: template for template, uids_of_op in UIDS.items() for uids in uids_of_op.values() for uid in uids
}
"""Our name of the template behind a uid."""
