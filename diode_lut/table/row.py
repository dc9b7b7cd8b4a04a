"""A row of a table: the problems it covers, and the configs it answers with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any, NamedTuple, TypeVar

from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    BATCHED,
    DOMAINS,
    DTYPES,
    EPILOGUES,
    GENERATED,
    LAYOUTS,
    MATMULS,
    MAX_SIZE,
    NAMED_VARIANTS,
    NO_EPILOGUE,
    NO_VARIANT,
    OF_KERNELS,
    OP_SIZES,
    OPS,
    SIZE_FIELDS,
    Problem,
)
from diode_lut.templates.config import Config

Range = tuple[int, int]  # sizes from the first to the second, both included

KIND_FIELDS = ("op", "dtype", "layout", "align", "epilogue", "variant")
KEY_FIELDS = (*KIND_FIELDS, *SIZE_FIELDS, "n_align")  # in the order of files. A missing field matches anything


class Candidate(NamedTuple):
    """A config, and its gain: 1000 * time of the baseline / time of the config. None if it was not measured."""

    config: Config
    gain_permille: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the config, then the gain if there is one."""
        fields = self.config.to_json()
        if self.gain_permille is not None:
            fields["gain_permille"] = self.gain_permille
        return fields


class Entry(NamedTuple):
    """A row: a key, which selects problems, and candidates, best first.

    Fields of the key match anything if they are None. ``n_align`` restricts N, see ``Problem.n_align``. ``problems``
    counts the measured problems of the row, ``note`` is for people. Making an entry checks nothing.
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
    n_align: int | None = None
    x: Range | None = None
    y: Range | None = None
    r: Range | None = None
    loads: Range | None = None

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
        """The values of KIND_FIELDS, in which None matches anything."""
        return self.op, self.dtype, self.layout, self.align, self.epilogue, self.variant

    @property
    def sizes(self) -> tuple[Range | None, ...]:
        """The ranges of ``Problem.sizes``. None matches anything."""
        if self.op in ATTENTION:
            return self.b, self.m, self.n, self.k, self.h, self.g, self.v
        if self.op in GENERATED:
            return (None,) * 7 + (self.x, self.y, self.r, self.loads)
        return self.b, self.m, self.n, self.k

    @property
    def key(self) -> tuple[str | int | Range | None, ...]:
        """The values of KEY_FIELDS."""
        sizes = self.b, self.m, self.n, self.k, self.h, self.g, self.v, self.x, self.y, self.r, self.loads
        return (*self.kind, *sizes, self.n_align)

    def covers(self, problem: Problem) -> bool:
        """Return whether the row may answer for the problem."""
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
            and (self.n_align is None or self.n_align == problem.n_align)
            and (self.x is None or self.x[0] <= problem.x <= self.x[1])
            and (self.y is None or self.y[0] <= problem.y <= self.y[1])
            and (self.r is None or self.r[0] <= problem.r <= self.r[1])
            and (self.loads is None or self.loads[0] <= problem.loads <= self.loads[1])
        )

    @property
    def covers_unbatched(self) -> bool:
        """Whether the range of b includes 1, the b of ops without a batch."""
        return self.b is None or self.b[0] == 1

    @property
    def volume(self) -> int:
        """Count the problems of the row, up to MAX_SIZE, whatever its ``n_align``. mm and addmm have no batch."""
        values = self.dtype, self.layout, self.epilogue, self.variant
        if self.op in GENERATED:
            return _combinations(self.op, values) * prod(_width(getattr(self, name)) for name in OP_SIZES[self.op])
        batched, unbatched = _width(self.b), int(self.covers_unbatched)
        count = sum(
            _combinations(op, values) * (batched if op in BATCHED else unbatched)
            for op in (MATMULS if self.op is None else (self.op,))
        )
        if self.align is None:
            count *= len(ALIGNS)
        if self.op in ATTENTION:
            count *= _width(self.h) * _width(self.g) * _width(self.v)
        return count * _width(self.m) * _width(self.n) * _width(self.k)

    @property
    def is_exact(self) -> bool:
        """Whether the row covers a single op, dtype, layout, align, variant and size, with any epilogue or with one."""
        if self.op is None:
            return False
        return self.volume == (len(DOMAINS[self.op].epilogues) if self.epilogue is None else 1)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the row in a file, in canonical order, without fields that are None."""
        fields: dict[str, Any] = {name: value for name, value in zip(KEY_FIELDS, self.key, strict=True) if value}
        if self.problems is not None:
            fields["problems"] = self.problems
        fields["configs"] = [candidate.to_json() for candidate in self.candidates]
        if self.note is not None:
            fields["note"] = self.note
        return fields


class Coverage(NamedTuple):
    """The problems of a row: its kind with ``n_align``, and its ranges of SIZE_FIELDS. Equal for the same problems."""

    kind: tuple[Any, ...]
    box: tuple[Range, ...]

    def lies_inside(self, outer: Coverage) -> bool:
        """Return whether the outer coverage has all problems of this one."""
        for (low, high), (lowest, highest) in zip(self.box, outer.box, strict=True):
            if low < lowest or high > highest:
                return False
        return all(wide in (None, narrow) for narrow, wide in zip(self.kind, outer.kind, strict=True))


def coverage(entry: Entry) -> Coverage:
    """Return the problems of the row."""
    return Coverage((*entry.kind, entry.n_align), box(entry))


_AFTER_ALL = (MAX_SIZE + 1, MAX_SIZE + 1)
_OPS, _DTYPES, _LAYOUTS, _ALIGNS, _EPILOGUES, _VARIANTS = (
    {value: place for place, value in enumerate((*domain, None))}
    for domain in (OPS, DTYPES, LAYOUTS, ALIGNS, EPILOGUES, NAMED_VARIANTS)
)


def canonical_order(entry: Entry) -> tuple[Any, ...]:
    """Return an entry's sort key: domains in order, sizes upwards, narrow before wide, left out last, then the rest."""
    op, dtype, layout, align, b, m, n, k, candidates, problems, note, epilogue, variant, *more = entry
    h, g, v, n_align, *of_kernels = more
    return (
        _OPS[op],
        _DTYPES[dtype],
        _LAYOUTS[layout],
        _ALIGNS[align],
        _EPILOGUES[epilogue],
        _VARIANTS[variant],
        *[sizes or _AFTER_ALL for sizes in (b, m, n, k, h, g, v, *of_kernels)],
        _ALIGNS[n_align],
        tuple([(config, -1 if gain is None else gain) for config, gain in candidates]),
        problems or 0,
        note is not None,
        note or "",
    )


def specificity(entry: Entry) -> tuple[Any, ...]:
    """Return the sort key of entries for the same problem. The first answers."""
    return entry.volume, canonical_order(entry)


ANY: Range = (1, MAX_SIZE)
ABSENT: Range = (1, 1)  # the range of a size for ops without that size
_NO_KERNEL = (ABSENT,) * len(OF_KERNELS)


def box(entry: Entry) -> tuple[Range, ...]:
    """Return the row's ranges of SIZE_FIELDS."""
    if entry.op in GENERATED:
        own = (getattr(entry, name) or ANY if name in OP_SIZES[entry.op] else ABSENT for name in OF_KERNELS)
        return (ABSENT,) * 7 + tuple(own)
    unbatched = entry.op is not None and entry.op not in BATCHED
    sizes = (ABSENT if unbatched else entry.b or ANY, entry.m or ANY, entry.n or ANY, entry.k or ANY)
    if entry.op in ATTENTION:
        return (*sizes, entry.h or ANY, entry.g or ANY, entry.v or ANY, *_NO_KERNEL)
    return (*sizes, ABSENT, ABSENT, ABSENT, *_NO_KERNEL)


_K = TypeVar("_K")  # anything with the KIND_FIELDS


def of_kind(rows: Iterable[_K], problem: Problem) -> tuple[list[_K], str]:
    """Return the rows that match the problem in all but sizes, and the compared fields as text.

    Without such rows, the text ends with the first field in which the last rows differ. It leaves out an epilogue or a
    variant if the problem has none and rows match that.
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
    """Return whether the range is a single size."""
    return sizes is not None and sizes[0] == sizes[1]


_Values = tuple[str | None, str | None, str | None, str | None]  # dtype, layout, epilogue and variant, None for any


def ops_of(entry: Entry) -> tuple[str, ...]:
    """Return the ops that have problems with the row's dtype, layout, epilogue and variant."""
    return _ops_of(entry.op, (entry.dtype, entry.layout, entry.epilogue, entry.variant))


@cache
def _ops_of(op: str | None, values: _Values) -> tuple[str, ...]:
    return tuple(each for each in (MATMULS if op is None else (op,)) if _combinations(each, values))


@cache
def _combinations(op: str, values: _Values) -> int:
    """Count the combinations of these values among the problems of an op."""
    counts = 1
    for value, domain in zip(values, DOMAINS[op], strict=True):
        counts *= len(domain) if value is None else value in domain
    return counts


def _width(sizes: Range | None) -> int:
    return MAX_SIZE if sizes is None else sizes[1] - sizes[0] + 1
