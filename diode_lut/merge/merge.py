"""Merging two tables, with or without their common ancestor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from diode_lut.domain.errors import TableError
from diode_lut.domain.hardware import Hardware
from diode_lut.merge.rows import MergedTable, Remark, merge_rows, version, without_contradictions
from diode_lut.table import Table
from diode_lut.table.table import Provenance

Value = TypeVar("Value")


def merged_schema(base: Table | None, ours: Table, theirs: Table) -> str:
    """The value of ``$schema`` on the side that changed it."""
    return _one_of(base.schema if base else None, ours.schema, theirs.schema, lambda our, _: our)


def merged_hardware(base: Table | None, ours: Table, theirs: Table) -> Hardware:
    """The hardware, with the aliases of both sides; TableError if the sides are for different devices."""
    our, their = ours.hardware, theirs.hardware
    if not our.same_device(their):
        raise TableError(f"is for {their}, but the other table is for {our}", path=theirs.path, where="hardware")
    before = base.hardware if base is not None and base.hardware.same_device(our) else None
    name = _one_of(before and before.name, our.name, their.name, lambda our, _: our)
    aliases = _one_of(before and before.aliases, our.aliases, their.aliases, lambda our, their: _united((*our, *their)))
    return our._replace(name=name, aliases=aliases)


def merged_provenance(base: Table | None, ours: Table, theirs: Table) -> Provenance:
    """The fields of both sides: all datasets, and the newer of two versions or dates."""
    before = base.provenance if base is not None else {}
    merged = {
        field: _one_of(before.get(field), ours.provenance.get(field), theirs.provenance.get(field), _newer)
        for field in _united((*ours.provenance, *theirs.provenance))
    }
    return {field: value for field, value in merged.items() if value is not None}


def header_remarks(base: Table | None, ours: MergedTable, theirs: MergedTable) -> Iterator[Remark]:
    """Remarks about provenance fields, except lists, that both sides changed in different ways."""
    before = base.provenance if base is not None else {}
    merged = merged_provenance(base, ours.table, theirs.table)
    for field, value in merged.items():
        our, their = ours.table.provenance.get(field), theirs.table.provenance.get(field)
        if our != their and before.get(field) not in (our, their) and isinstance(value, str):
            yield Remark(f"provenance.{field}", f"{ours.name} {our!r}, {theirs.name} {their!r}: {value!r} stays")


def _one_of(before: Value | None, our: Value, their: Value, choose: Callable[[Value, Value], Value]) -> Value:
    """The value of the side that changed it; if both did, what ``choose`` returns."""
    if their in (our, before):
        return our
    return their if our == before else choose(our, their)


def _newer(our: str | list[str] | None, their: str | list[str] | None) -> str | list[str] | None:
    if isinstance(our, list) and isinstance(their, list):
        return list(_united((*our, *their)))
    return their if our is None or (their is not None and version(str(their)) > version(str(our))) else our


def _united(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


class Merged(NamedTuple):
    """The merged table, with remarks: at least one for each row of either side that is gone."""

    table: Table
    remarks: tuple[Remark, ...]

    @property
    def conflicts(self) -> tuple[Remark, ...]:
        """The remarks about rows that somebody has to decide about. The notes of these rows say so as well."""
        return tuple(remark for remark in self.remarks if remark.conflict)


def merge(base: Table | None, ours: Table, theirs: Table, prefer: str = "") -> Merged:
    """The table with both sides' changes to ``base``; without a base, with the rows of both.

    ``prefer`` says which row stays in a conflict: ``ours``, ``theirs``, or ``best``, which gains more if one does.

    No two rows of the result contradict each other. TableError if the sides are for different devices.
    """
    format_version = max(ours.version, theirs.version)
    if ours.version != theirs.version:
        base, ours, theirs = base and base.upgraded(), ours.upgraded(), theirs.upgraded()
    our_side, their_side = MergedTable("ours", ours, prefer), MergedTable("theirs", theirs, prefer)
    claims, of_rows = merge_rows(base, our_side, their_side)
    claims, of_contradictions = without_contradictions(claims)
    table = Table(
        merged_hardware(base, ours, theirs),
        (claim.entry for claim in claims),
        merged_provenance(base, ours, theirs),
        version=format_version,
        schema=merged_schema(base, ours, theirs),
    )
    return Merged(table, (*header_remarks(base, our_side, their_side), *of_rows, *of_contradictions))
