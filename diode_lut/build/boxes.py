"""From rows that belong to boxes of the tree to rows with the tightest ranges.

A row should claim nothing beyond what was measured: its box shrinks to the problems that it answers for. For the most
specific row to remain the right one, any two boxes stay apart, or one inside the other. Where shrinking lets a problem
fall through to a wider row that serves it as well, the row between is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diode_lut.build.cover import Group, Row, cover
from diode_lut.table import Range

Box = tuple[Range, ...]
"""The ranges of b, m, n and k."""


class BoxedRow:
    """A row of the result.

    ``config`` and ``problems``, which it answers for, are numbers; ``box`` holds its ranges; ``inner`` are the rows
    that came from further down the tree.
    """

    __slots__ = ("box", "config", "inner", "problems")

    def __init__(self, row: Row, group: Group) -> None:
        self.config = row.config
        self.problems = row.problems
        self.inner = [BoxedRow(inner, group) for inner in row.inner]
        self.box = _bounds([(size, size) for size in group.sizes[problem]] for problem in self.problems)
        self._make_room([row.box for row in self.walk() if row is not self])

    def walk(self) -> Iterator[BoxedRow]:
        """This row and all that came from further down the tree."""
        yield self
        for row in self.inner:
            yield from row.walk()

    def _make_room(self, boxes: list[Box]) -> None:
        """Widen the box until each of ``boxes`` is inside it or apart from it."""
        while crossing := [box for box in boxes if _overlap(self.box, box) and not _inside(box, self.box)]:
            self.box = _bounds([self.box, *crossing])


def boxed_rows(group: Group) -> list[BoxedRow]:
    """The fewest rows for the group, each with the tightest box."""
    return list(_needed(BoxedRow(cover(group), group), (), group))


def _needed(row: BoxedRow, wider: tuple[BoxedRow, ...], group: Group) -> Iterator[BoxedRow]:
    """The row and its inner rows, except those whose problems fall to one of the ``wider`` rows that serves them all.

    Whether a row is superfluous depends on wider rows only, and these can only become more needed by what they take
    over, so that one pass from the root down finds all that can go.
    """
    heir = next((each for each in reversed(wider) if _inside(row.box, each.box)), None)
    if heir is not None and all(heir.config in group.costs[problem] for problem in row.problems):
        heir.problems.extend(row.problems)
    else:
        wider = (*wider, row)
        yield row
    for inner in row.inner:
        yield from _needed(inner, wider, group)


def _bounds(boxes: Iterable[Iterable[Range]]) -> Box:
    """The smallest box that holds all ``boxes``."""
    return tuple(
        (min(low for low, _ in ranges), max(high for _, high in ranges)) for ranges in zip(*boxes, strict=True)
    )


def _inside(box: Box, other: Box) -> bool:
    return all(low >= least and high <= most for (low, high), (least, most) in zip(box, other, strict=True))


def _overlap(box: Box, other: Box) -> bool:
    return all(low <= most and high >= least for (low, high), (least, most) in zip(box, other, strict=True))
