"""One row of a table: which problems it covers, and what it answers for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar

from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    BATCHED,
    DOMAINS,
    MATMULS,
    MAX_SIZE,
    NO_EPILOGUE,
    NO_VARIANT,
    SIZE_FIELDS,
    Problem,
    aligned_columns,
)
from diode_lut.templates.config import Config

Range = tuple[int, int]
"""Sizes from the first to the second, both included."""

KIND_FIELDS = ("op", "dtype", "layout", "align", "epilogue", "variant")
KEY_FIELDS = (*KIND_FIELDS, *SIZE_FIELDS)
"""What selects problems, in the order in which rows are sorted. Left out, a field matches anything, ``op`` MATMULS."""


class Candidate(NamedTuple):
    """A config, and what it gains: 1000 * time of the baseline / time of the config, or None if not measured."""

    config: Config
    gain_permille: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields of the config, then the gain if there is one."""
        fields = self.config.to_json()
        if self.gain_permille is not None:
            fields["gain_permille"] = self.gain_permille
        return fields


class Entry(NamedTuple):
    """A key, which says what problems the entry covers, and its candidates, best first.

    A field of the key that is None matches anything. ``problems`` counts the measured problems that stand behind the
    entry, ``note`` is for people. Making an entry directly checks nothing.
    """

    op: str | None
    dtype: str | None
    layout: str | None
    align: int | None
    b: Range | None
    m: Range | None
    n: Range | None
    k: Range | None
    candidates: tuple[Candidate, ...]
    problems: int | None = None
    note: str | None = None
    epilogue: str | None = None
    variant: str | None = None
    h: Range | None = None
    g: Range | None = None
    v: Range | None = None

    @property
    def configs(self) -> tuple[Config, ...]:
        """The configs without their gains, best first."""
        return tuple([candidate.config for candidate in self.candidates])

    @property
    def best(self) -> Candidate:
        """The first candidate."""
        return self.candidates[0]

    @property
    def kind(self) -> tuple[str | None, str | None, str | None, int | None, str | None, str | None]:
        """op, dtype, layout, align, epilogue and variant; None matches anything."""
        return self.op, self.dtype, self.layout, self.align, self.epilogue, self.variant

    @property
    def sizes(self) -> tuple[Range | None, ...]:
        """The ranges of b, m, n and k, of attention of h, g and v as well; None matches anything."""
        if self.op in ATTENTION:
            return self.b, self.m, self.n, self.k, self.h, self.g, self.v
        return self.b, self.m, self.n, self.k

    @property
    def key(self) -> tuple[str | int | Range | None, ...]:
        """The values of KEY_FIELDS."""
        return (*self.kind, self.b, self.m, self.n, self.k, self.h, self.g, self.v)

    def covers(self, problem: Problem) -> bool:
        """Whether this entry may answer for the problem."""
        return (
            (self.op == problem.op or (self.op is None and problem.op in MATMULS))
            and self.dtype in (None, problem.dtype)
            and self.layout in (None, problem.layout)
            and self.align in (None, problem.align)
            and self.epilogue in (None, problem.epilogue)
            and self.variant in (None, problem.variant)
            and (self.b is None or self.b[0] <= problem.b <= self.b[1])
            and (self.m is None or self.m[0] <= problem.m <= self.m[1])
            and (self.n is None or self.n[0] <= problem.n <= self.n[1])
            and (self.k is None or self.k[0] <= problem.k <= self.k[1])
            and (self.h is None or self.h[0] <= problem.h <= self.h[1])
            and (self.g is None or self.g[0] <= problem.g <= self.g[1])
            and (self.v is None or self.v[0] <= problem.v <= self.v[1])
            and self.aligned_results in (None, problem.has_aligned_result)
        )

    @property
    def aligned_results(self) -> bool | None:
        """Whether the results of GEMMs that the row is for are aligned; None if it is for any.

        A range of N that ``build`` made, between GEMMs of which all or none have aligned results, is for such GEMMs
        only: about others, for which the library may take several times as long, nothing is known.
        """
        if self.problems is None or self.n is None or self.n[0] == self.n[1] or self.op is None or self.dtype is None:
            return None
        columns = aligned_columns(self.op, self.dtype)
        first, last = (end % columns == 0 for end in self.n)
        return first if first == last and columns > 1 else None

    @property
    def covers_unbatched(self) -> bool:
        """Whether the sizes that the entry covers include those of ops without a batch, whose b is 1."""
        return self.b is None or self.b[0] == 1

    @property
    def volume(self) -> int:
        """How many problems the entry covers, sizes up to MAX_SIZE counted: the fewer, the more specific.

        mm and addmm have no batch, so that their b can only be 1, whether or not the key says so.
        """
        batched, unbatched = _width(self.b), int(self.covers_unbatched)
        if self.op is None:
            count = sum(_kinds(self, op) * (batched if op in BATCHED else unbatched) for op in MATMULS)
        else:
            count = _kinds(self, self.op) * (batched if self.op in BATCHED else unbatched)
        if self.align is None:
            count *= len(ALIGNS)
        if self.op in ATTENTION:
            count *= _width(self.h) * _width(self.g) * _width(self.v)
        return count * _width(self.m) * _width(self.n) * _width(self.k)

    @property
    def is_exact(self) -> bool:
        """Whether the entry covers one op, dtype, layout, align, variant and size, with any epilogue or with one."""
        if self.op is None:
            return False
        return self.volume == (len(DOMAINS[self.op].epilogues) if self.epilogue is None else 1)

    def to_json(self) -> dict[str, Any]:
        """The entry as a table file has it, fields in canonical order, those that are None left out."""
        fields: dict[str, Any] = {name: value for name, value in zip(KEY_FIELDS, self.key, strict=True) if value}
        if self.problems is not None:
            fields["problems"] = self.problems
        fields["configs"] = [candidate.to_json() for candidate in self.candidates]
        if self.note is not None:
            fields["note"] = self.note
        return fields


class _Kind(Protocol):
    """Fields of a row's key; None matches anything."""

    @property
    def op(self) -> str | None: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def layout(self) -> str | None: ...
    @property
    def align(self) -> int | None: ...
    @property
    def epilogue(self) -> str | None: ...
    @property
    def variant(self) -> str | None: ...


_K = TypeVar("_K", bound=_Kind)


def of_kind(rows: Iterable[_K], problem: Problem) -> tuple[list[_K], str]:
    """The rows whose op, dtype, layout, alignment, epilogue and variant a problem has, and these as text.

    Where there are none, the text ends with the first field in which the last of the rows differ. No epilogue and no
    variant are not mentioned where rows match them.
    """
    found, parts = list(rows), []
    for name in KIND_FIELDS:
        wanted = getattr(problem, name)
        found = [row for row in found if getattr(row, name) in (None, wanted)]
        if not found or wanted not in (NO_EPILOGUE, NO_VARIANT):
            parts.append(f"{name}={wanted}")
        if not found:
            break
    return found, " ".join(parts)


def is_point(sizes: Range | None) -> bool:
    """Whether the range is a single size."""
    return sizes is not None and sizes[0] == sizes[1]


def ops_of(kind: tuple[Any, ...]) -> tuple[str, ...]:
    """The ops that have problems of a kind, as ``Entry.kind`` has it."""
    op, dtype, layout, _, epilogue, variant = kind
    return _ops_of(op, (dtype, layout, epilogue, variant))


_Values = tuple[str | None, str | None, str | None, str | None]
"""The dtype, layout, epilogue and variant of a row; None stands for any."""


@cache
def _ops_of(op: str | None, values: _Values) -> tuple[str, ...]:
    return tuple(each for each in (MATMULS if op is None else (op,)) if _count(each, values))


@cache
def _count(op: str, values: _Values) -> int:
    """How many combinations of these values an op's problems have."""
    counts = 1
    for value, domain in zip(values, DOMAINS[op], strict=True):
        counts *= len(domain) if value is None else value in domain
    return counts


def _kinds(entry: Entry, op: str) -> int:
    return _count(op, (entry.dtype, entry.layout, entry.epilogue, entry.variant))


def _width(sizes: Range | None) -> int:
    return MAX_SIZE if sizes is None else sizes[1] - sizes[0] + 1


class Results(NamedTuple):
    """The values of N from ``low`` to ``high``; if ``aligned`` is not None, only those with aligned results, or others.

    Results are aligned where N is a multiple of ``columns``.
    """

    low: int
    high: int
    aligned: bool | None
    columns: int

    @classmethod
    def of(cls, entry: Entry) -> Results:
        """Those of a row."""
        low, high = entry.n or (1, MAX_SIZE)
        aligned = entry.aligned_results
        if aligned is None or entry.op is None or entry.dtype is None:
            return cls(low, high, None, 1)
        return cls(low, high, aligned, aligned_columns(entry.op, entry.dtype))

    def shared(self, other: Results) -> int | None:
        """The least N that both rows, which share an op and a type, cover; None if there is none."""
        chosen, rest = (self, other) if self.aligned is not None else (other, self)
        low, high = max(self.low, other.low), min(self.high, other.high)
        if chosen.aligned is not None and rest.aligned not in (None, chosen.aligned):
            return None
        if chosen.aligned:
            low += -low % chosen.columns
        elif chosen.aligned is False:
            low += low % chosen.columns == 0
        return low if low <= high else None


def places(sizes: Range, aligned: bool, columns: int) -> Range | None:
    """Which of all N with aligned results, or of all others, are in a range, counted without gaps; None if none is."""
    low, high = sizes
    if aligned:
        first, last = -(-low // columns), high // columns
    else:
        low, high = low + (low % columns == 0), high - (high % columns == 0)
        first, last = low - low // columns, high - high // columns
    return (first, last) if first <= last else None
