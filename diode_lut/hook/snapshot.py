"""The snapshot by which Inductor's present compile decides, and its decisions in PyTorch's structured trace."""

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
    """Why a config cannot, or must not, run a matmul here, as text."""


_DTYPES = {"none": "float32", "ieee": "float32", "tf32": "tf32"}
"""The data type in tables, by PyTorch's name of the precision of float32 matmuls."""


class MatmulSettings(NamedTuple):
    """The settings of PyTorch and Triton that the computation of a matmul depends on.

    ``cpu`` and ``cuda`` are the tables' names of float32 matmuls there, ``float32`` or ``tf32``. They are None for a
    precision without tables. ``float16_accumulation`` says whether the library may add up in float16.
    ``carveout`` is the number of SMs that kernels leave free, if it is set. ``triton`` is the precision that Triton
    takes for float32 in every kernel, and empty if kernels decide.
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

    The settings are those at its creation. A device and its tables stay as they were when they were first asked about.
    Later changes do not reach it.
    """

    answered = True
    """Whether the compile got all its answers. An error may have kept an answer from it, and may not happen again."""

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
        """Everything that its decisions depend on, equal in every process with the same decisions.

        With the policy ``off`` there are none, and no table is read.
        """
        devices = self._local()
        decides = self.settings.policy != "off"
        cpu, *gpus = (self._sources_for(hardware).digest if decides else "" for hardware in devices)
        recorder.devices_seen(devices)
        # Where GPUs are alike, their number does not matter; where they differ, a graph may be for any of them.
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

    @property
    def has_identity(self) -> bool:
        """Whether a key was made of it."""
        return "identity" in vars(self)

    def has_present_settings(self) -> bool:
        """Return whether the settings for matmuls are unchanged, or handed over by another process."""
        return _handed_over is self or self.matmul == MatmulSettings.now()

    def float32(self, device_type: str | None) -> str | None:
        """Return the tables' name of float32 matmuls: ``float32`` or ``tf32``, or None for other precisions."""
        return self.matmul.cpu if device_type == "cpu" else self.matmul.cuda

    @property
    def is_identified(self) -> bool:
        """Whether all sources have an identity. A chooser may have none, and replaced code has none.

        The code is looked at again only if a device was asked about in between, as for each decision.
        """
        self._is_code_known = self._is_code_known or is_code_as_imported()
        choosers = self.choosers if CHOOSER in self.settings.tiers else ()
        return self._is_code_known and all(chooser.is_identified for chooser in choosers)

    def answers(
        self, problem: Problem, device: str | torch.device, *, padding: bool, axes: tuple[Axis, ...] = ()
    ) -> Answers:
        """Return the answers for a problem on a device of torch's, without recording anything.

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
        """Decide about a generated kernel, whose x may change in the range of ``over``, without recording anything."""
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

        If sizes may change, it is recorded when Inductor gets it: decisions for parts of their range may replace it.
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
        """Record the configs for Inductor. MissError if there are none, under the setting ``strict``."""
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
        """Record the decision used in the end for an epilogue, or for a part of a range."""
        if not decision.over:
            _decided(decision)
        self.record(decision, (served,) if decision.configs else ())

    def record_unfused(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record why nothing is fused after a matmul. The problem's epilogue is the class that might have been."""
        recorder.unfused(problem, self.hardware(device), reason)
        log.debug("%s on %s: nothing is fused: %s", problem, device, reason)

    def record_apart(self, decision: Decision) -> None:
        """Record that matmuls which could be joined stay apart, because no row has a config that can run."""
        self._trace_decision(decision, ())
        recorder.apart(decision)
        log.debug("%s: stay apart", decision.problem)

    def record_no_choice(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record a problem without a choice: it is left to Inductor, because no answer could change anything."""
        self._trace_left(problem, device, f"there is no choice: {reason}")
        recorder.no_choice(problem, self.hardware(device), reason)

    def record_generated(self, decision: Decision, served: Config | None) -> None:
        """Record the decision about a generated kernel, and the config that it has. None if Inductor decides.

        That is a MissError under the setting ``strict`` if the user has rows, a model or a function for such kernels.
        Others have rows for some kernels alone, or none.
        """
        self._trace_decision(decision, () if served is None else (served,))
        recorder.generated(decision, served)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %s", decision.problem, served or "left to Inductor")
        if served is None and self.settings.strict and self._sources_for(decision.hardware).has_own_kernels:
            raise MissError(
                f"{decision.problem} on {decision.hardware}: {recorder.why_missed(decision)}, which the setting strict "
                "forbids beside rows or a model of your own for generated kernels; to measure it: "
                "python -m diode_lut tune -- PROGRAM; to leave it to Inductor: a row with the template default"
            )

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
        """Return the hardware of a device of torch's, as it was when it was first asked about."""
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
        """All devices of this machine."""
        return tuple(map(self.hardware, local_devices()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Hand over to Inductor's process for a whole graph, which uses the key of this process.

        Choosers are functions of the user's, and cannot be handed over. Then Inductor compiles in this process.
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
    """Record that a config of the decision cannot run, with one warning for each config of the user's own.

    Nobody can edit the others, so the receipt alone says it of them.
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
    """Record and return the first ``most`` of the configs that can run, and the baseline if Inductor is to have it."""
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
    """Return the snapshot of this thread's compile, or outside of a compile, where no cache is asked, a new snapshot.

    Dynamo's context comes first. If parts of a graph are compiled on their own, each has its own tracing context, and
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
    """Return the snapshot of ``process``. From another process, it is in force until the next is handed over.

    This process writes no receipt then, because the other process tells of the graph itself.
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
    """Compile the next graph as this process's own, with the hook off."""
    global _handed_over
    _handed_over = None


_CONTEXTS = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")
"""The modules with the context of vLLM's passes, in its present and in earlier releases."""


def compile_range() -> tuple[int, int] | None:
    """Return the least and the largest number of tokens of this graph in vLLM, or None if unknown.

    vLLM compiles a graph for several ranges, without bounds on the symbol of the number of tokens. Only the context of
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
