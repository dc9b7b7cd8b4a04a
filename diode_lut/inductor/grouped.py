"""Grouped matmuls: Inductor asks no choices handler about them, so tables answer when it shows its list of choices.

In its default mode that is the library alone. Under max-autotune its own kernels are on the list as well, generated but
not compiled yet. Where a table answers, its choices take the place of the list.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._inductor import ir
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.ir import ChoiceCaller
from torch._inductor.kernel import mm_grouped
from torch._inductor.runtime.triton_compat import tl
from torch._inductor.select_algorithm import ExternKernelCaller
from torch._inductor.utils import get_num_sms, sympy_product
from torch._inductor.virtualized import V

from diode_lut.domain.errors import ProblemError
from diode_lut.domain.hardware import detect_hardware
from diode_lut.domain.operands import Operand, problem_of
from diode_lut.domain.ops import GROUPED, letters
from diode_lut.domain.problem import Problem
from diode_lut.inductor.answer import CannotRun, answer
from diode_lut.inductor.build_choice import require_templates, shared_memory_of
from diode_lut.inductor.hook import DiodeChoices
from diode_lut.inductor.layouts import fix_layout
from diode_lut.inductor.names import KWARGS
from diode_lut.inductor.problems import SIZES_CHANGE, dtype_of, hint, is_plain, stays_aligned
from diode_lut.inductor.snapshot import snapshot
from diode_lut.inductor.tma import with_memory_in_any_thread
from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.config import ATEN, Config

_OP = torch.ops.aten._grouped_mm.default


class Grouped(NamedTuple):
    """A grouped matmul in a graph: its problem, its operands A and B, the ends of its groups, and its result.

    ``changes`` says whether a size may change, of which the problem has hints.
    """

    problem: Problem
    a: Any
    b: Any
    offsets: Any
    layout: ir.Layout
    changes: bool

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        device: torch.device = self.a.get_device()
        return device


def answer_grouped(choices: list[ChoiceCaller]) -> list[ChoiceCaller] | None:
    """The choices for the grouped matmul that is being lowered; None if it is none, or Inductor should choose.

    Inductor chooses where a size may change, and that is recorded.

    ``choices`` are Inductor's. Only the hook's handler answers: another one is set where tables are not to be asked.
    """
    asked = grouped_of(choices) if isinstance(V.choices, DiodeChoices) else None
    if asked is None:
        return None
    if asked.changes:
        snapshot().record_no_choice(asked.problem, asked.device, SIZES_CHANGE)
        return None
    decision = snapshot().decide(asked.problem, asked.device, padding=False)
    return answer(decision, lambda config: build_grouped(config, asked, choices))


def build_grouped(config: Config, asked: Grouped, choices: list[ChoiceCaller]) -> ChoiceCaller:
    """The choice of ``config``; of Inductor's ``choices`` for the library. CannotRun where it cannot run."""
    if config == ATEN:
        library = next((choice for choice in choices if isinstance(choice, ExternKernelCaller)), None)
        if library is None:
            raise CannotRun("Inductor does not offer the library here")
        return library
    if asked.problem.op not in config.kernel.ops:
        raise CannotRun(f"{config.template} is not for {asked.problem.op}")
    _require_kernel(asked)
    _require_room(config, asked)
    return _triton(config, asked)


def grouped_of(choices: list[ChoiceCaller]) -> Grouped | None:
    """The grouped matmul that Inductor's ``choices`` compute; None if tables have no such problems.

    That is so if A has groups or B has none, as in gradients of weights, or if types differ.
    """
    if getattr(V.graph.current_node, "target", None) is not _OP or not choices or len(choices[0].input_nodes) != 3:
        return None
    (a, b, offsets), layout = choices[0].input_nodes, choices[0].layout
    numbers = (*a.get_size(), *a.get_stride(), *b.get_size(), *b.get_stride(), *offsets.get_size())
    if a.get_device_or_error().type != "cuda":
        return None
    dtype = dtype_of({a.get_dtype(), b.get_dtype(), layout.dtype}, "cuda")
    first, second = (Operand(tuple(map(hint, x.get_size())), tuple(map(hint, x.get_stride()))) for x in (a, b))
    try:
        problem = problem_of(GROUPED[0], str(dtype), first, second)
    except ProblemError:
        return None
    aligned = problem if all(map(stays_aligned, (a, b))) else problem._replace(align=2)
    return Grouped(aligned, a, b, offsets, layout, changes=not is_plain(numbers))


def _require_kernel(asked: Grouped) -> None:
    """CannotRun unless Inductor allows the kernel, and tensor descriptors can describe the operands."""
    require_templates(asked.layout)
    if V.graph.aot_mode or V.graph.cpp_wrapper:
        # That of torch 2.11 has the memory for the descriptors of one program, and all programs write theirs.
        raise CannotRun("C++ wrappers may have too little memory for its tensor descriptors")
    if not _descriptors():
        raise CannotRun("this release of Triton has no tensor descriptors")
    if asked.problem.align != 16:
        raise CannotRun("tensor descriptors need rows that start on 16-byte boundaries")
    if not _apart(asked.a) or not _apart(asked.b):
        raise CannotRun("rows share memory")
    result = ir.Buffer(name="result", layout=asked.layout)
    operands = [asked.a, asked.b, result]
    if not SIMDScheduling.can_use_32bit_indexing(sympy_product(result.get_size()), operands):
        raise CannotRun("a matrix has more elements than this template can index")


def _apart(node: Any) -> bool:
    """Whether no two rows (columns, where column-major) of any group share memory, and lines have unit stride."""
    numbers = sorted(zip(node.get_stride(), node.get_size(), strict=True))
    needed = 1
    for stride, size in numbers:
        if size != 1 and stride < needed:
            return False
        needed = max(needed, stride * size)
    return bool(numbers[0][0] == 1)


def _require_room(config: Config, asked: Grouped) -> None:
    """CannotRun if there is no such kernel for the device, or the device has too little for it."""
    device = architecture(detect_hardware(asked.device).arch)
    if not config.kernel.runs_on(device):
        raise CannotRun(f"there is no {config.template} for {device.name}")
    for complaint in config.kernel.faults_on(asked.problem, config.params, device, shared_memory_of(asked.device)):
        raise CannotRun(complaint.reason)


def _triton(config: Config, asked: Grouped) -> ChoiceCaller:
    nodes = [asked.a, asked.b, asked.offsets]
    for node in nodes:
        fix_layout(node)
    _, letter_b = letters(asked.problem.layout)
    tunables = {KWARGS[config.template][name]: value for name, value in config.tunables.items()}
    made: list[ChoiceCaller] = []
    mm_grouped.triton_grouped_mm_template.maybe_append_choice(
        made,
        input_nodes=nodes,
        layout=asked.layout,
        SCALED=False,
        A_IS_2D=True,
        B_IS_2D=False,
        A_IS_K_MAJOR=True,
        B_IS_K_MAJOR=letter_b == "t",
        USE_FAST_ACCUM=False,
        NUM_SMS=get_num_sms(),
        USE_TMA_LOAD=True,
        USE_EXPERIMENTAL_MAKE_TENSOR_DESCRIPTOR=_descriptors() == _EXPERIMENTAL,
        **tunables,
    )
    if not made:
        raise CannotRun("Inductor makes no kernel of it")
    return with_memory_in_any_thread(made[0])


_EXPERIMENTAL = "_experimental_make_tensor_descriptor"


def _descriptors() -> str:
    """What makes tensor descriptors in this release of Triton, by the name that Inductor prefers; empty if nothing."""
    names = (_EXPERIMENTAL, "make_tensor_descriptor")
    return next((name for name in names if hasattr(tl, name)), "")
