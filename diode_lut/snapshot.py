"""What one compile decides by: the settings, devices and tables of one moment."""

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
from diode_lut.decide.dynamic import Axis, Piece, decide_over, pieces_over
from diode_lut.decide.selector import Decision, Selector
from diode_lut.decide.sources import Threshold
from diode_lut.errors import MissError, printable
from diode_lut.hardware import Hardware, detect_hardware, local_devices
from diode_lut.problem import Problem
from diode_lut.process import __version__, code_digest, in_forked_children, is_code_as_imported, log, warn_once
from diode_lut.receipts import recorder
from diode_lut.settings import CHOOSER, DEVICE, SAME_ARCH, USER, Settings, config
from diode_lut.templates.config import Config

if TYPE_CHECKING:
    import torch

    from diode_lut.model.ranking import Model
    from diode_lut.table import Table


_lock = threading.RLock()
"""Held while tables are read, so that threads that ask at the same time read them once."""


class Snapshot:
    """The settings, devices and tables that one compile sees, from the key of its cache entry to its last kernel.

    The settings are those of the moment when it was made. A device and its tables stay as they were when the snapshot
    was first asked about them. Later changes do not reach it.
    """

    def __init__(self) -> None:
        self.settings = config.copy()
        self.choosers = registered()
        self._devices: dict[str, Hardware] = {}
        self._selectors: dict[Hardware, Selector] = {}
        self._over: dict[Hashable, Decision] = {}
        self._pieces: dict[Hashable, tuple[Piece, ...]] = {}
        self._is_code_known = False

    @cached_property
    def _threshold(self) -> Threshold:
        return Threshold.of(self.settings)

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """Everything that its decisions can depend on: equal in another process if that decides the same."""
        devices = self._local()
        cpu, *gpus = (self._selector(hardware).digest for hardware in devices)
        recorder.devices_seen(devices)
        names = (
            "policy",
            "default_mode",
            "pad",
            "top_k",
            "dynamic_kernels",
            "fallback_to_autotune",
            "strict",
            "epilogues",
        )
        settings = (*(getattr(self.settings, name) for name in names), *self._threshold)
        # Where GPUs are alike, their number does not matter; where they differ, a graph may be for any of them.
        return (
            __version__,
            code_digest(),
            *settings,
            *(() if self.is_identified else [uuid4().hex]),  # a new one each time, so that no cache hits
            cpu,
            *(gpus if len(set(gpus)) > 1 else gpus[:1]),
        )

    @property
    def is_identified(self) -> bool:
        """Whether all that answers has an identity; a chooser may have none, and code that is replaced has none.

        The code is looked at again only if a device was asked about in between, as for each decision.
        """
        self._is_code_known = self._is_code_known or is_code_as_imported()
        return self._is_code_known and self._is_chooser_identified

    @property
    def _is_chooser_identified(self) -> bool:
        return CHOOSER not in self.settings.tiers or all(chooser.is_identified for chooser in self.choosers)

    def decide(
        self, problem: Problem, device: str | torch.device, *, padding: bool, axes: tuple[Axis, ...] = ()
    ) -> Decision:
        """The decision for one problem on one of torch's devices, which is recorded.

        ``padding`` says whether the operands may be padded, or are; ``axes`` which of its sizes may change. Where some
        may, it is recorded when Inductor gets it, because decisions for parts of their range may replace it.
        """
        start = time.perf_counter()
        decision = self.consider(problem, device, padding=padding, axes=axes)
        seconds = time.perf_counter() - start
        if decision.over:
            recorder.selected(seconds)
        else:
            _decided(decision, seconds)
        return decision

    def consider(
        self, problem: Problem, device: str | torch.device, *, padding: bool, axes: tuple[Axis, ...] = ()
    ) -> Decision:
        """The decision for a problem that may not come about, which is not recorded."""
        selector, threshold = self._selector(self._hardware(device)), self._threshold
        if not axes:
            return selector.select(problem, threshold, padding=padding)
        key = (selector.hardware, problem, axes, padding)
        found = self._over.get(key)
        return found or self._over.setdefault(key, decide_over(selector, problem, axes, threshold, padding=padding))

    def pieces(
        self, problem: Problem, device: str | torch.device, axes: tuple[Axis, ...], *, library: bool
    ) -> tuple[Piece, ...]:
        """The pieces of the range along the only axis, which are not recorded; none if one config serves all of it.

        ``library`` says whether aten can have some of them.
        """
        if len(axes) != 1 or self.settings.dynamic_kernels == 1:
            return ()
        selector, (axis,) = self._selector(self._hardware(device)), axes
        key = (selector.hardware, problem, axis, library)
        if key not in self._pieces:
            most = self.settings.dynamic_kernels
            self._pieces[key] = pieces_over(selector, problem, axis, self._threshold, most, library=library)
        return self._pieces[key]

    def record_fusion(self, decision: Decision, served: Config) -> None:
        """Record a decision that was considered for an epilogue, or for a part of a range, now that it is taken."""
        if not decision.over:
            _decided(decision)
        Snapshot.record(self, decision, (served,) if decision.configs else ())

    def record_unfused(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record that nothing is fused behind a matmul; its epilogue is the class of what might have been."""
        recorder.unfused(problem, self._hardware(device), reason)
        log.debug("%s on %s: nothing is fused: %s", problem, device, reason)

    def record(self, decision: Decision, served: tuple[Config, ...]) -> None:
        """Record which of the decision's configs Inductor gets; with none, MissError under the setting ``strict``."""
        if decision.over:
            _decided(decision)
        recorder.served(decision, served)
        if not served and self.settings.strict:
            raise MissError(_missed(decision))

    def record_no_choice(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Record a problem that is left to Inductor without a question, because no answer could change anything."""
        recorder.no_choice(problem, self._hardware(device), reason)
        log.debug("%s on %s: there is no choice: %s", problem, device, reason)

    def _hardware(self, device: str | torch.device) -> Hardware:
        self._is_code_known = False
        name = str(device)
        return self._devices.get(name) or self._devices.setdefault(name, hardware_of(device))

    def _selector(self, hardware: Hardware) -> Selector:
        found = self._selectors.get(hardware)
        if found is not None:
            return found
        _warn_of_useless(self.settings.tables, self._local())
        return self._selectors.setdefault(hardware, selector_for(hardware, self.settings, self.choosers))

    def _local(self) -> tuple[Hardware, ...]:
        """All devices of this machine."""
        return tuple(map(self._hardware, local_devices()))


_cpu: Hardware | None = None
"""The CPU as it was when it was last asked about."""
_is_parents = False
"""Whether it was the process that forked this one that asked."""


def hardware_of(device: str | torch.device | None = None) -> Hardware:
    """The hardware of torch's ``device``, by default of the one that torch would use.

    A forked process has the CPU that its parent asked about, whatever number of threads it sets, and so answers as its
    parent does: a worker of a DataLoader has one thread, and would need tables for one.
    """
    global _cpu
    found = detect_hardware(device)
    if not found.is_cpu:
        return found
    if _cpu is None or not _is_parents:
        _cpu = found
    return _cpu


def _decided(decision: Decision, seconds: float = 0.0) -> None:
    recorder.decided(decision, seconds)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", decision.explain())


def skip(decision: Decision, config: Config, reason: str) -> None:
    """Record a config of the decision that cannot run; warn, once for each config of a row, or of models."""
    if recorder.skipped(decision, config, reason):
        found = f"{config} cannot run {decision.problem} here: {reason}"
        instead = "Inductor decides" if decision.only_first else "the next config is taken, if there is one"
        log.warning("%s: %s; %s", decision.where, printable(found), instead)


def selector_for(hardware: Hardware, settings: Settings, choosers: tuple[Chooser, ...]) -> Selector:
    """What answers for ``hardware`` under these settings; tables that were read for it lately are not read again."""
    with _lock:
        return _build_selector(hardware, settings.tables, settings.tiers, choosers)


def selector_with(
    opened: Table | Model, hardware: Hardware, settings: Settings, choosers: tuple[Chooser, ...]
) -> Selector:
    """The same with a table or model that was read before, which is the first of the user's own."""
    return Selector(hardware, tiers_for(hardware, settings.tables, settings.tiers, choosers, opened))


def hardware_called(name: str, settings: Settings) -> Hardware:
    """The hardware of that name, as ``find_hardware`` has it; files that were looked at lately are not read again."""
    with _lock:
        return _find_hardware(name, settings.tables)


def forget_tables() -> None:
    """Have tables and models read again for whatever is asked from now on."""
    with _lock:
        _build_selector.cache_clear()
        _find_hardware.cache_clear()


_find_hardware = lru_cache(maxsize=8)(find_hardware)


@lru_cache(maxsize=8)
def _build_selector(
    hardware: Hardware, user_tables: tuple[str, ...], tiers: tuple[str, ...], choosers: tuple[Chooser, ...]
) -> Selector:
    selector = Selector(hardware, tiers_for(hardware, user_tables, tiers, choosers))
    sources = [
        f"{tier.name}: {source.path or source.name()} ({source.description()})"
        for tier in selector.tiers
        for source in tier.sources
    ]
    log.info("%s: %s", hardware, printable(", ".join(sources)) or "no tables")
    _warn_of_another_gpus(selector)
    recorder.sources_seen(selector)
    return selector


def _warn_of_another_gpus(selector: Selector) -> None:
    """Warn once where the only tables that answer were measured on another GPU."""
    tables = {tier.name: tier.sources for tier in selector.tiers if tier.name in (USER, DEVICE, SAME_ARCH)}
    first, *_ = tables.pop(SAME_ARCH, ()) or (None,)
    if first is not None and not any(tables.values()):
        elsewhere = f"{first.path} answers, which was measured on another GPU with the same architecture and SMs"
        verify = "python -m diode_lut verify says whether its gains hold here"
        warn_once(f"no table is for {selector.hardware}: {elsewhere}; {verify}")


@lru_cache(maxsize=8)
def _warn_of_useless(user_tables: tuple[str, ...], devices: tuple[Hardware, ...]) -> None:
    warn_of_useless(user_tables, devices)


def _missed(decision: Decision) -> str:
    why = f"no config of {decision.where} can run" if decision.configs else "no table and no model answers"
    command = "python -m diode_lut collect --problems missed.json --out timings.msgpack"
    problem = json.dumps([decision.problem.to_json()])
    over = f" for {decision.over}" if decision.over else ""
    return (
        f"{decision.problem} on {decision.hardware}{over}: {why}, which the setting strict forbids; "
        f"to measure it: echo '{problem}' > missed.json && {command}"
    )


@in_forked_children
def _begin_again() -> None:
    """The thread that was reading tables is not in the forked process."""
    global _lock, _is_parents
    _lock = threading.RLock()
    _is_parents = _cpu is not None
