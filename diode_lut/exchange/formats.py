"""What formats are made of: facts, timings, what was skipped, and reading JSON."""

from __future__ import annotations

import ast
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from diode_lut.dataset import Dataset, Header, Record
from diode_lut.domain.errors import DiodeLutError, ExchangeError, ProblemError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.exchange.registry import FORMATS
from diode_lut.io.bounded import has_more_values, read_at_most
from diode_lut.table import Table


class Facts(NamedTuple):
    """What the user says about a file, because formats do not: each is None, or empty, if nothing was said.

    ``hardware`` is what it was measured on, ``op``, ``dtype`` and ``layout`` those of all products in it.
    """

    hardware: Hardware | None = None
    op: str | None = None
    dtype: str | None = None
    layout: str | None = None


class Timings(NamedTuple):
    """What is in a file of timings."""

    header: Header
    records: list[Record]


Skipped = Counter[str]
"""How many rows or timings could not be taken or given, by reason."""


def read(name: str, path: Path, facts: Facts) -> tuple[Table | Timings, Skipped]:
    """What is in a file of the format of that name; ExchangeError if it is none."""
    skipped = Skipped()
    try:
        content: Table | Timings = import_module(FORMATS[name].module).read(path, facts, skipped)
    except DiodeLutError:
        raise
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ExchangeError(f"{path}: not {FORMATS[name].description}, or damaged: {error!r}") from error
    return content, skipped


def write_table(name: str, table: Table, problems: Iterable[Problem], facts: Facts) -> tuple[bytes, Skipped]:
    """A file of the format of that name, with what the table answers for the problems."""
    skipped = Skipped()
    data: bytes = import_module(FORMATS[name].module).write(table, problems, facts, skipped)
    return data, skipped


def write_timings(name: str, dataset: Dataset) -> bytes:
    """A file of the format of that name, with all timings of the dataset."""
    data: bytes = import_module(FORMATS[name].module).write(dataset)
    return data


@contextmanager
def counting(skipped: Skipped, number: int = 1) -> Iterator[None]:
    """Counts what a ProblemError ends as so many that were skipped."""
    try:
        yield
    except ProblemError as error:
        skipped[str(error)] += number


NANOSECONDS = 1e6
"""In one of the milliseconds that other tools count in."""

_LARGEST = 1e300
_MAX_BYTES = 1 << 30
_MAX_VALUES = 50_000_000
"""A million timings as T4 results are fewer."""

_LONGEST_LITERAL = 4096


def literal(text: str) -> Any:
    """The value of a Python literal, of which nothing is run; ValueError for anything else."""
    if len(text) > _LONGEST_LITERAL:
        raise ValueError(f"{len(text)} characters, which no shapes have")
    try:
        return ast.literal_eval(text)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"{text[:60]!r} is no literal") from error


def nanoseconds(milliseconds: Any) -> float:
    """NaN, which is no time, for what is no number or too large for one."""
    known = type(milliseconds) in (int, float) and abs(milliseconds) < _LARGEST
    return milliseconds * NANOSECONDS if known else math.nan


def read_json(path: Path, kind: type, what: str) -> Any:
    """The document, of this kind, with NaN and Infinity allowed; ExchangeError says that ``what`` was expected."""
    data = read_at_most(path, _MAX_BYTES)
    if has_more_values(data, _MAX_VALUES):
        raise ExchangeError(f"{path}: more than {_MAX_VALUES} values (expected {what})")
    try:
        document = json.loads(data)
    except RecursionError:
        raise ExchangeError(f"{path}: nested too deeply (expected {what})") from None
    except ValueError as error:
        raise ExchangeError(f"{path}: not JSON: {error} (expected {what})") from None
    if not isinstance(document, kind):
        raise ExchangeError(f"{path}: not {what}")
    return document


def known_hardware(facts: Facts, path: Path) -> Hardware:
    """The hardware that the user named; ExchangeError asks for it."""
    if facts.hardware is None:
        raise ExchangeError(
            f"{path}: does not say what it was measured on: give --hardware, as a table's name or as "
            "'NVIDIA H200,sm_90,132'"
        )
    return facts.hardware
