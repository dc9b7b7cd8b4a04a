"""Decide for a compile by the settings, devices and tables of one moment."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Hashable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING
from uuid import uuid4

from diode_lut.decide.catalog import find_hardware, tiers_for, warn_of_useless
from diode_lut.decide.choosers import Chooser, registered
from diode_lut.decide.decide import Answers, Axis, Sources, decide
from diode_lut.decide.sources import Decision, Threshold
from diode_lut.errors import MissError, printable
from diode_lut.hardware import Hardware, detect_hardware, local_devices
from diode_lut.log import log, warn_once
from diode_lut.problem import Problem
from diode_lut.process import __version__, code_digest, in_forked_children, is_code_as_imported
from diode_lut.receipts import recorder
from diode_lut.settings import CHOOSER, DEVICE, SAME_ARCH, USER, Settings, config
from diode_lut.templates.config import Config

if TYPE_CHECKING:
    import torch

    from diode_lut.model.ranking import Model
    from diode_lut.table import Table


_DECIDING = (
    *("policy", "default_mode", "pad", "top_k", "dynamic_kernels", "fallback_to_autotune", "strict", "epilogues"),
    "generated",
)
"""The settings that kernels depend on, besides the threshold, the tables and the tiers."""

_lock = threading.RLock()
"""Held while tables are read, so that several threads read them once."""


class Snapshot:
    """The settings, devices and tables of a compile, from the key of its cache entry to its last kernel.

    The settings are those at its creation. A device and its tables stay as they were when they were first asked about.
    Later changes do not reach it.
    """

    def __init__(self) -> None:
        self.settings = config.copy()
        self.choosers = registered()
        self._devices: dict[str, Hardware] = {}
        self._sources: dict[Hardware, Sources] = {}
        self._answers: dict[Hashable, Answers] = {}
        self._is_code_known = False

    @cached_property
    def _threshold(self) -> Threshold:
        return Threshold.of(self.settings)

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """Everything that its decisions depend on, equal in every process with the same decisions."""
        devices = self._local()
        cpu, *gpus = (self._sources_for(hardware).digest for hardware in devices)
        recorder.devices_seen(devices)
        # Where GPUs are alike, their number does not matter; where they differ, a graph may be for any of them.
        return (
            __version__,
            code_digest(),
            *(getattr(self.settings, name) for name in _DECIDING),
            *self._threshold,
            *(() if self.is_identified else [uuid4().hex]),  # a new one each time, so that no cache hits
            cpu,
            *(gpus if len(set(gpus)) > 1 else gpus[:1]),
        )

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

        ``padding`` says whether the operands may be padded, or are. ``axes`` are the sizes that may change.
        """
        hardware = self.hardware(device)
        key = hardware, problem, axes, padding
        found = self._answers.get(key)
        if found is None:
            sources = self._sources_for(hardware)
            found = self._answers[key] = decide(sources, problem, self._threshold, axes=axes, padding=padding)
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
        self.trace(decision, served)
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

    def record_no_choice(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record a problem without a choice: it is left to Inductor, because no answer could change anything."""
        self.trace_left(problem, device, f"there is no choice: {reason}")
        recorder.no_choice(problem, self.hardware(device), reason)

    def record_generated(self, decision: Decision, served: Config | None) -> None:
        """Record the decision about a generated kernel, and the config that it has. None if Inductor decides.

        That is a MissError under the setting ``strict`` if the user has rows or a function for such kernels. Without,
        most kernels are left to Inductor, since shipped rows end where measurements end.
        """
        self.trace(decision, () if served is None else (served,))
        recorder.generated(decision, served)
        log.debug("%s: %s", decision.problem, served or "left to Inductor")
        if served is None and self.settings.strict and self._sources_for(decision.hardware).has_own_kernels:
            raise MissError(
                f"{decision.problem} on {decision.hardware}: {recorder.why_missed(decision)}, which the setting strict "
                "forbids beside rows of your own for generated kernels; to measure it: python -m diode_lut tune -- "
                "PROGRAM; to leave it to Inductor: a row with the template default"
            )

    def record_generated_left(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record why no table is asked about a generated kernel."""
        self.trace_left(problem, device, f"left to Inductor: {reason}")
        recorder.generated_left(problem, self.hardware(device), reason)

    def trace(self, decision: Decision, served: tuple[Config, ...]) -> None:
        """Show a decision, and the configs for Inductor, to the tools of a compiler. Without a compiler, do nothing."""

    def trace_left(self, problem: Problem, device: str | torch.device, why: str) -> None:
        """Show why no table is asked about a problem."""
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
        _warn_of_useless(self.settings.tables, self._local())
        return self._sources.setdefault(hardware, sources_for(hardware, self.settings, self.choosers))

    def _local(self) -> tuple[Hardware, ...]:
        """All devices of this machine."""
        return tuple(map(self.hardware, local_devices()))


def _decided(decision: Decision, seconds: float = 0.0) -> None:
    recorder.decided(decision, seconds)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", decision.explain())


def skip(decision: Decision, config: Config, reason: str) -> None:
    """Record that a config of the decision cannot run, with one warning for each config of a row, or of models."""
    if recorder.skipped(decision, config, reason):
        found = f"{config} cannot run {decision.problem} here: {reason}"
        instead = "Inductor decides" if decision.only_first else "the next config is taken, if there is one"
        log.warning("%s: %s; %s", decision.where, printable(found), instead)


_cpu: Hardware | None = None
"""The CPU as it was when it was last asked about."""
_is_parents = False
"""Whether the parent process has asked about it."""


def hardware_of(device: str | torch.device | None = None) -> Hardware:
    """Return the hardware of torch's ``device``, by default of torch's present device.

    In a forked process the CPU is the parent's, whatever number of threads the process sets, so it answers like its
    parent. A worker of a DataLoader has a single thread, and would need tables for that.
    """
    global _cpu
    found = detect_hardware(device)
    if not found.is_cpu:
        return found
    if _cpu is None or not _is_parents:
        _cpu = found
    return _cpu


def hardware_called(name: str, settings: Settings) -> Hardware:
    """Return the hardware of a name, as ``find_hardware`` does. Files looked at lately are not read again."""
    with _lock:
        return _find_hardware(name, settings.tables)


def sources_for(hardware: Hardware, settings: Settings, choosers: tuple[Chooser, ...]) -> Sources:
    """Return the sources for ``hardware`` under these settings. Tables read for it lately are not read again."""
    with _lock:
        return _open_sources(hardware, settings.tables, settings.tiers, choosers)


def sources_with(
    opened: Table | Model, hardware: Hardware, settings: Settings, choosers: tuple[Chooser, ...]
) -> Sources:
    """Return the same with a table or model, read before, as the first of the user's own."""
    return Sources(hardware, tiers_for(hardware, settings.tables, settings.tiers, choosers, opened))


def forget_tables() -> None:
    """Have tables and models read again from now on."""
    with _lock:
        _open_sources.cache_clear()
        _find_hardware.cache_clear()


_find_hardware = lru_cache(maxsize=8)(find_hardware)
_warn_of_useless = lru_cache(maxsize=8)(warn_of_useless)


@lru_cache(maxsize=8)
def _open_sources(
    hardware: Hardware, user_tables: tuple[str, ...], tiers: tuple[str, ...], choosers: tuple[Chooser, ...]
) -> Sources:
    sources = Sources(hardware, tiers_for(hardware, user_tables, tiers, choosers))
    by_tier = {tier.name: tier.sources for tier in sources.tiers}
    names = [
        f"{tier.name}: {source.path or source.name()} ({source.description()})"
        for tier in sources.tiers
        for source in tier.sources
    ]
    log.info("%s: %s", hardware, printable(", ".join(names)) or "no tables")
    others = by_tier.get(SAME_ARCH)
    if others and not (by_tier.get(USER) or by_tier.get(DEVICE)):
        elsewhere = f"{others[0].path} answers, which was measured on another GPU with the same architecture and SMs"
        verify = "python -m diode_lut verify says whether its gains hold here"
        warn_once(f"no table is for {hardware}: {elsewhere}; {verify}")
    recorder.sources_seen(sources)
    return sources


@in_forked_children
def _begin_again() -> None:
    """Renew the lock: the reading thread is not in the forked process."""
    global _lock, _is_parents
    _lock = threading.RLock()
    _is_parents = _cpu is not None
