"""torch-diode's tables and datasets. ``read_dataset`` reads the datasets as they are. A table looks like this:

``{"hardware": {NAME: {"operation": {OP: {"solution": {KEY: {"config": [{"block_m": 64, ...}, ...]}}}}}}}``, where KEY
is JSON in a string, with B, M, N, K, M_dtype, K_dtype, out_dtype, out_size and out_stride. Source:
torch_diode/types/matmul_types.py and json_serializable.py of torch-diode 0.1.1. It has only configs of Inductor's plain
Triton templates, and some under a float32 key may allow TF32. It has no layout: its collector multiplies packed
row-major matrices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson

from diode_lut.dataset import read_dataset
from diode_lut.dataset.torch_diode import hardware_by_name, problem_of_key
from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.formats.content import Facts, Skipped, Timings, answers, counting, exact_table, known_hardware, read_json
from diode_lut.hardware import is_called
from diode_lut.problem import MATMULS, Problem, contiguous_align
from diode_lut.table import Table
from diode_lut.templates.config import POINTER_TUNABLES, Config, pointer_gemm

_VERSION = {"version": 1}
_WHAT = "torch-diode's table, an object with 'hardware'"


def read_timings(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """Return the timings of the given hardware."""
    dataset = read_dataset(path, hardware=facts.hardware, layout=facts.layout or "nn", contents=facts.contents)
    records = list(dataset)
    skipped += dataset.skipped
    return Timings(dataset.header, records)


def read_table(path: Path, facts: Facts, skipped: Skipped) -> Table:
    """Return the table for the given hardware. Rows for another device are skipped."""
    solutions = list(_solutions(path, facts))
    names = list(dict.fromkeys(name for name, *_ in solutions))
    hardware = facts.hardware or (names and hardware_by_name(path, names[0])) or known_hardware(facts, path, *names)
    found: dict[Problem, list[Config]] = {}
    for name, op, key, rows in solutions:
        if not is_called(hardware, name):
            skipped[f"hardware {name!r}"] += len(rows)
            continue
        with counting(skipped, len(rows)):
            problem = problem_of_key(op, key, facts.layout or "nn")
            for row in rows:
                with counting(skipped):
                    config = _config(op, row)
                    tf32 = problem.dtype == "float32" and row.get("ALLOW_TF32") is True
                    configs = found.setdefault(problem._replace(dtype="tf32") if tf32 else problem, [])
                    if config not in configs:
                        configs.append(config)
    return exact_table(hardware, found)


def write_table(table: Table, problems: Iterable[Problem], facts: Facts, skipped: Skipped) -> bytes:
    """Return the table for problems with the layout of ``facts``, by default ``nn``: the file has no layout.

    Each row gets its configs up to the first without an equivalent here.
    """
    operations: dict[str, dict[str, Any]] = {}
    for problem, entry in answers(table, problems, skipped):
        with counting(skipped):
            key, rows = _key(problem, facts.layout or "nn"), _rows(problem, entry.configs)
            solutions = operations.setdefault(problem.op, {**_VERSION, "solution": {}})["solution"]
            solutions.setdefault(key, {**_VERSION, "config": []})["config"].extend(rows)
    hardware = {table.hardware.name: {**_VERSION, "operation": operations}}
    return orjson.dumps({**_VERSION, "hardware": hardware}, option=orjson.OPT_INDENT_2) + b"\n"


def _solutions(path: Path, facts: Facts) -> Iterator[tuple[str, str, str, list[Any]]]:
    """Hardware, op, key and configs, in the order of the file."""
    document = read_json(path, dict, _WHAT, facts.contents)
    try:
        for name, hardware in document["hardware"].items():
            for op, operation in hardware["operation"].items():
                for key, solution in operation["solution"].items():
                    yield name, op, key, list(solution["config"])
    except (KeyError, TypeError, AttributeError):
        raise ExchangeError(f"{path}: not {_WHAT}") from None


def _config(op: str, row: dict[str, Any]) -> Config:
    fields = {name: row.get(name) for name in POINTER_TUNABLES}
    return Config.from_json({"template": pointer_gemm(op), **fields})


def _key(problem: Problem, layout: str) -> str:
    if problem.op not in MATMULS:
        raise ProblemError(f"{problem.op} (the file is of GEMMs)")
    if problem.layout != layout:
        raise ProblemError(f"layout {problem.layout} (the file cannot say it; --layout says which to export)")
    if problem.align != contiguous_align(problem.dtype, layout, problem.m, problem.n, problem.k, problem.b):
        raise ProblemError(f"align {problem.align}, which packed matrices of these sizes do not have")
    name = "float32" if problem.dtype == "tf32" else problem.dtype
    return json.dumps(
        {
            **_VERSION,
            "B": problem.b,
            "M": problem.m,
            "M_dtype": name,
            "N": problem.n,
            "K": problem.k,
            "K_dtype": name,
            "out_dtype": name,
            "out_size": [problem.b, problem.m, problem.n],
            "out_stride": [problem.m * problem.n, problem.n, 1],
        }
    )


def _rows(problem: Problem, configs: Sequence[Config]) -> list[dict[str, Any]]:
    template = pointer_gemm(problem.op)
    plain = list(takewhile(lambda config: config.template == template and not config.has_optional_tunables, configs))
    if not plain:
        raise ProblemError(f"{configs[0]}, which torch-diode's table cannot say")
    return [_row(problem, config) for config in plain]


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
