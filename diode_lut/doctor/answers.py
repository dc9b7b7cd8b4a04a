"""What doctor says about the settings, the devices, and who could answer for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from diode_lut.catalog import (
    distrusted,
    find_path,
    find_tables,
    is_model,
    open_model,
    open_table,
    shipped_paths,
    tiers_for,
)
from diode_lut.doctor.finding import Finding, fine, note, wrong
from diode_lut.errors import ModelError, TableError
from diode_lut.hardware import detect_hardware, local_devices
from diode_lut.problem import Hardware
from diode_lut.selector import shown, trained_for
from diode_lut.settings import Settings, config, faults_in_environment

_LIBRARIES = "pip install --force-reinstall numpy safetensors"


def settings() -> Iterator[Finding]:
    """What differs from the defaults, and variables that have no effect."""
    for fault in faults_in_environment():
        yield wrong("settings", fault, "correct the variable, or unset it")
    defaults = vars(Settings({}))
    for name, value in vars(Settings()).items():
        if value != defaults[name]:
            yield note("settings", f"{name}={value!r}, by DIODE_LUT_{name.upper()} (default: {defaults[name]!r})")


def devices() -> Iterator[Finding]:
    """What this machine computes on, and the tables and models that answer there."""
    if sys.modules.get("torch") is None:  # software() has tried
        return
    found = list(dict.fromkeys(detect_hardware(name) for name in local_devices()))
    main = detect_hardware()
    for hardware in found:
        yield fine("device", str(hardware))
        yield from _answering(hardware, main)
    yield from _unusable(found)


def _answering(hardware: Hardware, main: Hardware) -> Iterator[Finding]:
    tiers = tiers_for(hardware, config.tables, config.tiers)
    files = [(tier.name, table.path, f"{len(table.entries)} rows") for tier in tiers for table in tier.tables]
    models = ((tier.name, model) for tier in tiers for model in tier.models)
    files += [(tier, model.path, f"a model{trained_for(model, hardware)}") for tier, model in models]
    for tier, path, what in files:
        yield fine("answers", f"{tier}: {shown(path or Path())}, {what}")
    reasons = "; ".join(f"{tier.name}: {reason}" for tier in tiers for reason in tier.left_out)
    if not files and hardware == main:
        remedy = "measure on this machine: python -m diode_lut collect --help, then build, then set DIODE_LUT_TABLES"
        yield wrong("answers", f"nobody answers here: {reasons}", remedy)
    elif reasons:
        yield note("answers", reasons)


def _unusable(found: list[Hardware]) -> Iterator[Finding]:
    """Files that answer on no device of this machine, or not with all that is in them."""
    for name in config.tables:
        yield from _own(name)
    yield from _shipped()
    for reason in distrusted():
        yield wrong("tables", f"left out: {reason}", "see to its owner and permissions, or name it in DIODE_LUT_TABLES")
    for file in find_tables(config.tables):
        if not any(file.hardware.kin(hardware) for hardware in found) and (file.shipped or not is_model(file.path)):
            text = f"{shown(file.path)} is for {file.hardware}, which this machine does not have"
            remedy = "take it out of DIODE_LUT_TABLES, or measure for this machine"
            yield note("tables", text) if file.shipped else wrong("tables", text, remedy)


def _own(name: str) -> Iterator[Finding]:
    """What is wrong with one of the user's own files."""
    yield from _faults(name, f"python -m diode_lut check {name}", "correct DIODE_LUT_TABLES")


def _shipped() -> Iterator[Finding]:
    """What is wrong with the shipped files, for whatever hardware they are."""
    remedy = "restore it, by installing diode_lut again, or remove it"
    for path in shipped_paths():
        yield from _faults(path, remedy, remedy)


def _faults(name: str, if_bad: str, if_unreadable: str) -> Iterator[Finding]:
    """What is wrong with a table or model, with the remedy."""
    try:
        path = find_path(name)
        if is_model(path):
            open_model(path)
            return
        faults = len(open_table(path).errors)
    except (TableError, ModelError) as error:
        cause = error.__cause__
        remedy = if_unreadable if isinstance(cause, OSError) else if_bad
        yield wrong("tables", str(error), _LIBRARIES if isinstance(cause, ImportError) else remedy)
        return
    if faults:
        yield wrong("tables", f"{shown(path)}: {faults} of its rows cannot be used", if_bad)
