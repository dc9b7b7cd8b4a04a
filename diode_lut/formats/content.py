"""Contents of other tools' files: facts from the user, tables of single problems, timings, and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from diode_lut.dataset import Header, Record
from diode_lut.dataset.dataset import opened
from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.files import has_more_values, read_at_most
from diode_lut.hardware import Hardware, gpus_of, known_gpu
from diode_lut.problem import BATCHED, NO_DTYPE, NO_LAYOUT, ROW_BYTES, SIZE_FIELDS, Problem
from diode_lut.table import Candidate, Entry, Table
from diode_lut.table.row import KIND_FIELDS
from diode_lut.templates.config import Config


class Facts(NamedTuple):
    """Facts that a file's format lacks, for all GEMMs in it. ``contents`` replaces reading the file."""

    hardware: Hardware | None = None
    op: str | None = None
    dtype: str | None = None
    layout: str | None = None
    contents: bytes | None = None


class Timings(NamedTuple):
    """The contents of a file of timings. Records may be read from the file while they are iterated over, once."""

    header: Header
    records: Iterable[Record]


Skipped = Counter[str]  # number of rows or timings without import or export, by reason


@contextmanager
def counting(skipped: Skipped, number: int = 1) -> Iterator[None]:
    """End the block at a ProblemError, and count ``number`` as skipped for its reason."""
    try:
        yield
    except ProblemError as error:
        skipped[str(error)] += number


def known_hardware(facts: Facts, path: Path, *names: str) -> Hardware:
    """Return the user's hardware, or the known GPU with one of the ``names``. ExchangeError asks if that is not one."""
    known = [gpu for name in names if (gpu := known_gpu(name))] if facts.hardware is None else [facts.hardware]
    found = known[0] if known else None
    if found is None or any(gpu != found for gpu in known):
        said = f"is of {', '.join(map(repr, names))}" if names else "does not say what it was measured on"
        alike = [gpu for name in names for gpu in gpus_of(name.partition(":")[0])]
        said += f", such as {', '.join(alike)}" if alike else ""
        new = f"{f'{names[0]},ARCH,SMS'!r}, such as " if len(names) == 1 and not alike else ""
        raise ExchangeError(
            f"{path}: {said}: give --hardware, as a GPU's or table's name or {new}'NVIDIA H200,sm_90,132'"
        )
    return found


def exact_table(hardware: Hardware, answers: Mapping[Problem, Sequence[Config]]) -> Table:
    """Make a table with a row for each problem with configs."""
    rows = (
        Entry(
            *(problem.op, problem.dtype, problem.layout, problem.align),
            b=(problem.b, problem.b) if problem.op in BATCHED else None,
            m=(problem.m, problem.m),
            n=(problem.n, problem.n),
            k=(problem.k, problem.k),
            candidates=tuple(map(Candidate, configs)),
            variant=problem.variant or None,
        )
        for problem, configs in answers.items()
        if configs
    )
    return Table(hardware, list(rows))


def exact_problems(table: Table, skipped: Skipped) -> list[Problem]:
    """Return the problems of the rows for a single problem. Other rows are skipped."""
    exact = [entry for entry in table.entries if entry.is_exact]
    if len(exact) < len(table.entries):
        skipped["rows for more than one problem (say which problems: --problems)"] += len(table.entries) - len(exact)
    problems = []
    for entry in exact:  # it leaves out at most ``b``, ``epilogue`` and an unknown variant
        kind: dict[str, Any] = {name: value for name in KIND_FIELDS if (value := getattr(entry, name)) is not None}
        sizes: dict[str, Any] = {name: min(getattr(entry, name) or (1,)) for name in SIZE_FIELDS}
        problems.append(Problem(**{"dtype": NO_DTYPE, "layout": NO_LAYOUT, "align": ROW_BYTES, **kind}, **sizes))
    return problems


def answers(table: Table, problems: Iterable[Problem], skipped: Skipped) -> Iterator[tuple[Problem, Entry]]:
    """Yield the table's row for each problem. Problems without a row are skipped."""
    for problem in problems:
        entry = table.lookup(problem)
        if entry is None:
            skipped["problems that the table does not cover"] += 1
        else:
            yield problem, entry


_MAX_LINE_BYTES = 1 << 20


def lines(path: Path, contents: bytes | None = None) -> Iterator[bytes]:
    """Yield the lines of a file of any size, with their ends. A line of more than a MiB comes in several parts."""
    with opened(path, contents) as file:
        yield from iter(lambda: file.readline(_MAX_LINE_BYTES), b"")


_MAX_BYTES = 1 << 30
_MAX_VALUES = 50_000_000  # Size limits of a JSON file. Two million timings have fewer values


def read_json(path: Path, kind: type, what: str, contents: bytes | None = None) -> Any:
    """Return the document, which may hold NaN and Infinity. ExchangeError names ``what`` if it has another type."""
    data = read_at_most(path, _MAX_BYTES) if contents is None else contents
    if has_more_values(data, _MAX_VALUES):
        raise ExchangeError(f"{path}: more than {_MAX_VALUES} values (expected {what})")
    try:
        document = json.loads(data)
    except RecursionError:
        raise ExchangeError(f"{path}: nested too deeply (expected {what})") from None
    except json.JSONDecodeError as error:
        raise ExchangeError(f"{path}:{error.lineno}: not JSON: {error.msg} (expected {what})") from None
    except ValueError as error:  # not UTF-8, or a number of too many digits
        raise ExchangeError(f"{path}: not JSON: {error} (expected {what})") from None
    if not isinstance(document, kind):
        found = "an object" if isinstance(document, dict) else "a list" if isinstance(document, list) else "one value"
        raise ExchangeError(f"{path}: expected {what}; found {found}")
    return document
