"""torch-diode's table.

``{"hardware": {NAME: {"operation": {OP: {"solution": {KEY: {"config": [{"block_m": 64, ...}, ...]}}}}}}}``, where KEY
is JSON in a string, with B, M, N, K, M_dtype, K_dtype, out_dtype, out_size and out_stride. Source:
torch_diode/types/matmul_types.py and json_serializable.py of torch-diode 0.1.1. It knows only Inductor's plain Triton
templates, of which those for float32 that allow TF32 stand beside the others, and no layout: its collector multiplies
packed row-major matrices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson

from diode_lut.domain.errors import ExchangeError, ProblemError
from diode_lut.domain.problem import Problem, contiguous_align
from diode_lut.exchange.exact import answers, exact_table
from diode_lut.exchange.formats import Facts, Skipped, counting, known_hardware, read_json
from diode_lut.kernels.config import Config
from diode_lut.kernels.registry import pointer_gemm
from diode_lut.kernels.triton_gemm import TRITON_MM
from diode_lut.table import Table

_VERSION = {"version": 1}
_TUNABLES = TRITON_MM.names
_WHAT = "torch-diode's table, an object with 'hardware'"


def read(path: Path, facts: Facts, skipped: Skipped) -> Table:
    """The table for the hardware that was named; what is for another device is skipped."""
    hardware = known_hardware(facts, path)
    found: dict[Problem, list[Config]] = {}
    for name, op, key, rows in _solutions(path):
        if not hardware.called(name):
            skipped[f"hardware {name!r}"] += len(rows)
            continue
        with counting(skipped, len(rows)):
            problem = _problem(op, _shape(key), facts.layout or "nn")
            for row in rows:
                with counting(skipped):
                    config = _config(op, row)
                    tf32 = problem.dtype == "float32" and row.get("ALLOW_TF32") is True
                    configs = found.setdefault(problem._replace(dtype="tf32") if tf32 else problem, [])
                    if config not in configs:
                        configs.append(config)
    return exact_table(hardware, found)


def write(table: Table, problems: Iterable[Problem], facts: Facts, skipped: Skipped) -> bytes:
    """The table, of problems with the layout that ``facts`` names, by default ``nn``: the file cannot say it.

    Of a row it has the configs down to the first that it cannot say.
    """
    operations: dict[str, dict[str, Any]] = {}
    for problem, entry in answers(table, problems, skipped):
        with counting(skipped):
            key, rows = _key(problem, facts.layout or "nn"), _rows(problem, entry.configs)
            solutions = operations.setdefault(problem.op, {**_VERSION, "solution": {}})["solution"]
            solutions.setdefault(key, {**_VERSION, "config": []})["config"].extend(rows)
    hardware = {table.hardware.name: {**_VERSION, "operation": operations}}
    return orjson.dumps({**_VERSION, "hardware": hardware}, option=orjson.OPT_INDENT_2) + b"\n"


def _solutions(path: Path) -> Iterator[tuple[str, str, str, list[Any]]]:
    """Hardware, op, key and configs, in the order of the file."""
    document = read_json(path, dict, _WHAT)
    try:
        for name, hardware in document["hardware"].items():
            for op, operation in hardware["operation"].items():
                for key, solution in operation["solution"].items():
                    yield name, op, key, list(solution["config"])
    except (KeyError, TypeError, AttributeError):
        raise ExchangeError(f"{path}: not {_WHAT}") from None


def _shape(key: str) -> Any:
    try:
        return json.loads(key)
    except RecursionError:
        raise ProblemError("keys that are nested too deeply") from None


def _problem(op: str, shape: dict[str, Any], layout: str) -> Problem:
    dtypes = sorted({str(shape.get(name)) for name in ("M_dtype", "K_dtype", "out_dtype")})
    if len(dtypes) > 1:
        raise ProblemError(f"a mix of {' and '.join(dtypes)}")
    (dtype,) = dtypes
    b, m, n, k = (shape.get(name) for name in "BMNK")
    problem = Problem.checked(op, dtype, layout, 16, b, m, n, k)  # type: ignore[arg-type]  # that is what it checks
    return problem._replace(align=contiguous_align(dtype, layout, problem.m, problem.n, problem.k, problem.b))


def _config(op: str, row: dict[str, Any]) -> Config:
    fields = {name: row.get(name) for name in _TUNABLES}
    return Config.from_json({"template": pointer_gemm(op), **fields})


def _key(problem: Problem, layout: str) -> str:
    dtype, found, align = problem.dtype, problem.layout, problem.align
    b, m, n, k = problem.sizes
    if found != layout:
        raise ProblemError(f"layout {found} (the file cannot say it; --layout says which to export)")
    if align != contiguous_align(dtype, layout, m, n, k, b):
        raise ProblemError(f"align {align}, which packed matrices of these sizes do not have")
    name = "float32" if dtype == "tf32" else dtype
    key = {**_VERSION, "B": b, "M": m, "M_dtype": name, "N": n, "K": k, "K_dtype": name, "out_dtype": name}
    return json.dumps({**key, "out_size": [b, m, n], "out_stride": [m * n, n, 1]})


def _rows(problem: Problem, configs: Sequence[Config]) -> list[dict[str, Any]]:
    sayable = list(takewhile(lambda config: config.template == pointer_gemm(problem.op), configs))
    if not sayable:
        raise ProblemError(f"{configs[0].template}, which torch-diode's table does not know")
    return [_row(problem, config) for config in sayable]


def _row(problem: Problem, config: Config) -> dict[str, Any]:
    tunables = config.tunables
    return {
        **_VERSION,
        "name": f"{problem.op}_config",
        "grid": 1,
        **tunables,
        "EVEN_K": problem.k % tunables["block_k"] == 0,
        "ALLOW_TF32": problem.dtype == "tf32",
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.float32",
    }
