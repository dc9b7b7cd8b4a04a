"""What a row must keep to beyond its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from diode_lut.kernels.architecture import architecture
from diode_lut.kernels.registry import templates_for
from diode_lut.table.entry import Entry
from diode_lut.table.overlap import Effort, overlaps, repeats, shared_problem
from diode_lut.table.position import Fault
from diode_lut.table.unreachable import unreachable

CONFLICT = "merge conflict: "
"""How the part of a note begins that ``merge`` wrote for people to decide."""


def useless(entry: Entry, arch: str | None) -> Iterator[Fault]:
    """What makes a row, or one of its configs, one that is never used; ``arch`` is what the table is for, if known."""
    yield from _never_asked(entry)
    yield from _unusable(entry)
    if arch is not None:
        yield from unlaunchable(entry, arch)


def undecided(entry: Entry) -> Iterator[Fault]:
    """That two sides of a merge said different things, and nobody has decided yet."""
    for part in (entry.note or "").split("; "):
        if part.startswith(CONFLICT):
            yield Fault(f"{part!r} is not decided (keep or change the row, and take this out of its note)", "note")


def contradictions(entries: Mapping[int, Entry]) -> Iterator[Fault]:
    """Which rows, given with their numbers, are never asked, or as specific as another row on the same problem.

    The work is bounded: a note says in how many rows it was not looked for.
    """
    reachable = {number: entry for number, entry in entries.items() if entry.volume > 0}
    covering, overlapping = Effort(), Effort()
    for number in unreachable(reachable, covering):
        yield Fault("is never used: more specific rows cover all of its problems", "entries", number)
    for number, first in repeats(reachable):
        yield Fault(f"has the same key as entries[{first}]", "entries", number)
    for number, other in overlaps(reachable, overlapping):
        shared = shared_problem(entries[number], entries[other])
        reason = f"covers {shared} with the same specificity as entries[{other}] (make one of them narrower)"
        yield Fault(reason, "entries", number)
    yield from _not_looked_for("rows that are never used", len(covering.undecided))
    yield from _not_looked_for("rows that cover a problem with the same specificity", len(overlapping.undecided))


def _not_looked_for(what: str, rows: int) -> Iterator[Fault]:
    if rows:
        reason = f"{what} were not looked for in {rows} rows: too many rows cover some of the same sizes"
        yield Fault(reason, "entries", note=True)


def _never_asked(entry: Entry) -> Iterator[Fault]:
    if entry.op is not None and entry.volume == 0:
        yield Fault(f"{entry.op} has no batch, so that only a range from 1 is ever asked for", "b")


def _unusable(entry: Entry) -> Iterator[Fault]:
    for number, config in enumerate(entry.configs):
        ops = config.kernel.ops
        if entry.op is not None and entry.op not in ops:
            reason = f"{config.template} cannot do {entry.op} (it can do: {', '.join(ops)})"
            yield Fault(reason, "configs", number, "template")


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
