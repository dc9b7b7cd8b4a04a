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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from diode_lut.dataset.dataset import Dataset, Header, Readable, Record, Timing
from diode_lut.errors import DatasetError, ProblemError, dtype_of
from diode_lut.hardware import Hardware, gpu_named_in, is_called, known_gpu
from diode_lut.problem import Problem
from diode_lut.templates.config import POINTER_TUNABLES, Config, pointer_gemm

MAX_BYTES = 1 << 30  # Size limit of a file, which is in memory as a whole. A solution is decoded when it is its turn
MAX_SOLUTION_BYTES = 4 << 20  # of the timings of a problem. Decoded, they may take a hundred times as much memory
_NOT_FINITE = re.compile(rb"(?<=[\s:,\[])-?(?:NaN|Infinity)(?=[\s,\]}])")  # numbers that Python writes into JSON


class _SolvedOp(msgspec.Struct):
    solution: dict[str, msgspec.Raw]


class _SolvedDevice(msgspec.Struct):
    operation: dict[str, _SolvedOp]


class _SolvedFile(msgspec.Struct):
    hardware: dict[str, _SolvedDevice]


def open_torch_diode(
    path: Path, file: Readable, is_json: bool, hardware: Hardware | None, layout: str, contents: bytes | None
) -> Dataset:
    """Return the timings of ``hardware``, by its name or an alias, by default of the first if it is a known GPU's."""
    first = next(iter(_document(path, file, is_json).hardware), None)
    if first is None:
        raise DatasetError(f"{path}: neither a diode_lut dataset nor one of torch-diode, which has a map 'hardware'")
    known = hardware or hardware_by_name(path, first)
    if known is None:
        raise DatasetError(
            f"{path}: holds timings of {first!r}, but torch-diode stores neither architecture nor SM count: "
            f"say which hardware it is, for example --hardware {f'{first},sm_90,132'!r}"
        )
    header = Header(known, benchmarker="torch-diode")
    return Dataset(path, header, partial(_records, path, is_json, known, layout), contents)


def hardware_by_name(path: Path, called: str) -> Hardware | None:
    """Return the known GPU of this name, or else the GPU in the name of the file, as of a device ``unknown``."""
    gpu = gpu_named_in(path.name)
    return known_gpu(called) or (gpu and gpu._replace(aliases=(*gpu.aliases, called)))


def _document(path: Path, file: Readable, is_json: bool) -> _SolvedFile:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise DatasetError(f"{path}: too large (allowed: {MAX_BYTES >> 20} MiB)")
    with _damage_reported(path):
        if is_json:
            return msgspec.json.decode(_NOT_FINITE.sub(b"null", data), type=_SolvedFile)
        return msgspec.msgpack.decode(data, type=_SolvedFile)


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError, msgspec.MsgspecError, msgpack.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise DatasetError(f"{path}: not a torch-diode dataset, or damaged: {what}") from error


def _records(
    path: Path, is_json: bool, hardware: Hardware, layout: str, file: Readable, skipped: Counter[str], _lost: object
) -> Iterator[Record]:
    """Yield the timings of this hardware, and count those without a place in our format."""
    document = _document(path, file, is_json)
    configs: dict[tuple[str, tuple[Any, ...]], Config] = {}
    solutions = (
        (name, op, key, raw)
        for name, device in document.hardware.items()
        for op, operation in device.operation.items()
        for key, raw in operation.solution.items()
    )
    for name, op, key, raw in solutions:
        with _damage_reported(path):
            if len(bytes(raw)) > MAX_SOLUTION_BYTES:
                raise ValueError(f"a solution of more than {MAX_SOLUTION_BYTES >> 20} MiB")
            solution = json.loads(bytes(raw)) if is_json else msgpack.unpackb(raw)
            timed_configs = solution.get("timed_configs") if isinstance(solution, dict) else None
            if not isinstance(timed_configs, list):
                raise ValueError("a solution without a list 'timed_configs'")
        if not is_called(hardware, name):
            skipped[f"hardware {name!r}"] += len(timed_configs)
            continue
        try:
            problem = problem_of_key(op, key, layout)
        except ProblemError as error:
            skipped[str(error)] += len(timed_configs)
            continue
        by_dtype: dict[str, list[Timing]] = {}  # there are two if only some of the configs allow TF32
        for timed in timed_configs:
            try:
                fields = _parsed(timed.get("config") if isinstance(timed, dict) else None, "a timed config")
                if fields.get("ACC_TYPE", "tl.float32") != "tl.float32":
                    raise ProblemError(f"ACC_TYPE {fields['ACC_TYPE']!r}")
                values = tuple(map(fields.get, POINTER_TUNABLES))
                try:
                    config = configs[op, values]
                except (KeyError, TypeError):  # new, or not hashable
                    config = configs.setdefault((op, values), pointer_config(op, fields))
                timing = Timing.of_milliseconds(config, timed.get("time"))
            except ProblemError as error:
                skipped[str(error)] += 1
                continue
            tf32 = problem.dtype == "float32" and fields.get("ALLOW_TF32") is True
            by_dtype.setdefault("tf32" if tf32 else problem.dtype, []).append(timing)
        for dtype, timings in by_dtype.items():
            yield Record(problem._replace(dtype=dtype), tuple(timings))
    if not any(map(hardware.called, document.hardware)):
        found = ", ".join(map(repr, sorted(document.hardware))) or "nothing"
        raise DatasetError(f"{path}: no timings of {hardware.name}: it holds {found} (an alias can be given)")


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
