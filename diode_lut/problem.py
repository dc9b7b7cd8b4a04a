"""What is asked, and of which hardware.

Problem and Hardware are named tuples, because a lookup hashes a Problem in a microsecond. Making one directly checks
nothing; ``Problem.checked`` and ``Hardware.from_json`` check everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from diode_lut.errors import ProblemError
from diode_lut.printable import printable

OPS = ("mm", "addmm", "bmm", "baddbmm")
BATCHED = ("bmm", "baddbmm")
"""The ops with a batch; b is 1 for the others."""

DTYPES = ("float16", "bfloat16", "float32", "tf32")
LAYOUTS = ("nn", "nt", "tn", "tt")
ALIGNS = (2, 16)
MAX_SIZE = 2**31 - 1
"""Largest b, m, n or k that a table can speak of: Inductor's kernels index with 32 bits."""


class Problem(NamedTuple):
    """One matrix product: everything a choice may depend on, as plain values.

    ``C[b, m, n] = A[b, m, k] @ B[b, k, n]``, plus a bias for addmm and baddbmm. ``dtype`` is torch's name of the
    inputs' type, or ``tf32`` for float32 with TF32 allowed. ``layout`` has a BLAS letter for A and one for B: ``n``
    is row-major, ``t`` column-major. ``align`` is 16 if every row of A and B starts on a 16-byte boundary, else 2.
    ``b`` is 1 for mm and addmm.
    """

    op: str
    dtype: str
    layout: str
    align: int
    b: int
    m: int
    n: int
    k: int

    @classmethod
    def checked(cls, op: str, dtype: str, layout: str, align: int, b: int, m: int, n: int, k: int) -> Problem:
        """The problem, or ProblemError naming the first value that is not allowed."""
        for name, value, allowed in (
            ("op", op, OPS),
            ("dtype", dtype, DTYPES),
            ("layout", layout, LAYOUTS),
            ("align", align, ALIGNS),
        ):
            if value not in allowed:
                raise ProblemError(f"{name}: {value!r} is not one of {_one_of(allowed)}")
        for name, size in (("b", b), ("m", m), ("n", n), ("k", k)):
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise ProblemError(f"{name}: {size!r} is not an integer from 1 to {MAX_SIZE}")
        if b != 1 and op not in BATCHED:
            raise ProblemError(f"b: {op} has no batch, so b is 1, not {b}")
        return cls(op, dtype, layout, align, b, m, n, k)

    @classmethod
    def of(
        cls, op: str, m: int, n: int, k: int, *, dtype: str, layout: str, b: int = 1, align: int | None = None
    ) -> Problem:
        """The problem, or ProblemError; ``align`` is by default that of packed matrices."""
        problem = cls.checked(op, dtype, layout, 16 if align is None else align, b, m, n, k)
        return problem._replace(align=contiguous_align(dtype, layout, m, n, k, b)) if align is None else problem

    @property
    def kind(self) -> tuple[str, str, str, int]:
        """op, dtype, layout and align: what does not depend on sizes."""
        return self.op, self.dtype, self.layout, self.align

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """b, m, n and k."""
        return self.b, self.m, self.n, self.k

    def to_json(self) -> dict[str, Any]:
        """The fields that a problem file has, which ``collect`` takes."""
        op, dtype, layout, align, b, m, n, k = self
        return {"op": op, "dtype": dtype, "layout": layout, "align": align, "B": b, "M": m, "N": n, "K": k}

    def __str__(self) -> str:
        batch = f"{self.b}x" if self.op in BATCHED else ""
        return f"{self.op} {batch}{self.m}x{self.n}x{self.k} {self.dtype} {self.layout} align {self.align}"


ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4}
"""Bytes of one element, for each of DTYPES."""

WITHOUT_TENSOR_CORES = "float32"
"""The dtype that is multiplied without them. Where its loop over K is a single step, an epilogue that reads a bias can
make a kernel 34 times slower (measured on sm_90 with Triton 3.6): nobody should try or choose such blocks."""


def contiguous_align(dtype: str, layout: str, m: int, n: int, k: int, b: int = 1) -> int:
    """``align`` of a product whose A and B are packed, without gaps between rows, as ``layout`` says."""
    a = (m, k) if layout[0] == "n" else (k, m)
    c = (k, n) if layout[1] == "n" else (n, k)
    unit = 16 // ITEMSIZES[dtype]
    packed = all(
        (rows == 1 or cols == 1 or cols % unit == 0) and (b == 1 or rows * cols % unit == 0) for rows, cols in (a, c)
    )
    return 16 if packed else 2


class Hardware(NamedTuple):
    """What a table was measured on.

    ``name`` is the marketing name as the driver gives it, ``arch`` names the instruction set (``sm_90``, ``gfx942``,
    ``cpu-avx512``), ``sm_count`` counts multiprocessors (on a CPU: the threads that torch uses).
    """

    name: str
    arch: str
    sm_count: int
    aliases: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Hardware:
        """The hardware of ``{"name": ..., "arch": ..., "sm_count": ..., "aliases": [...]}``, or ProblemError."""
        unknown = fields.keys() - set(cls._fields)
        if unknown:
            raise ProblemError(f"{min(map(str, unknown))}: hardware has no such field")
        for name in ("name", "arch"):
            if not isinstance(fields.get(name), str) or not fields[name]:
                raise ProblemError(f"{name}: {fields.get(name)!r} is not a name")
        sm_count, aliases = fields.get("sm_count"), fields.get("aliases", ())
        if type(sm_count) is not int or sm_count < 1:
            raise ProblemError(f"sm_count: {sm_count!r} is not a positive integer")
        if not isinstance(aliases, (list, tuple)) or not all(isinstance(alias, str) for alias in aliases):
            raise ProblemError(f"aliases: {aliases!r} is not a list of names")
        return cls(fields["name"], fields["arch"], sm_count, tuple(aliases))

    def same_device(self, other: Hardware) -> bool:
        """Whether both are the same device: one of the names agrees, and so do arch and SM count."""
        return self.kin(other) and not self._names().isdisjoint(other._names())

    def kin(self, other: Hardware) -> bool:
        """Whether both have the same architecture and SM count, whatever they are called."""
        return (self.arch, self.sm_count) == (other.arch, other.sm_count)

    def called(self, name: str) -> bool:
        """Whether ``name`` is this hardware's name or alias; case, spaces, dashes and underscores do not matter."""
        return slug(name) in self._names()

    def _names(self) -> set[str]:
        return {slug(name) for name in (self.name, *self.aliases)}

    def __str__(self) -> str:
        return printable(f"{self.name} ({self.arch}, {self.sm_count} SMs)")


def slug(name: str) -> str:
    """A name as file names have it: ``NVIDIA H200`` is ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9.]+", "-", name.casefold()).strip("-")


def _one_of(values: tuple[object, ...]) -> str:
    return ", ".join(str(value) for value in values)
