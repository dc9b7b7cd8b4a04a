"""What a model knows: the kinds of problems that it was trained on, each with the sizes that it saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from diode_lut.problem import Problem
from diode_lut.table import Range

_KIND_FIELDS = ("op", "dtype", "layout", "align")
_SIZES = ("b", "m", "n", "k")

FEWEST = 10
"""So many problems of a kind make it known."""


class Kind(NamedTuple):
    """Problems of one op, dtype, layout and alignment: ``problems`` is their number, the ranges hold their sizes."""

    op: str
    dtype: str
    layout: str
    align: int
    problems: int
    b: Range
    m: Range
    n: Range
    k: Range

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Kind:
        """The kind of ``{"op": ..., "m": [low, high], ...}``; KeyError, TypeError or ValueError for anything else."""
        ranges = {name: (int(fields[name][0]), int(fields[name][1])) for name in _SIZES}
        return cls(**{**fields, **ranges})

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What a problem of this kind begins with."""
        return self.op, self.dtype, self.layout, self.align

    def outside(self, problem: Problem) -> str:
        """The first size of the problem that is out of range, in words; empty if there is none."""
        for name, size, (low, high) in zip(_SIZES, problem[4:], self[5:], strict=True):
            if not low <= size <= high:
                return f"{name}={size} is outside {low} to {high}"
        return ""


def kinds_of(problems: Iterable[Problem]) -> list[Kind]:
    """The kinds of which there are enough problems, in order."""
    groups: defaultdict[tuple[str, str, str, int], list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[problem[:4]].append(problem)
    return [_kind(group) for _, group in sorted(groups.items()) if len(group) >= FEWEST]


def _kind(problems: Sequence[Problem]) -> Kind:
    b, m, n, k = ((min(sizes), max(sizes)) for sizes in zip(*(problem[4:] for problem in problems), strict=True))
    return Kind(*problems[0][:4], len(problems), b, m, n, k)


def unknown(kinds: Iterable[Kind], problem: Problem) -> str:
    """Why the model does not know the problem, as the first field that no kind has, or as a size; empty if it does."""
    found = list(kinds)
    for count, wanted in enumerate(problem[:4], start=1):
        found = [kind for kind in found if kind.key[count - 1] == wanted]
        if not found:
            named = " ".join(f"{name}={value}" for name, value in zip(_KIND_FIELDS, problem[:count], strict=False))
            return f"not trained for {named}"
    reason = found[0].outside(problem)
    return f"not trained for such sizes: {reason}" if reason else ""
