"""Reading and writing files of any of the formats, and what their modules share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from diode_lut.dataset import Dataset, Header, Record
from diode_lut.errors import DiodeLutError, ExchangeError, ProblemError
from diode_lut.exchange.registry import FORMATS
from diode_lut.problem import Hardware, Problem
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
