"""Answer Inductor when it lowers a matmul or an attention, generates a kernel, or may pad operands.

A ``_MatmulLowering`` is the lowering of one matmul on a GPU: its inputs become a problem, the snapshot decides about
it, and the decision becomes the list of choices. For grouped matmuls and on the CPU, Inductor asks no handler.
``filter_choices`` then sees its list.

Inductor decides on padding in its ``pad_mm`` pass, long before it asks for the kernel of the padded matmul. The nodes
of the padding tell such a matmul. Only the graph is read, and no earlier decision remembered. So two compiles of the
same graph decide alike, and may share an entry of Inductor's cache.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, ref

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import ChoiceCaller, Layout
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from torch._inductor.utils import use_aten_gemm_kernels
from torch._inductor.virtualized import V

from diode_lut.decide.decide import Answers, Axis, Piece
from diode_lut.decide.sources import Decision
from diode_lut.errors import MissError
from diode_lut.hardware import architecture
from diode_lut.hook import epilogues, problems
from diode_lut.hook.choices import (
    Build,
    build_choice,
    in_force,
    is_big_enough,
    library_choice,
    marked_choices,
    offered,
    runnable,
    with_a_layout,
)
from diode_lut.hook.problems import MARK
from diode_lut.hook.snapshot import CannotRun, InductorSnapshot, autotuning, forget_what_was_taken_over, snapshot
from diode_lut.hook.switch import OFF, cache_identity, follow, leave, off_because
from diode_lut.hook.versions import UIDS, release, require_same_parameters, uuid_of
from diode_lut.hook.wrapper import Branches, can_branch
from diode_lut.problem import DOMAINS, EPILOGUES, NO_EPILOGUE, NO_VARIANT, SCALED, Problem, letters
from diode_lut.templates.config import ATEN, Config, needed_pad, pad_multiple, padded, pointer_gemm
from diode_lut.templates.template import SomeProblems

Choices = list[ChoiceCaller]
Found = TypeVar("Found")


def _ours_or_inductors(what: str, ours: Callable[[], Found | None], inductors: Callable[[], Found]) -> Found:
    """Return the answer of the tables, or Inductor's if there is none, or if finding ours raises an error."""
    try:
        found = ours()
    except MissError:
        raise  # as the setting strict has it
    except Exception as error:
        leave(what, error)
        found = None
    return inductors() if found is None else found


@cache
def _generated() -> Any:
    """Return the module for generated kernels. It imports Inductor's code generation, so only when it is needed."""
    from diode_lut.hook import generated

    return generated


class DiodeChoices(InductorChoices):
    """Answer from the tables, and leave everything else to the base class."""

    _below: InductorChoices | None = None

    def uuid(self) -> tuple[Any, ...]:
        """Return everything that answers depend on, for the keys of Inductor's caches."""
        return ("diode_lut", cache_identity(), uuid_of(super()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the handler below and the snapshot: Inductor's compile workers get handlers by pickle."""
        identity = cache_identity()  # first, because it may turn the hook off
        return _unpickled, (self._below, None if off_because else snapshot(), OFF if off_because else identity)

    def get_template_configs(
        self,
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> Choices:
        """Return the choices of a table or model for a matmul, or else the base class's."""

        def ask_base(some: list[Any]) -> Choices:
            return super(DiodeChoices, self).get_template_configs(kernel_inputs, some, op_name, kwarg_overrides)

        def ours() -> Choices | None:
            now, matmul = in_force(), (kernel_inputs, templates, op_name, ask_base, kwarg_overrides or {})
            return None if now is None else _MatmulLowering(now, *matmul).choices()

        return _ours_or_inductors(op_name, ours, lambda: ask_base(templates))

    def reduction_split_factor(  # type: ignore[override]  # a static method before torch 2.14
        self, device: torch.device, reduction_numel_hint: int, numel_hint: int, inner_reduction: bool
    ) -> int:
        """Return into how many parts to split a reduction, by a table or else by the base class."""
        sizes = reduction_numel_hint, numel_hint

        def ours() -> int | None:
            parts: int | None = _generated().parts_of(device, *sizes, inner=inner_reduction)
            return parts

        inductors = partial(super().reduction_split_factor, device, *sizes, inner_reduction)
        return _ours_or_inductors("a reduction", ours, inductors)

    def triton_kernel_kwargs(
        self, kernel_cls: Any, features: Any, groups: list[Any], kernel_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of a generated kernel, with a config of a table or model if one answers."""
        arguments = super().triton_kernel_kwargs(kernel_cls, features, groups, kernel_kwargs)

        def ours() -> dict[str, Any]:
            return {**arguments, **_generated().fixed_arguments(kernel_cls, features, groups[0], arguments)}

        return _ours_or_inductors("a generated kernel", ours, lambda: arguments)

    def get_flex_attention_fwd_configs(self, *given: Any, **named: Any) -> list[Any]:
        """Return the configs for the present flex attention."""
        return _flex("flex_attention", partial(super().get_flex_attention_fwd_configs, *given, **named))

    def get_flex_attention_bwd_configs(self, *given: Any, **named: Any) -> list[Any]:
        """Return the configs for its gradients."""
        return _flex("flex_attention_backward", partial(super().get_flex_attention_bwd_configs, *given, **named))

    def get_flex_decode_configs(self, *given: Any, **named: Any) -> list[Any]:
        """Return the configs for a flex attention with few queries."""
        return _flex("flex_decoding", partial(super().get_flex_decode_configs, *given, **named))


require_same_parameters(DiodeChoices.get_template_configs, InductorChoices.get_template_configs)
require_same_parameters(DiodeChoices.triton_kernel_kwargs, InductorChoices.triton_kernel_kwargs)


def _flex(op: str, ask_base: Callable[[], list[Any]]) -> list[Any]:
    """Return the configs of a table or model, or else the base class's."""

    def ours() -> list[Any] | None:
        from diode_lut.hook.attention import answer_attention

        return answer_attention(op, ask_base)

    return _ours_or_inductors(op, ours, ask_base)


def on_top_of(handler: InductorChoices) -> DiodeChoices:
    """Return a handler above another library's handler, whose overrides stay in force."""
    if isinstance(handler, DiodeChoices):
        return handler
    if type(handler) is InductorChoices:
        return DiodeChoices()
    kind = type("DiodeChoices", (DiodeChoices, type(handler)), {"_below": handler})
    composed: DiodeChoices = object.__new__(kind)
    vars(composed).update(vars(handler))
    return composed


def _unpickled(below: InductorChoices | None, taken: Any, identity: tuple[Hashable, ...]) -> DiodeChoices:
    """Return a handler like the pickled one. Unpickling its snapshot has put that into force."""
    if taken is None:
        forget_what_was_taken_over()
    follow(identity)
    return DiodeChoices() if below is None else on_top_of(below)


def filter_choices(choices: Choices) -> Choices:
    """Return our marked choices, if the list has any. Otherwise decide about its matmul.

    Grouped matmuls are answered only under our handler. Another one is set while tables must not be asked.
    """
    marked = [choice for choice in choices if MARK in choice.annotations]

    def ours() -> Choices | None:
        if in_force() is None:
            return None
        from diode_lut.hook.unasked import answer_grouped, answer_on_cpu

        grouped = None
        if choices and isinstance(V.choices, DiodeChoices):
            grouped = answer_grouped(choices)
        return grouped or answer_on_cpu(choices)

    return marked or _ours_or_inductors("a matmul", ours, lambda: choices)


def is_answered_with_padding(match: Any, mat1: Any, mat2: Any, op: Any, bias: Any) -> bool | None:
    """Return whether a table or model has the operands of a matmul padded, or None if Inductor should find out.

    Inductor finds out if no config of the answer has a ``pad``: nobody has compared them with padding. There are two
    exceptions, in which the operands stay as they are. The first is padding that gains nothing. The other is a matmul
    with sizes that may change, for all of which Inductor's benchmark would decide by the first sizes. So a kernel that
    is known to be faster than aten keeps the operands.

    A match of several matmuls is a matmul with its gradients, which Inductor pads together. If there is an answer for
    any of them, return False, so that Inductor asks about each alone. Nothing is recorded here, because Inductor asks
    for the kernel later.
    """
    now = in_force()
    if now is None or not now.settings.pad or inductor_config.force_shape_pad:
        return None
    matmuls = [node for node in match.nodes if node.target in problems.OP_OF_TARGET]
    if len(matmuls) > 1:
        found = [_answers_with_padding(now, problems.OP_OF_TARGET[node.target], node) for node in matmuls]
        decisions = [answers.decision for answers in found if answers is not None]
        return False if any(each.configs or _padding_gains_nothing(each) for each in decisions) else None
    answers = _answers_with_padding(now, op.__name__, (mat1, mat2, bias))
    if answers is None:
        return None
    decision = answers.decision
    if any(config.pad > 1 for config in (*decision.configs, *decision.left_out)):
        # Inductor does not pad a row whose size may change
        return first_pad(decision, mat1.device) > 1 and _stay_aligned(mat1, mat2)
    if _padding_gains_nothing(decision):
        return False
    if not answers.axes or not decision.configs:
        return None
    pieces = answers.pieces(now.settings.dynamic_kernels, library=True)
    return False if decision.configs[0] != ATEN or pieces else None


def _padding_gains_nothing(decision: Decision) -> bool:
    """Return whether padding aligns nothing that matters, so that Inductor's benchmark of it would decide by chance.

    Padding of M alone, with A row-major, does not move where rows begin. On an H100, 30 mm took 1.05 to 1.6 times as
    long with it, and on an H200 48 bmm 0.91 to 1.16 times, 1.01 in geometric mean. Without TF32, NVIDIA's kernels in
    float32 use no tensor cores, which want alignment: 32 GEMMs took 1.00 to 1.26 times as long on an H200.
    """
    problem = decision.problem
    if problem.dtype == "float32" and architecture(decision.hardware.arch).triton == "cuda":
        return True
    multiple, (of_a, _) = pad_multiple(problem.dtype), letters(problem.layout)
    return of_a == "n" and not (problem.n % multiple or problem.k % multiple)


def first_pad(decision: Decision, device: torch.device) -> int:
    """Return the ``pad`` that operands need for the first config that can run, or 1.

    Before there are operands, this is known in part only.
    """
    problem, arch = decision.problem, architecture(decision.hardware.arch)
    for config in decision.configs[:1] if decision.only_first else decision.configs:
        pad, kernel = needed_pad(problem, config.pad), config.kernel
        if pad not in (1, pad_multiple(problem.dtype)) or (
            kernel.many_sms and not is_big_enough(device, decision, config)
        ):
            continue
        inside = padded(problem, pad)
        covered = SomeProblems(inside.op, inside.dtype, inside.align, (inside.k, inside.k))
        can_run = inside.op in kernel.ops and kernel.runs_on(arch)
        if can_run and not any(kernel.complaints(config.params, covered, arch)):
            return pad
    return 1


def _answers_with_padding(now: InductorSnapshot, op: str, matmul: Any) -> Answers | None:
    """Return the answers for a node or a tuple of fake tensors, or None if tables have no such problems."""
    if isinstance(matmul, tuple):
        problem, (a, b, *_) = problems.problem_of_tensors(op, *matmul), matmul
    else:
        problem, a, b = problems.problem_of_node(matmul, op)
    return problem and now.answers(problem, a.device, padding=True, axes=problems.axes_of_tensors(op, a, b))


def _stay_aligned(a: Any, b: Any) -> bool:
    return all(isinstance(tensor.shape[-1], int) for tensor in (a, b))


_NATIVE = {getattr(torch.ops.aten, op).default: op for op in ("mm", "addmm", "bmm", "baddbmm")}

_native: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()
"""The recorded nodes of each graph: Inductor may look at a node twice."""


def record_native() -> None:
    """Record the present matmul, if tables know its op.

    With the setting ``triton.native_matmul``, Inductor generates its kernel without asking a handler.
    """
    node: Any = V.graph.current_node
    op = _NATIVE.get(node.target)
    recorded = _native.setdefault(V.graph, set())
    now = in_force()
    if op is None or node in recorded or not isinstance(V.choices, DiodeChoices) or now is None:
        return
    recorded.add(node)
    problem, a, _ = problems.problem_of_node(node, op)
    if problem is not None:
        now.record_no_choice(problem, a.device, "the setting triton.native_matmul generates its kernel")


class Decided(NamedTuple):
    """The decision about a matmul, and the ``pad`` of its operands.

    ``followed`` is the problem whose epilogues the scheduler may fuse. It is None if the padded result is cut to size
    before anything follows, and if padded operands have sizes that may change. ``axes`` are the sizes that may change.
    """

    decision: Decision
    pad: int
    followed: Problem | None
    axes: tuple[Axis, ...]


def decide_matmul(now: InductorSnapshot, inputs: Any, op: str, *, fast: bool | None = None) -> Decided | None:
    """Decide about a matmul with these KernelInputs, and record it. Return None if tables have no such problems.

    If sizes may change, the decision is for all of them. If the graph pads operands, and the matmul before padding is
    answered with a ``pad``, the decision is about that matmul. Otherwise an addmm whose bias is more than a row is an
    mm with an epilogue. ``fast`` says whether a scaled_mm accumulates fast, and is None for other ops.
    """
    device = inputs.device()
    before = problems.unpadded(V.graph.current_node, op) if now.settings.pad else None
    if before is not None:
        changing = problems.axes(inputs, op)  # padding leaves such sizes as they are
        pad = first_pad(now.answers(before, device, padding=True, axes=changing).decision, device)
        if pad > 1:
            decision = now.decide(before, device, padding=True, axes=changing)
            problem = None if changing else problems.problem_of(inputs, op)
            if problem is None or (problem.m, problem.n) != (decision.problem.m, decision.problem.n):
                return Decided(decision, pad, None, changing)
            return Decided(decision, pad, problems.asked_about(problem, inputs), changing)
    problem = problems.problem_of(inputs, op, fast=fast)
    if problem is None:
        return None
    a, b = inputs.mat1mat2()
    changing = ()
    if not problems.is_plain((*a.get_size(), *b.get_size())):
        why = problems.why_left(problem, (a, b))
        if why:
            now.record_no_choice(problem, device, why)
            return None
        changing = problems.axes(inputs, op)
    asked = problems.asked_about(problem, inputs) if now.settings.epilogues else problem
    decision = now.decide(asked, device, padding=False, axes=changing)
    return Decided(decision, 1, decision.problem, changing)


_SCALED_UID, *_ = UIDS[pointer_gemm(SCALED[0])][SCALED[0]]
"""Inductor's plain template for scaled_mm."""

_answered = threading.local()
"""Weak references to A and B of this thread's last addmm, if it was answered, as ``inputs``."""


@dataclass(eq=False)
class _MatmulLowering:
    """The lowering of a matmul on a GPU, for which Inductor asks the handler for choices."""

    now: InductorSnapshot
    inputs: Any
    templates: list[Any]
    op: str
    ask_base: Callable[[list[Any]], Choices]
    options: dict[str, dict[str, Any]]
    variant: str = NO_VARIANT
    axes: tuple[Axis, ...] = ()

    @property
    def is_single(self) -> bool:
        """Whether Inductor gets a single choice."""
        return self.now.settings.policy == "pick" and self.now.settings.top_k == 1

    def choices(self) -> Choices | None:
        """Return the choices of the answer, or None if Inductor should choose among its own."""
        if self.inputs.device_type == "cpu":
            return None  # ``filter_choices`` answers, because it sees the C++ template too
        if self.op == "addmm" and autotuning():
            # Inductor may ask up to three times, for aten, contiguous and Triton. Decide when it offers aten, or Triton
            # if aten is no backend.
            deciding = offered(self.templates, ATEN.template, self.op) or (
                not use_aten_gemm_kernels() and offered(self.templates, pointer_gemm(self.op), self.op)
            )
            if not deciding:
                return [] if self._answered_before() else None
        # Inductor does not offer this template for scales of blocks. Their shapes may be like those of other scales
        fast = self.options.get(_SCALED_UID, {}).get("USE_FAST_ACCUM")
        asked, choices = decide_matmul(self.now, self.inputs, self.op, fast=fast), None
        if asked is not None:
            decision, self.axes, self.variant = asked.decision, asked.axes, asked.decision.problem.variant
            own_branches = self._in_branches(decision) if asked.pad == 1 else None
            if own_branches is not None:
                choices = list[ChoiceCaller](own_branches.triton[:1])
            else:
                choices = marked_choices(self.now, decision, self._build, asked.pad)
            if asked.followed is not None and DOMAINS[self.op].epilogues != (NO_EPILOGUE,):
                choices = self._followed(asked.followed, choices, own_branches)
        if self.op == "addmm":
            _answered.inputs = [ref(node) for node in self.inputs.mat1mat2()] if choices else []
        return choices

    def _answered_before(self) -> bool:
        nodes = self.inputs.mat1mat2()
        last = getattr(_answered, "inputs", [])
        return bool(last) and all(seen() is node for seen, node in zip(last, nodes, strict=True))

    def _in_branches(self, decision: Decision) -> Branches | None:
        """Return kernels for parts of a dynamic size's range, or None if one kernel is as good, or all there can be."""
        if not decision.over or not self.is_single or not can_branch():
            return None
        answers = self.now.answers(decision.problem, self.inputs.device(), padding=False, axes=self.axes)
        pieces = answers.pieces(self.now.settings.dynamic_kernels, library=True)
        with suppress(CannotRun):
            found = self._branches(pieces, self.inputs, self._build) if pieces else None
            for piece in pieces:
                self.now.record_fusion(piece.decision, piece.config)
            return found
        return None

    def _branches(self, pieces: Sequence[Piece], inputs: Any, build: Build) -> Branches:
        """Make a kernel for each piece, or raise CannotRun if a piece has none."""
        kernels = []
        for high, decision, config in pieces:
            if decision.configs:
                first, kernel = next(runnable(decision, build), (None, None))
                if first != config or not isinstance(kernel, (TritonTemplateCaller, ExternKernelCaller)):
                    raise CannotRun(f"{config} cannot run for all sizes of its range")
            else:  # no source answers for any of its sizes
                kernel = build(config)
            kernels.append((high, kernel))
        field, *_ = self.axes[0].fields
        a, b = inputs.mat1mat2()
        sizes = {"b": a.get_size()[0], "m": a.get_size()[-2], "n": b.get_size()[-1], "k": a.get_size()[-1]}
        return Branches(sympy.sympify(sizes[field]), tuple(kernels))

    def _followed(self, problem: Problem, choices: Choices | None, own_branches: Branches | None) -> Choices | None:
        """Leave the kernel to the scheduler, if it may fuse pointwise work.

        This is for a single choice only. Inductor benchmarks several choices with the epilogue by itself.
        """
        now, node, single = self.now, V.graph.current_node, self.is_single
        wanted = now.settings.epilogues and single and (choices is not None or not autotuning())
        alone = not wanted or not epilogues.may_be_followed(node)
        triton = single and choices is not None and isinstance(choices[0], TritonTemplateCaller)
        joined = triton and epilogues.is_concatenated(node)
        if alone and not joined and own_branches is None:
            if wanted:
                now.record_unfused(problem, self.inputs.device(), epilogues.NOTHING)
            return choices
        choices = choices or self.ask_base(self.templates)
        if len(choices) == 1 and isinstance(choices[0], (ExternKernelCaller, TritonTemplateCaller)):
            with suppress(CannotRun):
                return [self._deferred(choices[0], problem, own_branches, alone=alone, joined=joined)]
        return choices

    def _deferred(
        self, plain: ChoiceCaller, problem: Problem, own_branches: Branches | None, *, alone: bool, joined: bool
    ) -> ChoiceCaller:
        """Return a choice whose kernel is open, or the stand-alone choice ``plain`` if it is as good for any epilogue.

        A kernel for few rows fuses any epilogue at no cost. If ``alone``, no epilogue can follow. If ``joined``, the
        result is a part of a concatenation. If layouts of inputs are open, rows are asked about the likely layouts.
        """
        inputs, own, now = self.inputs, problems.config_of(plain), self.now
        aten = plain if own == ATEN else self._aten()
        assumed: list[tuple[Any, Layout]] = []
        nodes = [with_a_layout(node, assumed) for node in inputs.nodes()]
        with_layouts = MMKernelInputs(nodes, scalars=inputs._scalars, out_dtype=inputs._out_dtype)
        likely = problems.problem_of(with_layouts, self.op) if assumed else None
        problem = problem if likely is None else problems.asked_about(likely, with_layouts)
        device, changing = plain.layout.device, self.axes
        answers = now.answers(problem, device, padding=False, axes=changing)
        few = own is not None and own.kernel.few_rows
        considered = {} if alone or few else {name: answers.with_epilogue(name) for name in _CLASSES}
        answering = {name: decision for name, decision in considered.items() if decision.configs}
        may_branch = bool(changing) and can_branch()
        layout = copy.copy(plain.layout).as_fixed()
        as_good = own == ATEN or alone or (epilogues.has_aligned_rows(layout) and not few)
        as_good = as_good and all(decision.configs[0] == own for decision in answering.values())
        if V.graph.current_node.target is torch.ops.aten.convolution.default and own != ATEN and answering:
            as_good = as_good and release() > (2, 11)  # 2.11 fuses through views for a Deferred only
        in_part = joined and not changing and own is not None and own != ATEN
        if as_good and not (may_branch or own_branches is not None or in_part):
            if own == ATEN and not alone:
                reason = epilogues.SLOWER if len(answering) == len(_CLASSES) else epilogues.UNKNOWN
                now.record_unfused(problem, device, reason)
            return plain

        def make(config: Config) -> ChoiceCaller:
            if config in (own, ATEN):
                return plain if config == own else aten
            return build_choice(config, with_layouts, self.op, layout)

        def alternative(decision: Decision) -> epilogues.Alternative | None:
            config, choice = next(runnable(decision, make), (None, None))
            if config is None:
                return None
            if may_branch:
                most, name = now.settings.dynamic_kernels, decision.problem.epilogue
                pieces = answers.pieces(most, library=False, epilogue=name)
                with suppress(CannotRun):
                    if pieces:
                        found = self._branches(pieces, with_layouts, make)
                        return epilogues.Alternative(decision, config, found.triton[0], found, pieces)
            return epilogues.Alternative(decision, config, choice if isinstance(choice, TritonTemplateCaller) else None)

        made = epilogues.Alternatives(problem, answering, alternative, assumed, own_branches, in_part)
        return epilogues.Deferred(plain, aten, made)

    def _build(self, config: Config) -> ChoiceCaller:
        return self._aten() if config == ATEN else build_choice(config, self.inputs, self.op, variant=self.variant)

    def _aten(self) -> ChoiceCaller:
        return library_choice(self.templates, self.op, self.ask_base)


_CLASSES = tuple(name for name in EPILOGUES if name != NO_EPILOGUE)
