"""The model: a small network to rank the candidate configs for problems without a row in any table.

This module has what is known without NumPy: the problems of a model's training, with their kinds and sizes, how they
are split from test problems, and the header of a weights file. It imports none of the others, because a decision
without models must not need NumPy.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from diode_lut.errors import DiodeLutError, ModelError, ProblemError, as_lines, dtype_of, layout_of, op_of, size_of
from diode_lut.files import read_at_most, read_finished
from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ALIGNS,
    BATCHED,
    DTYPES,
    ITEMSIZES,
    LAYOUTS,
    MAX_SIZE,
    NO_EPILOGUE,
    NO_VARIANT,
    OF_BYTES,
    OPS,
    RANKED,
    ROW_BYTES,
    Problem,
)
from diode_lut.table import Range, of_kind

SUFFIX = ".safetensors"  # suffix of a weights file's name
KEY = "diode_lut"  # key of the safetensors metadata with the JSON document
MAX_WEIGHTS_BYTES = 1_000_000  # Maximum size of a weights file in bytes. A sensible network needs a fraction of it
MAX_HEADER_BYTES = 4 << 20  # maximum size of a header in bytes, far more than for a thousand tensors
_LENGTH = 8  # bytes before the header, with its length


def read_model_hardware(path: Path) -> Hardware:
    """Read the hardware of the model in a file. ModelError if it is not a weights file."""

    def hardware(path: Path) -> Hardware:
        try:
            return Hardware.from_json(metadata_of(read_bytes(path), path)["hardware"])
        except (ProblemError, KeyError, AttributeError) as error:
            raise ModelError(f"{path}: hardware: {error}") from error

    return read_finished(path, hardware)


def read_bytes(path: Path) -> bytes:
    """Return the file's bytes. ModelError if it cannot be read or is too large."""
    try:
        return read_at_most(path, MAX_WEIGHTS_BYTES)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


def metadata_of(data: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON document in the metadata of a weights file. ModelError if ``data`` is no such file's content.

    A safetensors file begins with the length of the header, 8 bytes, little-endian. The header follows, in JSON.
    Source: the format's description in the README of the safetensors library.
    """
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    if data.startswith(b"{"):
        raise ModelError(f"{path}: JSON, such as a table, not a model (names of models end with {SUFFIX})")
    if not data.startswith(b"{", _LENGTH):
        raise ModelError(f"{path}: not a safetensors file: it begins with {data[: 2 * _LENGTH]!r}")
    if end > len(data):
        raise ModelError(f"{path}: cut off: the header has {end - _LENGTH} bytes, the file {len(data)}")
    try:
        metadata = orjson.loads(orjson.loads(data[_LENGTH:end])["__metadata__"][KEY])
    except (KeyError, TypeError, orjson.JSONDecodeError) as error:
        reason = f"not a model of diode_lut: it has no metadata {KEY!r}"
        raise ModelError(f"{path}: a safetensors file, but {reason}") from error
    if not isinstance(metadata, dict):
        raise ModelError(f"{path}: metadata {KEY!r}: not an object")
    return metadata


def header_text(file: BinaryIO, path: Path) -> str:
    """Return the metadata, sorted by name, then name, type and shape of each tensor. DiodeLutError for another file.

    Each field of a model's document has a line, and each item of a list. Regressions for kernels have a digest.
    """
    length = int.from_bytes(file.read(_LENGTH), "little")
    data = file.read(min(length, MAX_HEADER_BYTES))
    try:
        header = orjson.loads(data)
        metadata = header.pop("__metadata__", {})
        document = orjson.loads(metadata.pop(KEY, "{}"))
        if kernels := document.get("kernels"):
            digest = hashlib.sha256(orjson.dumps(kernels)).hexdigest()
            document["kernels"] = f"{len(kernels['regressions'])} regressions, sha256:{digest}"
        return as_lines(
            [
                *(f"{name}: {value}" for name, value in sorted(metadata.items())),
                *(
                    f"{name}: {orjson.dumps(item).decode()}"
                    for name, value in document.items()
                    for item in (value if isinstance(value, list) else [value])
                ),
                *(f"{name} {tensor['dtype']} {tensor['shape']}" for name, tensor in sorted(header.items())),
            ]
        )
    except (ValueError, AttributeError, KeyError, TypeError):
        raise DiodeLutError(f"{path}: neither a table, a model nor a dataset") from None


TRAIN, TEST = "train", "test"  # names of the two groups every split has
Conditions = tuple[tuple[str, Any], ...]  # fields of a problem, each with its value, or its least and largest size

_SPELLINGS = {"op": op_of, "dtype": dtype_of, "layout": layout_of}
_KINDS = {"op": OPS, "dtype": DTYPES, "layout": LAYOUTS, "align": tuple(map(str, ALIGNS))}


class Split(NamedTuple):
    """Test problems: a fraction ``test`` of all, drawn with ``seed``, and all problems of the left-out ``families``.

    The split depends on each GEMM alone, so it is the same in every dataset, and for every class of epilogue. In float8
    and int8 it depends on the layer alone: a program asks about another layer, with any number of rows.
    """

    seed: int
    test: float
    families: tuple[Conditions, ...] = ()

    def group(self, problem: Problem) -> str:
        """Return the problem's group: ``train``, ``test``, or the name of its left-out family."""
        for family in self.families:
            if belongs(problem, family):
                return family_name(family)
        return TEST if self.draw(problem) < self.test else TRAIN

    def draw(self, problem: Problem) -> float:
        """Return a number from 0 to 1 by the seed and ``drawn_as`` alone."""
        digest = hashlib.sha256(f"{self.seed} {drawn_as(problem)}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48

    def to_json(self) -> dict[str, Any]:
        """Return the fields ``from_json`` takes."""
        return {"seed": self.seed, "test": self.test, "families": list(map(family_name, self.families))}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Split:
        """Return the split of ``to_json``. Anything else raises ProblemError, KeyError or TypeError."""
        return cls(int(fields["seed"]), float(fields["test"]), tuple(map(parse_family, fields["families"])))


def drawn_as(problem: Problem) -> Problem:
    """Return the problem for all its epilogues, and in float8 and int8 for any M, which are trained on together or not
    at all.
    """
    return problem.alone._replace(m=1) if problem.op in OF_BYTES else problem.alone


def belongs(problem: Problem, family: Conditions) -> bool:
    """Return whether the problem meets all conditions of the family."""
    return all(
        value[0] <= getattr(problem, name) <= value[1] if isinstance(value, tuple) else getattr(problem, name) == value
        for name, value in family
    )


def parse_family(text: str) -> Conditions:
    """Return the family of ``op=mm,layout=nt,m=1:64``. ProblemError for an unknown or repeated field or value."""
    family: dict[str, Any] = {}
    for condition in map(str.strip, text.split(",")):
        name, _, value = condition.partition("=")
        name = name.casefold()
        if name in family:
            raise ProblemError(f"{text}: a field is repeated")
        if name in _KINDS:
            value = _SPELLINGS.get(name, str)(value)
            if value not in _KINDS[name]:
                raise ProblemError(f"{condition}: {value!r} is not one of {', '.join(_KINDS[name])}")
            family[name] = int(value) if name == "align" else value
            continue
        low, colon, high = value.partition(":")
        try:
            sizes = size_of(low), size_of(high if colon else low)
        except ProblemError:
            sizes = 0, 0
        if name not in ("b", "m", "n", "k") or not 1 <= sizes[0] <= sizes[1] <= MAX_SIZE:
            raise ProblemError(f"{condition!r}: not a condition such as op=mm, layout=nt or m=1:64")
        family[name] = sizes
    return tuple(family.items())


def family_name(family: Conditions) -> str:
    """Return the text ``parse_family`` takes."""
    return ",".join(
        f"{name}={value[0]}:{value[1]}" if isinstance(value, tuple) else f"{name}={value}" for name, value in family
    )


_SIZES = ("b", "m", "n", "k")

MIN_PROBLEMS = 4  # minimum number of training problems of a known kind


class Kind(NamedTuple):
    """Problems of one op, dtype, layout, alignment, epilogue and variant, with the sizes the model knows.

    If all N or K were multiples of as many elements as a thread loads at once, or of half or a quarter, the model knows
    only such. All known kinds of one dtype, class and variant share these multiples and their ranges, those with a
    batch and those without apart, because the network learns about sizes from other ops, layouts and alignments too.
    """

    op: str
    dtype: str
    layout: str
    align: int
    b: Range
    m: Range
    n: Range
    k: Range
    epilogue: str = NO_EPILOGUE
    variant: str = NO_VARIANT
    n_multiple: int = 1
    k_multiple: int = 1

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Kind:
        """Return the kind of ``{"op": ..., "m": [low, high], ...}``. Epilogue and variant may be left out if there is
        none, and multiples of 1.

        Anything else raises ProblemError, KeyError, TypeError or ValueError.
        """
        ranges = {}
        for name in _SIZES:
            low, high = fields[name]
            if not (type(low) is type(high) is int and 1 <= low <= high):
                raise ProblemError(f"{name}: {low!r} to {high!r} is not a range of sizes")
            ranges[name] = low, high
        kind = cls(**{**fields, **ranges})
        for name in ("n_multiple", "k_multiple"):
            multiple = getattr(kind, name)
            if type(multiple) is not int or multiple < 1:
                raise ProblemError(f"{name}: {multiple!r} is not a positive integer")
        b, m, n, k = (least for least, _ in kind.sizes)
        Problem.checked(kind.op, kind.dtype, kind.layout, kind.align, b, m, n, k, kind.epilogue, kind.variant)
        return kind

    def to_json(self) -> dict[str, Any]:
        """Return the fields ``from_json`` takes."""
        fields = self._asdict()
        nothing = {"epilogue": NO_EPILOGUE, "variant": NO_VARIANT, "n_multiple": 1, "k_multiple": 1}
        return {name: value for name, value in fields.items() if value != nothing.get(name)}

    @property
    def key(self) -> tuple[str, str, str, int, str, str]:
        """``Problem.kind`` of the problems of this kind."""
        return self.op, self.dtype, self.layout, self.align, self.epilogue, self.variant

    @property
    def sizes(self) -> tuple[Range, Range, Range, Range]:
        """The ranges of b, m, n and k."""
        return self.b, self.m, self.n, self.k

    def outside(self, problem: Problem) -> str:
        """Describe the first size of the problem that the model does not know. Empty if there is none."""
        for name, size, (low, high) in zip(_SIZES, problem.sizes, self.sizes, strict=True):
            if not low <= size <= high:
                return f"{name}={size} is outside {low} to {high}"
        for name, size, multiple in (("n", problem.n, self.n_multiple), ("k", problem.k, self.k_multiple)):
            if size % multiple:
                return f"{name}={size} is not a multiple of {multiple}"
        return ""


def kinds_of(problems: Iterable[Problem]) -> list[Kind]:
    """Return the kinds with enough problems, sorted, and only of RANKED: models do not know other ops."""
    found: defaultdict[tuple[str, str, str, int, str, str], list[tuple[int, ...]]] = defaultdict(list)
    for problem in problems:
        if problem.op in RANKED:
            found[problem.kind].append(problem.sizes)
    known = {key: sizes for key, sizes in sorted(found.items()) if len(sizes) >= MIN_PROBLEMS}
    together: defaultdict[tuple[str, bool, str, str], list[tuple[int, ...]]] = defaultdict(list)
    for (op, dtype, _, _, epilogue, variant), sizes in known.items():
        together[dtype, op in BATCHED, epilogue, variant] += sizes
    ranges = {group: [(min(each), max(each)) for each in zip(*sizes, strict=True)] for group, sizes in together.items()}
    multiples = {
        group: [math.gcd(*each, ROW_BYTES // ITEMSIZES[group[0]]) for each in zip(*sizes, strict=True)]
        for group, sizes in together.items()
    }
    return [
        Kind(op, dtype, layout, align, b, m, n, k, epilogue, variant, n_multiple, k_multiple)
        for op, dtype, layout, align, epilogue, variant in known
        for group in [(dtype, op in BATCHED, epilogue, variant)]
        for (b, m, n, k), (_, _, n_multiple, k_multiple) in [(ranges[group], multiples[group])]
    ]


def unknown(kinds: Iterable[Kind], problem: Problem) -> str:
    """Return why the model was not trained for the problem. Empty if it was."""
    found, kind = of_kind(kinds, problem)
    if not found:
        return f"not trained for {kind}"
    reason = found[0].outside(problem)
    return f"not trained for these sizes: {reason}" if reason else ""
