"""Configs of a row that can never be launched on the table's architecture, whichever of its problems is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.registry import templates_for
from diode_lut.table.entry import Entry
from diode_lut.table.fault import Fault


def unlaunchable(entry: Entry, arch: str) -> Iterator[Fault]:
    """What keeps configs of the row from being launched: the hook passes over these configs."""
    known = architecture(arch)
    for number, config in enumerate(entry.configs):
        if not config.kernel.runs_on(known):
            reason = f"{config.template} does not run on {arch} (what does: {', '.join(templates_for(known))})"
            yield Fault(reason, "configs", number, "template")
            continue
        for reason, field in config.kernel.complaints(config.params, entry, known):
            yield Fault(reason, "configs", number, *([field] if field else []))
