"""Rows for layers in float8 and int8 that were not measured.

No model answers for these ops. Their best kernels change little from a layer to a similar one: what few rows take is
mostly the loading of B. So a config that was not slower than the library for all measured layers around an octave of N
and an octave of K answers for any layer in these.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import log

from diode_lut.build.rows import BuiltRow, Group
from diode_lut.build.wide import not_slower
from diode_lut.domain.ops import INTEGER, SCALED, SIZE_FIELDS

OF_LAYERS = (*SCALED, *INTEGER)
"""The ops that have such rows."""

LEAST_LAYERS = 5
"""Layers that must be measured around an octave of N and one of K.

Where each of 33 layers in float8 on an H200 was left out in turn, rows from at least as many others answered for 114 of
its 210 problems with up to 256 rows, and were never slower than the library. Of 130 answers from four layers, one took
8 % longer.
"""

_Layer = tuple[int, int]
"""Its N and K, or the octaves of these: the exponents of the powers of 2 that they begin with."""


def layer_rows(group: Group, times: Sequence[Mapping[int, float]], library: int) -> Iterator[BuiltRow]:
    """A row for each two octaves with enough layers around them, and each two neighbouring numbers of rows.

    ``times`` has the times of all configs on each problem, ``library`` is the number of the library's. Of several
    configs it is the one with the least time in geometric mean. A row's problems are all that it was chosen by. Numbers
    of rows that fewer than half as many layers were measured with as with others are no ends of rows.
    """
    layers: dict[_Layer, dict[int, int]] = defaultdict(dict)
    for problem in group.problems:
        size = dict(zip(SIZE_FIELDS, group.sizes[problem], strict=False))
        layers[size["n"], size["k"]][size["m"]] = problem
    counts = Counter(m for problems in layers.values() for m in problems)
    ends = sorted(m for m, count in counts.items() if 2 * count >= max(counts.values()))
    for least, most in pairwise(ends):
        measured = {layer: problems for layer, problems in layers.items() if {least, most} <= problems.keys()}
        for octaves in product({_octave(n) for n, _ in measured}, {_octave(k) for _, k in measured}):
            around = [problems for layer, problems in measured.items() if _is_around(layer, octaves)]
            chosen_by = [problem for each in around for m, problem in each.items() if least <= m <= most]
            if len(around) >= LEAST_LAYERS:
                safe = frozenset.intersection(*(not_slower(times[problem], library) for problem in chosen_by))
                if safe:
                    config = min(safe, key=lambda it: (sum(log(times[problem][it]) for problem in chosen_by), it))
                    rows = (least + (least != ends[0]), most)
                    yield BuiltRow(config, sorted(chosen_by), ((1, 1), rows, *map(_span, octaves)))


def _octave(size: int) -> int:
    return size.bit_length() - 1


def _span(octave: int) -> tuple[int, int]:
    return 1 << octave, (2 << octave) - 1


def _is_around(layer: _Layer, octaves: _Layer) -> bool:
    return all(abs(_octave(size) - octave) <= 1 for size, octave in zip(layer, octaves, strict=True))
