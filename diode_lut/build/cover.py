"""The fewest rows that give every measured problem a config that is allowed for it.

The problems of a group (op, dtype, layout and align agree) are points in the space of b, m, n and k. Halving the widest
size again and again, always at a power of two or a multiple of one, gives a binary tree of boxes. A row belongs to a
box, holds a config, and answers for all problems in it that no row further down answers for. That is how routing
tables work, and as for those a pass up the tree and one down find the fewest rows: R. Draves, C. King, S. Venkatachary,
B. Zill, "Constructing Optimal IP Routing Tables", INFOCOM 1999. Where a row could as well be replaced by one further
down, it stays up. Among configs that need equally many rows, the one with the least sum of costs is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Sizes = tuple[int, int, int, int]
"""b, m, n and k."""

ROW = 1e6
"""The cost of a row: more than all other costs of a table together, so that the number of rows comes first."""

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class Group(NamedTuple):
    """Problems that rows may have in common, as numbers into ``sizes`` and ``costs``; no two have the same sizes.

    ``costs`` has, for each problem, the numbers of the configs that are allowed for it, at least one, and what they
    cost. ``configs`` is the number of all configs.
    """

    problems: Sequence[int]
    sizes: Sequence[Sizes]
    costs: Sequence[Mapping[int, float]]
    configs: int


class Row:
    """A config (by its number), the problems that it answers for (by theirs), and the rows right below it."""

    __slots__ = ("config", "inner", "problems")

    def __init__(self, config: int) -> None:
        self.config = config
        self.problems: list[int] = []
        self.inner: list[Row] = []


class _Node(NamedTuple):
    """A box: the config that a row here should hold, and which configs of a row above save a row here."""

    config: int
    passed: npt.NDArray[np.bool_]
    children: tuple[_Node, ...]
    problem: int


def cover(group: Group) -> Row:
    """The row for all problems together, with all other rows inside it."""
    sizes = [group.sizes[problem] for problem in group.problems]
    root, _ = _node(np.array(group.problems), np.array(sizes, np.int64), group)
    return _row(root)


def _node(problems: _Integers, points: _Integers, group: Group) -> tuple[_Node, _Floats]:
    """The tree over the problems, and what it costs below a row with each of the configs."""
    if len(problems) == 1:
        children: tuple[_Node, ...] = ()
        costs = np.full(group.configs, np.inf)
        allowed = group.costs[problems[0]]
        costs[list(allowed)] = list(allowed.values())
    else:
        lower = _lower_half(points)
        parts = [_node(problems[half], points[half], group) for half in (lower, ~lower)]
        children = tuple(node for node, _ in parts)
        costs = parts[0][1] + parts[1][1]
    config = int(np.argmin(costs))
    passed = costs < costs[config] + ROW / 2
    node = _Node(config, passed, children, int(problems[0]))
    return node, np.where(passed, costs, costs[config] + ROW)


def _row(node: _Node) -> Row:
    row = Row(node.config)
    _fill(row, node)
    return row


def _fill(row: Row, node: _Node) -> None:
    if not node.children:
        row.problems.append(node.problem)
    for child in node.children:
        if child.passed[row.config]:
            _fill(row, child)
        else:
            row.inner.append(_row(child))


def _lower_half(points: _Integers) -> npt.NDArray[np.bool_]:
    low, high = points.min(axis=0), points.max(axis=0)
    widest = int(np.argmax(high / low))
    half: npt.NDArray[np.bool_] = points[:, widest] <= halfway(int(low[widest]), int(high[widest]))
    return half


def halfway(low: int, high: int) -> int:
    """Where to halve sizes from ``low`` to ``high``: the last size of the lower part.

    The place depends on the range as little as possible, so that new problems move few boxes: octaves (from above one
    power of two up to the next) are parted at the one with the roundest number, an octave at the roundest size in it.
    """
    low_octave, high_octave = (low - 1).bit_length(), (high - 1).bit_length()
    if low_octave != high_octave:
        return 1 << (_roundest(low_octave, high_octave) - 1)
    return _roundest(low - 1, high - 1)


def _roundest(low: int, high: int) -> int:
    """The number above ``low``, up to ``high``, that the highest power of two divides."""
    shift = (low ^ high).bit_length() - 1
    return high >> shift << shift
