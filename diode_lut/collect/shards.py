"""Cutting work into shards, and who does which of them next."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from diode_lut.collect.task import Family, Shard, Task

SHARD = 100
"""Most tasks in a shard."""

SHARDS_PER_WORKER = 4
"""Shards are small enough for each worker to get this many, so that all workers end at about one time."""

FLOATING_POINT_OPERATIONS = 5e11
"""A product of this many takes about as long to measure as what is the same for products of any size."""


def make_shards(stage: str, tasks: Iterable[Task], workers: int) -> list[Shard]:
    """The tasks in shards of one family each: the family that takes longest first, in it the largest products first."""
    families: defaultdict[Family, list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=_expected, reverse=True):
        families[Family.of(task.problem)].append(task)
    size = min(SHARD, math.ceil(sum(map(len, families.values())) / (SHARDS_PER_WORKER * workers)))
    return [
        Shard(stage, tuple(family[start : start + size]))
        for family in sorted(families.values(), key=lambda family: sum(map(_expected, family)), reverse=True)
        for start in range(0, len(family), size)
    ]


def _expected(task: Task) -> float:
    """About how long it takes, in multiples of what the smallest product takes."""
    _, _, _, _, b, m, n, k = task.problem
    return 1 + 2 * b * m * n * k / FLOATING_POINT_OPERATIONS


class Backlog:
    """The shards that nobody has in hand."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = list(shards)

    def __len__(self) -> int:
        return len(self._shards)

    def take(self, last: Family | None, in_hand: Collection[Family]) -> Shard:
        """The next shard for a worker whose last one was of family ``last``.

        It goes on with its family, for which it has the kernels; else it takes a family that no other worker has in
        hand, so that they do not compile the same; else whatever is next.
        """
        shard = min(self._shards, key=lambda each: (each.family != last, each.family in in_hand))
        self._shards.remove(shard)
        return shard

    def put_back(self, shards: Sequence[Shard]) -> None:
        """Before all others, what was in hand and is not done."""
        self._shards[:0] = shards

    def clear(self) -> None:
        """Nothing more is to be done."""
        self._shards.clear()


def halves(shard: Shard) -> list[Shard]:
    """The shard in two, if it has two tasks."""
    middle = len(shard.tasks) // 2
    parts = (shard.tasks[:middle], shard.tasks[middle:])
    return [Shard(shard.stage, part) for part in parts if part]
