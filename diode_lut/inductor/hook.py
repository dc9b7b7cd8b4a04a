"""The choices handler: Inductor asks it for the choices of a matmul, and it answers from the tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from torch._inductor.utils import use_aten_gemm_kernels
from torch._inductor.virtualized import V

from diode_lut.domain.errors import MissError
from diode_lut.domain.ops import DOMAINS, NO_EPILOGUE, NO_VARIANT, SCALED
from diode_lut.domain.problem import Problem
from diode_lut.inductor.answer import CannotRun, answer, autotuning, in_force
from diode_lut.inductor.build_choice import build_choice
from diode_lut.inductor.choices import config_of, library_choice, offered
from diode_lut.inductor.concat import is_concatenated
from diode_lut.inductor.dispatch import Branches, branches, can_branch
from diode_lut.inductor.epilogue import may_be_followed
from diode_lut.inductor.fusion import with_epilogues
from diode_lut.inductor.names import UIDS
from diode_lut.inductor.padding import decide, followed
from diode_lut.inductor.problems import axes, problem_of_tensors
from diode_lut.inductor.snapshot import forget_what_was_taken_over, snapshot
from diode_lut.inductor.switch import OFF, cache_identity, follow, is_off, leave
from diode_lut.inductor.unfused import NOTHING
from diode_lut.inductor.versions import require_same_parameters, uuid_of
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.registry import pointer_gemm
from diode_lut.selection.selector import Decision

Choices = list[ChoiceCaller]

_SCALED_UID, *_ = UIDS[pointer_gemm(SCALED[0])][SCALED[0]]
"""Inductor's plain template for scaled_mm."""


class DiodeChoices(InductorChoices):
    """An InductorChoices that answers matmuls from the tables; everything else is left to its base class."""

    def uuid(self) -> tuple[Any, ...]:
        """What the answers depend on, for the keys of Inductor's caches."""
        return ("diode_lut", cache_identity(), uuid_of(super()))

    def __reduce__(self) -> tuple[Any, ...]:
        """The handler below, and what the compile sees: Inductor's compile workers get handlers by pickle."""
        identity = cache_identity()  # turns the hook off if it cannot be found out
        return _unpickled, (self._below, None if is_off() else snapshot(), OFF if is_off() else identity)

    _below: InductorChoices | None = None

    def get_template_configs(
        self,
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> Choices:
        """The choices for one matmul: those of a table or model that answers, else those of the base class."""

        def ask_base(some: list[Any]) -> Choices:
            return super(DiodeChoices, self).get_template_configs(kernel_inputs, some, op_name, kwarg_overrides)

        try:
            question = _Question(kernel_inputs, templates, op_name, ask_base, kwarg_overrides or {})
            choices = question.choices() if in_force() else None
        except MissError:
            raise  # as the setting strict has it
        except Exception as error:
            leave(op_name, error)
            choices = None
        return ask_base(templates) if choices is None else choices

    def get_flex_attention_fwd_configs(self, head_dim: int, dtype: Any, *more: Any, **named: Any) -> list[Any]:
        """The configs for the flex attention that is being lowered."""
        ask_base = super().get_flex_attention_fwd_configs
        return _flex("flex_attention", lambda: ask_base(head_dim, dtype, *more, **named))

    def get_flex_attention_bwd_configs(self, head_dim: int, dtype: Any, *more: Any, **named: Any) -> list[Any]:
        """Those for its gradients."""
        ask_base = super().get_flex_attention_bwd_configs
        return _flex("flex_attention_backward", lambda: ask_base(head_dim, dtype, *more, **named))

    def get_flex_decode_configs(self, head_dim: int, dtype: Any, *more: Any, **named: Any) -> list[Any]:
        """Those for one with few queries."""
        ask_base = super().get_flex_decode_configs
        return _flex("flex_decoding", lambda: ask_base(head_dim, dtype, *more, **named))


def _flex(op: str, ask_base: Callable[[], list[Any]]) -> list[Any]:
    """The configs of a table or model that answers, else those of the base class."""
    try:
        from diode_lut.inductor.attention import answer_attention

        configs = answer_attention(op, ask_base)
    except MissError:
        raise  # as the setting strict has it
    except Exception as error:
        leave(op, error)
        configs = None
    return ask_base() if configs is None else configs


_NATIVE = {getattr(torch.ops.aten, op).default: op for op in ("mm", "addmm", "bmm", "baddbmm")}

_native: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()
"""The nodes of each graph that were recorded: Inductor may look at one twice."""


def record_native() -> None:
    """Record the matmul that is being lowered, if it is one that tables know, and Inductor generates its kernel.

    That is so with Inductor's setting ``triton.native_matmul``. It asks nobody then.
    """
    node: Any = V.graph.current_node
    op = _NATIVE.get(node.target)
    recorded = _native.setdefault(V.graph, set())
    if op is None or node in recorded or not isinstance(V.choices, DiodeChoices) or not in_force():
        return
    recorded.add(node)
    *bias, a, b = (argument.meta["val"] for argument in node.args[: 3 if op.startswith(("add", "badd")) else 2])
    problem = problem_of_tensors(op, a, b, *bias)
    if problem is not None:
        snapshot().record_no_choice(problem, a.device, "the setting triton.native_matmul generates its kernel")


require_same_parameters(DiodeChoices.get_template_configs, InductorChoices.get_template_configs)


def on_top_of(handler: InductorChoices) -> DiodeChoices:
    """A handler that asks the tables first, then another library's handler, whose overrides all stay in force."""
    if isinstance(handler, DiodeChoices):
        return handler
    if type(handler) is InductorChoices:
        return DiodeChoices()
    kind = type("DiodeChoices", (DiodeChoices, type(handler)), {"_below": handler})
    composed: DiodeChoices = object.__new__(kind)
    vars(composed).update(vars(handler))
    return composed


def _unpickled(below: InductorChoices | None, taken: Any, identity: tuple[Hashable, ...]) -> DiodeChoices:
    """A handler like the one that was pickled; its snapshot has come into force already, by being unpickled."""
    if taken is None:
        forget_what_was_taken_over()
    follow(identity)
    return DiodeChoices() if below is None else on_top_of(below)


_answered = threading.local()
"""``inputs``: weak references to A and B of the addmm that this thread answered last."""


class _Question:
    """One question of Inductor's: which choices are there for this matmul?"""

    def __init__(
        self,
        inputs: Any,
        templates: list[Any],
        op: str,
        ask_base: Callable[[list[Any]], Choices],
        options: dict[str, dict[str, Any]],
    ) -> None:
        self.inputs, self.op, self.ask_base = inputs, op, ask_base
        self.templates, self.options = templates, options
        self._variant = NO_VARIANT

    def choices(self) -> Choices | None:
        """What answers the question, or None where Inductor should choose among its own."""
        if self.inputs.device_type == "cpu":
            return None  # there the filter answers, which sees the C++ template too
        if self.op == "addmm" and autotuning() and not self._first_question():
            return [] if self._answered_before() else None
        self._now = snapshot()
        decision, pad = decide(self._now, self.inputs, self.op, fast=self._accumulates_fast())
        if decision is not None:
            self._variant = decision.problem.variant
        self._branches = None if decision is None or pad != 1 else self._in_branches(decision)
        if self._branches is not None:
            choices: Choices | None = list(self._branches.triton[:1])
        else:
            choices = None if decision is None else answer(decision, self._build, pad)
        if decision is not None and DOMAINS[self.op].epilogues != (NO_EPILOGUE,):
            problem = followed(decision, pad, self.inputs, self.op)
            choices = choices if problem is None else self._with_epilogues(problem, choices)
        if self.op == "addmm":
            _answered.inputs = [ref(node) for node in self.inputs.mat1mat2()] if choices else []
        return choices

    def _accumulates_fast(self) -> bool | None:
        """Whether a scaled_mm accumulates fast; None if it is not one whose scales Inductor's plain template applies.

        Scales of blocks may have the shapes of others, but this template is not offered for them.
        """
        return self.options.get(_SCALED_UID, {}).get("USE_FAST_ACCUM")

    def _in_branches(self, decision: Decision) -> Branches | None:
        """A kernel for each part of a dynamic size's range; None where one kernel is as good, or all there can be."""
        if not decision.over or not self._is_single() or not can_branch():
            return None
        changing = axes(self.inputs, self.op)
        pieces = self._now.pieces(decision.problem, self.inputs.device(), changing, library=True)
        with suppress(CannotRun):
            found = branches(pieces, changing[0], self.inputs, self._build) if pieces else None
            for piece in pieces:
                self._now.record_fusion(piece.decision, piece.config)
            return found
        return None

    def _is_single(self) -> bool:
        """Whether Inductor gets one choice."""
        settings = self._now.settings
        return settings.policy == "pick" and settings.top_k == 1

    def _with_epilogues(self, problem: Problem, choices: Choices | None) -> Choices | None:
        """The choice that leaves the kernel to the scheduler, where pointwise work may be fused and one choice is left.

        Where Inductor benchmarks, it does so with the epilogues.
        """
        single = self._is_single()
        wanted = self._now.settings.epilogues and single and (choices is not None or not autotuning())
        alone = not wanted or not may_be_followed(V.graph.current_node)
        triton = single and choices is not None and isinstance(choices[0], TritonTemplateCaller)
        joined = triton and is_concatenated(V.graph.current_node)
        if alone and not joined and self._branches is None:
            if wanted:
                self._now.record_unfused(problem, self.inputs.device(), NOTHING)
            return choices
        choices = choices or self.ask_base(self.templates)
        if len(choices) == 1 and isinstance(choices[0], (ExternKernelCaller, TritonTemplateCaller)):
            with suppress(CannotRun):
                aten = choices[0] if config_of(choices[0]) == ATEN else self._aten()
                parts = choices[0], aten, problem, self.op, self.inputs, self._branches
                return [with_epilogues(*parts, alone=alone, concatenated=joined)]
        return choices

    def _first_question(self) -> bool:
        """Whether an addmm is decided now: Inductor may ask up to three times, for aten, contiguous and Triton.

        It is decided when aten is offered, or, where aten is not among the backends, when Triton is.
        """
        return bool(
            offered(self.templates, ATEN.template, self.op)
            or (not use_aten_gemm_kernels() and offered(self.templates, pointer_gemm(self.op), self.op))
        )

    def _answered_before(self) -> bool:
        nodes = self.inputs.mat1mat2()
        last = getattr(_answered, "inputs", [])
        return bool(last) and all(seen() is node for seen, node in zip(last, nodes, strict=True))

    def _build(self, config: Config) -> ChoiceCaller:
        if config == ATEN:
            return self._aten()
        return build_choice(config, self.inputs, self.op, variant=self._variant)

    def _aten(self) -> ChoiceCaller:
        return library_choice(self.templates, self.op, self.ask_base)
