"""The blocks that Inductor prints on standard error under max-autotune, in the log of a program::

    AUTOTUNE mm(256x512, 512x304)
    strides: [512, 1], [304, 1]
    dtypes: torch.bfloat16, torch.bfloat16
      triton_mm_4 0.0123 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, ..., num_warps=4
      mm 0.0131 ms 93.9%
    SingleProcess AUTOTUNE benchmarking takes 0.2 seconds and 0.1 seconds precompiling for 30 choices

Anything may stand before these on a line, such as a rank. Sizes that change are hints, and their strides have symbols.
Source: select_algorithm.py (log_results) of torch 2.11 to 2.15.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from diode_lut.dataset import Header, Record, Timing
from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.formats.content import (
    Facts,
    Skipped,
    Timings,
    best_times,
    counting,
    known_hardware,
    lines,
    other_config,
    problem_of_inputs,
    triton_config,
)
from diode_lut.hardware import Hardware
from diode_lut.problem import SCALED, Operand, Problem
from diode_lut.templates.config import Config

_HEAD = re.compile(r"AUTOTUNE (\w+)\((.*)\)\s*$")
_STRIDES = re.compile(r"strides: (\[.*\])\s*$")
_DTYPES = re.compile(r"dtypes: (torch\.[\w., ]+?)\s*$")
_CHOICE = re.compile(r" (\w[\w.-]*) (\d+\.\d+|inf|nan) ms (?:(\d+\.\d)%|nan%|<DIVIDED BY ZERO ERROR>)(.*)$")
_LAST_DIGIT, _ROUNDED = 1e-4, 5e-4
"""Milliseconds of a printed time's last digit, and the largest difference of a percentage from its share."""
_TF32_ROWS, _TF32_COLUMNS = 16, 512
"""From these M, and N and K, all releases allow TF32 in Triton's kernels where PyTorch's setting does."""


class _Printed(NamedTuple):
    name: str
    time: float
    percent: float | None
    arguments: str


class _Autotuning(NamedTuple):
    op: str
    sizes: str
    strides: list[str]
    dtypes: list[str]
    choices: list[_Printed]

    @property
    def is_whole(self) -> bool:
        """Whether all times are from this block: the first is the best, and the percentages of the others agree."""
        if not self.choices:
            return False
        best = self.choices[0].time
        return self.choices[0].percent in (100, None) and all(
            percent is None or time == math.inf or abs(best - percent / 100 * time) <= _ROUNDED * time + 2 * _LAST_DIGIT
            for _, time, percent, _ in self.choices
        )


def read(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """Return the timings, with a record for each block. Mixed blocks of several processes are skipped."""
    hardware = known_hardware(facts, path)
    return Timings(Header(hardware, benchmarker="Inductor's log"), _records(path, facts, hardware, skipped))


def _records(path: Path, facts: Facts, hardware: Hardware, skipped: Skipped) -> Iterator[Record]:
    block, after_whole = None, True
    for block in _blocks(line.decode(errors="replace") for line in lines(path, facts.contents)):
        trusted, after_whole = after_whole and block.is_whole, bool(block.choices)
        with counting(skipped, max(1, len(block.choices))):
            if not trusted:  # where a block has no choices, another one has them
                raise ProblemError("blocks that are not complete, or have lines of another")
            problem = _problem(block, facts.dtype, hardware)
            timings = []
            for choice in block.choices:
                with counting(skipped):
                    config = _config(block.op, choice.name, choice.arguments)
                    timings.append(Timing.of_milliseconds(config, choice.time))
            yield Record(problem, best_times(timings))
    if block is None:
        raise ExchangeError(f"{path}: not a log of max-autotune: no line is like AUTOTUNE mm(1024x512, 512x256)")


def _blocks(text: Iterable[str]) -> Iterator[_Autotuning]:
    block = None
    for line in text:
        head = _HEAD.search(line)
        if block is not None and not head:
            if (found := _STRIDES.search(line)) and not block.strides:
                block.strides.append(found[1])
                continue
            if (found := _DTYPES.search(line)) and block.strides and not block.dtypes:
                block.dtypes.extend(found[1].replace("torch.", "").split(", "))
                continue
            if (found := _CHOICE.search(line)) and block.dtypes:
                percent = None if found[3] is None else float(found[3])
                block.choices.append(_Printed(found[1], float(found[2]), percent, found[4]))
                continue
        if block is not None:
            yield block
        block = _Autotuning(head[1], head[2], [], [], []) if head else None
    if block is not None:
        yield block


def _problem(block: _Autotuning, dtype: str | None, hardware: Hardware) -> Problem:
    if block.op in SCALED:
        raise ProblemError(f"{block.op}, of which the log does not say the scales")
    try:
        sizes = [tuple(map(int, each.split("x"))) for each in block.sizes.split(", ")]
        strides = [tuple(map(int, each.split(", "))) for each in block.strides[0].strip("[]").split("], [")]
        inputs = list(map(Operand, sizes, strides))
    except ValueError:
        raise ProblemError("sizes that are only hints") from None
    problem = problem_of_inputs(block.op, block.dtypes, inputs)
    if problem.dtype != "float32" or hardware.is_cpu:
        return problem
    allowed = {found for each in block.choices for found in re.findall(r"ALLOW_TF32=(\w+)", each.arguments)}
    if "True" in allowed:
        return problem._replace(dtype="tf32")
    if "False" in allowed and problem.m >= _TF32_ROWS and min(problem.n, problem.k) >= _TF32_COLUMNS:
        return problem
    if dtype not in ("float32", "tf32"):
        raise ProblemError("float32 of which the log does not say whether it is TF32 (give --dtype float32 or tf32)")
    return problem._replace(dtype=dtype)


def _config(op: str, name: str, arguments: str) -> Config:
    """Return the config of a choice. The name of a generated choice ends with a number that counts choices."""
    name = re.sub(r"^cpp_|_\d+$", "", name)
    if name.startswith("triton_"):
        return triton_config(op, name.removeprefix("triton_"), arguments)
    return other_config(op, name)
