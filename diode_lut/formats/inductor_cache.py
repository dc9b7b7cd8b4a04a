"""Timings in Inductor's cache directory, already paid for.

Files ``cache/HASH`` hold ``{"system": {...}, "cache": {OP: {OPERANDS: {PRECISION: {CHOICE: milliseconds}}}}}``.
OPERANDS is the repr of ``[(device type, dtype, *sizes, *strides, offset), ...]``. 2.15 appends the way of benchmarking.
A Triton CHOICE is ``triton_mm-KEY``. Its config is in the file ``KEY[1:3]/KEY.py``. Without the file it is skipped.
Another CHOICE begins with the ATen function's name, with ``decompose_k_mm_SPLIT_split``, or, for the C++ template, with
``CppMicroGemm``. On a machine without a GPU, the system is empty. Source: codecache.py (PersistentCache) and
select_algorithm.py (hash_key) of torch 2.11, 2.13 and 2.15, and files from 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diode_lut.dataset import Header, Record, Timing
from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.files import read_at_most
from diode_lut.formats.content import (
    PACKED,
    Facts,
    Skipped,
    Timings,
    best_times,
    counting,
    known_hardware,
    literal,
    other_config,
    problem_of_inputs,
    read_json,
    triton_config,
)
from diode_lut.hardware import Hardware, is_called
from diode_lut.problem import MATMULS, Operand, Problem
from diode_lut.templates.config import Config

_KERNEL_BYTES = 4 << 20
_BENCHMARKER = "Inductor's cache"
_OPERANDS = re.compile(r"(\[.*\])(:benchmark_policy=\w+)?")
_TRITON = re.compile(r"triton_(\w+)-(\w{1,200})")


def read(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """Return the timings of the given hardware. Timings of other devices or software are skipped."""
    if facts.contents is not None:
        raise ExchangeError(f"{path}: not Inductor's cache directory")
    files = sorted(file for file in path.glob("cache/*") if file.is_file())
    if not files:
        raise ExchangeError(f"{path}: not Inductor's cache directory, or without timings: it has no file in cache/")
    documents = [read_json(file, dict, "a file of Inductor's timings") for file in files]
    names = sorted({str(_system(document, "device", "name") or "no GPU") for document in documents})
    hardware = known_hardware(facts, path, *names)
    headers = [_header(document, hardware) for document in documents]
    header = max(filter(None, headers), key=lambda header: (header.triton, header.cuda), default=None)
    if header is None:
        raise ExchangeError(f"{path}: no timings of {hardware.name}: they are of {', '.join(names)}")
    records: list[Record] = []
    for document, found in zip(documents, headers, strict=True):
        if found == header:
            records += _Reader(path, "cpu" if hardware.arch.startswith("cpu") else "cuda", skipped).records(document)
        else:
            skipped["timings of another device, or of other software"] += 1
    return Timings(header, records)


def _header(document: Any, hardware: Hardware) -> Header | None:
    """Return the header of the document's timings, or None for another device.

    Any document may hold timings of CPUs.
    """
    if hardware.arch.startswith("cpu"):
        return Header(hardware, benchmarker=_BENCHMARKER)
    if not is_called(hardware, str(_system(document, "device", "name"))):
        return None
    # The key is Triton's version and, without anything between them, hashes of its files.
    triton = re.match(r"\d+\.\d+\.\d", str(_system(document, "version", "triton")))
    cuda = _system(document, "version", "cuda")
    return Header(hardware, triton=triton[0] if triton else "", cuda=str(cuda or ""), benchmarker=_BENCHMARKER)


def _system(document: Any, *names: str) -> Any:
    value = document.get("system")
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


class _Reader:
    """Makes records, and counts skipped timings."""

    def __init__(self, directory: Path, device: str, skipped: Skipped) -> None:
        self._directory = directory
        self._device = device
        self._skipped = skipped

    def records(self, document: Any) -> Iterator[Record]:
        """Yield a record for each GEMM. Inductor caches other things in the same file."""
        for op, gemms in document.get("cache", {}).items():
            if op not in (*MATMULS, PACKED):
                self._skipped[f"op {op}"] += len(gemms) if isinstance(gemms, dict) else 1
                continue
            for operands, precisions in gemms.items():
                for precision, choices in precisions.items():
                    with counting(self._skipped, len(choices)):
                        problem = _problem(op, operands, precision, self._device)
                        yield Record(problem, best_times(self._timings(op, choices)))

    def _timings(self, op: str, choices: dict[str, Any]) -> Iterator[Timing]:
        for choice, milliseconds in choices.items():
            with counting(self._skipped):
                yield Timing.of_milliseconds(self._config(op, choice), milliseconds)

    def _config(self, op: str, choice: str) -> Config:
        triton = _TRITON.fullmatch(choice)
        if triton is None:
            return other_config(op, choice)
        name, key = triton.groups()
        file = self._directory / key[1:3] / f"{key}.py"
        if not file.is_file():
            raise ProblemError("kernels whose source is not in the directory any more")
        return triton_config(op, name, read_at_most(file, _KERNEL_BYTES).decode().partition("\ndef ")[0])


def _problem(op: str, text: str, precision: str, device: str) -> Problem:
    match = _OPERANDS.fullmatch(text)
    if match is None:
        raise ProblemError("sizes that are only hints")
    keys = literal(match[1])
    others = [key[0] for key in keys if key[0] != device]
    if others:
        raise ProblemError(f"device type {others[0]}")
    problem = problem_of_inputs(op, [key[1].removeprefix("torch.") for key in keys], list(map(_operand, keys)))
    known = {"highest": "float32", "high": "tf32"}.get(precision) if problem.dtype == "float32" else problem.dtype
    if known is None:
        raise ProblemError(f"float32 with precision {precision!r}")
    return problem._replace(dtype=known)


def _operand(key: tuple[Any, ...]) -> Operand:
    dimensions = (len(key) - 3) // 2
    return Operand(key[2 : 2 + dimensions], key[2 + dimensions : -1], key[-1])
