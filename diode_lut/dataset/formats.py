"""A dataset for people and for queries: as lines of text, and as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from diode_lut.dataset.dataset import Dataset
from diode_lut.dataset.record import Record, Timing
from diode_lut.domain.printable import printable


def as_lines(dataset: Dataset) -> Iterator[str]:
    """The header, then a line for each problem and stage, and one for each config, the fastest first."""
    hardware, *software = dataset.header
    yield printable(str(hardware))
    yield from (
        printable(f"{name}: {value}") for name, value in zip(dataset.header._fields[1:], software, strict=True) if value
    )
    for record in dataset:
        yield f"{record.problem} {record.stage}"
        yield from (f"  {_timing_text(timing)}" for timing in fastest_first(record))


def as_document(dataset: Dataset) -> dict[str, Any]:
    """``{"header": {...}, "records": [{problem, "stage", "timings": [{config, "ns"} or {config, "reason"}]}]}``."""
    header = {name: value for name, value in dataset.header._asdict().items() if value}
    return {
        "header": {**header, "hardware": dataset.header.hardware._asdict()},
        "records": [_record(record) for record in dataset],
    }


def fastest_first(record: Record) -> Iterable[Timing]:
    """The timings in the order of their times; failures come last."""
    return sorted(record.timings, key=lambda timing: math.inf if timing.ns is None else timing.ns)


def _timing_text(timing: Timing) -> str:
    return f"{timing.config}: {timing.reason if timing.ns is None else f'{timing.ns / 1000:.2f} us'}"


def _record(record: Record) -> dict[str, Any]:
    timings = [
        {**timing.config.to_json(), **({"reason": timing.reason} if timing.ns is None else {"ns": timing.ns})}
        for timing in fastest_first(record)
    ]
    return {**record.problem.to_json(), "stage": record.stage, "timings": timings}
