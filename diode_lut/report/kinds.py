"""Kinds of problems: a page has a panel for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from diode_lut.problem import DTYPES, LAYOUTS, OPS, Problem
from diode_lut.table import Entry

_ORDER = (OPS, DTYPES, LAYOUTS)


class Kind(NamedTuple):
    """op, dtype and layout; None means any, as in a row."""

    op: str | None
    dtype: str | None
    layout: str | None

    def covers(self, other: Kind) -> bool:
        """Whether all problems of the other kind are of this one, too."""
        return all(mine in (None, its) for mine, its in zip(self, other, strict=True))


def kind_of(of: Entry | Problem) -> Kind:
    """The kind of a row or of a problem."""
    return Kind(of.op, of.dtype, of.layout)


def kinds_of(entries: Iterable[Entry], problems: Iterable[Problem]) -> list[Kind]:
    """The kinds to tell apart, sorted: those of problems, and those of rows that cover none of the other kinds."""
    found = {*map(kind_of, entries), *map(kind_of, problems)}
    kinds = [kind for kind in found if not any(kind != other and kind.covers(other) for other in found)]
    return sorted(kinds, key=_order)


def _order(kind: Kind) -> list[int]:
    """As the names are listed in ``problem.py``, any last."""
    pairs = zip(kind, _ORDER, strict=True)
    return [len(names) if name is None else names.index(name) for name, names in pairs]
