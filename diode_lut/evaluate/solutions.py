"""torch-diode's max-autotune solution files, as a baseline of gains.

``{"config": [{"block_m": 64, ...}, ...]}`` lists kernels for all problems, as does ``{"name", "configs": [...]}``; a
config with M, N and K is only for problems of these sizes. ``{"mm": {"config": [...]}, ...}`` has a list for each op.
``name``, ``grid``, EVEN_K and ACC_TYPE are ignored. Source: model/model_utils.py (validate_max_autotune) and
types/matmul_types.py (Solution) of torch-diode 0.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from diode_lut.domain.errors import ExchangeError, ProblemError
from diode_lut.domain.ops import MATMULS
from diode_lut.domain.problem import Problem
from diode_lut.evaluate.evaluation import ReferenceKernels
from diode_lut.io.files import has_more_values, read_at_most
from diode_lut.kernels.config import Config
from diode_lut.kernels.registry import POINTER_TUNABLES, pointer_gemm

_MAX_BYTES = 64 << 20
_MAX_VALUES = 5_000_000
_WHAT = "a max-autotune solution of torch-diode, an object with a list 'config' or 'configs'"

_Sizes = tuple[int, int, int] | None
"""M, N and K; None where a config is for all."""


def read_solution(path: Path, contents: bytes | None = None) -> ReferenceKernels:
    """The fastest kernel of a solution file that was measured on a problem; ExchangeError if it is no such file.

    ``contents`` are those of a file that is not on disk.
    """
    data = read_at_most(path, _MAX_BYTES) if contents is None else contents
    if has_more_values(data, _MAX_VALUES):
        raise ExchangeError(f"{path}: more than {_MAX_VALUES} values (expected {_WHAT})")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ExchangeError(f"{path}:{error.lineno}: not JSON: {error.msg} (expected {_WHAT})") from None
    configs: dict[tuple[str, _Sizes], set[Config]] = {}
    faults: Counter[str] = Counter()
    for op, row in _rows(document, path):
        try:
            config = _config(op, row)
        except ProblemError as error:  # noqa: PERF203
            faults[str(error)] += 1
        else:
            configs.setdefault((op, _sizes(row)), set()).add(config)
    if not configs:
        raise ExchangeError(f"{path}: no config in it is one that tables know: {', '.join(faults) or 'it is empty'}")

    def configs_for(problem: Problem) -> set[Config]:
        sizes = problem.m, problem.n, problem.k
        return configs.get((problem.op, None), set()) | configs.get((problem.op, sizes), set())

    return ReferenceKernels(path.name, configs_for)


def _rows(document: Any, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each config with its op; with each op, if the file does not say one."""
    parts = document if isinstance(document, dict) else {}
    by_op = {op: parts[op] for op in MATMULS if op in parts} or dict.fromkeys(MATMULS, parts)
    for op, part in by_op.items():
        rows = part.get("configs", part.get("config")) if isinstance(part, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ExchangeError(f"{path}: not {_WHAT}")
        yield from ((op, row) for row in rows)


def _sizes(row: dict[str, Any]) -> _Sizes:
    m, n, k = (row.get(name) for name in "MNK")
    return (m, n, k) if type(m) is int and type(n) is int and type(k) is int else None


def _config(op: str, row: dict[str, Any]) -> Config:
    return Config.from_json({"template": pointer_gemm(op), **{name: row.get(name) for name in POINTER_TUNABLES}})
