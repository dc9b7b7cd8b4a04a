"""Rows for layers in float8 and int8 that were not measured.

No model answers for these ops. Their best kernels change little from a layer to a similar one: what few rows take is
mostly the loading of B. So a config that was not slower than the library for all measured layers around an octave of N
answers for any N of it, for each K of these layers. Another K may end within a block: where blocks did not divide K, 23
of 91 answers for random layers on an H200 were slower than the library by over 3 %, and none of 9 where they did
(``tables/datasets/float8/nvidia-h200-random.msgpack.zst``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log

from diode_lut.build.rows import BuiltRow, Group
from diode_lut.build.wide import not_slower
from diode_lut.domain.ops import INTEGER, SCALED, SIZE_FIELDS

OF_LAYERS = (*SCALED, *INTEGER)
"""The ops that have such rows."""

LEAST_LAYERS = 5
"""Layers that must be measured around an octave of N and a K.

Where each of 33 layers in float8 on an H200 was left out in turn, rows from at least as many others answered for 49 of
its 210 problems with up to 256 rows. Their gain was 1.22, and none was slower than the library.
"""

_Layer = tuple[int, int]
"""Its N and K."""


def layer_rows(group: Group, times: Sequence[Mapping[int, float]], library: int) -> Iterator[BuiltRow]:
    """A row for each octave of N and each K with enough layers around them, and each two neighbouring numbers of rows.

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
        for octave in sorted({_octave(n) for n, _ in measured}):
            near = {layer: problems for layer, problems in measured.items() if abs(_octave(layer[0]) - octave) <= 1}
            for k in sorted({k for _, k in near}):
                around = [problems for layer, problems in near.items() if abs(_octave(layer[1]) - _octave(k)) <= 1]
                chosen_by = [problem for each in around for m, problem in each.items() if least <= m <= most]
                safe = frozenset.intersection(*(not_slower(times[problem], library) for problem in chosen_by))
                if len(around) >= LEAST_LAYERS and safe:
                    config = min(safe, key=lambda it: (sum(log(times[problem][it]) for problem in chosen_by), it))
                    rows = (least + (least != ends[0]), most)
                    columns = (1 << octave, (2 << octave) - 1)
                    yield BuiltRow(config, sorted(chosen_by), ((1, 1), rows, columns, (k, k)))


def _octave(size: int) -> int:
    """The exponent of the power of 2 that the size begins with."""
    return size.bit_length() - 1
