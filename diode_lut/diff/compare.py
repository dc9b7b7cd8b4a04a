"""Which rows and fields of the header differ between two tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

from diode_lut.table import Entry, Table
from diode_lut.table.canonical import canonical_order
from diode_lut.table.overlap import Effort, ExhaustedError, Neighbours, coverage, lies_inside

Kind = Literal["added", "removed", "narrowed", "widened", "winner", "details"]
"""What became of a row: it is new, or gone; it covers less, or more, than it did; its first config is another one; or
only something else is: gains, further configs, the number of problems, the note."""

KINDS: tuple[Kind, ...] = ("winner", "added", "removed", "narrowed", "widened", "details")
"""The order in which reports count them."""


class Change(NamedTuple):
    """A row as it was and as it is; None where there is none."""

    old: Entry | None
    new: Entry | None

    @property
    def kind(self) -> Kind:
        """What became of the row. One that is narrowed or widened may have another winner, too."""
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
        """Whether there is a row before and after, with different first configs."""
        return self.old is not None and self.new is not None and self.old.configs[0] != self.new.configs[0]

    @property
    def row(self) -> Entry:
        """The row as it is, or else as it was."""
        row = self.new or self.old
        assert row is not None
        return row


class HeaderChange(NamedTuple):
    """A field of the header, ``provenance.torch`` for example, as it was and as it is; None where it is missing."""

    field: str
    old: object
    new: object


Pair = tuple[tuple[bool, float], int, int]
"""How alike two rows are, and their numbers among those that are gone and those that are new."""

_STEPS_OF_PAIR = 8
"""It takes memory, and is sorted."""


class Diff(NamedTuple):
    """All that is different between two tables; ``changes`` are in canonical order of the rows.

    With ``unpaired``, rows that cover less or more than before may be called removed and added: too many rows cover
    some of the same sizes to find all pairs.
    """

    header: tuple[HeaderChange, ...]
    changes: tuple[Change, ...]
    unpaired: bool = False

    @property
    def counts(self) -> dict[Kind, int]:
        """How many changes there are of each kind that there is."""
        counts = Counter(change.kind for change in self.changes)
        return {kind: counts[kind] for kind in KINDS if counts[kind]}

    def __bool__(self) -> bool:
        return bool(self.header or self.changes)


def compare(old: Table, new: Table) -> Diff:
    """What is different; nothing, and so false, if the tables say the same, in whatever order."""
    changed, removed, added = _by_key(old.entries, new.entries)
    pairs, unpaired = _pairs(removed, added, Effort())
    changes = sorted((*changed, *_resized(removed, added, pairs)), key=lambda each: canonical_order(each.row))
    return Diff(tuple(_header_changes(old, new)), tuple(changes), unpaired)


def _by_key(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[list[Change], list[Entry], list[Entry]]:
    """The rows whose key is in both tables and that differ, those whose key is only in the old, only in the new."""
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
    """The rows by what they cover. A good table has one for each key."""
    groups: dict[object, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[coverage(entry)].append(entry)
    return {key: sorted(rows, key=canonical_order) if len(rows) > 1 else rows for key, rows in groups.items()}


def _pairs(removed: Sequence[Entry], added: Sequence[Entry], effort: Effort) -> tuple[list[Pair], bool]:
    """The rows that are gone and new of which one lies inside the other; whether the effort was too little for all."""
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
    """Rows that are gone and new, paired where one of the two lies inside the other.

    Where there are several ways, rows with the same winner go together first, then those of the most similar size.
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
    """Sorts the most similar pairs first."""
    small, large = sorted((one.volume, other.volume))
    return one.configs[0] != other.configs[0], -small / max(large, 1)


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
