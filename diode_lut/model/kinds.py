"""The kinds of problems that a model was trained on, with the ranges of their sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from diode_lut.domain.errors import ProblemError
from diode_lut.domain.problem import BATCHED, NO_EPILOGUE, Problem
from diode_lut.table import Range, of_kind

_SIZES = ("b", "m", "n", "k")

MIN_PROBLEMS = 4
"""Minimum number of training problems that make a kind known."""


class Kind(NamedTuple):
    """Problems of one op, dtype, layout and alignment, with the ranges of sizes that the model knows.

    All known kinds of one dtype share their ranges, those with a batch and those without one apart, because the
    network learns about sizes from other ops, layouts and alignments as well.
    """

    op: str
    dtype: str
    layout: str
    align: int
    b: Range
    m: Range
    n: Range
    k: Range

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Kind:
        """The kind of ``{"op": ..., "m": [low, high], ...}``.

        Anything else raises ProblemError, KeyError, TypeError or ValueError.
        """
        kind = cls(**{**fields, **{name: _range(name, *fields[name]) for name in _SIZES}})
        Problem.checked(kind.op, kind.dtype, kind.layout, kind.align, 1, 1, 1, 1)
        return kind

    @property
    def epilogue(self) -> str:
        """The class of epilogues that models are trained for."""
        return NO_EPILOGUE

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """``Problem.kind`` of the problems of this kind."""
        return self.op, self.dtype, self.layout, self.align, self.epilogue

    @property
    def sizes(self) -> tuple[Range, Range, Range, Range]:
        """The ranges of b, m, n and k."""
        return self.b, self.m, self.n, self.k

    def outside(self, problem: Problem) -> str:
        """Text about the first size of the problem that is out of range; empty if there is none."""
        for name, size, (low, high) in zip(_SIZES, problem.sizes, self.sizes, strict=True):
            if not low <= size <= high:
                return f"{name}={size} is outside {low} to {high}"
        return ""


def _range(name: str, low: Any, high: Any) -> Range:
    if not (type(low) is type(high) is int and 1 <= low <= high):
        raise ProblemError(f"{name}: {low!r} to {high!r} is not a range of sizes")
    return low, high


def kinds_of(problems: Iterable[Problem]) -> list[Kind]:
    """The kinds that have enough problems, sorted."""
    found: defaultdict[tuple[str, str, str, int], list[tuple[int, ...]]] = defaultdict(list)
    for problem in problems:
        if problem.epilogue == NO_EPILOGUE:
            found[problem.op, problem.dtype, problem.layout, problem.align].append(problem.sizes)
    known = {key: sizes for key, sizes in sorted(found.items()) if len(sizes) >= MIN_PROBLEMS}
    together: defaultdict[tuple[str, bool], list[tuple[int, ...]]] = defaultdict(list)
    for (op, dtype, *_), sizes in known.items():
        together[dtype, op in BATCHED] += sizes
    ranges = {group: [(min(each), max(each)) for each in zip(*sizes, strict=True)] for group, sizes in together.items()}
    return [Kind(op, dtype, layout, align, *ranges[dtype, op in BATCHED]) for op, dtype, layout, align in known]


def unknown(kinds: Iterable[Kind], problem: Problem) -> str:
    """Why the model was not trained for the problem; empty if it was."""
    found, kind = of_kind(kinds, problem)
    if not found:
        return f"not trained for {kind}"
    reason = found[0].outside(problem)
    return f"not trained for these sizes: {reason}" if reason else ""
