"""Fewer rows than a tree of boxes allows: rows of different branches become one where no measured problem minds.

The two rows whose common box is the least extended are merged, then the next two, as long as the smallest box around
every measured problem has a config that is allowed for it. So boxes may overlap. A merged row takes over what wider
rows answered for in its box, and leaves to smaller boxes what lies in them. Which rows there are depends on what is
allowed where, and on nothing else; only then each gets the config with the least sum of costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from heapq import heappop, heappush
from math import prod
from operator import and_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.build.boxes import Box, BoxedRow
from diode_lut.build.cover import Group

_Array = npt.NDArray[Any]

MOST_EXTENT = 64
"""How many times as large as the smallest the largest sizes of a merged box may be, all axes together. Of what is
further apart little can be merged, and trying takes long."""

_SAME = 1e-9
"""Volumes that differ by a smaller fraction may be the same: as floating-point numbers they are not exact."""


class MergedRow(NamedTuple):
    """A config, the problems that it answers for, both as numbers, and the ranges of b, m, n and k."""

    config: int
    problems: list[int]
    box: Box

    @property
    def volume(self) -> int:
        """How many problems, measured or not, are in the box."""
        return prod(high - low + 1 for low, high in self.box)


def merged_rows(rows: Sequence[BoxedRow], group: Group, costs: Sequence[Mapping[int, float]]) -> list[MergedRow]:
    """The rows of the group after merging, each with the config that has the least sum of ``costs``, one a problem."""
    merger = _Merger(rows, group)
    merger.merge()
    merged = [MergedRow(_cheapest(problems, costs), problems, box) for problems, box in merger.rows()]
    return _needed(sorted(merged, key=lambda row: row.volume, reverse=True), group)


def _cheapest(problems: Sequence[int], costs: Sequence[Mapping[int, float]]) -> int:
    common = set.intersection(*(set(costs[problem]) for problem in problems))
    return min(common, key=lambda config: (sum(costs[problem][config] for problem in problems), config))


def _needed(rows: Sequence[MergedRow], group: Group) -> list[MergedRow]:
    """The rows without those whose problems all fall to wider rows that serve them; the widest must come first.

    Whether a row is superfluous depends on wider rows only, and these only become more needed by what they take over.
    """
    needed: list[MergedRow] = []
    for row in rows:
        heirs = _heirs(row, needed, group)
        if heirs:
            for problem, heir in zip(row.problems, heirs, strict=True):
                heir.problems.append(problem)
        else:
            needed.append(row)
    return needed


def _heirs(row: MergedRow, wider: Sequence[MergedRow], group: Group) -> list[MergedRow]:
    """The rows that the row's problems would fall to; none at all if any of these would not serve its problem."""
    heirs = []
    for problem in row.problems:
        heir = next((each for each in reversed(wider) if _covers(each.box, group.sizes[problem])), None)
        if heir is None or heir.config not in group.costs[problem]:
            return []
        heirs.append(heir)
    return heirs


def _covers(box: Box, sizes: Sequence[int]) -> bool:
    return all(low <= size <= high for size, (low, high) in zip(sizes, box, strict=True))


class _Merger:
    """The rows of one group, as arrays with room for those that come; ``owner`` has the row of each problem.

    ``serving`` says which configs are allowed for all problems of a row.
    """

    def __init__(self, rows: Sequence[BoxedRow], group: Group) -> None:
        problems = list(group.problems)
        self._problems = problems
        self._points = np.array([group.sizes[problem] for problem in problems], np.int64).T.copy()
        self._allowed = _allowed(problems, group)
        room = 2 * len(rows)
        self._low, self._high = np.zeros((2, 4, room), np.int64)
        self._volume = np.zeros(room)
        self._serving = np.zeros((room, self._allowed.shape[1]), np.bool_)
        self._alive = np.zeros(room, np.bool_)
        self._owner = np.zeros(len(problems), np.int64)
        self._count = 0
        self._pairs: list[tuple[float, int, int]] = []
        places = {problem: place for place, problem in enumerate(problems)}
        for row in rows:
            low, high = np.array(row.box, np.int64).T
            self._add(low, high, np.array([places[problem] for problem in row.problems]))

    def rows(self) -> Iterator[tuple[list[int], Box]]:
        """The problems and the box of each row."""
        for row in np.flatnonzero(self._alive):
            box = tuple(zip(self._low[:, row].tolist(), self._high[:, row].tolist(), strict=True))
            yield [self._problems[place] for place in np.flatnonzero(self._owner == row)], box

    def merge(self) -> None:
        """Merge what can be merged, the least extended first."""
        while self._pairs:
            _, one, other = heappop(self._pairs)
            if self._alive[one] and self._alive[other]:
                self._try(one, other)

    def _add(self, low: _Array, high: _Array, places: _Array) -> None:
        """A new row that answers for the problems at ``places``; the pairs that it makes are to be tried."""
        row = self._count
        self._count += 1
        self._low[:, row], self._high[:, row], self._volume[row] = low, high, _volume(low, high)
        self._owner[places] = row
        self._serving[row] = self._allowed[places].all(axis=0)
        partners = np.flatnonzero(self._alive[:row])
        partners = partners[self._serving[np.ix_(partners, np.flatnonzero(self._serving[row]))].any(axis=1)]
        self._alive[row] = True
        lows = np.minimum(self._low[:, partners], low[:, None])
        highs = np.maximum(self._high[:, partners], high[:, None])
        extents = _extent(lows, highs)
        close = extents <= MOST_EXTENT
        for extent, partner in zip(extents[close].tolist(), partners[close].tolist(), strict=True):
            heappush(self._pairs, (extent, row, partner))

    def _try(self, one: int, other: int) -> None:
        """Merge the two rows, unless some problem would get a config that is not allowed for it."""
        low = np.minimum(self._low[:, one], self._low[:, other])
        high = np.maximum(self._high[:, one], self._high[:, other])
        volume = _volume(low, high)
        wider = self._volume > volume
        inside = np.flatnonzero(_within(self._points, low, high))
        taken = inside[wider[self._owner[inside]]]
        serving = self._serving[one] & self._serving[other]
        if not (serving & self._allowed[taken].all(axis=0)).any():
            return
        near = self._near(one, other, low, high)
        if (np.abs(self._volume[near] / volume - 1) < _SAME).any():
            return
        own = np.flatnonzero((self._owner == one) | (self._owner == other))
        falling, heirs = self._falling(own, near[self._volume[near] < volume])
        if self._served(falling, heirs):
            losing = np.unique(self._owner[taken])
            self._alive[[one, other]] = False
            self._owner[falling] = heirs
            self._add(low, high, np.concatenate([np.setdiff1d(own, falling), taken]))
            for row in (*losing, *np.unique(heirs), self._count - 1):
                self._update(row)

    def _near(self, one: int, other: int, low: _Array, high: _Array) -> _Array:
        """The other rows that share some of the box."""
        axes = zip(self._low, self._high, low, high, strict=True)
        shares = reduce(and_, ((lows <= most) & (least <= highs) for lows, highs, least, most in axes), self._alive)
        shares[[one, other]] = False
        return np.flatnonzero(shares)

    def _falling(self, own: _Array, smaller: _Array) -> tuple[_Array, _Array]:
        """Those of the problems that lie in ``smaller`` boxes, and the row of the smallest for each."""
        if not len(smaller):
            return own[:0], smaller
        points = self._points[:, own]
        covers = _within(points[:, None], self._low[:, smaller, None], self._high[:, smaller, None])
        heirs = smaller[np.where(covers, self._volume[smaller, None], np.inf).argmin(axis=0)]
        fall = covers.any(axis=0)
        return own[fall], heirs[fall]

    def _served(self, falling: _Array, heirs: _Array) -> bool:
        """Whether each heir has a config for all that it answers for, and all that falls to it."""
        return all(
            (self._serving[heir] & self._allowed[falling[heirs == heir]].all(axis=0)).any() for heir in np.unique(heirs)
        )

    def _update(self, row: int) -> None:
        places = np.flatnonzero(self._owner == row)
        self._alive[row] = len(places) > 0
        self._serving[row] = self._allowed[places].all(axis=0)


def _allowed(problems: Sequence[int], group: Group) -> npt.NDArray[np.bool_]:
    """Which config, of those that occur, is allowed for which problem."""
    columns = {config: column for column, config in enumerate(sorted({c for p in problems for c in group.costs[p]}))}
    allowed = np.zeros((len(problems), len(columns)), np.bool_)
    for place, problem in enumerate(problems):
        allowed[place, [columns[config] for config in group.costs[problem]]] = True
    return allowed


def _within(points: _Array, low: _Array, high: _Array) -> _Array:
    """Whether points are in boxes; all three have one item for each axis."""
    axes = zip(points, low, high, strict=True)
    return reduce(and_, ((least <= size) & (size <= most) for size, least, most in axes))


def _volume(low: _Array, high: _Array) -> float:
    return float(prod((high - low + 1.0).tolist()))


def _extent(low: _Array, high: _Array) -> _Array:
    """How many times as large as the smallest the largest sizes are, over all axes; the same on every machine."""
    b, m, n, k = high / low
    extent: _Array = b * m * n * k
    return extent
