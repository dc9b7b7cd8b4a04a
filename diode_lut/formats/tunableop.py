"""Results of TunableOp, ``tunableop_results0.csv``: the GEMMs of a program, with the times of the tuned library.

Lines are ``Validator,NAME,VALUE`` and ``OPERATION_TYPE_LAYOUT,SIGNATURE,SOLUTION,MILLISECONDS``, where SIGNATURE is
``tn_M_N_K[_B_BATCH][_ld_LDA_LDB_LDC]``, as BLAS sees it: column-major, so A and B, M and N change places. Every
solution comes from a BLAS library, which is ``aten`` here. The strides of batches are missing, and batches count as
packed. Source: ATen/cuda/tunable/GemmCommon.h and Tunable.cpp of torch 2.13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from diode_lut.dataset import Header, Record, Timing
from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.files import read_at_most
from diode_lut.formats.content import Facts, Skipped, Timings, counting, known_hardware
from diode_lut.problem import BATCHED, Operand, Problem, problem_of
from diode_lut.templates.config import ATEN

_MAX_BYTES = 64 << 20
_OPS = {"GemmTunableOp": "mm", "GemmAndBiasTunableOp": "addmm", "GemmStridedBatchedTunableOp": "bmm"}
_DTYPES = {"Half": "float16", "BFloat16": "bfloat16", "float": "float32", "tf32": "tf32"}
_OPERATION = re.compile(r"(\w+TunableOp)_(.+)_([NT]{2})")
_SIGNATURE = re.compile(r"([nt])([nt])_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?(?:_ld_(\d+)_(\d+)_\d+)?", re.IGNORECASE)


def read(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """Return the time of ``aten`` on each GEMM. Lines without a time, and other operations, are skipped."""
    data = read_at_most(path, _MAX_BYTES) if facts.contents is None else facts.contents
    text = data.decode()
    lines = [line.split(",") for line in text.splitlines() if line]
    validators: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line[0] == "Validator" and len(line) > 2 and validators.setdefault(line[1], line[2]) != line[2]:
            said = f"{line[1]} is {line[2]!r}, but {validators[line[1]]!r} before"
            raise ExchangeError(f"{path}: line {number}: {said}: import the results of each software by themselves")
    if not validators and not any(_OPERATION.fullmatch(line[0]) for line in lines):
        raise ExchangeError(f"{path}: not TunableOp's results: no line begins like GemmTunableOp_Half_TN,tn_8_8_8,")
    header = _header(path, facts, validators)
    return Timings(header, list(_records((line for line in lines if line[0] != "Validator"), skipped)))


def _header(path: Path, facts: Facts, validators: dict[str, str]) -> Header:
    """The header, with the libraries' versions in ``benchmarker``: timings of others are not mixed with these."""
    device, torch, rocm = (validators.pop(name, "") for name in ("GCN_ARCH_NAME", "PT_VERSION", "ROCM_VERSION"))
    hardware = known_hardware(facts, path, *filter(None, [device]))
    rocm = rocm or validators.pop("HIP_VERSION", "")
    arch = device.partition(":")[0] or ("gfx" if rocm else "")
    if not hardware.arch.startswith(arch):
        raise ExchangeError(f"{path}: measured on a GPU of {arch}, not on {hardware}: correct --hardware")
    libraries = (f"{name} {version}" for name, version in sorted(validators.items()))
    return Header(hardware, torch, cuda=rocm, benchmarker=", ".join(("TunableOp", *libraries)))


def _records(lines: Iterator[list[str]], skipped: Skipped) -> Iterator[Record]:
    for line in lines:
        with counting(skipped):
            problem = _problem(line[0], line[1] if line[1:] else "")
            yield Record(problem, (Timing.of_milliseconds(ATEN, _milliseconds(line)),))


def _milliseconds(line: list[str]) -> float:
    """Return the number after the solution. ProblemError if there is none, as for a GEMM that was only recorded."""
    try:
        milliseconds = float(line[3])
    except (IndexError, ValueError):
        raise ProblemError("GEMMs without a time") from None
    return milliseconds if milliseconds > 0 else math.nan


def _problem(operation: str, signature: str) -> Problem:
    named, found = _OPERATION.fullmatch(operation), _SIGNATURE.fullmatch(signature)
    if named is None or found is None or named[1] not in _OPS or named[2] not in _DTYPES:
        raise ProblemError(f"operation {operation.rpartition('_')[0] or operation}")
    trans_a, trans_b, *numbers = found.groups()
    n, m, k, batch, ld_b, ld_a = (None if number is None else int(number) for number in numbers)
    assert m is not None
    assert n is not None
    assert k is not None
    op, dtype = _OPS[named[1]], _DTYPES[named[2]]
    a = _operand(trans_b, m, k, ld_a, batch)
    b = _operand(trans_a, k, n, ld_b, batch)
    if (op in BATCHED) != (batch is not None):
        raise ProblemError(f"operation {named[1]} with signature {signature}")
    return problem_of(op, dtype, a, b)


def _operand(letter: str, rows: int, columns: int, leading: int | None, batch: int | None) -> Operand:
    """Describe a matrix of column-major BLAS: without transposition it is row-major here."""
    row_major = letter.casefold() == "n"
    step = leading or (columns if row_major else rows)
    strides = (step, 1) if row_major else (1, step)
    if batch is None:
        return Operand((rows, columns), strides)
    return Operand((batch, rows, columns), (step * (rows if row_major else columns), *strides))
