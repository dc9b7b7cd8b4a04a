"""Few rows that give every measured problem a config that is allowed for it.

At first each problem has a row of its own. The two rows whose common box is the least extended become one, then the
next two, as long as the smallest box around every measured problem has a config that is allowed for it. So boxes may
overlap. A merged row takes over what wider rows answered for in its box, and leaves to smaller boxes what lies in them.
Which rows there are depends on what is allowed and shared where, and on nothing else; only then each gets the config
with the least sum of costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from heapq import heappop, heappush
from itertools import pairwise
from math import log, prod
from operator import and_, mul
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.problem import ATTENTION, GROUPED, MAX_SIZE, SIZE_FIELDS
from diode_lut.table import Range

_Array = npt.NDArray[Any]

Sizes = tuple[int, ...]
"""``Problem.sizes``: those that the op has."""

Box = tuple[Range, ...]
"""The range of each size."""

REACH = 8
"""How many times as large as the smallest the largest sizes of a box may be, all axes together: M, N and K may double.
Between measured problems that are further apart, nothing is known, and no row claims it."""

_STRIDE = 256
"""Number of problems that are compared with others at a time, which bounds the memory that takes."""

_SLACK = 1e-3
"""By how much logarithms of extents, in single precision, are off at most."""

_SAME = 1e-9
"""Volumes that differ by a smaller fraction may be the same: as floating-point numbers they are not exact."""


class Group(NamedTuple):
    """Problems that rows may have in common, as numbers into ``sizes`` and ``costs``; no two have the same sizes.

    ``costs`` has, for each problem, the numbers of the configs that are allowed for it, at least one, and what they
    cost; ``shared`` those of them that it may have in common with other problems.
    """

    problems: Sequence[int]
    sizes: Sequence[Sizes]
    costs: Sequence[Mapping[int, float]]
    shared: Sequence[Collection[int]]


class BuiltRow(NamedTuple):
    """A config, the problems that it answers for, both as numbers, and the range of each size."""

    config: int
    problems: list[int]
    box: Box

    @property
    def volume(self) -> int:
        """How many problems, measured or not, are in the box."""
        return prod(high - low + 1 for low, high in self.box)

    def holds(self, box: Box) -> bool:
        """Whether this row's box has the whole of another in it."""
        return all(least <= low and high <= most for (least, most), (low, high) in zip(self.box, box, strict=True))


def few_rows(group: Group, costs: Sequence[Mapping[int, float]]) -> list[BuiltRow]:
    """The rows of the group, each with the config that has the least sum of ``costs``, one mapping a problem."""
    merger = _Merger(group)
    merger.merge()
    rows = [BuiltRow(_cheapest(problems, group, costs), problems, box) for problems, box in merger.rows()]
    return _needed(sorted(rows, key=lambda row: row.volume, reverse=True), group)


def _cheapest(problems: Sequence[int], group: Group, costs: Sequence[Mapping[int, float]]) -> int:
    configs = group.costs if len(problems) == 1 else group.shared
    common = set.intersection(*(set(configs[problem]) for problem in problems))
    return min(common, key=lambda config: (sum(costs[problem][config] for problem in problems), config))


def _needed(rows: Sequence[BuiltRow], group: Group) -> list[BuiltRow]:
    """The rows without those whose problems all fall to wider rows that serve them; the widest must come first.

    Whether a row is superfluous depends on wider rows only, and these only become more needed by what they take over.
    """
    covering = _covering(rows, group)
    kept = np.zeros(len(rows), np.bool_)
    for number, row in enumerate(rows):
        heirs = [_last(covering[problem] & kept) for problem in row.problems]
        kept[number] = any(
            heir is None or rows[heir].config not in group.costs[problem]
            for problem, heir in zip(row.problems, heirs, strict=True)
        )
        if not kept[number]:
            for problem, heir in zip(row.problems, heirs, strict=True):
                assert heir is not None
                rows[heir].problems.append(problem)
    return [row for row, needed in zip(rows, kept, strict=True) if needed]


def _covering(rows: Sequence[BuiltRow], group: Group) -> dict[int, _Array]:
    """For each problem, which rows have a box around it."""
    points = np.array([group.sizes[problem] for problem in group.problems], np.int64).T
    low, high = np.array([row.box for row in rows], np.int64).T
    return dict(zip(group.problems, _within(points[:, :, None], low[:, None], high[:, None]), strict=True))


def _last(mask: _Array) -> int | None:
    places = np.flatnonzero(mask)
    return int(places[-1]) if len(places) else None


class _Merger:
    """The rows of one group, as arrays with room for those that come; ``owner`` has the row of each problem.

    ``serving`` says which configs are allowed for all problems of a row.
    """

    def __init__(self, group: Group) -> None:
        self._problems = list(group.problems)
        self._points = np.array([group.sizes[problem] for problem in self._problems], np.int64).T.copy()
        self._allowed = _allowed(self._problems, group)
        self._count = count = len(self._problems)
        room = 2 * count
        self._low, self._high = np.zeros((2, len(self._points), room), np.int64)
        self._low[:, :count] = self._high[:, :count] = self._points
        self._volume = np.ones(room)
        self._serving = np.zeros((room, self._allowed.shape[1]), np.bool_)
        self._serving[:count] = self._allowed
        self._alive = np.arange(room) < count
        self._owner = np.arange(count)
        self._partners: dict[int, Iterator[tuple[float, int]]] = {}
        self._pairs: list[tuple[float, int, int]] = []
        for start in range(0, count, _STRIDE):
            self._first_pairs(start)

    def _first_pairs(self, start: int) -> None:
        """Pair the problems from ``start`` on, _STRIDE at most, with those before them."""
        end = min(start + _STRIDE, self._count)
        logs = np.log2(self._points[:, :end].astype(np.float32))
        far = np.zeros((end - start, end), np.float32)
        for sizes in logs:
            far += np.abs(sizes[start:, None] - sizes)
        rows, partners = np.nonzero(np.tril(far <= np.log2(REACH) + _SLACK, start - 1))
        one, other = self._points[:, rows + start], self._points[:, partners]
        extents = _extent(np.minimum(one, other), np.maximum(one, other))
        close = (extents <= REACH) & (self._allowed[rows + start] & self._allowed[partners]).any(axis=1)
        rows, partners, extents = rows[close], partners[close], extents[close]
        for row in range(start, end):
            own = slice(*np.searchsorted(rows, (row - start, row - start + 1)))
            self._pair(row, partners[own], extents[own])

    def _pair(self, row: int, partners: _Array, extents: _Array) -> None:
        """The pairs of a row with rows before it are to be tried, the least extended first."""
        order = np.lexsort((partners, extents))
        self._partners[row] = zip(extents[order].data, partners[order].data, strict=True)
        self._push(row)

    def _push(self, row: int) -> None:
        """The row's next pair comes up for trial, if there is one: all of its pairs at once would take gigabytes."""
        pair = next((pair for pair in self._partners[row] if self._alive[pair[1]]), None)
        if pair is None:
            del self._partners[row]
        else:
            heappush(self._pairs, (pair[0], row, pair[1]))

    def rows(self) -> Iterator[tuple[list[int], Box]]:
        """The problems and the box of each row."""
        for row in np.flatnonzero(self._alive):
            box = tuple(zip(self._low[:, row].tolist(), self._high[:, row].tolist(), strict=True))
            yield [self._problems[place] for place in np.flatnonzero(self._owner == row)], box

    def merge(self) -> None:
        """Merge what can be merged, the least extended first."""
        while self._pairs:
            _, one, other = heappop(self._pairs)
            if not self._alive[one]:
                del self._partners[one]
                continue
            if self._alive[other]:
                self._try(one, other)
            self._push(one)

    def _add(self, low: _Array, high: _Array, places: _Array) -> None:
        """A new row that answers for the problems at ``places``; the pairs that it makes are to be tried."""
        row = self._count
        self._count += 1
        self._low[:, row], self._high[:, row], self._volume[row] = low, high, _volume(low, high)
        self._owner[places] = row
        self._serving[row] = self._allowed[places].all(axis=0)
        extents = _extent(np.minimum(self._low[:, :row], low[:, None]), np.maximum(self._high[:, :row], high[:, None]))
        near = np.flatnonzero((extents <= REACH) & self._alive[:row])
        alike = near[(self._serving[near] & self._serving[row]).any(axis=1)]
        self._alive[row] = True
        self._pair(row, alike, extents[alike])

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
    """Which config, of those that occur, may be that of a row that a problem has in common with others."""
    columns = {config: column for column, config in enumerate(sorted({c for p in problems for c in group.shared[p]}))}
    allowed = np.zeros((len(problems), len(columns)), np.bool_)
    for place, problem in enumerate(problems):
        allowed[place, [columns[config] for config in group.shared[problem]]] = True
    return allowed


def _within(points: _Array, low: _Array, high: _Array) -> _Array:
    """Whether points are in boxes; all three have one item for each axis."""
    axes = zip(points, low, high, strict=True)
    return reduce(and_, ((least <= size) & (size <= most) for size, least, most in axes))


def _volume(low: _Array, high: _Array) -> float:
    return float(prod((high - low + 1.0).tolist()))


def _extent(low: _Array, high: _Array) -> _Array:
    """How many times as large as the smallest the largest sizes are, over all axes; the same on every machine."""
    extent: _Array = reduce(mul, high / low)
    return extent


_ANY: Range = (1, MAX_SIZE)
_MOST = 65_535
"""The most batches, and the most heads, that Inductor's kernels for attention can be launched for."""


class _Sizes(NamedTuple):
    """The sizes of an op: its length, those that rows are for one value of, and those that have a least value.

    Any others are left open. If none is, rows would go before those of measured problems, so that they are ``between``
    lengths only.
    """

    length: str
    same: tuple[str, ...]
    least: tuple[str, ...] = ()
    between: bool = False


_SIZES = {
    **dict.fromkeys(ATTENTION, _Sizes("n", ("k", "v"), least=("b", "h"))),
    **dict.fromkeys(GROUPED, _Sizes("m", ("b", "n", "k"), between=True)),
}

WIDE = tuple(_SIZES)
"""The ops that have such rows."""

_Times = Sequence[Mapping[int, float]]


class _Length(NamedTuple):
    """The problems of a length: how many rows or queries they have, and the configs not slower on any of them.

    ``least`` has the sizes that rows have a least value of, from the problem with the smallest product of these.
    """

    length: int
    queries: frozenset[int]
    problems: list[int]
    configs: frozenset[int]
    least: tuple[int, ...]


class _Run(NamedTuple):
    """Neighbouring lengths with one config; all of them have at least as many batches and heads as the first."""

    config: int | None
    lengths: list[_Length]

    def takes(self, config: int | None, pair: tuple[_Length, _Length]) -> bool:
        """Whether a pair that begins where this ends is part of it."""
        return self.config == config and not _fewer(pair[0], self.lengths[0])


def wide_rows(op: str, group: Group, times: _Times, baseline: int) -> Iterator[BuiltRow]:
    """Rows of an op for each pair of head dimensions, or for the experts of each model.

    ``times`` has the times of all configs on each problem, ``baseline`` is the number of the baseline. Of several
    configs it is the one with the least time in geometric mean. A row's problems are those for which it is allowed,
    or for rows ``between`` lengths those of both.
    """
    sizes = _SIZES[op]
    families: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for problem in group.problems:
        size = _named(group, problem)
        families[tuple(size[name] for name in sizes.same)].append(problem)
    for family, problems in families.items():
        same = {name: (value, value) for name, value in zip(sizes.same, family, strict=True)}
        runs = _runs(_lengths(sizes, group, problems, times, baseline), times, sizes.between)
        for before, run, after in zip([None, *runs], runs, [*runs[1:], None], strict=False):
            first, last = run.lengths[0], run.lengths[-1]
            measured = sorted({each for length in run.lengths for each in length.problems})
            served = [each for each in measured if sizes.between or run.config in group.costs[each]]
            # The length at which two runs meet belongs to the first, or to the second if that has fewer heads there.
            span = (
                first.length + (sizes.between or (before is not None and not _fewer(first, before.lengths[0]))),
                last.length - (sizes.between or (after is not None and _fewer(after.lengths[0], first))),
            )
            if run.config is not None and served and span[0] <= span[1]:
                least = {name: (value, _MOST) for name, value in zip(sizes.least, first.least, strict=True)}
                box = _box({sizes.length: span, **same, **least}, run.lengths)
                yield BuiltRow(run.config, served, box[: len(group.sizes[served[0]])])


def _runs(lengths: Sequence[_Length], times: _Times, alone: bool) -> list[_Run]:
    """All pairs of neighbouring lengths; those with the same config are joined, unless they stay ``alone``."""
    runs: list[_Run] = []
    for pair in pairwise(lengths):
        config = _best(pair, times)
        if runs and not alone and runs[-1].takes(config, pair):
            runs[-1].lengths.append(pair[1])
        else:
            runs.append(_Run(config, [*pair]))
    return runs


def _fewer(one: _Length, other: _Length) -> bool:
    return prod(one.least) < prod(other.least)


def _named(group: Group, problem: int) -> dict[str, int]:
    return dict(zip(SIZE_FIELDS, group.sizes[problem], strict=False))


def _lengths(sizes: _Sizes, group: Group, problems: Iterable[int], times: _Times, baseline: int) -> list[_Length]:
    found: dict[int, list[int]] = defaultdict(list)
    for problem in problems:
        found[_named(group, problem)[sizes.length]].append(problem)
    return [
        _Length(
            length,
            frozenset(_named(group, each)["m"] for each in those),
            those,
            frozenset.intersection(*(_not_slower(times[each], baseline) for each in those)),
            min(
                (tuple(_named(group, each)[name] for name in sizes.least) for each in those),
                key=lambda it: (prod(it), it),
            ),
        )
        for length, those in sorted(found.items())
    ]


def _not_slower(times: Mapping[int, float], baseline: int) -> frozenset[int]:
    """The configs that take at most as long as the baseline, without itself."""
    return frozenset(config for config, time in times.items() if time <= times.get(baseline, 0)) - {baseline}


def _best(pair: tuple[_Length, _Length], times: _Times) -> int | None:
    """The best of the configs that are not slower at both lengths, if there are any."""
    problems = [problem for length in pair for problem in length.problems]
    safe = pair[0].configs & pair[1].configs
    return min(safe, key=lambda config: (sum(log(times[each][config]) for each in problems), config), default=None)


def _box(sizes: Mapping[str, Range], lengths: Sequence[_Length]) -> tuple[Range, ...]:
    """The sizes, and of queries as many as of keys, or those that were measured."""
    alone = all(each.queries == {each.length} for each in lengths)
    queries = {count for each in lengths for count in each.queries}
    m = sizes.get("n", _ANY) if alone else (min(queries), max(queries))
    return tuple({"m": m, **sizes}.get(each, _ANY) for each in SIZE_FIELDS)
