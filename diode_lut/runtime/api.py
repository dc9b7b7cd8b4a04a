"""The answers of this process: the tables that its settings name, for the devices that it has."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Hashable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from diode_lut import __version__, receipt
from diode_lut.domain.errors import MissError, SettingError
from diode_lut.domain.hardware import Hardware, detect_hardware, local_devices
from diode_lut.domain.printable import printable
from diode_lut.domain.problem import Problem
from diode_lut.io.resources import code_digest
from diode_lut.kernels.config import Config
from diode_lut.receipt.statistics import count_prediction, count_skipped_config, count_unserved
from diode_lut.selection.catalog import (
    TableFile,
    find_hardware,
    find_path,
    find_tables,
    is_model,
    open_model,
    open_table,
    tiers_for,
    warn_of_useless,
)
from diode_lut.selection.explanation import Explanation
from diode_lut.selection.explanation import explain as explanation_of
from diode_lut.selection.selector import Decision, Demand, Selector
from diode_lut.settings import Settings, config
from diode_lut.table import Entry

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_lock = threading.RLock()
_skipped: set[tuple[Entry | None, Config]] = set()
"""The rows and configs that a warning named before."""


def get_detected_hardware() -> Hardware:
    """The device that torch would use on this machine; HardwareError if torch is missing."""
    return detect_hardware()


def list_available_tables() -> list[TableFile]:
    """The user's own tables, then the shipped ones; those whose head cannot be read are left out with a warning."""
    return find_tables(config.tables)


def register_table(name_or_path: str) -> None:
    """Put a table or a model behind the user's own in ``config.tables``; TableError or ModelError if it is no use.

    ``name_or_path`` is a file, or the name of a shipped table, of its hardware or an alias of that. A model is used on
    any hardware, whatever it was trained for. What is there already stays where it is, and a relative path means the
    same file wherever the process goes.
    """
    path = find_path(name_or_path).absolute()
    if is_model(path):
        open_model(path)
    else:
        open_table(path)
    with _lock:
        if not {name_or_path, str(path)}.intersection(config.tables):
            config.tables = (*config.tables, str(path))


def select(problem: Problem, *, hardware: Hardware | str | None = None) -> Decision:
    """The decision for one problem on ``hardware``: by default the device that torch would use.

    A name stands for the hardware of the table that is called so, or that is for hardware called so. HardwareError if
    there is none, or if torch finds no device.
    """
    settings = config.copy()
    return _selector(_hardware(hardware, settings), settings).select(problem, Demand.of(settings))


def explain(problem: Problem, *, hardware: Hardware | str | None = None) -> str:
    """What ``select`` decides and why, in plain words: which rows come next, and what the models say, too."""
    return str(explanation(problem, hardware=hardware))


def explanation(problem: Problem, *, hardware: Hardware | str | None = None) -> Explanation:
    """What ``explain`` says, in parts."""
    settings = config.copy()
    return explanation_of(_selector(_hardware(hardware, settings), settings), problem, Demand.of(settings))


def _hardware(hardware: Hardware | str | None, settings: Settings) -> Hardware:
    if hardware is None:
        return get_detected_hardware()
    return find_hardware(hardware, settings.tables) if isinstance(hardware, str) else hardware


class Snapshot:
    """The settings, devices and tables that one compile sees, from the key of its cache entry to its last kernel.

    The settings are those of the moment when it was made; a device and its tables stay as they were when it was first
    asked about them. What changes later does not reach it.
    """

    def __init__(self) -> None:
        self.settings = config.copy()
        self._devices: dict[str, Hardware] = {}
        self._selectors: dict[Hardware, Selector] = {}

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """Everything that its decisions can depend on: the same in another process if that decides the same."""
        devices = tuple(map(self._hardware, local_devices()))
        _warn_of_useless(self.settings.tables, devices)
        cpu, *gpus = (self._selector(hardware).digest for hardware in devices)
        receipt.record_devices(devices)
        names = ("policy", "default_mode", "top_k", "fallback_to_autotune", "strict")
        settings = (*(getattr(self.settings, name) for name in names), *Demand.of(self.settings))
        # Where GPUs are alike, it does not matter how many a process sees; else a graph may be for any of them.
        return (__version__, code_digest(), *settings, cpu, *(gpus if len(set(gpus)) > 1 else gpus[:1]))

    def decide(self, problem: Problem, device: str | torch.device) -> Decision:
        """The decision for one problem on one of torch's devices, counted in the statistics."""
        start = time.perf_counter()
        decision = self._selector(self._hardware(device)).select(problem, Demand.of(self.settings))
        count_prediction(decision.tier, time.perf_counter() - start, decision.confidence)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", decision.explain())
        return decision

    def settle(self, decision: Decision, served: tuple[Config, ...]) -> None:
        """Note which of the decision's configs Inductor gets; with none, MissError if the setting ``strict`` is on."""
        receipt.record(decision, served)
        if served:
            return
        if decision.configs:
            count_unserved()
        if self.settings.strict:
            raise MissError(_missed(decision))

    def _hardware(self, device: str | torch.device) -> Hardware:
        name = str(device)
        return self._devices.get(name) or self._devices.setdefault(name, detect_hardware(device))

    def _selector(self, hardware: Hardware) -> Selector:
        found = self._selectors.get(hardware)
        return found or self._selectors.setdefault(hardware, _selector(hardware, self.settings))


def skipped(decision: Decision, config: Config, reason: str) -> None:
    """Note a config of the decision that cannot run after all; warn, of each config of a row, or of models, once."""
    count_skipped_config()
    receipt.record_skipped(decision, config, reason)
    key = decision.entry, config
    with _lock:
        if key in _skipped:
            return
        _skipped.add(key)
    found = f"{config} cannot run {decision.problem} here: {reason}"
    instead = "Inductor decides" if decision.entry is None else "the row's next config is taken, if there is one"
    log.warning("%s: %s; %s", decision.where, printable(found), instead)


def set_log_level(level: int | str) -> None:
    """Log messages of this and higher levels: ``debug``, ``info``, ..., or a number as logging has them.

    They go to stderr unless the program has set up logging. SettingError if there is no such level.
    """
    logger = logging.getLogger("diode_lut")
    try:
        logger.setLevel(level.upper() if isinstance(level, str) else level)
    except (TypeError, ValueError):
        raise SettingError(f"log level: {level!r} is not one of {', '.join(_LEVELS).lower()}") from None
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())


def _missed(decision: Decision) -> str:
    why = f"no config of {decision.where} can run" if decision.configs else "no table and no model answers"
    command = "python -m diode_lut collect --problems missed.json --out timings.msgpack"
    problem = json.dumps([decision.problem.to_json()])
    return (
        f"{decision.problem} on {decision.hardware}: {why}, which the setting strict forbids; "
        f"to measure it: echo '{problem}' > missed.json && {command}"
    )


def _selector(hardware: Hardware, settings: Settings) -> Selector:
    with _lock:
        return _build_selector(hardware, settings.tables, settings.tiers)


@lru_cache(maxsize=8)
def _build_selector(hardware: Hardware, user_tables: tuple[str, ...], tiers: tuple[str, ...]) -> Selector:
    selector = Selector(hardware, tiers_for(hardware, user_tables, tiers))
    tables = [
        f"{tier.name}: {table.path} ({len(table.entries)} rows)" for tier in selector.tiers for table in tier.tables
    ]
    tables += [f"{tier.name}: {model.path}" for tier in selector.tiers for model in tier.models]
    log.info("%s: %s", hardware, printable(", ".join(tables)) or "no tables")
    receipt.record_sources(selector)
    return selector


@lru_cache(maxsize=8)
def _warn_of_useless(user_tables: tuple[str, ...], devices: tuple[Hardware, ...]) -> None:
    warn_of_useless(user_tables, devices)


def _free_lock() -> None:
    """In a forked process nobody holds the lock: the thread that did is not there."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_free_lock)
