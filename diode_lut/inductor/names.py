"""What tables and datasets call things, and what Inductor, Triton and CUDA call them: templates and failures.

``uid`` is Inductor's identity of a kernel template (``KernelTemplate.uid``, ``ExternKernelChoice.uid``), the same in
all supported releases for everything named here.
"""

from __future__ import annotations

import re

from diode_lut.domain.errors import let_pass
from diode_lut.kernels.registry import TEMPLATES

_TRITON_KWARGS = {
    "block_m": "BLOCK_M",
    "block_n": "BLOCK_N",
    "block_k": "BLOCK_K",
    "group_m": "GROUP_M",
    "num_stages": "num_stages",
    "num_warps": "num_warps",
    "matrix_instr_nonkdim": "matrix_instr_nonkdim",
    "waves_per_eu": "waves_per_eu",
    "kpack": "kpack",
}

FLEX = ("triton_flex_attention", "triton_flex_attention_backward", "triton_flex_decoding")
"""The templates of attention: Inductor's configs for them have fields with our names of the tunables."""

KWARGS: dict[str, dict[str, str]] = {
    "aten": {},
    "triton_mm": _TRITON_KWARGS,
    "triton_bmm": _TRITON_KWARGS,
    "triton_mm_persistent_tma": _TRITON_KWARGS,
    "decompose_k": {"k_split": "k_split"},
    "triton_grouped_mm": {name: _TRITON_KWARGS[name] for name in TEMPLATES["triton_grouped_mm"].names},
    "cpp_gemm": {},
    "default": {},
    **{template: {name: name for name in TEMPLATES[template].names} for template in FLEX},
}
"""The keyword arguments that Inductor gives a template, by our names of the tunables."""

UIDS: dict[str, dict[str, tuple[str, ...]]] = {
    "aten": {
        "mm": ("aten::mm",),
        "addmm": ("aten::addmm", "aten::bias_addmm"),
        "bmm": ("aten::bmm",),
        "baddbmm": ("aten::baddbmm",),
        "scaled_mm": ("aten::_scaled_mm", "aten::_scaled_mm_v2"),
        "int_mm": ("aten::_int_mm",),
    },
    "triton_mm": dict.fromkeys(("mm", "addmm", "scaled_mm", "int_mm"), ("triton::mm",)),
    "triton_bmm": {"bmm": ("triton::bmm",), "baddbmm": ("triton::bmm",)},
    "triton_mm_persistent_tma": {
        "mm": ("triton::mm_persistent_tma",),
        "addmm": ("triton::mm_persistent_tma",),
        "scaled_mm": ("triton::scaled_mm_device_tma_epilogue_scaling",),
    },
    "decompose_k": {"mm": ("decompose_k",)},
    "cpp_gemm": {},
    **{template: {} for template in ("default", *FLEX, "triton_grouped_mm")},
}
"""The uids of a template for each op that it can compute; the first is the usual one.

``cpp_gemm`` has none: Inductor adds its C++ choices outside the choices handler, so they are in TEMPLATE_OF_CLASS.
Neither has attention, where the handler is asked for configs, nor a grouped matmul, where it is asked for nothing.
"""

TEMPLATE_OF_UID: dict[str, str] = {
    uid: template for template, uids_of_op in UIDS.items() for uids in uids_of_op.values() for uid in uids
}
"""Our name of the template behind a uid."""

TEMPLATE_OF_CLASS = {"CppGemmTemplate": "cpp_gemm", "CppBmmTemplate": "cpp_gemm"}
"""Our name of the template behind a choice that has no uid, by Inductor's class."""

TEMPLATES_OF_CHOICES = {
    "decompose_k": re.compile(r"decompose_k_mm_(?P<k_split>\d+)_split\b"),
    "cpp_gemm": re.compile("CppMicroGemm"),
}
"""How the names of choices begin in Inductor's cache, by template, with tunables as groups.

Triton's choices say there where their sources are.
"""

_REASONS = {
    "out of resource: shared memory": "shared_memory",
    "out of memory": "out_of_memory",
    "can't allocate memory": "out_of_memory",
    "timed out": "timeout",
}
"""Part of a message of Triton, CUDA or PyTorch: the reason. The messages arrive wrapped in various errors."""


def failure_reason(error: Exception, stage: str) -> str:
    """The reason, one of ``dataset.REASONS``, that ``error`` stands for.

    ``stage`` is what was going on, ``compile`` or ``launch``, and the answer where the error says nothing better. What
    a signal handler has raised is no failure of the choice, and is raised again.
    """
    let_pass(error)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, AssertionError) and stage == "launch":  # raised by Inductor's own check of results
        return "wrong_result"
    text = str(error).lower()
    return next((reason for part, reason in _REASONS.items() if part in text), stage)
