"""The receipt of this process, as it grows."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from diode_lut import __version__
from diode_lut.domain.hardware import Hardware
from diode_lut.kernels.config import Config
from diode_lut.receipt import at_exit
from diode_lut.receipt.receipt import Device, Hit, Receipt, Skip, Source, Versions, merge_receipts
from diode_lut.receipt.statistics import get_prediction_stats
from diode_lut.selection.selector import Decision, Selector
from diode_lut.table.canonical import key_in_words

_lock = threading.RLock()
"""As in statistics: a signal handler may compile."""
_devices: dict[Hardware, Device] = {}
"""All hardware that answers were looked for, on this machine or not."""
_present: set[Hardware] = set()
"""The hardware of this machine, as far as it was looked at."""
_config = lru_cache(maxsize=4096)(str)
_row = lru_cache(maxsize=4096)(key_in_words)


@lru_cache(maxsize=4096)
def _configs(configs: tuple[Config, ...]) -> tuple[str, ...]:
    return tuple(map(_config, configs))


def record(decision: Decision, served: tuple[Config, ...]) -> None:
    """Inductor asked once, and got these configs; none if it chose by itself."""
    hit = Hit(decision.problem, *_who(decision), _configs(served)) if served else None
    with _lock:
        device = _device(decision.hardware)
        if hit is not None:
            device.hits[hit] += 1
        else:
            device.misses[decision.problem] += 1
            if decision.opinion is not None:
                device.expect(decision.problem, int(1000 / decision.opinion.ranking.times[0]))


def record_skipped(decision: Decision, config: Config, reason: str) -> None:
    """A config of the decision could not run."""
    skip = Skip(decision.problem, *_who(decision), _config(config), reason)
    with _lock:
        _device(decision.hardware).skipped[skip] += 1


def record_devices(hardware: Iterable[Hardware]) -> None:
    """This machine has such devices."""
    with _lock:
        _present.update(hardware)


def record_sources(selector: Selector) -> None:
    """Such tables and models can answer for the selector's hardware, if it is this machine's."""
    with _lock:
        device = _devices.setdefault(selector.hardware, Device())
        for tier in selector.tiers:
            for table in tier.tables:
                device.sources[Source(tier.name, _name(table.path), table.digest, len(table.entries))] = None
            for model in tier.models:
                device.sources[Source(tier.name, _name(model.path), model.digest, 0)] = None
            device.left_out.update(dict.fromkeys(_text(f"{tier.name}: {reason}") for reason in tier.left_out))


def own_receipt() -> Receipt:
    """What this process asked so far."""
    torch, triton = (str(getattr(sys.modules.get(name), "__version__", "")) for name in ("torch", "triton"))
    versions = Versions(__version__, platform.python_version(), torch, triton)
    nanoseconds = round(get_prediction_stats()["seconds"] * 1e9)
    with _lock:
        devices = {hardware: device for hardware, device in _devices.items() if hardware in _present}
        return merge_receipts([Receipt(1, {versions: None}, nanoseconds, devices)])


def _device(hardware: Hardware) -> Device:
    """Where what is asked for a device of this machine is noted."""
    if hardware not in _present:
        _present.add(hardware)
        at_exit.arm()
    device = _devices.get(hardware)
    if device is None:
        device = _devices[hardware] = Device()
    return device


def _who(decision: Decision) -> tuple[str, str, str]:
    """The tier, the digest of the file and the row that answered."""
    if decision.entry is not None and decision.table is not None:
        return decision.tier, decision.table.digest, _row(decision.entry)
    return decision.tier, decision.opinion.model.digest if decision.opinion is not None else "", ""


def _name(path: Path | None) -> str:
    return "" if path is None else _text(str(path))


def _text(text: str) -> str:
    """Without what JSON cannot say: file names need not be UTF-8."""
    return text.encode(errors="replace").decode()


def _forget() -> None:
    """A forked process has its parent's tables, and has asked nothing yet."""
    global _lock
    _lock = threading.RLock()
    for hardware, device in _devices.items():
        _devices[hardware] = Device(device.sources, device.left_out)
    _present.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
