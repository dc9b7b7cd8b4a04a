"""Rows for attention and grouped matmuls of the lengths that were measured and those between.

No model answers for these ops, so that beyond the boxes around measured problems nothing would. What attention takes
depends on the head dimensions, the length, and what masks and scores do, much more than on how many heads there are. So
a config that was not slower than the baseline at two neighbouring lengths, for all batches and heads measured there, is
taken for other batches and heads, and for lengths between. Of a grouped matmul the length is the number of its rows,
which changes with the tokens; its other sizes are those of a model's experts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import log
from typing import NamedTuple

from diode_lut.build.rows import BuiltRow, Group
from diode_lut.domain.ops import ATTENTION, GROUPED, MAX_SIZE, SIZE_FIELDS
from diode_lut.table import Range

_ANY: Range = (1, MAX_SIZE)


class _Sizes(NamedTuple):
    """The sizes of an op: its length, and those that rows are for one value of. Any others are left open.

    If none is left open, rows would go before those of measured problems, so that they are ``between`` lengths only.
    """

    length: str
    same: tuple[str, ...]
    between: bool = False


_SIZES = {
    **dict.fromkeys(ATTENTION, _Sizes("n", ("k", "v"))),
    **dict.fromkeys(GROUPED, _Sizes("m", ("b", "n", "k"), between=True)),
}

WIDE = tuple(_SIZES)
"""The ops that have such rows."""

_Times = Sequence[Mapping[int, float]]


class _Length(NamedTuple):
    """The problems of a length: how many rows or queries they have, and the configs not slower on any of them."""

    length: int
    queries: frozenset[int]
    problems: list[int]
    configs: frozenset[int]


def wide_rows(op: str, group: Group, times: _Times, baseline: int) -> Iterator[BuiltRow]:
    """Rows of an op for each pair of head dimensions, or for the experts of each model.

    ``times`` has the times of all configs on each problem, ``baseline`` is the number of the baseline. Of several
    configs it is the one with the least time in geometric mean. A row's problems are those for which it is allowed.
    """
    sizes = _SIZES[op]
    families: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for problem in group.problems:
        size = _named(group, problem)
        families[tuple(size[name] for name in sizes.same)].append(problem)
    for family, problems in families.items():
        same = {name: (value, value) for name, value in zip(sizes.same, family, strict=True)}
        measured = _lengths(sizes.length, group, problems, times, baseline)
        chosen = [(_best(pair, times), pair) for pair in pairwise(measured)]
        for (config, _), pairs in groupby(chosen, key=lambda each: (each[0], sizes.between and each[1])):
            lengths = [length for _, pair in pairs for length in pair]
            served = sorted({each for length in lengths for each in length.problems if config in group.costs[each]})
            first, last = lengths[0].length, lengths[-1].length
            span = first + (sizes.between or lengths[0] is not measured[0]), last - sizes.between
            if config is not None and served and span[0] <= span[1]:
                box = _box({sizes.length: span, **same}, lengths)
                yield BuiltRow(config, served, box[: len(group.sizes[served[0]])])


def _named(group: Group, problem: int) -> dict[str, int]:
    return dict(zip(SIZE_FIELDS, group.sizes[problem], strict=False))


def _lengths(name: str, group: Group, problems: Iterable[int], times: _Times, baseline: int) -> list[_Length]:
    found: dict[int, list[int]] = defaultdict(list)
    for problem in problems:
        found[_named(group, problem)[name]].append(problem)
    return [
        _Length(
            length,
            frozenset(_named(group, each)["m"] for each in those),
            those,
            frozenset.intersection(*(_not_slower(times[each], baseline) for each in those)),
        )
        for length, those in sorted(found.items())
    ]


def _not_slower(times: Mapping[int, float], baseline: int) -> frozenset[int]:
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
