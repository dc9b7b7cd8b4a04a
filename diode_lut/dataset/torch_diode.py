"""Reading the datasets of torch-diode.

One document, JSON or msgpack: ``{"hardware": {NAME: {"operation": {OP: {"solution": {KEY: {"timed_configs": [{"config":
{"block_m": 64, ...}, "time": MILLISECONDS}, ...]}}}}}}}``. KEY is JSON in a string, with B, M, N, K, M_dtype, K_dtype
and out_dtype. Source: torch_diode/types/matmul_types.py, matmul_dataset.py and json_serializable.py of torch-diode 0.1;
its times are what Inductor's feedback saver gives, milliseconds, though its docstrings say seconds.

All its configs are of Inductor's plain Triton templates; ATen was never measured. ``name`` and ``grid`` of a config are
ignored, ACC_TYPE must be float32, EVEN_K follows from the problem. The layout of the operands is not stored; its own
collector multiplies packed row-major matrices.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from diode_lut.dataset.dataset import Cursor, Dataset, Readable
from diode_lut.dataset.record import Header, Record, Timing
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
    """The timings of ``hardware``, whose name or alias the file must use; see ``read_dataset``.

    Without it, those of the first hardware in the file, if its name, or else the file's, is that of a known GPU.
    """
    with _damage_reported(path):
        first = next(_hardware_names(cursor(file)), None)
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
    """The known GPU that the file calls so; else, such as for ``unknown``, the one that the file's own name says."""
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
        for name, op, key, solution in _solutions(cursor(file)):
            names.add(name)
            if is_called(hardware, name):
                yield from parser.records(op, key, solution)
            else:
                skipped[f"hardware {name!r}"] += len(_timed_configs(solution))
    if not any(map(hardware.called, names)):
        found = ", ".join(map(repr, sorted(names))) or "nothing"
        raise DatasetError(f"{path}: no timings of {hardware.name}: it holds {found} (an alias can be given)")


def _hardware_names(cursor: Cursor) -> Iterator[str]:
    return _members(cursor, "hardware")


def _solutions(cursor: Cursor) -> Iterator[tuple[str, str, str, Any]]:
    """Hardware name, op, problem key and solution, in the order of the document."""
    for name in _members(cursor, "hardware"):
        for op in _members(cursor, "operation"):
            for key in _members(cursor, "solution"):
                yield name, op, key, cursor.value()
    cursor.end()


def _members(cursor: Cursor, field: str) -> Iterator[str]:
    """The keys of the map under ``field`` in the map at the cursor; other fields are skipped."""
    for key in cursor.enter():
        if key == field:
            yield from map(str, cursor.enter())
        else:
            cursor.value()


class _SolutionParser:
    """Makes records from solutions, and counts the timings that configs and problems cannot represent."""

    def __init__(self, layout: str, skipped: Counter[str]) -> None:
        self._layout = layout
        self._skipped = skipped
        self._configs: dict[tuple[str, tuple[Any, ...]], Config] = {}

    def records(self, op: str, key: str, solution: Any) -> Iterator[Record]:
        """No record, one, or two where only some of the configs allow TF32."""
        timed_configs = _timed_configs(solution)
        try:
            problem = problem_of_key(op, key, self._layout)
        except ProblemError as error:
            self._skipped[str(error)] += len(timed_configs)
            return
        by_dtype: dict[str, list[Timing]] = {}
        for timed in timed_configs:
            self._add_timing(problem, timed, by_dtype)
        for dtype, timings in by_dtype.items():
            yield Record(problem._replace(dtype=dtype), tuple(timings))

    def _add_timing(self, problem: Problem, timed: Any, by_dtype: dict[str, list[Timing]]) -> None:
        try:
            dtype, timing = self._timing(problem, timed)
        except ProblemError as error:
            self._skipped[str(error)] += 1
        else:
            by_dtype.setdefault(dtype, []).append(timing)

    def _timing(self, problem: Problem, timed: Any) -> tuple[str, Timing]:
        fields = _parsed(timed.get("config") if isinstance(timed, dict) else None, "a timed config")
        if fields.get("ACC_TYPE", "tl.float32") != "tl.float32":
            raise ProblemError(f"ACC_TYPE {fields['ACC_TYPE']!r}")
        tf32 = problem.dtype == "float32" and fields.get("ALLOW_TF32") is True
        timing = Timing.of_milliseconds(self._config(problem.op, fields), timed.get("time"))
        return "tf32" if tf32 else problem.dtype, timing

    def _config(self, op: str, fields: dict[str, Any]) -> Config:
        values = tuple(map(fields.get, POINTER_TUNABLES))
        try:
            return self._configs[op, values]
        except (KeyError, TypeError):  # new, or not hashable
            tunables = dict(zip(POINTER_TUNABLES, values, strict=True))
            config = Config.from_json({"template": pointer_gemm(op), **tunables})
            return self._configs.setdefault((op, values), config)


def problem_of_key(op: str, key: str, layout: str) -> Problem:
    """The problem of a KEY, with packed operands of this layout; ProblemError if tables cannot describe it."""
    return problem_of_shape(op, _parsed(key, "a problem"), layout)


_TYPES = ("M_dtype", "K_dtype", "out_dtype")


def problem_of_shape(op: str, shape: dict[str, Any], layout: str) -> Problem:
    """The same for a KEY that is parsed."""
    missing = [name for name in (*_TYPES, "M", "N", "K") if shape.get(name) is None]
    if missing:
        raise ProblemError(f"{', '.join(missing)}: missing")
    dtypes = sorted({dtype_of(shape[name]) for name in _TYPES})
    if len(dtypes) > 1:
        raise ProblemError(f"dtype: a mix of {' and '.join(map(repr, dtypes))}")
    sizes = {"b": shape.get("B", 1), **{name: shape[name.upper()] for name in "mnk"}}
    return Problem.of(op, dtype=dtypes[0], layout=layout, **sizes)


def _parsed(value: Any, what: str) -> dict[str, Any]:
    """A map, which torch-diode stores as such or as JSON in a string, depending on its version."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise ProblemError(f"{what} that is not a JSON object")
    return value


def _timed_configs(solution: Any) -> list[Any]:
    timed_configs = solution.get("timed_configs") if isinstance(solution, dict) else None
    if not isinstance(timed_configs, list):
        raise ValueError("a solution without a list 'timed_configs'")
    return timed_configs


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise DatasetError(f"{path}: not a torch-diode dataset, or damaged: {what}") from error
