"""The snapshot of settings and tables by which a compile decides, and the records of its decisions."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import orjson
import torch
from torch._guards import CompileContext, TracingContext
from torch._inductor import config as inductor_config
from torch._inductor.codecache import BypassFxGraphCache
from torch._logging._internal import trace_log, trace_structured

from diode_lut.decide.catalog import sources_for, warn_of_useless
from diode_lut.decide.choosers import registered
from diode_lut.decide.decide import Answers, Axis, Sources, decide
from diode_lut.decide.sources import Decision, Threshold
from diode_lut.errors import MissError, as_json, printable
from diode_lut.hardware import Hardware, hardware_of, local_devices
from diode_lut.hook.quack import versions as quack_versions
from diode_lut.log import log
from diode_lut.problem import Problem
from diode_lut.process import __version__, code_digest, is_code_as_imported
from diode_lut.receipts import recorder
from diode_lut.settings import CHOOSER, USER, config
from diode_lut.templates.config import Config


class CannotRun(Exception):  # noqa: N818 (an answer, not an error)
    """The reason why a config cannot, or must not, run here, as text."""


_DTYPES = {"none": "float32", "ieee": "float32", "tf32": "tf32"}
"""The tables' dtype of float32 matmuls, by PyTorch's name of their precision."""


class MatmulSettings(NamedTuple):
    """The settings of PyTorch and Triton on which the computation of a matmul depends.

    ``cpu`` and ``cuda`` are the tables' dtypes of float32 matmuls there: ``float32``, ``tf32``, or None for a precision
    without tables. ``float16_accumulation`` says whether the library may add up in float16. ``carveout`` is the number
    of SMs that kernels leave free, or None. ``triton`` is Triton's precision of float32 in every kernel, or empty if
    each kernel says its own.
    """

    cpu: str | None
    cuda: str | None
    float16_accumulation: bool
    carveout: int | None
    triton: str

    @classmethod
    def now(cls) -> MatmulSettings:
        """Read the present settings of this process."""
        cpu, cuda = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]
        return cls(
            _DTYPES.get(cpu.fp32_precision),
            _DTYPES.get(cuda.fp32_precision),
            bool(cuda.allow_fp16_accumulation),
            torch._C._get_sm_carveout_experimental(),
            os.environ.get("TRITON_F32_DEFAULT", ""),
        )


_DECIDING = (
    *("policy", "default_mode", "pad", "top_k", "dynamic_kernels", "fallback_to_autotune", "strict", "epilogues"),
    "generated",
)
"""The settings that kernels depend on, besides the threshold, the tables and the tiers."""


class InductorSnapshot:
    """The settings, devices and tables of a compile, from the key of its cache entry to its last kernel.

    It keeps the settings at its creation, and each device and its tables as they were when first asked about.
    """

    answered = True
    """Whether the compile got all its answers. It is false after an error that may not happen again."""

    def __init__(self) -> None:
        self.settings = config.copy()
        self.choosers = registered()
        self.matmul = MatmulSettings.now()
        self._devices: dict[str, Hardware] = {}
        self._sources: dict[Hardware, Sources] = {}
        self._answers: dict[Hashable, Answers] = {}
        self._kernels: dict[tuple[str, Problem, Axis | None], Decision] = {}
        self._is_code_known = False

    @cached_property
    def _threshold(self) -> Threshold:
        return Threshold.of(self.settings)

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """Everything on which its decisions depend, equal in every process with the same decisions.

        With the policy ``off`` nothing is decided, and no table is read.
        """
        devices = self._local()
        decides = self.settings.policy != "off"
        cpu, *gpus = (self._sources_for(hardware).digest if decides else "" for hardware in devices)
        recorder.devices_seen(devices)
        # If GPUs are alike, their number does not matter. If they differ, a graph may be for any of them.
        return (
            __version__,
            code_digest(),
            *quack_versions(),
            *(getattr(self.settings, name) for name in _DECIDING),
            *self._threshold,
            *(() if self.is_identified else [uuid4().hex]),  # a new one each time, so that no cache hits
            cpu,
            *(gpus if len(set(gpus)) > 1 else gpus[:1]),
            *self.matmul,
        )

    def has_present_settings(self) -> bool:
        """Return whether the settings for matmuls are unchanged, or handed over by another process."""
        return _handed_over is self or self.matmul == MatmulSettings.now()

    def float32(self, device_type: str | None) -> str | None:
        """Return the tables' dtype of float32 matmuls: ``float32``, ``tf32``, or None for other precisions."""
        return self.matmul.cpu if device_type == "cpu" else self.matmul.cuda

    @property
    def is_identified(self) -> bool:
        """Whether all sources have an identity. A chooser may lack one, and replaced code lacks one.

        The code is checked again only after another question about a device, which every decision asks.
        """
        self._is_code_known = self._is_code_known or is_code_as_imported()
        choosers = self.choosers if CHOOSER in self.settings.tiers else ()
        return self._is_code_known and all(chooser.is_identified for chooser in choosers)

    def answers(
        self, problem: Problem, device: str | torch.device, *, padding: bool, axes: tuple[Axis, ...] = ()
    ) -> Answers:
        """Return the answers for a problem on a device of PyTorch's, and record nothing.

        ``padding`` says whether the operands may be padded, or already are. ``axes`` are the sizes that may change.
        """
        hardware = self.hardware(device)
        key = hardware, problem, axes, padding
        found = self._answers.get(key)
        if found is None:
            sources = self._sources_for(hardware)
            found = self._answers[key] = decide(sources, problem, self._threshold, axes=axes, padding=padding)
        return found

    def decide_kernel(self, problem: Problem, device: str, over: Axis | None = None) -> Decision:
        """Decide about a generated kernel, whose x may change in the range ``over``, and record nothing."""
        key = device, problem, over
        found = self._kernels.get(key)
        if found is None:
            sources = self._sources_for(self.hardware(device))
            found = self._kernels[key] = sources.first_answer(problem, self._threshold, padding=False, over=over)
        return found

    def decide(
        self, problem: Problem, device: str | torch.device, *, padding: bool, axes: tuple[Axis, ...] = ()
    ) -> Decision:
        """Decide about a problem as ``answers`` does, and record the decision.

        If sizes may change, ``record`` does so later: decisions about parts of the range may replace this one.
        """
        start = time.perf_counter()
        decision = self.answers(problem, device, padding=padding, axes=axes).decision
        seconds = time.perf_counter() - start
        if decision.over:
            recorder.selected(seconds)
        else:
            _decided(decision, seconds)
        return decision

    def record(self, decision: Decision, served: tuple[Config, ...]) -> None:
        """Record the configs that Inductor gets. Raise MissError if there are none under the setting ``strict``."""
        self._trace_decision(decision, served)
        if decision.over:
            _decided(decision)
        recorder.served(decision, served)
        if served or not self.settings.strict:
            return
        why = recorder.why_missed(decision)
        over = f" for {decision.over}" if decision.over else ""
        problem = json.dumps([decision.problem.to_json()])
        raise MissError(
            f"{decision.problem} on {decision.hardware}{over}: {why}, which the setting strict forbids; to measure it: "
            f"echo '{problem}' > missed.json && "
            "python -m diode_lut collect --problems missed.json --out timings.msgpack"
        )

    def record_fusion(self, decision: Decision, served: Config) -> None:
        """Record the decision about a matmul with its epilogue, or about a part of a range, when it is final."""
        if not decision.over:
            _decided(decision)
        self.record(decision, (served,) if decision.configs else ())

    def record_unfused(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record why nothing is fused after a matmul. The problem's epilogue is the class that was not fused."""
        recorder.unfused(problem, self.hardware(device), reason)
        log.debug("%s on %s: nothing is fused: %s", problem, device, reason)

    def record_apart(self, decision: Decision) -> None:
        """Record that matmuls which could be joined stay apart, because no row has a config that can run."""
        self._trace_decision(decision, ())
        recorder.apart(decision)
        log.debug("%s: stay apart", decision.problem)

    def record_no_choice(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record a problem that is left to Inductor, because no answer could change anything."""
        self._trace_left(problem, device, f"there is no choice: {reason}")
        recorder.no_choice(problem, self.hardware(device), reason)

    def record_generated(self, decision: Decision, served: Config | None) -> None:
        """Record the decision about a generated kernel, and its config, or None if Inductor decides.

        Raise MissError if Inductor decides under the setting ``strict``, and the user has rows, a model or a function
        for generated kernels. Shipped tables have rows for some kernels at most.
        """
        recorder.generated(decision, served)
        if served is None and self.settings.strict and self._sources_for(decision.hardware).has_own_kernels:
            raise MissError(
                f"{decision.problem} on {decision.hardware}: {recorder.why_missed(decision)}, which the setting strict "
                "forbids beside rows or a model of your own for generated kernels; to measure it: "
                "python -m diode_lut tune -- PROGRAM; to leave it to Inductor: a row with the template default"
            )

    def tell_generated(self, decision: Decision, served: Config | None) -> None:
        """Show a decision about a generated kernel in PyTorch's structured trace, and in the log."""
        self._trace_decision(decision, () if served is None else (served,))
        log.debug("%s: %s", decision.problem, served or "left to Inductor")

    def record_generated_left(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record why no table is asked about a generated kernel."""
        self._trace_left(problem, device, f"left to Inductor: {reason}")
        recorder.generated_left(problem, self.hardware(device), reason)

    def _trace_decision(self, decision: Decision, served: tuple[Config, ...]) -> None:
        """Show a decision in PyTorch's structured trace."""
        _trace(
            "diode_lut_decision",
            lambda: {
                **_asked(decision.problem, decision.hardware),
                "over": decision.over,
                "tier": decision.tier,
                "from": decision.where,
                "inductor_gets": list(map(str, served)),
                "answer": list(map(str, decision.configs)),
                "confidence": decision.confidence,
                "steps": list(decision.steps),
            },
        )

    def _trace_left(self, problem: Problem, device: str | torch.device, why: str) -> None:
        """Show in the structured trace, and in the log, why no table is asked about a problem."""
        hardware = self.hardware(device)
        _trace("diode_lut_decision", lambda: {**_asked(problem, hardware), "tier": None, "steps": [why]})
        log.debug("%s on %s: %s", problem, device, why)

    def hardware(self, device: str | torch.device) -> Hardware:
        """Return the hardware of a device of PyTorch's, as it was at the first question about it."""
        self._is_code_known = False
        name = str(device)
        return self._devices.get(name) or self._devices.setdefault(name, hardware_of(device))

    def _sources_for(self, hardware: Hardware) -> Sources:
        found = self._sources.get(hardware)
        if found is not None:
            return found
        warn_of_useless(self.settings.tables, self._local())
        found = self._sources[hardware] = sources_for(hardware, self.settings, self.choosers)
        recorder.sources_seen(found)
        return found

    def _local(self) -> tuple[Hardware, ...]:
        """Return all devices of this machine."""
        return tuple(map(self.hardware, local_devices()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Hand over the snapshot to another process, which compiles a graph under the key of this process.

        Choosers are the user's functions, and cannot be handed over. With choosers, Inductor compiles in this process.
        """
        if self.choosers:
            raise BypassFxGraphCache("choosers are functions of this process")
        _ = self.identity  # looks at all devices
        return _taken_over, (os.getpid(), vars(self.settings), self._devices, self.matmul)


def _decided(decision: Decision, seconds: float = 0.0) -> None:
    recorder.decided(decision, seconds)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", decision.explain())


def skip(decision: Decision, config: Config, reason: str) -> None:
    """Record that a config of the decision cannot run. Warn once of each config of the user's own.

    The user cannot edit others, so these are in the receipt only.
    """
    if recorder.skipped(decision, config, reason) and decision.tier in (USER, CHOOSER):
        found = f"{config} cannot run {decision.problem} here: {reason}"
        log.warning("%s: %s; the next config is taken, if there is one", decision.where, printable(found))


Made = TypeVar("Made")


def autotuning() -> bool:
    """Return whether Inductor would benchmark matmuls."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def settled(
    now: InductorSnapshot,
    decision: Decision,
    able: Iterator[tuple[Config, Made]],
    most: int,
    baseline: Config,
    make: Callable[[Config], Made],
) -> dict[Config, Made]:
    """Record and return the first ``most`` configs that can run.

    Add the baseline under the policy ``verify``, and for a miss if Inductor must not autotune it.
    """
    found = dict(islice(able, most))
    now.record(decision, tuple(found))
    instead = not decision.configs and not now.settings.fallback_to_autotune and autotuning()
    if (now.settings.policy == "verify") if found else instead:
        with suppress(CannotRun):
            found.setdefault(baseline, make(baseline.padded(1)))
    return found


def tried(decision: Decision, make: Callable[[Config], Made]) -> Iterator[tuple[Config, Made]]:
    """Yield the configs that ``make`` can use, best first, and record the others."""
    for candidate in decision.configs:
        try:
            yield candidate, make(candidate)
        except CannotRun as reason:  # noqa: PERF203 (one config is all that is usually tried)
            skip(decision, candidate, str(reason))
            if decision.only_first and candidate == decision.configs[0]:
                return


_taken: WeakKeyDictionary[object, InductorSnapshot] = WeakKeyDictionary()
"""The snapshot of each compile that is under way, or whose backward pass is to come.

There is no lock, because a fork could leave it held.
"""

_handed_over: InductorSnapshot | None = None
"""The snapshot of the graph, if this process compiles for another."""


def snapshot() -> InductorSnapshot:
    """Return the snapshot of this thread's compile. Outside of a compile no cache is asked, so return a new snapshot.

    Dynamo's context comes first. Parts of a graph that are compiled on their own have their own tracing contexts, and
    could see other settings than those in the key of the whole graph.
    """
    if _handed_over is not None:
        return _handed_over
    compilation = CompileContext.try_get() or TracingContext.try_get()
    if compilation is None:
        return InductorSnapshot()
    return _taken.get(compilation) or _taken.setdefault(compilation, InductorSnapshot())


def _taken_over(
    process: int, settings: dict[str, Any], devices: dict[str, Hardware], matmul: MatmulSettings
) -> InductorSnapshot:
    """Return the snapshot that ``process`` hands over. If this is another process, put the snapshot into force.

    Then this process writes no receipt, because the other one records the graph.
    """
    global _handed_over
    taken = InductorSnapshot()
    for name, value in settings.items():
        setattr(taken.settings, name, value)
    taken._devices, taken.matmul = devices, matmul
    if process != os.getpid():
        _handed_over = taken
        config.receipt = None
    return taken


def compiles_for_another() -> bool:
    """Return whether this process compiles a graph that another process saves."""
    return _handed_over is not None


def forget_what_was_taken_over() -> None:
    """Drop the snapshot of the other process, in which the hook is off for the next graph."""
    global _handed_over
    _handed_over = None


_CONTEXTS = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")
"""The modules with the context of vLLM's passes, in present and in earlier releases."""


def compile_range() -> tuple[int, int] | None:
    """Return the least and the largest number of tokens of this graph in vLLM, or None if unknown.

    vLLM compiles a graph for several ranges, but does not bound the symbol of the number of tokens. Only the context of
    its passes has the range.
    """
    module = next(filter(None, map(sys.modules.get, _CONTEXTS)), None)
    found = getattr(getattr(module, "_pass_context", None), "compile_range", None)
    low, high = getattr(found, "start", None), getattr(found, "end", None)
    return (low, high) if isinstance(low, int) and isinstance(high, int) and 0 < low <= high else None


def trace_graph(counts: dict[str, Any], receipt: bytes, *, cached: bool) -> None:
    """Trace the counts and the receipt of a graph, which may be ``cached``."""
    _trace("diode_lut_graph", lambda: {"cached": cached, "counts": counts, "receipt": orjson.loads(receipt)})


def _asked(problem: Problem, hardware: Hardware) -> dict[str, Any]:
    return {"gemm": str(problem), "problem": problem.to_json(), "hardware": str(hardware)}


def _trace(name: str, payload: Callable[[], dict[str, Any]]) -> None:
    """Write an artifact for tlparse, if ``TORCH_TRACE`` is set."""
    if trace_log.handlers:
        trace_structured("artifact", lambda: {"name": name, "encoding": "json"}, payload_fn=lambda: as_json(payload()))
