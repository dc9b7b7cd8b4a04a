"""The rows and header fields that differ between two tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple

from diode_lut.table import Entry, Table
from diode_lut.table.canonical import canonical_order
from diode_lut.table.overlap import Effort, ExhaustedError, Neighbours, coverage, lies_inside

Kind = Literal["added", "removed", "narrowed", "widened", "winner", "details"]
"""The change of a row: it is new or gone; it covers less or more than before; its first config is another; or only its
details differ: gains, further configs, the number of problems, the note."""

KINDS: tuple[Kind, ...] = ("winner", "added", "removed", "narrowed", "widened", "details")
"""The order in which reports count them."""


@dataclass(frozen=True)
class Change:
    """A row before and after; None where it is missing."""

    old: Entry | None
    new: Entry | None

    @cached_property
    def kind(self) -> Kind:
        """The kind of the change. A narrowed or widened row may have another winner as well."""
        if self.old is None:
            return "added"
        if self.new is None:
            return "removed"
        before, after = coverage(self.old), coverage(self.new)
        if before != after:
            return "narrowed" if lies_inside(after, before) else "widened"
        return "winner" if self.new_winner else "details"

    @property
    def new_winner(self) -> bool:
        """Whether the row is in both tables, with different first configs."""
        return self.old is not None and self.new is not None and self.old.best.config != self.new.best.config

    @property
    def row(self) -> Entry:
        """The new row; the old one if the row is gone."""
        row = self.new or self.old
        assert row is not None
        return row


class HeaderChange(NamedTuple):
    """A field of the header, such as ``provenance.torch``, before and after; None where it is missing."""

    field: str
    old: object
    new: object


Pair = tuple[tuple[bool, float], int, int]
"""The order of the pair, the most similar rows first, and the numbers of the removed and of the added row."""

_STEPS_OF_PAIR = 8
"""Steps of effort for a pair, which is kept in memory and sorted."""


class Diff(NamedTuple):
    """All differences between two tables; ``changes`` are in canonical order of the rows.

    With ``unpaired``, some narrowed and widened rows are listed as removed and added, because too many rows cover some
    of the same sizes to find all pairs.
    """

    header: tuple[HeaderChange, ...]
    changes: tuple[Change, ...]
    unpaired: bool = False

    @property
    def counts(self) -> dict[Kind, int]:
        """The number of changes of each kind, without kinds that have none."""
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in KINDS if counts[kind]}

    def __bool__(self) -> bool:
        return bool(self.header or self.changes)


def compare(old: Table, new: Table) -> Diff:
    """The differences; they are false if both tables have the same rows, in any order."""
    changed, removed, added = _by_key(old.entries, new.entries)
    pairs, unpaired = _pairs(removed, added, Effort())
    changes = sorted((*changed, *_resized(removed, added, pairs)), key=lambda each: canonical_order(each.row))
    return Diff(tuple(_header_changes(old, new)), tuple(changes), unpaired)


def _by_key(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[list[Change], list[Entry], list[Entry]]:
    """Changed rows with the same key in both tables, rows whose key is only in the old table, and only in the new."""
    changed: list[Change] = []
    removed: list[Entry] = []
    added: list[Entry] = []
    before, after = _grouped(old), _grouped(new)
    for key in dict.fromkeys((*before, *after)):
        for was, row in zip_longest(before.get(key, ()), after.get(key, ())):
            if was is None:
                added.append(row)
            elif row is None:
                removed.append(was)
            elif was != row:
                changed.append(Change(was, row))
    return changed, removed, added


def _grouped(entries: Iterable[Entry]) -> dict[object, list[Entry]]:
    """The rows by what they cover. A valid table has one row for each key."""
    groups: dict[object, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[coverage(entry)].append(entry)
    return {key: sorted(rows, key=canonical_order) if len(rows) > 1 else rows for key, rows in groups.items()}


def _pairs(removed: Sequence[Entry], added: Sequence[Entry], effort: Effort) -> tuple[list[Pair], bool]:
    """All pairs of a removed and an added row of which one lies inside the other; whether some may be missing."""
    pairs: list[Pair] = []
    keys = [coverage(row) for row in removed]
    try:
        neighbours = Neighbours(removed, effort)
        for place, row in enumerate(added):
            key = coverage(row)
            for number in neighbours.of(row, len(removed), effort):
                if lies_inside(keys[number], key) or lies_inside(key, keys[number]):
                    effort.spend(_STEPS_OF_PAIR)
                    pairs.append((_likeness(removed[number], row), number, place))
    except ExhaustedError:
        return pairs, True
    return pairs, False


def _resized(removed: Sequence[Entry], added: Sequence[Entry], pairs: Iterable[Pair]) -> Iterator[Change]:
    """Removed and added rows, as one change where they are a pair.

    Of several pairs of a row, the same winner counts first, then the most similar size.
    """
    partners: dict[int, int] = {}
    taken: set[int] = set()
    for _, number, place in sorted(pairs):
        if number not in partners and place not in taken:
            partners[number] = place
            taken.add(place)
    for number, entry in enumerate(removed):
        place_or_none = partners.get(number)
        yield Change(entry, None if place_or_none is None else added[place_or_none])
    yield from (Change(None, row) for place, row in enumerate(added) if place not in taken)


def _likeness(one: Entry, other: Entry) -> tuple[bool, float]:
    """A sort key with which the most similar pairs come first."""
    small, large = sorted((one.volume, other.volume))
    return one.best.config != other.best.config, -small / max(large, 1)


def _header_changes(old: Table, new: Table) -> Iterator[HeaderChange]:
    before, after = _header(old), _header(new)
    for field in dict.fromkeys((*before, *after)):
        if before.get(field) != after.get(field):
            yield HeaderChange(field, before.get(field), after.get(field))


def _header(table: Table) -> dict[str, object]:
    return {
        **{f"hardware.{name}": value for name, value in table.hardware._asdict().items()},
        **{f"provenance.{name}": value for name, value in table.provenance.items()},
    }
