"""Padding: whether Inductor pads the operands of a matmul, and which kernel then multiplies the padded ones.

Inductor decides on padding in its ``pad_mm`` pass, by a benchmark, long before it asks for kernels. Here a table or a
model decides instead: the operands are padded if the first config that can run has a ``pad``. Inductor asks later for
the kernel of the padded matmul. That is recognized by the nodes that pad its operands, and runs the config that had
them padded. Only the graph is looked at, not what was decided before: two compiles of the same graph decide alike, and
may share an entry of Inductor's cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, ref

import torch
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from torch._inductor.utils import use_aten_gemm_kernels
from torch._inductor.virtualized import V
from torch.fx import Node

from diode_lut.decide.dynamic import Axis
from diode_lut.decide.selector import Decision
from diode_lut.errors import MissError
from diode_lut.hook.answer import Branches, CannotRun, answer, autotuning, branches, can_branch, in_force, is_big_enough
from diode_lut.hook.choices import build_choice
from diode_lut.hook.epilogues import NOTHING, is_concatenated, with_epilogues
from diode_lut.hook.problems import (
    asked_about,
    axes,
    config_of,
    library_choice,
    may_be_followed,
    offered,
    problem_of,
    problem_of_tensors,
    why_left,
)
from diode_lut.hook.snapshot import InductorSnapshot, axes_of_tensors, forget_what_was_taken_over, snapshot
from diode_lut.hook.switch import OFF, cache_identity, follow, is_off, leave
from diode_lut.hook.versions import UIDS, require_same_parameters, uuid_of
from diode_lut.problem import DOMAINS, NO_EPILOGUE, NO_VARIANT, SCALED, Problem
from diode_lut.templates.architecture import Architecture, architecture
from diode_lut.templates.config import ATEN, PADDED_OPS, Config, needed_pad, pad_multiple, padded, pointer_gemm

_OPS = {getattr(torch.ops.aten, op).default: op for op in PADDED_OPS}
_PAD = torch.ops.aten.constant_pad_nd.default


def is_answered_with_padding(match: Any, mat1: Any, mat2: Any, op: Any, bias: Any) -> bool | None:
    """Whether a table or model has the operands of a matmul padded; None where Inductor should find out by itself.

    That is so where no config of the answer has a ``pad``: whoever gave it has not compared with padded operands. But
    where sizes may change, Inductor's benchmark would decide for all of them by the first ones, so there a matmul for
    which kernels faster than aten are known keeps its operands as they are.

    A match of several matmuls is a matmul with those of its gradients, which Inductor pads together or not at all. If
    there is an answer for any of them, the result is False: Inductor then asks about each alone. Nothing is recorded,
    because Inductor will ask for the kernel, too.
    """
    if not in_force() or not snapshot().settings.pad or inductor_config.force_shape_pad:
        return None
    matmuls = [node for node in match.nodes if node.target in _OPS]
    if len(matmuls) > 1:
        return False if any(_is_answered(node) for node in matmuls) else None
    problem = problem_of_tensors(op.__name__, mat1, mat2, bias)
    if problem is None:
        return None
    changing = axes_of_tensors(problem.op, mat1, mat2)
    decision = snapshot().consider(problem, mat1.device, padding=True, axes=changing)
    if not _has_compared(decision):
        return False if changing and _gains_as_it_is(decision, mat1.device, changing) else None
    return _first_pad(decision, mat1.device) > 1 and _stay_aligned(mat1, mat2)


def _gains_as_it_is(decision: Decision, device: torch.device, changing: tuple[Axis, ...]) -> bool:
    """Whether a matmul without padding gets kernels that are faster than aten, for all sizes or for parts of them."""
    if not decision.configs:
        return False
    return decision.configs[0] != ATEN or bool(snapshot().pieces(decision.problem, device, changing, library=True))


def _has_compared(decision: Decision) -> bool:
    return any(config.pad > 1 for config in (*decision.configs, *decision.left_out))


def decide(now: InductorSnapshot, inputs: Any, op: str, *, fast: bool | None = None) -> tuple[Decision | None, int]:
    """The compile's decision about a matmul with these KernelInputs, and the number of elements they are padded to.

    ``fast`` says whether a scaled_mm accumulates fast; None for other ops.

    Where sizes may change, it is the decision over all of them. Padding leaves such sizes as they are.

    If the graph pads the operands, and would be answered with that padding, the decision is about the matmul without
    it. Else an addmm with more than a row as its bias is an mm with an epilogue, as ``asked_about`` has it. None if
    tables have no such problems, or none is asked, which is recorded.
    """
    device = inputs.device()
    unpadded = _unpadded(V.graph.current_node, op) if now.settings.pad else None
    if unpadded is not None:
        changing = axes(inputs, op)
        pad = _first_pad(now.consider(unpadded, device, padding=True, axes=changing), device)
        if pad > 1:
            return now.decide(unpadded, device, padding=True, axes=changing), pad
    problem = problem_of(inputs, op, fast=fast)
    if problem is None:
        return None, 1
    why = why_left(problem, inputs.mat1mat2())
    if why:
        now.record_no_choice(problem, device, why)
        return None, 1
    asked = asked_about(problem, inputs) if now.settings.epilogues else problem
    return now.decide(asked, device, padding=False, axes=axes(inputs, op)), 1


def followed(decision: Decision, pad: int, inputs: Any, op: str) -> Problem | None:
    """The problem that pointwise work may follow, where a matmul with these KernelInputs was decided with ``pad``.

    That of padded operands is a problem of its own, whose rows are aligned. None where the result is cut to its size
    before anything follows, and for padded operands with sizes that may change.
    """
    if pad == 1:
        return decision.problem
    problem = None if axes(inputs, op) else problem_of(inputs, op)
    if problem is None or (problem.m, problem.n) != (decision.problem.m, decision.problem.n):
        return None
    return asked_about(problem, inputs)


def _is_answered(matmul: Node) -> bool:
    *bias, a, b = matmul.args[: 3 if _OPS[matmul.target] == "addmm" else 2]
    tensors = _values((a, b, *bias))
    problem = None if tensors is None else problem_of_tensors(_OPS[matmul.target], *tensors)
    if problem is None or tensors is None:
        return False
    changing = axes_of_tensors(problem.op, *tensors[:2])
    return bool(snapshot().consider(problem, tensors[0].device, padding=True, axes=changing).configs)


def _first_pad(decision: Decision, device: torch.device) -> int:
    """What the first config that can run on the device has its operands padded to; 1 if it does not, or none can."""
    named = decision.configs[:1] if decision.only_first else decision.configs
    candidates = [config for config in named if is_big_enough(device, decision, config)]
    arch = architecture(decision.hardware.arch)
    pads = ((config, needed_pad(decision.problem, config.pad)) for config in candidates)
    return next((pad for config, pad in pads if _can_run(config, pad, decision.problem, arch)), 1)


def _can_run(config: Config, pad: int, problem: Problem, arch: Architecture) -> bool:
    """Whether the config can run on operands of the problem, padded to multiples of ``pad``.

    That is so as far as it can be known before there are operands.
    """
    if pad not in (1, pad_multiple(problem.dtype)):
        return False
    problem = padded(problem, pad)
    covered = _Covered(problem.op, problem.dtype, problem.align, (problem.k, problem.k))
    kernel = config.kernel
    return (
        problem.op in kernel.ops and kernel.runs_on(arch) and not any(kernel.complaints(config.params, covered, arch))
    )


class _Covered(NamedTuple):
    """One problem as what a row covers."""

    op: str
    dtype: str
    align: int
    k: tuple[int, int]
    m: None = None
    g: None = None
    v: None = None


def _stay_aligned(a: Any, b: Any) -> bool:
    """Whether no row has a size that may change: Inductor does not pad these."""
    return all(isinstance(tensor.shape[-1], int) for tensor in (a, b))


def _unpadded(node: Node | None, op: str) -> Problem | None:
    """The problem before its operands were padded, as ``pad_mm`` pads; None if they are not padded so."""
    if node is None or _OPS.get(node.target) != op:
        return None
    *bias, a, b = node.args[: 3 if op == "addmm" else 2]
    (a, m, k), (b, same_k, n) = _source(a), _source(b)
    if k != same_k or not (m or n or k):
        return None
    tensors = _values((a, b, *bias))
    if tensors is None:
        return None
    problem = problem_of_tensors(op, *tensors)
    return problem if problem is not None and _is_inductors(problem, (m, n, k), tensors) else None


def _is_inductors(problem: Problem, added: tuple[int, int, int], tensors: Sequence[Any]) -> bool:
    """Whether M, N and K grow by what Inductor adds. To a size that may change, that is nothing."""
    a, b, *_ = tensors
    wanted = padded(problem, pad_multiple(problem.dtype))
    growths = (wanted.m - problem.m, wanted.n - problem.n, wanted.k - problem.k)
    sizes = (a.shape[-2], b.shape[-1], a.shape[-1])
    return all(
        count == (growth if isinstance(size, int) else 0)
        for count, size, growth in zip(added, sizes, growths, strict=True)
    )


def _source(operand: Any) -> tuple[Any, int, int]:
    """What ``operand`` was before padding, and the number of rows and columns of zeros that were added at its end."""
    if not isinstance(operand, Node) or operand.target is not _PAD:
        return operand, 0, 0
    source, pads, *value = (*operand.args, *operand.kwargs.values())
    before, after = cast("list[Any]", pads)[::2], cast("list[Any]", pads)[1::2]  # of each dimension, the last one first
    if any(before) or any(after[2:]) or any(value):
        return operand, 0, 0
    columns, rows = (*after, 0)[:2]
    return source, rows, columns


def _values(nodes: Sequence[Any]) -> tuple[Any, ...] | None:
    """The fake tensors that graph nodes stand for; None if one has none."""
    values = tuple(node.meta.get("val") if isinstance(node, Node) else None for node in nodes)
    return values if all(isinstance(value, torch.Tensor) for value in values) else None


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
        from diode_lut.hook.attention import answer_attention

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
