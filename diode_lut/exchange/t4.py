"""T4, the results format of auto-tuners (Kernel Tuner's ``store_output_file``, KTT, the autotuning methodology).

``{"schema_version": "1.0.0", "results": [{"configuration": {...}, "times": {"runtimes": [milliseconds]}, "invalidity":
"correct", "correctness": 1, "measurements": [{"name": "time", "value": milliseconds, "unit": "ms"}]}]}``. Source:
schema/T4/1.0.0/results-schema.json and file_utils.py of Kernel Tuner 1.0. Each tuner has its own fields in a
configuration: ours are those of a problem (op, dtype, layout, align, b, m, n, k) and a config (template, block_m, ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from diode_lut.dataset import Dataset, Header, Record, Timing
from diode_lut.dataset.record import NS_PER_MS, REASONS, STAGES, header_from_wire, header_to_wire
from diode_lut.domain.errors import DatasetError, ExchangeError, ProblemError
from diode_lut.domain.problem import Problem
from diode_lut.exchange.content import Facts, Skipped, Timings, counting, known_hardware, read_json
from diode_lut.kernels.config import Config

_REQUIRED = [name for name in Problem._fields if name not in Problem._field_defaults]
_VERSION = "1.0.0"
_HEADER = "diode_lut"
"""The field that has our header; T4 allows fields that it does not define."""

_INVALIDITIES = {
    "compile": "compile",
    "shared_memory": "constraints",
    "out_of_memory": "runtime",
    "launch": "runtime",
    "timeout": "timeout",
    "wrong_result": "correctness",
    "invalid_time": "runtime",
}
"""T4's name for each of REASONS."""

_FAILURES = {"compile": "compile", "constraints": "shared_memory", "timeout": "timeout", "correctness": "wrong_result"}
"""The reason for each of T4's names, in files that do not have our reason; any other name means ``launch``."""


def read(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """The timings, with a record for each result; a file of ours has the header of its dataset."""
    document = read_json(path, dict, "T4 results, an object", facts.contents)
    results = document.get("results")
    if not isinstance(results, list):
        raise ExchangeError(f"{path}: not T4 results: it has no list 'results'")
    records = []
    for result in results:
        with counting(skipped):
            records.append(_record(result))
    return Timings(_header(document, facts, path), records)


def write(dataset: Dataset) -> bytes:
    """A file with a result for each timing."""
    results = [_result(record, timing, dataset.header) for record in dataset for timing in record.timings]
    document = {"schema_version": _VERSION, _HEADER: header_to_wire(dataset.header), "results": results}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def _header(document: dict[str, Any], facts: Facts, path: Path) -> Header:
    if facts.hardware is None and _HEADER in document:
        try:
            return header_from_wire(document[_HEADER])
        except DatasetError as error:
            raise ExchangeError(f"{path}: {_HEADER}: {error}") from None
    return Header(known_hardware(facts, path), benchmarker="T4")


def _result(record: Record, timing: Timing, header: Header) -> dict[str, Any]:
    milliseconds = None if timing.ns is None else timing.ns / NS_PER_MS
    measurements = [{"name": "stage", "value": record.stage, "unit": ""}]
    if timing.reason is not None:
        measurements.append({"name": "reason", "value": timing.reason, "unit": ""})
    return {
        "timestamp": header.measured_on,
        "configuration": {**record.problem.stored(), **timing.config.to_json()},
        "objectives": ["time"],
        "times": {"runtimes": [] if milliseconds is None else [milliseconds]},
        "invalidity": "correct" if timing.reason is None else _INVALIDITIES[timing.reason],
        "correctness": int(timing.reason != "wrong_result"),
        "measurements": [*measurements, *_time(milliseconds)],
    }


def _time(milliseconds: float | None) -> Iterator[dict[str, Any]]:
    if milliseconds is not None:
        yield {"name": "time", "value": milliseconds, "unit": "ms"}


def _record(result: Any) -> Record:
    if not isinstance(result, dict) or not isinstance(result.get("configuration"), dict):
        raise ProblemError("results without a configuration")
    fields = dict(result["configuration"])
    missing = [name for name in (*_REQUIRED, "template") if name not in fields]
    if missing:
        raise ProblemError(f"configurations that do not say {', '.join(missing)}")
    problem = Problem.checked(**{name: fields.pop(name) for name in Problem._fields if name in fields})
    measured = _measured(result)
    stage = measured.get("stage")
    timing = _timing(Config.from_json(fields), result, measured)
    return Record(problem, (timing,), stage if stage in STAGES else "autotune")


def _measured(result: dict[str, Any]) -> dict[str, Any]:
    measurements = result.get("measurements")
    rows = measurements if isinstance(measurements, list) else []
    return {row["name"]: row.get("value") for row in rows if isinstance(row, dict) and "name" in row}


def _timing(config: Config, result: dict[str, Any], measured: dict[str, Any]) -> Timing:
    invalidity = result.get("invalidity")
    if invalidity == "correct":
        return Timing.of_milliseconds(config, measured.get("time"))
    reason = measured.get("reason")
    return Timing(config, None, reason if reason in REASONS else _FAILURES.get(str(invalidity), "launch"))
