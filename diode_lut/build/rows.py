"""Few rows with a config that is allowed for every measured problem, and wide rows for some ops.

At first each problem has a row of its own. The two rows whose common box is the least extended are merged, then the
next two, while the smallest box around every measured problem has a config that is allowed for it. So boxes may
overlap. A merged row takes over the problems of wider rows in its box, and leaves problems in smaller boxes to these.
Which rows there are depends only on the configs allowed and shared for each problem. Then each row gets the config with
the least sum of costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from heapq import heappop, heappush
from itertools import pairwise
from math import log, prod
from operator import and_, mul
from typing import NamedTuple

import numpy as np

from diode_lut.build.measurements import Array
from diode_lut.problem import ATTENTION, GROUPED, MAX_SIZE, SIZE_FIELDS
from diode_lut.table import Range

Point = tuple[int, ...]  # ``Problem.sizes``: the sizes of the op
Ranges = tuple[Range, ...]  # the range of each size
Costs = Sequence[Mapping[int, float]]  # by problem: configs by number, with their times over the best, or costs

REACH = 8
"""Maximum of largest size over smallest in a box, multiplied over all axes: M, N and K may double. Nothing is known
between measured problems further apart, so no row covers it."""

_STRIDE = 256  # number of problems compared with others at a time, which bounds the memory
_SLACK = 1e-3  # maximum error of logarithms of extents in single precision
_SAME = 1e-9  # volumes count as the same if they differ by a smaller fraction: floating-point numbers are not exact


class RowGroup(NamedTuple):
    """Problems that may share rows, as numbers into ``sizes`` and ``costs``. No two have the same sizes.

    ``costs`` has the allowed configs of each problem, at least one, and ``shared`` those among them for rows with
    several problems.
    """

    problems: Sequence[int]
    sizes: Sequence[Point]
    costs: Costs
    shared: Sequence[Collection[int]]


class BuiltRow(NamedTuple):
    """A config, the problems for which it answers, both as numbers, and the range of each size."""

    config: int
    problems: list[int]
    box: Ranges

    @property
    def volume(self) -> int:
        """Number of problems, measured or not, in the box."""
        return prod(high - low + 1 for low, high in self.box)

    def holds(self, box: Ranges) -> bool:
        """Return whether this row's box contains another."""
        return all(least <= low and high <= most for (least, most), (low, high) in zip(self.box, box, strict=True))


def few_rows(group: RowGroup, costs: Costs) -> list[BuiltRow]:
    """Return the rows of the group, each with the config whose costs have the least sum.

    Rows are left out if all their problems fall to wider rows that serve them. This is decided from the widest row on:
    it depends on wider rows only, which are only needed more by what they take over.
    """
    merger = _Merger(group)
    merger.merge()
    rows = []
    for problems, box in merger.rows():
        configs = group.costs if len(problems) == 1 else group.shared
        common = set.intersection(*(set(configs[problem]) for problem in problems))
        cheapest = min(common, key=lambda config: (sum(costs[problem][config] for problem in problems), config))
        rows.append(BuiltRow(cheapest, problems, box))
    rows.sort(key=lambda row: row.volume, reverse=True)
    points = np.array([group.sizes[problem] for problem in group.problems], np.int64).T
    low, high = np.array([row.box for row in rows], np.int64).T
    covering = dict(zip(group.problems, _within(points[:, :, None], low[:, None], high[:, None]), strict=True))
    kept = np.zeros(len(rows), np.bool_)
    for number, row in enumerate(rows):
        heirs = {}
        for problem in row.problems:
            wider = np.flatnonzero(covering[problem] & kept)
            if len(wider) and rows[wider[-1]].config in group.costs[problem]:
                heirs[problem] = rows[wider[-1]]
        kept[number] = len(heirs) < len(row.problems)
        if not kept[number]:
            for problem, heir in heirs.items():
                heir.problems.append(problem)
    return [row for row, needed in zip(rows, kept, strict=True) if needed]


class _Merger:
    """The rows of a group: ``owner`` has each problem's row, ``serving`` configs allowed for all problems of a row."""

    def __init__(self, group: RowGroup) -> None:
        self._problems = list(group.problems)
        self._points = np.array([group.sizes[problem] for problem in self._problems], np.int64).T.copy()
        shared = [group.shared[problem] for problem in self._problems]
        columns = {config: column for column, config in enumerate(sorted(set().union(*map(set, shared))))}
        self._allowed = np.zeros((len(shared), len(columns)), np.bool_)
        for place, configs in enumerate(shared):
            self._allowed[place, [columns[config] for config in configs]] = True
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
        for start in range(0, count, _STRIDE):  # pair some problems with the problems before them
            end = min(start + _STRIDE, count)
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

    def _pair(self, row: int, partners: Array, extents: Array) -> None:
        """Queue the pairs of a row with rows before it, the least extended first."""
        order = np.lexsort((partners, extents))
        self._partners[row] = zip(extents[order].data, partners[order].data, strict=True)
        self._push(row)

    def _push(self, row: int) -> None:
        """Put the row's next pair on the heap: all of its pairs at once would take gigabytes."""
        pair = next((pair for pair in self._partners[row] if self._alive[pair[1]]), None)
        if pair is None:
            del self._partners[row]
        else:
            heappush(self._pairs, (pair[0], row, pair[1]))

    def rows(self) -> Iterator[tuple[list[int], Ranges]]:
        """Yield problems and box of each row."""
        for row in np.flatnonzero(self._alive):
            box = tuple(zip(self._low[:, row].tolist(), self._high[:, row].tolist(), strict=True))
            yield [self._problems[place] for place in np.flatnonzero(self._owner == row)], box

    def merge(self) -> None:
        """Merge all rows that can be merged, the least extended first."""
        while self._pairs:
            _, one, other = heappop(self._pairs)
            if not self._alive[one]:
                del self._partners[one]
                continue
            if self._alive[other]:
                self._try(one, other)
            self._push(one)

    def _add(self, low: Array, high: Array, places: Array) -> None:
        """Add a row that answers for the problems at ``places``, and queue its pairs."""
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
        """Merge the two rows, unless a problem would get a config that is not allowed for it."""
        low = np.minimum(self._low[:, one], self._low[:, other])
        high = np.maximum(self._high[:, one], self._high[:, other])
        volume = _volume(low, high)
        wider = self._volume > volume
        inside = np.flatnonzero(_within(self._points, low, high))
        taken = inside[wider[self._owner[inside]]]
        serving = self._serving[one] & self._serving[other]
        if not (serving & self._allowed[taken].all(axis=0)).any():
            return
        axes = zip(self._low, self._high, low, high, strict=True)
        shares = reduce(and_, ((lows <= most) & (least <= highs) for lows, highs, least, most in axes), self._alive)
        shares[[one, other]] = False
        near = np.flatnonzero(shares)  # other rows with a part of the box
        if (np.abs(self._volume[near] / volume - 1) < _SAME).any():
            return
        own = np.flatnonzero((self._owner == one) | (self._owner == other))
        falling, heirs = self._falling(own, near[self._volume[near] < volume])
        if all(
            (self._serving[heir] & self._allowed[falling[heirs == heir]].all(axis=0)).any() for heir in np.unique(heirs)
        ):
            losing = np.unique(self._owner[taken])
            self._alive[[one, other]] = False
            self._owner[falling] = heirs
            self._add(low, high, np.concatenate([np.setdiff1d(own, falling), taken]))
            for row in (*losing, *np.unique(heirs), self._count - 1):
                places = np.flatnonzero(self._owner == row)
                self._alive[row] = len(places) > 0
                self._serving[row] = self._allowed[places].all(axis=0)

    def _falling(self, own: Array, smaller: Array) -> tuple[Array, Array]:
        """Return the problems that lie in ``smaller`` boxes, and the row of the smallest box for each."""
        if not len(smaller):
            return own[:0], smaller
        points = self._points[:, own]
        covers = _within(points[:, None], self._low[:, smaller, None], self._high[:, smaller, None])
        heirs = smaller[np.where(covers, self._volume[smaller, None], np.inf).argmin(axis=0)]
        fall = covers.any(axis=0)
        return own[fall], heirs[fall]


def _within(points: Array, low: Array, high: Array) -> Array:
    """Return whether points are in boxes. All three have an item for each axis."""
    axes = zip(points, low, high, strict=True)
    return reduce(and_, ((least <= size) & (size <= most) for size, least, most in axes))


def _volume(low: Array, high: Array) -> float:
    return float(prod((high - low + 1.0).tolist()))


def _extent(low: Array, high: Array) -> Array:
    """Return the product of largest over smallest size, over all axes. It is the same on every machine."""
    extent: Array = reduce(mul, high / low)
    return extent


_MOST = 65_535  # maximum number of batches, and of heads, for which Inductor's kernels for attention can be launched


class _WideSizes(NamedTuple):
    """The sizes of an op: its length, those with a single value in a row, and those with a least value.

    Others are left open. If none is open, rows would go before those of measured problems, so they are only for
    lengths ``between`` measured lengths.
    """

    length: str
    same: tuple[str, ...]
    least: tuple[str, ...] = ()
    between: bool = False


_SIZES = {
    **dict.fromkeys(ATTENTION, _WideSizes("n", ("k", "v"), least=("b", "h"))),
    **dict.fromkeys(GROUPED, _WideSizes("m", ("b", "n", "k"), between=True)),
}

WIDE = tuple(_SIZES)  # the ops with wide rows


class _Length(NamedTuple):
    """A length's problems, by rows or queries, the configs not slower on any of them, and sizes with a least value."""

    length: int
    queries: frozenset[int]
    problems: list[int]
    configs: frozenset[int]
    least: tuple[int, ...]

    def has_fewer(self, other: _Length) -> bool:
        return prod(self.least) < prod(other.least)


class _Run(NamedTuple):
    """Neighbouring lengths with the same config. All have at least as many batches and heads as the first."""

    config: int | None
    lengths: list[_Length]


def wide_rows(op: str, group: RowGroup, times: Costs, baseline: int) -> Iterator[BuiltRow]:
    """Yield rows of an op for each pair of head dimensions, or for the experts of each model.

    ``times`` has the times of all configs on each problem, ``baseline`` is the number of the baseline. The config of a
    row is not slower than the baseline at neighbouring lengths, and has the least time in geometric mean. A row's
    problems are those with this config among the allowed, or for rows ``between`` lengths those of both lengths.
    """
    sizes = _SIZES[op]
    named = {number: dict(zip(SIZE_FIELDS, group.sizes[number], strict=False)) for number in group.problems}
    families: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, size in named.items():
        families[tuple(size[name] for name in sizes.same)][size[sizes.length]].append(number)
    for family, by_length in families.items():
        lengths = []
        for length, numbers in sorted(by_length.items()):
            known = [times[each] for each in numbers]
            faster = [{config for config, time in own.items() if time <= own.get(baseline, 0)} for own in known]
            least = min((prod(it), it) for it in (tuple(named[each][name] for name in sizes.least) for each in numbers))
            queries = frozenset(named[each]["m"] for each in numbers)
            configs = frozenset(set.intersection(*faster) - {baseline})
            lengths.append(_Length(length, queries, numbers, configs, least[1]))
        runs = _runs(lengths, times, sizes.between)
        for before, run, after in zip([None, *runs], runs, [*runs[1:], None], strict=False):
            first, last = run.lengths[0], run.lengths[-1]
            measured = sorted({each for length in run.lengths for each in length.problems})
            served = [each for each in measured if sizes.between or run.config in group.costs[each]]
            # The length at which two runs meet belongs to the first, or to the second if that has fewer heads there.
            low = first.length + (sizes.between or (before is not None and not first.has_fewer(before.lengths[0])))
            high = last.length - (sizes.between or (after is not None and after.lengths[0].has_fewer(first)))
            if run.config is None or not served or low > high:
                continue
            box: dict[str, Range] = {sizes.length: (low, high)}
            box |= {name: (value, value) for name, value in zip(sizes.same, family, strict=True)}
            box |= {name: (value, _MOST) for name, value in zip(sizes.least, first.least, strict=True)}
            # As many queries as keys, or the numbers that were measured.
            counts = {count for each in run.lengths for count in each.queries}
            alike = all(each.queries == {each.length} for each in run.lengths)
            box.setdefault("m", box.get("n", (1, MAX_SIZE)) if alike else (min(counts), max(counts)))
            every = tuple(box.get(name, (1, MAX_SIZE)) for name in SIZE_FIELDS)
            yield BuiltRow(run.config, served, every[: len(group.sizes[served[0]])])


def _runs(lengths: Sequence[_Length], times: Costs, alone: bool) -> list[_Run]:
    """Return all pairs of neighbouring lengths. Pairs with the same config are joined, unless they stay ``alone``."""
    runs: list[_Run] = []
    for pair in pairwise(lengths):
        problems = [problem for length in pair for problem in length.problems]
        config = min(
            pair[0].configs & pair[1].configs,
            key=lambda config: (sum(log(times[each][config]) for each in problems), config),
            default=None,
        )
        if runs and not alone and runs[-1].config == config and not pair[0].has_fewer(runs[-1].lengths[0]):
            runs[-1].lengths.append(pair[1])
        else:
            runs.append(_Run(config, [*pair]))
    return runs
