"""The log that Inductor writes with ``TORCHINDUCTOR_MM_LOGGING_FILE``.

A list of ``{"(M, K, N)": [{"type": "triton", "time": milliseconds, "BLOCK_M": 64, ...}, {"type": "cublas", "time":
...}], "kernel_type": "mm"}``. 2.11 does not say the op (``kernel_type``); no version says the type and the layout of
the inputs, the template, or GROUP_M, which is 8 in all of Inductor's lists. Of batched matmuls it logs B, M and N, so K
is lost. Source: select_algorithm.py (maybe_log_mm_results) of torch 2.11 and 2.13; a file that 2.13 had written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diode_lut.dataset import Header, Record, Timing
from diode_lut.domain.errors import ExchangeError, ProblemError
from diode_lut.domain.ops import BATCHED
from diode_lut.domain.problem import Problem
from diode_lut.exchange.content import Facts, Skipped, Timings, counting, known_hardware, literal, read_json
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.registry import POINTER_TUNABLES, pointer_gemm
from diode_lut.kernels.tiles import GROUP_M


def read(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """The timings, all with the dtype and layout (by default ``nn``) of ``facts``."""
    header = Header(known_hardware(facts, path), benchmarker="Inductor's log")
    if facts.dtype is None:
        raise ExchangeError(f"{path}: the log does not say the type of the inputs: give --dtype")
    log = read_json(path, list, "Inductor's log of matmuls, a list", facts.contents)
    return Timings(header, [record for each in log for record in _records(each, facts, skipped)])


def _records(entry: Any, facts: Facts, skipped: Skipped) -> Iterator[Record]:
    """One record for each problem in an entry; entries that only list the requested choices have none."""
    gemms = {key: rows for key, rows in entry.items() if key.startswith("(")} if isinstance(entry, dict) else {}
    for sizes, rows in gemms.items():
        with counting(skipped, len(rows)):
            problem = _problem(entry.get("kernel_type", facts.op), sizes, facts)
            yield Record(problem, tuple(_timings(problem.op, rows, skipped)))


def _problem(op: str | None, sizes: str, facts: Facts) -> Problem:
    if op is None:
        raise ProblemError("an op that the log does not say (give --op)")
    if op in BATCHED:
        raise ProblemError(f"{op}, of which the log does not say K")
    m, k, n = literal(sizes)
    return Problem.of(op, m, n, k, dtype=str(facts.dtype), layout=facts.layout or "nn")


def _timings(op: str, rows: list[Any], skipped: Skipped) -> Iterator[Timing]:
    """The best time of each config: the log does not distinguish all of Inductor's choices."""
    best: dict[Config, float] = {}
    for row in rows:
        with counting(skipped):
            config = _config(op, row)
            best[config] = min(best.get(config, row["time"]), row["time"])
    yield from (Timing.of_milliseconds(config, milliseconds) for config, milliseconds in best.items())


def _config(op: str, row: Any) -> Config:
    kind = row.get("type") if isinstance(row, dict) else None
    if kind == "cublas":
        return ATEN
    if kind != "triton":
        raise ProblemError("kernels that the log does not describe")
    values = {name.lower(): value for name, value in row.items()}
    fields = {name: values.get(name) for name in POINTER_TUNABLES}
    return Config.from_json({**fields, "template": pointer_gemm(op), "group_m": GROUP_M})
