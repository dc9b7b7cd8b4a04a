"""Changing single rows of a table, so that the table stays as good as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diode_lut.domain.errors import TableError
from diode_lut.table.canonical import canonical_order, key_text
from diode_lut.table.check import useless
from diode_lut.table.entry import Entry
from diode_lut.table.overlap import Effort, Neighbours, coverage, shared_problem
from diode_lut.table.position import dotted
from diode_lut.table.table import Table
from diode_lut.table.unreachable import unreachable


class Edit(NamedTuple):
    """A changed table: the row that is ``gone``, the one that is ``new``, and others about the same problems.

    Of these, the ``narrower`` ones go on answering some of the new row's problems, the ``wider`` ones no longer do.
    ``undecided`` counts the new row and wider ones that may have nothing left to answer: to find out takes too long.
    """

    table: Table
    gone: Entry | None
    new: Entry | None
    narrower: tuple[Entry, ...] = ()
    wider: tuple[Entry, ...] = ()
    undecided: int = 0


def set_row(table: Table, entry: Entry) -> Edit:
    """The table with ``entry`` in place of the row with the same key, if there is one.

    TableError if the row could never answer with one of its configs, contradicts another row, or leaves another one
    nothing to answer: the table would no longer pass ``check``.
    """
    if entry.least_version > table.version:
        reason = f"version {table.version} of the format cannot hold this row (fmt --upgrade writes a newer one)"
        raise TableError(reason, path=table.path)
    for fault in useless(entry, table.hardware.arch):
        raise TableError(fault.reason, path=table.path, where=dotted(fault.path))
    gone = _same_key(table, entry)
    others = [row for row in table.entries if row is not gone]
    near = _near(others, entry)
    for row in near:
        if row.volume == entry.volume:
            shared = shared_problem(row, entry)
            reason = f"it would cover {shared} with the same specificity as {key_text(row)} (change that instead)"
            raise TableError(reason, path=table.path)
    narrower = tuple(row for row in near if row.volume < entry.volume)
    wider = tuple(row for row in near if row.volume > entry.volume)
    effort = Effort()
    for reason in _left_without_problems(others, wider, entry, effort):
        raise TableError(reason, path=table.path)
    return Edit(_with_entries(table, [*others, entry]), gone, entry, narrower, wider, len(effort.undecided))


def unset_row(table: Table, key: Entry) -> Edit:
    """The table without the row that has the same key; TableError if there is none."""
    gone = _same_key(table, key)
    if gone is None:
        near = _near(table.entries, key)
        closest = f"the closest: {key_text(near[0])}" if near else "nor covers any of it"
        raise TableError(f"no row has the key {key_text(key)} ({closest})", path=table.path)
    others = [row for row in table.entries if row is not gone]
    return Edit(_with_entries(table, others), gone, None)


def _near(rows: Sequence[Entry], entry: Entry) -> list[Entry]:
    """The rows that cover some of the same problems, the most specific first."""
    sharing = [rows[number] for number in Neighbours(rows).of(entry, len(rows))]
    return sorted(sharing, key=lambda row: (row.volume, canonical_order(row)))


def _same_key(table: Table, entry: Entry) -> Entry | None:
    wanted = coverage(entry)
    return next((row for row in table.entries if coverage(row) == wanted), None)


def _left_without_problems(
    others: Sequence[Entry], wider: Sequence[Entry], entry: Entry, effort: Effort
) -> Iterator[str]:
    """What to say if ``entry`` or, because of it, one of the ``wider`` rows has nothing to answer."""
    rows = {number: row for number, row in enumerate((*others, entry)) if row.volume > 0}
    new, near = len(others), {id(row) for row in wider}
    after = set(unreachable(rows, effort, [new, *(number for number, row in rows.items() if id(row) in near)]))
    del rows[new]
    if new in after:
        yield "it would never be used: more specific rows cover all of its problems"
    after.discard(new)
    for number in after.difference(unreachable(rows, effort, after)).difference(effort.undecided):
        yield f"it would leave nothing to answer to {key_text(rows[number])} (unset that first)"


def _with_entries(table: Table, entries: list[Entry]) -> Table:
    return Table(table.hardware, entries, table.provenance, version=table.version, schema=table.schema, path=table.path)
