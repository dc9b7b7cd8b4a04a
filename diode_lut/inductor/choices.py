"""What Inductor's choices are, as tables have it: the config of each, and the problem that a list of them computes.

The problem is read off the choices themselves, because some matmuls never pass a choices handler: on the CPU, one with
frozen weights becomes a "packed linear" of MKL or oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor.ir import ChoiceCaller, FixedLayout, ReinterpretView
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import permute
from torch._inductor.select_algorithm import ExternKernelCaller, realize_inputs

from diode_lut.domain.errors import ProblemError
from diode_lut.domain.problem import Problem
from diode_lut.inductor.answer import CannotRun
from diode_lut.inductor.names import KWARGS, TEMPLATE_OF_CLASS, TEMPLATE_OF_UID, UIDS
from diode_lut.inductor.problems import axes, problem_of
from diode_lut.kernels.config import ATEN, Config
from diode_lut.selection.samples import Axis

MKL_LINEAR, ONEDNN_LINEAR = "_mkl_linear", "_linear_pointwise"
"""Inductor's names of the library calls for a matmul with a frozen weight."""

_OP_OF_UID = {uid: op for op, uids in UIDS[ATEN.template].items() for uid in uids}


def config_of(choice: ChoiceCaller) -> Config | None:
    """The config that ``choice`` runs, or None if no config can express it.

    That is so for CUTLASS, Composable Kernel, ``contiguous_mm``, Blackwell's and other templates that are not in
    ``TEMPLATES``, and for values of tunables that a config cannot have.
    """
    ktc = choice.annotations.get("ktc")
    if ktc is not None:
        return _from_params(ktc.template.uid, ktc.params.to_kwargs())
    # The C++ choices come inside a wrapper that passes attributes on, so their own class cannot be asked for. The
    # subclasses of their template are other ops (grouped, quantised).
    template = TEMPLATE_OF_CLASS.get(type(getattr(choice, "template", None)).__name__)
    if template is not None:
        return Config(template)
    return ATEN if is_packed_linear(choice) else None


def is_packed_linear(choice: ChoiceCaller) -> bool:
    """Whether ``choice`` is what a matmul with a frozen weight is on the CPU: a call of MKL or oneDNN.

    oneDNN's binary form, which adds another matrix, has no scalars among its arguments.
    """
    return isinstance(choice, ExternKernelCaller) and (
        choice.name == MKL_LINEAR or (choice.name == ONEDNN_LINEAR and "scalars" in choice.kwargs)
    )


def _from_params(uid: str, kwargs: dict[str, Any]) -> Config | None:
    template = TEMPLATE_OF_UID.get(uid)
    if template is None:
        return None
    values = {name: int(kwargs[kwarg]) for name, kwarg in KWARGS[template].items() if kwargs.get(kwarg) is not None}
    try:
        return Config.from_json({"template": template, **values})
    except ProblemError:
        return None


def problem_of_aten(aten: ChoiceCaller) -> tuple[Problem | None, tuple[Axis, ...]]:
    """The problem that the library's choice computes, and which of its sizes may change.

    The problem is None if tables have no such problems.
    """
    ktc = aten.annotations.get("ktc")
    if ktc is not None:
        op = _OP_OF_UID[ktc.template.uid]
        problem = problem_of(ktc.inputs, op, fast=ktc.params.to_kwargs().get("use_fast_accum"))
        return problem, () if problem is None else axes(ktc.inputs, op)
    return _linear_problem(aten)


def _linear_problem(aten: ChoiceCaller) -> tuple[Problem | None, tuple[Axis, ...]]:
    """That of a packed linear: x (M, K) times a frozen weight (N, K); a bias is in oneDNN's form only.

    oneDNN's weight has no strides to read any more. It counts as column-major, as ``nn.Linear`` has it.
    """
    x, *others = aten.input_nodes
    x = realize_inputs(x)  # type: ignore[no-untyped-call]  # it may still be what computes it, without strides
    if aten.name == MKL_LINEAR:
        inputs = MMKernelInputs([x, permute(others[-1], [1, 0])])
        problem = problem_of(inputs, "mm")
        return problem, () if problem is None else axes(inputs, "mm")
    n, k = others[0].get_size()
    layout = FixedLayout(x.get_device_or_error(), others[0].get_dtype(), [k, n], [1, k])
    weight = ReinterpretView(data=others[0], layout=layout)
    inputs = MMKernelInputs([x, weight])
    problem = problem_of(inputs, "mm")
    if problem is None:
        return None, ()
    return problem if len(others) == 1 else problem._replace(op="addmm"), axes(inputs, "mm")


def aten_of(choices: list[ChoiceCaller]) -> ChoiceCaller | None:
    """The choice that calls a library, as PyTorch does without Inductor: cuBLAS, MKL, oneDNN."""
    return next((choice for choice in choices if config_of(choice) == ATEN), None)


def offered(templates: Sequence[Any], name: str, op: str) -> list[Any]:
    """Those of Inductor's ``templates`` that are our template ``name`` for an op."""
    uids = UIDS[name].get(op, ())
    return [template for template in templates if template.uid in uids]


def library_choice(templates: Sequence[Any], op: str, ask: Callable[[list[Any]], list[ChoiceCaller]]) -> ChoiceCaller:
    """The library's choice for an op, or CannotRun; ``ask`` makes the choices of some of Inductor's ``templates``.

    Of addmm's two choices it is the one that keeps the bias a vector, for cuBLASLt's bias epilogue.
    """
    library = offered(templates, ATEN.template, op)
    choices = ask(library) if library else []
    if not choices:
        raise CannotRun("Inductor does not offer the library here")
    return next((choice for choice in choices if choice.name == "bias_addmm"), choices[0])
