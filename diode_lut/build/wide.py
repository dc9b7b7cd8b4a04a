"""Rows for attention and grouped matmuls of the lengths that were measured and those between.

No model answers for these, so that beyond the boxes around measured problems nothing would. What attention takes
depends on the head dimensions, the length, and what masks and scores do, and on how many heads there are only where
they are too few to occupy the device. So a config that was not slower than the baseline at two neighbouring lengths,
for all batches and heads measured there, is taken for lengths between, and for all batches and heads from the fewest
that were measured at the shorter one. Of a grouped matmul the length is the number of its rows, which changes with the
tokens; its other sizes are those of a model's experts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import log, prod
from typing import NamedTuple

from diode_lut.build.rows import BuiltRow, Group
from diode_lut.domain.ops import ATTENTION, GROUPED, MAX_SIZE, SIZE_FIELDS
from diode_lut.table import Range

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
