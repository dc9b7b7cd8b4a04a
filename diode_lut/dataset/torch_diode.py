"""Reading the datasets of torch-diode.

A file is a document, JSON or msgpack: ``{"hardware": {NAME: {"operation": {OP: {"solution": {KEY: {"timed_configs":
[{"config": {"block_m": 64, ...}, "time": MILLISECONDS}, ...]}}}}}}}``. KEY is JSON in a string, with B, M, N, K,
M_dtype, K_dtype and out_dtype. Source: torch_diode/types/matmul_types.py, matmul_dataset.py and json_serializable.py of
torch-diode 0.1. Its times come from Inductor's feedback saver in milliseconds, though its docstrings say seconds.

All its configs are of Inductor's plain Triton templates. ATen was never measured. ``name`` and ``grid`` of a config are
ignored, ACC_TYPE must be float32, EVEN_K follows from the problem. The layout of the operands is not stored. Its own
collector multiplies packed row-major matrices.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from diode_lut.dataset.dataset import Dataset, Header, Readable, Record, Timing
from diode_lut.errors import DatasetError, ProblemError, dtype_of
from diode_lut.hardware import Hardware, gpu_named_in, is_called, known_gpu
from diode_lut.problem import Problem
from diode_lut.templates.config import POINTER_TUNABLES, Config, pointer_gemm


def open_torch_diode(
    path: Path,
    file: Readable,
    cursor: Callable[[Readable], Cursor],
    hardware: Hardware | None,
    layout: str,
    contents: bytes | None,
) -> Dataset:
    """Return the timings of ``hardware``. The file must use its name or an alias. See ``read_dataset``.

    Without ``hardware``, return those of the first hardware in the file, if its name or the file's is a known GPU's.
    """
    with _damage_reported(path):
        first = next(_members(cursor(file), "hardware"), None)
    if first is None:
        raise DatasetError(f"{path}: neither a diode_lut dataset nor one of torch-diode, which has a map 'hardware'")
    known = hardware or hardware_by_name(path, first)
    if known is None:
        raise DatasetError(
            f"{path}: holds timings of {first!r}, but torch-diode stores neither architecture nor SM count: "
            f"say which hardware it is, for example --hardware {f'{first},sm_90,132'!r}"
        )
    header = Header(known, benchmarker="torch-diode")
    return Dataset(path, header, partial(_records, path, cursor, known, layout), contents)


def hardware_by_name(path: Path, called: str) -> Hardware | None:
    """Return the known GPU of this name, or else, as for ``unknown``, the GPU in the name of the file."""
    gpu = gpu_named_in(path.name)
    return known_gpu(called) or (gpu and gpu._replace(aliases=(*gpu.aliases, called)))


def _records(
    path: Path,
    cursor: Callable[[Readable], Cursor],
    hardware: Hardware,
    layout: str,
    file: Readable,
    skipped: Counter[str],
    _lost: object,
) -> Iterator[Record]:
    names: set[str] = set()
    parser = _SolutionParser(layout, skipped)
    with _damage_reported(path):
        document = cursor(file)
        for name in _members(document, "hardware"):
            names.add(name)
            for op in _members(document, "operation"):
                for key in _members(document, "solution"):
                    solution = document.value()
                    timed_configs = solution.get("timed_configs") if isinstance(solution, dict) else None
                    if not isinstance(timed_configs, list):
                        raise ValueError("a solution without a list 'timed_configs'")
                    if is_called(hardware, name):
                        yield from parser.records(op, key, timed_configs)
                    else:
                        skipped[f"hardware {name!r}"] += len(timed_configs)
        document.end()
    if not any(map(hardware.called, names)):
        found = ", ".join(map(repr, sorted(names))) or "nothing"
        raise DatasetError(f"{path}: no timings of {hardware.name}: it holds {found} (an alias can be given)")


def _members(cursor: Cursor, field: str) -> Iterator[str]:
    """Yield the keys of the map under ``field`` in the map at the cursor. Other fields are skipped."""
    for key in cursor.enter():
        if key == field:
            yield from map(str, cursor.enter())
        else:
            cursor.value()


class _SolutionParser:
    """Makes records from timed configs, and counts those without a place in our format."""

    def __init__(self, layout: str, skipped: Counter[str]) -> None:
        self._layout = layout
        self._skipped = skipped
        self._configs: dict[tuple[str, tuple[Any, ...]], Config] = {}

    def records(self, op: str, key: str, timed_configs: list[Any]) -> Iterator[Record]:
        """Yield a record for each dtype: there are two if only some of the configs allow TF32."""
        try:
            problem = problem_of_key(op, key, self._layout)
        except ProblemError as error:
            self._skipped[str(error)] += len(timed_configs)
            return
        by_dtype: dict[str, list[Timing]] = {}
        for timed in timed_configs:
            try:
                fields = _parsed(timed.get("config") if isinstance(timed, dict) else None, "a timed config")
                if fields.get("ACC_TYPE", "tl.float32") != "tl.float32":
                    raise ProblemError(f"ACC_TYPE {fields['ACC_TYPE']!r}")
                timing = Timing.of_milliseconds(self._config(op, fields), timed.get("time"))
            except ProblemError as error:
                self._skipped[str(error)] += 1
                continue
            tf32 = problem.dtype == "float32" and fields.get("ALLOW_TF32") is True
            by_dtype.setdefault("tf32" if tf32 else problem.dtype, []).append(timing)
        for dtype, timings in by_dtype.items():
            yield Record(problem._replace(dtype=dtype), tuple(timings))

    def _config(self, op: str, fields: dict[str, Any]) -> Config:
        values = tuple(map(fields.get, POINTER_TUNABLES))
        try:
            return self._configs[op, values]
        except (KeyError, TypeError):  # new, or not hashable
            return self._configs.setdefault((op, values), pointer_config(op, fields))


def pointer_config(op: str, fields: Mapping[str, Any]) -> Config:
    """Return the config of Inductor's plain Triton template for the op. ProblemError if tables have no such config."""
    return Config.from_json({"template": pointer_gemm(op), **{name: fields.get(name) for name in POINTER_TUNABLES}})


def problem_of_key(op: str, key: str, layout: str) -> Problem:
    """Return the problem of a KEY, with packed operands of this layout. ProblemError if tables cannot describe it."""
    return problem_of_shape(op, _parsed(key, "a problem"), layout)


_TYPES = ("M_dtype", "K_dtype", "out_dtype")


def problem_of_shape(op: str, shape: dict[str, Any], layout: str) -> Problem:
    """Return the problem of a parsed KEY. See ``problem_of_key``."""
    missing = [name for name in (*_TYPES, "M", "N", "K") if shape.get(name) is None]
    if missing:
        raise ProblemError(f"{', '.join(missing)}: missing")
    dtypes = sorted({dtype_of(shape[name]) for name in _TYPES})
    if len(dtypes) > 1:
        raise ProblemError(f"dtype: a mix of {' and '.join(map(repr, dtypes))}")
    sizes = {"b": shape.get("B", 1), **{name: shape[name.upper()] for name in "mnk"}}
    return Problem.of(op, dtype=dtypes[0], layout=layout, **sizes)


def _parsed(value: Any, what: str) -> dict[str, Any]:
    """Return a map, which torch-diode stores as such or as JSON in a string, depending on its version."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise ProblemError(f"{what} that is not a JSON object")
    return value


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise DatasetError(f"{path}: not a torch-diode dataset, or damaged: {what}") from error


MAX_BYTES = 1 << 30
"""Size limit of a JSON file, whose whole text is in memory."""

MAX_VALUE_BYTES = 4 << 20
"""Size limit of a value decoded at once. Its objects may take a hundred times as much memory."""

_USUAL_VALUE_BYTES = 64 << 10
"""Nearly all values are smaller."""


_SPACE = re.compile(r"[ \t\r\n]*")


class JsonCursor:
    """A place in the text of a JSON file, in which NaN and Infinity are numbers, as in Python's json.

    Methods raise ValueError if the file is damaged.
    """

    def __init__(self, file: Readable) -> None:
        data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"too large (allowed: {MAX_BYTES >> 20} MiB)")
        self._text = data.decode("utf-8")
        self._position = 0
        self._decoder = json.JSONDecoder()

    def enter(self) -> Iterator[Any]:
        """Yield the keys of the map at this place. After each key, its value must be entered or taken."""
        self._take("{")
        more = self._peek() != "}"
        if not more:
            self._take("}")
        while more:
            key = self.value()
            self._take(":")
            yield key
            more = self._peek() == ","
            self._take("," if more else "}")

    def value(self) -> Any:
        """Take the value at this place."""
        self._peek()
        with suppress(ValueError):
            return self._decoded(_USUAL_VALUE_BYTES)
        return self._decoded(MAX_VALUE_BYTES)

    def end(self) -> None:
        """Raise ValueError if anything of the document is left."""
        if self._peek():
            raise json.JSONDecodeError("Extra data", self._text, self._position)

    def _decoded(self, most: int) -> Any:
        """Take the value at this place. ValueError if it is longer than ``most`` characters."""
        text = self._text[self._position : self._position + most]
        try:
            value, end = self._decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, self._text, self._position + error.pos) from None
        if end == most:
            raise ValueError(f"a value of more than {most >> 20} MiB")
        self._position += end
        return value

    def _peek(self) -> str:
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _take(self, expected: str) -> None:
        if self._peek() != expected:
            raise json.JSONDecodeError(f"Expecting '{expected}'", self._text, self._position)
        self._position += 1


class MsgpackCursor:
    """The same in a msgpack file, whose methods may raise msgpack's UnpackException as well."""

    def __init__(self, file: Readable) -> None:
        self._unpacker = msgpack.Unpacker(file, max_buffer_size=MAX_VALUE_BYTES)

    def enter(self) -> Iterator[Any]:
        """See JsonCursor."""
        for _ in range(self._unpacker.read_map_header()):
            yield self.value()

    def value(self) -> Any:
        """See JsonCursor."""
        return self._unpacker.unpack()

    def end(self) -> None:
        """See JsonCursor."""
        if next(self._unpacker, None) is not None:
            raise ValueError("more follows the document")


Cursor = JsonCursor | MsgpackCursor
