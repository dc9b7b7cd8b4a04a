"""Rows for attention with any batch and any number of heads, of the lengths that were measured and those between.

No model answers for attention, so that beyond the boxes around measured problems nothing would. What its kernels take
depends on the head dimensions, the length, and what masks and scores do, much more than on how many heads there are. So
a config that was not slower than the baseline at two neighbouring lengths, for all batches and heads measured there, is
taken for other batches and heads, and for lengths between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import log
from typing import NamedTuple

from diode_lut.build.rows import Group, Row
from diode_lut.domain.problem import MAX_SIZE, SIZE_FIELDS
from diode_lut.table import Range

_ANY: Range = (1, MAX_SIZE)

_Times = Sequence[Mapping[int, float]]


class _Length(NamedTuple):
    """The problems with ``n`` keys: how many queries they have, and the configs that are not slower on any of them."""

    n: int
    queries: frozenset[int]
    problems: list[int]
    configs: frozenset[int]


def wide_rows(group: Group, times: _Times, baseline: int) -> Iterator[Row]:
    """Rows for each pair of head dimensions.

    ``times`` has the times of all configs on each problem, ``baseline`` is the number of the baseline. Of several
    configs it is the one with the least time in geometric mean. A row's problems are those for which it is allowed.
    """
    families: dict[tuple[int, int], list[int]] = defaultdict(list)
    for problem in group.problems:
        size = _named(group, problem)
        families[size["k"], size["v"]].append(problem)
    for heads, problems in families.items():
        measured = _lengths(group, problems, times, baseline)
        chosen = ((_best(pair, times), pair) for pair in pairwise(measured))
        for config, pairs in groupby(chosen, key=lambda each: each[0]):
            lengths = [length for _, pair in pairs for length in pair]
            served = sorted({each for length in lengths for each in length.problems if config in group.costs[each]})
            if config is not None and served:
                yield Row(config, served, _box(heads, lengths, lengths[0] is measured[0]))


def _named(group: Group, problem: int) -> dict[str, int]:
    return dict(zip(SIZE_FIELDS, group.sizes[problem], strict=True))


def _lengths(group: Group, problems: Iterable[int], times: _Times, baseline: int) -> list[_Length]:
    found: dict[int, list[int]] = defaultdict(list)
    for problem in problems:
        found[_named(group, problem)["n"]].append(problem)
    return [
        _Length(
            n,
            frozenset(_named(group, each)["m"] for each in those),
            those,
            frozenset.intersection(*(_not_slower(times[each], baseline) for each in those)),
        )
        for n, those in sorted(found.items())
    ]


def _not_slower(times: Mapping[int, float], baseline: int) -> frozenset[int]:
    return frozenset(config for config, time in times.items() if time <= times.get(baseline, 0)) - {baseline}


def _best(pair: tuple[_Length, _Length], times: _Times) -> int | None:
    """The best of the configs that are not slower at both lengths, if there are any."""
    problems = [problem for length in pair for problem in length.problems]
    safe = pair[0].configs & pair[1].configs
    return min(safe, key=lambda config: (sum(log(times[each][config]) for each in problems), config), default=None)


def _box(heads: tuple[int, int], lengths: Sequence[_Length], first: bool) -> tuple[Range, ...]:
    """From the first of the lengths to the last; without the first where the row before ends with it."""
    keys = lengths[0].n + (not first), lengths[-1].n
    queries = {count for length in lengths for count in length.queries}
    alone = all(length.queries == {length.n} for length in lengths)
    sizes = {"m": keys if alone else (min(queries), max(queries)), "n": keys}
    k, v = heads
    return tuple({**sizes, "k": (k, k), "v": (v, v)}.get(name, _ANY) for name in SIZE_FIELDS)
