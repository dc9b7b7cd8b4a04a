"""The values everything else is made of: Problem, Config, Hardware.

They are named tuples, because a lookup hashes one of them and has a microsecond for it. Making one directly checks
nothing; ``Problem.checked``, ``Config.from_json`` and ``Hardware.from_json`` check everything.
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

    def to_json(self) -> dict[str, Any]:
        """The fields that a problem file has, which ``collect`` takes."""
        op, dtype, layout, align, b, m, n, k = self
        return {"op": op, "dtype": dtype, "layout": layout, "align": align, "B": b, "M": m, "N": n, "K": k}

    def __str__(self) -> str:
        batch = f"{self.b}x" if self.op in BATCHED else ""
        return f"{self.op} {batch}{self.m}x{self.n}x{self.k} {self.dtype} {self.layout} align {self.align}"


ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4}
"""Bytes of one element, for each of DTYPES."""


def contiguous_align(dtype: str, layout: str, m: int, n: int, k: int, b: int = 1) -> int:
    """``align`` of a product whose A and B are packed, without gaps between rows, as ``layout`` says."""
    a = (m, k) if layout[0] == "n" else (k, m)
    c = (k, n) if layout[1] == "n" else (n, k)
    unit = 16 // ITEMSIZES[dtype]
    packed = all(
        (rows == 1 or cols == 1 or cols % unit == 0) and (b == 1 or rows * cols % unit == 0) for rows, cols in (a, c)
    )
    return 16 if packed else 2


class Parameter(NamedTuple):
    """One tunable of a template: its name, the letter that ``str(config)`` writes before it, and its allowed values.

    ``values`` is a range where every integer in it is allowed, a tuple where only those are.
    """

    name: str
    letter: str
    values: tuple[int, ...] | range

    @property
    def allowed(self) -> str:
        """The allowed values in words, for messages."""
        if isinstance(self.values, range):
            return f"{self.values[0]} to {self.values[-1]}"
        return _one_of(self.values)


_TRITON_GEMM = (
    Parameter("block_m", "", (16, 32, 64, 128, 256)),
    Parameter("block_n", "x", (16, 32, 64, 128, 256)),
    Parameter("block_k", "x", (16, 32, 64, 128, 256)),
    Parameter("group_m", " g", range(1, 65)),
    Parameter("num_stages", " s", range(1, 9)),
    Parameter("num_warps", " w", (1, 2, 4, 8, 16)),
)

TEMPLATES: dict[str, tuple[Parameter, ...]] = {
    "aten": (),
    "triton_mm": _TRITON_GEMM,
    "triton_bmm": _TRITON_GEMM,
    "triton_mm_persistent_tma": _TRITON_GEMM,
    "decompose_k": (Parameter("k_split", "", range(2, 4097)),),
    "cpp_gemm": (),
}
"""Our name of each kernel template, with its tunables in the order in which ``Config.params`` holds them."""


class Config(NamedTuple):
    """A template and the values of its tunables, in the order of ``TEMPLATES[template]``.

    Block sizes are elements, ``group_m`` rows of tiles, ``num_stages`` pipeline depth, ``num_warps`` groups of 32
    threads, ``k_split`` parts that K is cut into. What can be derived from the problem is not part of a config.
    """

    template: str
    params: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Config:
        """The config of ``{"template": ..., "block_m": ..., ...}``, or ProblemError naming the field at fault."""
        template = fields.get("template")
        if not isinstance(template, str) or template not in TEMPLATES:
            raise ProblemError(f"template: {template!r} is not one of {_one_of(tuple(TEMPLATES))}")
        parameters = TEMPLATES[template]
        unknown = fields.keys() - {"template", *(parameter.name for parameter in parameters)}
        if unknown:
            raise ProblemError(f"{min(unknown)}: {template} has no such field")
        for parameter in parameters:
            value = fields.get(parameter.name)
            if value is None:
                raise ProblemError(f"{parameter.name}: {template} needs it (allowed: {parameter.allowed})")
            if type(value) is not int or value not in parameter.values:
                raise ProblemError(f"{parameter.name}: {value!r} is not allowed (allowed: {parameter.allowed})")
        return cls(template, tuple(fields[parameter.name] for parameter in parameters))

    @classmethod
    def parse(cls, text: str) -> Config:
        """The config that ``str(config)`` writes as ``text``, with any blanks; ProblemError says what is expected."""
        template, *values = text.split() or [""]
        if template not in TEMPLATES:
            raise ProblemError(f"template: {template!r} is not one of {_one_of(tuple(TEMPLATES))}")
        parameters = TEMPLATES[template]
        found = re.fullmatch("".join(rf"{parameter.letter}(\d+)" for parameter in parameters), " ".join(values))
        if found is None:
            expected = "".join(parameter.letter + parameter.name.upper() for parameter in parameters)
            raise ProblemError(f"{text!r} is not a config (expected: {f'{template} {expected}'.rstrip()})")
        names = (parameter.name for parameter in parameters)
        return cls.from_json({"template": template, **dict(zip(names, map(int, found.groups()), strict=True))})

    def to_json(self) -> dict[str, Any]:
        """The fields that ``from_json`` takes, in canonical order."""
        names = (parameter.name for parameter in TEMPLATES[self.template])
        return {"template": self.template, **dict(zip(names, self.params, strict=True))}

    def __str__(self) -> str:
        values = "".join(f"{p.letter}{v}" for p, v in zip(TEMPLATES[self.template], self.params, strict=True))
        return f"{self.template} {values}".rstrip()


ATEN = Config("aten")
"""The kernel that PyTorch calls without Inductor's help: cuBLAS, rocBLAS, oneDNN, ..."""


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
