"""The choices handler: Inductor asks it for candidates, it answers from the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from inspect import signature
from typing import Any
from weakref import ref

from torch._inductor.choices import InductorChoices
from torch._inductor.ir import ChoiceCaller
from torch._inductor.utils import use_aten_gemm_kernels

from diode_lut.domain.errors import MissError
from diode_lut.inductor.answer import CannotRun, answer, autotuning, in_force
from diode_lut.inductor.callers import caller_of
from diode_lut.inductor.install import cache_identity
from diode_lut.inductor.problems import problem_of
from diode_lut.inductor.snapshot import snapshot
from diode_lut.inductor.switch import is_off, leave
from diode_lut.inductor.templates import UIDS
from diode_lut.kernels.config import ATEN, Config

Callers = list[ChoiceCaller]


class DiodeChoices(InductorChoices):
    """An InductorChoices whose matrix products come from the tables; everything else it leaves to its base class."""

    def uuid(self) -> tuple[Any, ...]:
        """What the answers depend on, for the keys of Inductor's caches."""
        base = getattr(super(), "uuid", None)
        return ("diode_lut", cache_identity(), base() if base else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """What it stands on, and what the compile sees: Inductor's compile workers get handlers by pickle."""
        cache_identity()  # if that cannot be told, the hook is off
        return _unpickled, (self._below, None if is_off() else snapshot())

    _below: InductorChoices | None = None

    def get_template_configs(
        self,
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> Callers:
        """The candidates for one product: the table's where it answers, else those of the base class."""

        def ask_base(offered: list[Any]) -> Callers:
            return super(DiodeChoices, self).get_template_configs(kernel_inputs, offered, op_name, kwarg_overrides)

        try:
            callers = _Product(kernel_inputs, templates, op_name, ask_base).callers() if in_force() else None
        except MissError:
            raise  # as the setting strict has it
        except Exception as error:
            leave(op_name, error)
            callers = None
        return ask_base(templates) if callers is None else callers


_OURS, _THEIRS = (list(signature(each.get_template_configs).parameters) for each in (DiodeChoices, InductorChoices))
if _OURS != _THEIRS:
    raise ImportError(f"InductorChoices.get_template_configs: expected the parameters {_OURS}, found {_THEIRS}")


def on_top_of(handler: InductorChoices) -> DiodeChoices:
    """The tables first, then another library's handler: all that this one overrides stays in force."""
    if isinstance(handler, DiodeChoices):
        return handler
    if type(handler) is InductorChoices:
        return DiodeChoices()
    kind = type("DiodeChoices", (DiodeChoices, type(handler)), {"_below": handler})
    composed: DiodeChoices = object.__new__(kind)
    vars(composed).update(vars(handler))
    return composed


def _unpickled(below: InductorChoices | None, _snapshot: Any) -> DiodeChoices:
    """A handler like the one that was pickled; its snapshot has come into force when it was unpickled, if it does."""
    return DiodeChoices() if below is None else on_top_of(below)


_answered = threading.local()
"""``inputs``: weak references to A and B of the addmm that this thread answered last."""


class _Product:
    """One question of Inductor's: which candidates for this product?"""

    def __init__(self, inputs: Any, templates: list[Any], op: str, ask_base: Callable[[list[Any]], Callers]) -> None:
        self.inputs, self.op, self.ask_base = inputs, op, ask_base
        self.templates = templates

    def callers(self) -> Callers | None:
        """The table's candidates, or None where Inductor should choose."""
        if self.inputs.device_type == "cpu":
            return None  # there the filter decides, which sees the C++ template too
        if self.op == "addmm" and autotuning() and not self._first_question():
            return [] if self._answered_before() else None
        problem = problem_of(self.inputs, self.op)
        decision = None if problem is None else snapshot().decide(problem, self.inputs.device())
        callers = None if decision is None else answer(decision, self._build)
        if self.op == "addmm":
            _answered.inputs = [ref(node) for node in self.inputs.mat1mat2()] if callers else []
        return callers

    def _first_question(self) -> bool:
        """Whether an addmm is decided now: torch 2.13 asks up to three times, for aten, contiguous and Triton.

        That is when aten is offered, and where aten is no backend, when Triton is.
        """
        return bool(self._offered("aten") or (not use_aten_gemm_kernels() and self._offered("triton_mm")))

    def _offered(self, template: str) -> list[Any]:
        """Inductor's templates for ours among those of the question."""
        uids = UIDS[template].get(self.op, ())
        return [offered for offered in self.templates if offered.uid in uids]

    def _answered_before(self) -> bool:
        nodes = self.inputs.mat1mat2()
        last = getattr(_answered, "inputs", [])
        return bool(last) and all(seen() is node for seen, node in zip(last, nodes, strict=True))

    def _build(self, candidate: Config) -> ChoiceCaller:
        if candidate == ATEN:
            return self._aten()
        return caller_of(candidate, self.inputs, self.op)

    def _aten(self) -> ChoiceCaller:
        """Aten's caller; of addmm's two, the one that keeps the bias a vector, which cuBLASLt adds on the way."""
        offered = self._offered("aten")
        callers = self.ask_base(offered) if offered else []
        if not callers:
            raise CannotRun("Inductor does not offer the library here")
        return next((caller for caller in callers if caller.name == "bias_addmm"), callers[0])
