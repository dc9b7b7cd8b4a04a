"""Changes of tables: rows are set and removed, and the changes of two sides are merged, without contradictions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from diode_lut.errors import TableError, printable
from diode_lut.table.faults import dotted
from diode_lut.table.format import Provenance, Table, key_text, winner_text
from diode_lut.table.lint import CONFLICT, useless
from diode_lut.table.lookup import Effort, Neighbours, overlaps, shared_problem, unreachable
from diode_lut.table.row import Entry, canonical_order, coverage, specificity


class Edit(NamedTuple):
    """A changed table, the old and the new row, and rows for some of the same problems.

    ``narrower`` rows go on answering some of the new row's problems, ``wider`` rows no longer do. ``undecided`` counts
    the new row and wider rows for which it takes too long to find out if they still answer anything.
    """

    table: Table
    gone: Entry | None
    new: Entry | None
    narrower: tuple[Entry, ...] = ()
    wider: tuple[Entry, ...] = ()
    undecided: int = 0


def set_row(table: Table, entry: Entry) -> Edit:
    """Return the table with ``entry``, in place of the row with the same key if there is one.

    TableError if the table would no longer pass ``check``: the row could never answer with one of its configs,
    contradicts another row, or leaves another row nothing to answer.
    """
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
    rows = {number: row for number, row in enumerate((*others, entry)) if row.volume > 0}
    new, ids = len(others), {id(row) for row in wider}
    useless_now = set(unreachable(rows, effort, [new, *(number for number, row in rows.items() if id(row) in ids)]))
    if new in useless_now:
        raise TableError("it would never be used: more specific rows cover all of its problems", path=table.path)
    del rows[new]
    for number in useless_now.difference(unreachable(rows, effort, useless_now)).difference(effort.undecided):
        reason = f"it would leave nothing to answer to {key_text(rows[number])} (unset that first)"
        raise TableError(reason, path=table.path)
    return Edit(_with_entries(table, [*others, entry]), gone, entry, narrower, wider, len(effort.undecided))


def unset_row(table: Table, key: Entry) -> Edit:
    """Return the table without the row with the same key. TableError if there is none."""
    gone = _same_key(table, key)
    if gone is None:
        near = _near(table.entries, key)
        closest = f"the closest: {key_text(near[0])}" if near else "nor covers any of it"
        raise TableError(f"no row has the key {key_text(key)} ({closest})", path=table.path)
    return Edit(_with_entries(table, [row for row in table.entries if row is not gone]), gone, None)


def _near(rows: Sequence[Entry], entry: Entry) -> list[Entry]:
    """Return the rows for some of the same problems, the most specific first."""
    return sorted((rows[number] for number in Neighbours(rows).of(entry, len(rows))), key=specificity)


def _same_key(table: Table, entry: Entry) -> Entry | None:
    wanted = coverage(entry)
    return next((row for row in table.entries if coverage(row) == wanted), None)


def _with_entries(table: Table, entries: list[Entry]) -> Table:
    return Table(table.hardware, entries, table.provenance, schema=table.schema, path=table.path)


BEST = "best"  # the preference for the row with the larger gain
SAME_GAIN = 0.02  # two gains count as the same if they differ by at most this fraction


class MergedTable(NamedTuple):
    """A table to merge, its name, ``ours`` or ``theirs``, and who wins conflicts: a side, BEST, or a person."""

    name: str
    table: Table
    prefer: str = ""

    @property
    def software(self) -> tuple[tuple[int, ...], ...]:
        """The versions of torch and Triton of the measurements, which compare as versions do."""
        return tuple(as_version(str(self.table.provenance.get(name, ""))) for name in ("torch", "triton"))


class Claim(NamedTuple):
    """A row, its side, and the row of the base."""

    side: MergedTable
    entry: Entry
    before: Entry | None = None

    @property
    def gain(self) -> int | None:
        """The gain of the first config. None if not measured, or if the base has this gain for another config."""
        best, was = self.entry.best, self.before.best if self.before else None
        edited = was is not None and was.config != best.config and was.gain_permille == best.gain_permille
        return None if edited else best.gain_permille

    def in_conflict(self, facts: str) -> Claim:
        """Return the claim with a note about the conflict, for a person to decide."""
        notes = "; ".join(filter(None, (self.entry.note, f"{CONFLICT}{facts}")))
        return self._replace(entry=self.entry._replace(note=notes))


class Remark(NamedTuple):
    """A row or a header field in which the sides differ."""

    about: str
    text: str
    conflict: bool = False

    def __str__(self) -> str:
        return printable(f"{'CONFLICT: ' if self.conflict else ''}{self.about}: {self.text}")


class Merged(NamedTuple):
    """The merged table, with remarks: at least one for each row of either side that is gone."""

    table: Table
    remarks: tuple[Remark, ...]

    @property
    def conflicts(self) -> tuple[Remark, ...]:
        """The remarks about rows for a person to decide. The notes of these rows say so as well."""
        return tuple(remark for remark in self.remarks if remark.conflict)


def merge(base: Table | None, ours: Table, theirs: Table, prefer: str = "") -> Merged:
    """Return the table with both sides' changes to ``base``. Without a base, it has the rows of both sides.

    ``prefer`` names the row that stays in a conflict: ``ours``, ``theirs``, or ``best``, the row with the larger gain.
    Raises TableError if the sides are for different devices.
    """
    our, their = ours.hardware, theirs.hardware
    if not our.same_device(their):
        raise TableError(f"is for {their}, but the other table is for {our}", path=theirs.path, where="hardware")
    before = base.hardware if base is not None and base.hardware.same_device(our) else None
    aliases = tuple(dict.fromkeys((*our.aliases, *their.aliases)))
    hardware = our._replace(
        name=_changed(before and before.name, our.name, their.name, our.name),
        aliases=_changed(before and before.aliases, our.aliases, their.aliases, aliases),
    )
    one, other = MergedTable("ours", ours, prefer), MergedTable("theirs", theirs, prefer)
    provenance, of_header = _merged_provenance(base, one, other)
    claims, of_rows = _merged_rows(base, one, other)
    claims, of_contradictions = _without_contradictions(claims)
    schema = theirs.schema if base is not None and ours.schema == base.schema else ours.schema
    table = Table(hardware, (claim.entry for claim in claims), provenance, schema=schema)
    return Merged(table, (*of_header, *of_rows, *of_contradictions))


_Value = TypeVar("_Value")


def _changed(before: _Value | None, our: _Value, their: _Value, both: _Value) -> _Value:
    """Return the value of the side with a change, or ``both`` if both changed it."""
    if their in (our, before):
        return our
    return their if our == before else both


def _merged_provenance(base: Table | None, ours: MergedTable, theirs: MergedTable) -> tuple[Provenance, list[Remark]]:
    """Return all datasets, the newer versions and dates, and a remark for each field changed in different ways."""
    before = base.provenance if base is not None else {}
    merged: dict[str, str | list[str]] = {}
    remarks = []
    for field in dict.fromkeys((*ours.table.provenance, *theirs.table.provenance)):
        was, our, their = (each.get(field) for each in (before, ours.table.provenance, theirs.table.provenance))
        if isinstance(our, list) and isinstance(their, list):
            both: Any = list(dict.fromkeys((*our, *their)))
        elif our is None or (their is not None and as_version(str(their)) > as_version(str(our))):
            both = their
        else:
            both = our
        value = _changed(was, our, their, both)
        if value is None:
            continue
        merged[field] = value
        if our != their and was not in (our, their) and isinstance(value, str):
            text = f"{ours.name} {our!r}, {theirs.name} {their!r}: {value!r} stays"
            remarks.append(Remark(f"provenance.{field}", text))
    return merged, remarks


def as_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version or an ISO date, up to a plus sign."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0])))


def _merged_rows(base: Table | None, ours: MergedTable, theirs: MergedTable) -> tuple[list[Claim], list[Remark]]:
    """Return the rows that stay, and remarks. Rows are compared by their problems."""

    def by_coverage(table: Table) -> dict[object, Entry]:
        """Return the rows by the problems they cover. Of several for the same, the first in canonical order counts."""
        rows: dict[object, Entry] = {}
        for entry in sorted(table.entries, key=canonical_order):
            rows.setdefault(coverage(entry), entry)
        return rows

    before = {} if base is None else by_coverage(base)
    our_rows, their_rows = by_coverage(ours.table), by_coverage(theirs.table)
    claims, remarks = [], []
    for side, rows in ((ours, our_rows), (theirs, their_rows)):
        for entry in side.table.entries:
            used = rows[coverage(entry)]
            if entry is not used:
                text = f"is there more than once in {side.name}: {winner_text(used)} stays"
                remarks.append(Remark(key_text(entry), text))
    for covered in dict.fromkeys((*our_rows, *their_rows)):
        was, our, their = before.get(covered), our_rows.get(covered), their_rows.get(covered)
        claim: Claim | None
        remark: Remark | None = None
        if our is None or their is None:
            side, row = (theirs, their) if our is None else (ours, our)
            assert row is not None
            claim, remark = _one_sided(was, Claim(side, row))
        elif their in (our, was):
            claim = Claim(ours, our)
        elif our == was:
            claim = Claim(theirs, their)
        else:
            claim, remark = _resolve(*_judge(Claim(ours, our, was), Claim(theirs, their, was)))
        claims += [claim] if claim is not None else []
        remarks += [remark] if remark is not None else []
    return claims, remarks


def _one_sided(before: Entry | None, claim: Claim) -> tuple[Claim | None, Remark | None]:
    """Decide whether a row of a single side stays. It is new, or the other side removed it."""
    side, entry = claim.side, claim.entry
    if before is None:
        return claim, None
    if entry == before:
        return None, Remark(key_text(before), f"not changed by {side.name}, removed by the other side: is gone")
    text = f"changed by {side.name} to {winner_text(entry)}, removed by the other side"
    if side.prefer and side.prefer != BEST:
        stays = side.prefer == side.name
        return (claim if stays else None), Remark(key_text(entry), f"{text}: {'stays' if stays else 'is gone'}")
    return claim.in_conflict(text), Remark(key_text(entry), f"{text}: stays", conflict=True)


def _judge(ours: Claim, theirs: Claim) -> tuple[Claim, Claim, str]:
    """Return the row that stays, the other, and the reason. Without evidence ours stays, as a conflict, for no reason.

    A row with a note, which a person wrote, beats a row without. Next count the gain over aten, if it differs by more
    than noise, the number of measured problems, and newer software. Rows with the same first config are no conflict.
    """
    one, other = ours.entry, theirs.entry
    same = "both name the same kernel" if one.best.config == other.best.config else ""
    gains = [claim.gain or 0 for claim in (ours, theirs)]
    if one.note and other.note:
        if same and one.note == other.note:
            return ours, theirs, same
    else:
        are_clear = None not in (ours.gain, theirs.gain) and max(gains) > min(gains) * (1 + SAME_GAIN)
        evidence: tuple[tuple[Any, Any, str], ...] = (
            (bool(one.note), bool(other.note), "it has a note"),
            (*(gains if are_clear else (0, 0)), "it gains more over aten"),
            (one.problems or 0, other.problems or 0, "it has more measured problems behind it"),
            (ours.side.software, theirs.side.software, "it was measured with newer software"),
        )
        for ours_has, theirs_has, reason in evidence:
            if ours_has != theirs_has:
                winner, loser = (ours, theirs) if ours_has > theirs_has else (theirs, ours)
                return winner, loser, reason
        if same:
            return ours, theirs, same
    for claim, loser, better in ((ours, theirs, gains[0] > gains[1]), (theirs, ours, gains[0] < gains[1])):
        if claim.side.prefer == claim.side.name:
            return claim, loser, f"{claim.side.name} was asked for"
        if claim.side.prefer == BEST and better:
            untimed = loser.gain is None and loser.entry.best.gain_permille is not None
            why = "the other gain was measured for another config" if untimed else "it gains more over aten"
            return claim, loser, why
    return ours, theirs, ""


def _resolve(winner: Claim, loser: Claim, reason: str) -> tuple[Claim, Remark]:
    """Return the winner, with a note if it is in conflict, and a remark."""
    key = key_text(winner.entry)
    facts = f"{winner.side.name} {winner_text(winner.entry)}, {loser.side.name} {winner_text(loser.entry)}"
    if coverage(winner.entry) != coverage(loser.entry):
        facts += f" for {key_text(loser.entry)}"
    if reason:
        return winner, Remark(key, f"{facts}: {winner.side.name} stays: {reason}")
    text = f"{facts}: {winner.side.name} stays until somebody decides"
    return winner.in_conflict(facts), Remark(key, text, conflict=True)


def _without_contradictions(claims: Sequence[Claim]) -> tuple[list[Claim], list[Remark]]:
    """Return rows without contradictions, and remarks about those removed.

    Of two rows in contradiction, the row with the better evidence stays. The work is bounded. A remark about a conflict
    has the number of rows for which it did not suffice.
    """
    remaining = dict(enumerate(claims))
    remarks: list[Remark] = []
    effort = Effort()
    while True:
        covering = {number: claim.entry for number, claim in remaining.items() if claim.entry.volume}
        pairs = list(overlaps(covering, effort))
        if not pairs:
            break
        for later, earlier in pairs:
            if later in remaining and earlier in remaining:
                winner, loser, reason = _judge(remaining[earlier], remaining[later])
                stays, goes = (earlier, later) if winner is remaining[earlier] else (later, earlier)
                remaining[stays], remark = _resolve(winner, loser, reason)
                del remaining[goes]
                remarks.append(remark)
        effort.undecided.clear()  # the next round looks at these rows again
    if effort.undecided:
        text = f"contradictions were not looked for in {len(effort.undecided)}: too many cover some of the same sizes"
        remarks.append(Remark("rows", text, conflict=True))
    return list(remaining.values()), remarks
