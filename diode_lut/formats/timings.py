"""Own timings, in CSV or JSON: a row, or an object, for each time of a config on a problem.

docs/exchange.md lists the columns. CSV has their names in its first row, and JSON is a list of objects. Nothing is
guessed: a time has a unit, and matrices have a layout or strides. An unreadable row is an error with its place.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from diode_lut.dataset import REASONS, STAGES, Dataset, Header, Record, Timing
from diode_lut.errors import ExchangeError, ProblemError, dtype_of, layout_of, number_of, op_of, variant_of
from diode_lut.formats.content import Facts, Skipped, Timings, known_hardware, lines, read_json
from diode_lut.hardware import Hardware, is_called, known_gpu
from diode_lut.problem import (
    ATTENTION_SIZES,
    BATCHED,
    GENERATED,
    MATMULS,
    NO_EPILOGUE,
    NO_VARIANT,
    OF_KERNELS,
    SIZE_FIELDS,
    Operand,
    Problem,
    needed_sizes,
    problem_of,
)
from diode_lut.templates.config import TEMPLATES, Config

Cells = dict[str, str]  # the cells of a row with contents, by the names of their columns in lower case

_Fields = tuple[tuple[str, str], ...]

_NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}  # nanoseconds of each unit of time

_NUMBERS = re.compile(r"[\[( ]*\d{1,12}((?: *[x,;] *| +)\d{1,12}){1,2}[\]) ]*")
_STRIDES = ("strides_a", "strides_b")
_PROBLEM = ("op", "dtype", "layout", "align", *SIZE_FIELDS, "epilogue", "variant", *_STRIDES)
_CONFIG = ("config", *dict.fromkeys(("template", *(name for each in TEMPLATES.values() for name in each.names))))
_TIMES = ("time", *(f"time_{unit}" for unit in _NANOSECONDS))
_DEVICE = ("device", "arch", "sm_count")
_SOFTWARE = ("torch", "triton", "cuda", "driver", "benchmarker", "measured_by")
_COLUMNS = {*_PROBLEM, *_CONFIG, *_TIMES, *_DEVICE, *_SOFTWARE, "unit", "reason", "stage", "repetitions", "date"}
_WHAT = "timings, a list of objects"


def read(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """Return the timings. Consecutive rows of a problem are a record, until a config has a further time."""
    return Timings(_header(path, facts), _records(path, facts, skipped))


def write(dataset: Dataset, output: Path) -> bytes:
    """Write all timings, as JSON if the name of the file ends with ``.json``, else as CSV."""
    header = dataset.header
    about = dict(zip(_DEVICE, header.hardware, strict=False))
    about |= {name: getattr(header, name) for name in _SOFTWARE} | {"date": header.measured_on}
    rows: Iterator[dict[str, Any]] = (
        {**record.problem._asdict(), "config": str(config), "time_ns": ns, "reason": reason, "stage": record.stage}
        | about
        for record in dataset
        for config, ns, reason in record.timings
    )
    if output.suffix == ".json":
        filled = [{name: value for name, value in row.items() if value not in (None, "")} for row in rows]
        return orjson.dumps(filled, option=orjson.OPT_INDENT_2) + b"\n"
    text = io.StringIO()
    writer = csv.DictWriter(
        text, (*Problem._fields, "config", "time_ns", "reason", "stage", *about), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _header(path: Path, facts: Facts) -> Header:
    """Return the header from the first row. The others must agree, where an empty cell agrees with all."""
    first: Cells = {}
    repetitions: set[int] = set()
    days: set[str] = set()
    for number, cells in _rows(path, facts, Counter()):
        with _naming(path, number):
            first = first or cells
            for name in (*_DEVICE, *_SOFTWARE):
                if name in cells and cells[name] != first.get(name):
                    said = f"{name} is {cells[name]!r}, but {first.get(name, '')!r} in the first row"
                    raise ProblemError(f"{said} (a dataset is of one device and its software: make one file for each)")
            if "repetitions" in cells:
                repetitions.add(_integer("repetitions", cells["repetitions"]))
                if min(repetitions) < 1:
                    raise ProblemError("repetitions: 0 measure nothing (allowed: 1 and more, or an empty cell)")
            if "date" in cells:
                try:
                    days.add(date.fromisoformat(cells["date"][:10]).isoformat())
                except ValueError:
                    reason = f"date: {cells['date']!r} does not begin with a date like 2026-11-21"
                    raise ProblemError(reason) from None
    if not first:
        raise ExchangeError(f"{path}: no timings: there is no row after the names of columns")
    software = {name: first.get(name, "") for name in _SOFTWARE}
    software["benchmarker"] = software["benchmarker"] or "timings"
    if repetitions:
        software["benchmarker"] += f", at least {min(repetitions)} repetitions"
    name = first.get("device", "")
    if name and facts.hardware is None and {"arch", "sm_count"} <= first.keys():
        try:
            hardware = Hardware.described(name, first["arch"], _integer("sm_count", first["sm_count"]))
        except ProblemError as error:
            raise ExchangeError(f"{path}: {error}") from None
    else:
        hardware = known_hardware(facts, path, *filter(None, [name]))
        if known_gpu(name) and not is_called(hardware, name):
            said = f"measured on {name!r}, but --hardware is {hardware}"
            raise ExchangeError(f"{path}: {said}: leave it out or correct it")
    return Header(hardware, **software, measured_on=min(days, default=""))


def _records(path: Path, facts: Facts, skipped: Skipped) -> Iterator[Record]:
    told = tuple((name, value) for name in ("op", "dtype", "layout") if (value := getattr(facts, name)) is not None)
    record: Record | None = None
    timings: dict[Config, Timing] = {}
    for number, cells in _rows(path, facts, skipped):
        with _naming(path, number):
            problem = _problem(tuple((name, cells[name]) for name in _PROBLEM if name in cells), told)
            config = _config(tuple((name, cells[name]) for name in _CONFIG if name in cells))
            if problem.op not in config.kernel.ops:
                known = ", ".join(config.kernel.ops)
                raise ProblemError(f"{config.template} does not compute {problem.op} (only {known})")
            timing, stage = _timing(config, cells), cells.get("stage", STAGES[0])
            if timing.ns is None and "reason" not in cells:
                skipped["a time that is not from 1 ns to 1000 s: its config counts as failed"] += 1
            if stage not in STAGES:
                raise ProblemError(f"stage: {stage!r} is not one of {', '.join(STAGES)}")
        if record is not None and (config in timings or record != (problem, (), stage)):
            yield record._replace(timings=tuple(timings.values()))
            timings = {}
        record = Record(problem, (), stage)
        timings[config] = timing
    if record is not None:
        yield record._replace(timings=tuple(timings.values()))


@lru_cache(maxsize=1 << 12)
def _problem(fields: _Fields, told: _Fields) -> Problem:
    """Return the problem from a row's columns and from the user's facts."""
    strided = any(name in _STRIDES for name, _ in fields)
    of_all = {name: value for name, value in told if not (strided and name == "layout")}
    named = of_all | dict(fields)
    generated = op_of(named.get("op", "")) in GENERATED
    needed: tuple[str, ...] = ("op", "dtype", "m", "n", "k")
    if generated:
        needed = ("op", "variant", *needed_sizes(op_of(named["op"]), named.get("variant")))
    for name in needed:
        if name not in named:
            raise ProblemError(f"no {name} (add the column{f', or give --{name}' if name in ('op', 'dtype') else ''})")
    if generated:
        of_kernel: dict[str, Any] = {name: _integer(name, named[name]) for name in OF_KERNELS if name in named}
        return Problem.generated(named["op"], named["variant"], **of_kernel)
    op, dtype = op_of(named["op"]), dtype_of(named["dtype"])
    dtype = "tf32" if dtype == "float32" and of_all.get("dtype") == "tf32" else dtype
    sizes = {name: _integer(name, named[name]) for name in ATTENTION_SIZES if name in named}
    align = _integer("align", named["align"]) if "align" in named else None
    epilogue, variant = named.get("epilogue", NO_EPILOGUE), variant_of(named.get("variant", NO_VARIANT))
    if strided:
        a, b = (_operand(name, named.get(name, ""), op, sizes) for name in _STRIDES)
        shown = problem_of(op, dtype, a, b, variant)
        if (layout_of(named.get("layout", shown.layout)), align or shown.align) != (shown.layout, shown.align):
            raise ProblemError(f"the strides are those of layout {shown.layout} and align {shown.align}")
        named["layout"], align = shown.layout, shown.align
    if "layout" not in named:
        raise ProblemError(f"no layout (add the column, or {' and '.join(_STRIDES)}, or give --layout)")
    layout = named["layout"]
    return Problem.of(op, dtype=dtype, layout=layout, align=align, epilogue=epilogue, variant=variant, **sizes)


def _operand(name: str, text: str, op: str, sizes: dict[str, int]) -> Operand:
    if op not in MATMULS:
        raise ProblemError(f"{name}: is only for {', '.join(MATMULS)} (give the layout)")
    rows, columns = ("m", "k") if name == _STRIDES[0] else ("k", "n")
    batch = (sizes.get("b", 1),) if op in BATCHED else ()
    strides = tuple(map(int, re.findall(r"\d+", text))) if _NUMBERS.fullmatch(text) else ()
    if len(strides) != len(batch) + 2:
        raise ProblemError(f"{name}: {text!r} are not {len(batch) + 2} strides in elements, such as 4096x1")
    return Operand((*batch, sizes[rows], sizes[columns]), strides)


@lru_cache(maxsize=1 << 12)
def _config(fields: _Fields) -> Config:
    named = dict(fields)
    if "config" in named:
        if len(named) > 1:
            raise ProblemError("config and columns of tunables: remove one of them")
        return Config.parse(named["config"])
    if "template" not in named:
        raise ProblemError("no config (add the column, or template and the columns of its tunables)")
    return Config.from_json({name: text if name == "template" else _integer(name, text) for name, text in fields})


def _timing(config: Config, cells: Cells) -> Timing:
    reason, times = cells.get("reason"), [name for name in _TIMES if name in cells]
    if len(times) != (reason is None):
        found = " and ".join(times + ["reason"] * (reason is not None)) or "no time"
        remedy = f"give one: {', '.join(_TIMES[1:])}, or time and unit, or the reason why there is none"
        raise ProblemError(f"{found} ({remedy})")
    if reason is not None:
        if reason not in REASONS:
            raise ProblemError(f"reason: {reason!r} is not one of {', '.join(REASONS)}")
        return Timing(config, None, reason)
    (name,) = times
    unit = name.removeprefix("time_") if name != "time" else cells.get("unit", "").casefold().replace("\u03bc", "u")
    if unit not in _NANOSECONDS:
        found = f"unit: {unit!r} is not one of {', '.join(_NANOSECONDS)}" if unit else "time: has no unit"
        raise ProblemError(f"{found} (name the column {', '.join(_TIMES[1:])}, or add a column unit)")
    try:
        return Timing.of(config, float(cells[name]) * _NANOSECONDS[unit])
    except ValueError:
        raise ProblemError(f"{name}: {cells[name]!r} is not a number such as 5.2, without a unit") from None


def _integer(name: str, text: str) -> int:
    """Read a number, which pandas may have written as ``64.0``."""
    return int(number_of(name, text.removesuffix(".0")))


def _rows(path: Path, facts: Facts, skipped: Skipped) -> Iterator[tuple[int, Cells]]:
    """Yield rows with contents, and their numbers. In CSV, the names of columns are row 1."""
    start = next(filter(bytes.strip, lines(path, facts.contents)), b"")
    if start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"[", b"{")):
        for number, each in enumerate(read_json(path, list, _WHAT, facts.contents), 1):
            with _naming(path, number):
                if not isinstance(each, dict):
                    raise ProblemError(f"not an object (expected {_WHAT})")
                cells = {name.casefold(): _text(name, value) for name, value in each.items() if value not in (None, "")}
            _skip_others(cells, skipped)
            if cells:
                yield number, cells
        return
    if b"\0" in start:
        raise ExchangeError(f"{path}: not text (expected CSV in UTF-8, as a spreadsheet saves it, or JSON)")
    reader = csv.reader((line.decode() for line in lines(path, facts.contents)), strict=True)
    try:
        names = [name.strip("\ufeff ").casefold() for name in next(reader, ())]
        if names and not _COLUMNS.intersection(names):
            remedy = "docs/exchange.md lists them, and examples/timings.csv is an example; commas are between them"
            raise ExchangeError(f"{path}: row 1: {names[0][:80]!r} is no column ({remedy})")
        for name in _COLUMNS.intersection(names):
            if names.count(name) > 1:
                raise ExchangeError(f"{path}: row 1: {names.count(name)} columns are called {name} (leave one)")
        _skip_others(names, skipped)
        for values in reader:
            if values and len(values) != len(names):
                counts = f"{len(values)} cells, but {len(names)} columns"
                raise ExchangeError(f"{path}: row {reader.line_num}: {counts} (quote a cell that has commas in it)")
            cells = {name: text for name, value in zip(names, values, strict=False) if (text := value.strip())}
            if cells:
                yield reader.line_num, cells
    except (csv.Error, UnicodeDecodeError) as error:
        number = reader.line_num + isinstance(error, UnicodeDecodeError)
        raise ExchangeError(f"{path}: row {number}: {error} (expected CSV in UTF-8)") from None


def _skip_others(names: Iterable[str], skipped: Skipped) -> None:
    for name in {*names} - _COLUMNS:
        close = get_close_matches(name, _COLUMNS, 1)
        skipped[f"column {name!r}, which is not read{f' (did you mean {close[0]}?)' if close else ''}"] += 1


def _text(name: str, value: Any) -> str:
    """Return a value of JSON as a cell of CSV has it."""
    if isinstance(value, list) and all(type(each) is int for each in value):
        return "x".join(map(str, value))
    if isinstance(value, (str, int, float)):
        return str(value).strip()
    raise ProblemError(f"{name}: is neither a text nor a number")


@contextmanager
def _naming(path: Path, number: int) -> Iterator[None]:
    """Turn a ProblemError in the block into an ExchangeError with the file and the row."""
    try:
        yield
    except ProblemError as error:
        raise ExchangeError(f"{path}: row {number}: {error}") from None
