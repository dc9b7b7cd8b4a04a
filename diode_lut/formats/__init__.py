"""Import and export formats of other tools, each imported when it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.errors import DiodeLutError, ExchangeError

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset
    from diode_lut.formats.content import Facts, Skipped, Timings
    from diode_lut.problem import Problem
    from diode_lut.table import Table


class Format(NamedTuple):
    """A format of a ``table`` or of ``timings``.

    ``read`` names the function ``(path, facts, skipped)`` of this package. It returns the Table or Timings of a file.
    ``write`` names the function ``(table, problems, facts, skipped)``, or ``(dataset, output)`` with the path of the
    file. It returns the bytes of a file. ``write`` is empty for formats without export.
    """

    description: str
    holds: str
    read: str
    write: str = ""


FORMATS = {
    "timings": Format("your own timings, CSV or JSON", "timings", "timings:read", "timings:write"),
    "inductor-table": Format(
        "the dictionary for torch._inductor.config.lookup_table.table",
        "table",
        "inductor:read_table",
        "inductor:write_table",
    ),
    "inductor-cache": Format("Inductor's cache directory, $TORCHINDUCTOR_CACHE_DIR", "timings", "inductor:read_cache"),
    "autotune-log": Format(
        "what Inductor prints under max-autotune, in a program's log", "timings", "inductor:read_log"
    ),
    "torch-diode-table": Format(
        "torch-diode's table, JSON", "table", "other_tools:read_diode_table", "other_tools:write_diode_table"
    ),
    "torch-diode-dataset": Format(
        "torch-diode's dataset, JSON or msgpack", "timings", "other_tools:read_diode_dataset"
    ),
    "tunableop": Format("TunableOp's results, tunableop_results0.csv", "timings", "other_tools:read_tunableop"),
    "vllm": Format("vLLM's configs of linear layers, JSON", "table", "other_tools:read_vllm"),
}
"""All formats, by their names on the command line."""


def read(name: str, path: Path, facts: Facts) -> tuple[Table | Timings, Skipped]:
    """Return the contents of a file in one of FORMATS, and the skipped rows. ExchangeError for another format."""
    skipped: Skipped = Counter()
    try:
        content: Table | Timings = resolve_name(f"{__name__}.{FORMATS[name].read}")(path, facts, skipped)
    except DiodeLutError:
        raise
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ExchangeError(f"{path}: not {FORMATS[name].description}, or damaged: {error!r}") from error
    return content, skipped


def write_table(name: str, table: Table, problems: Iterable[Problem], facts: Facts) -> tuple[bytes, Skipped]:
    """Return a file in one of FORMATS with the table's answers for the problems, and the skipped rows."""
    skipped: Skipped = Counter()
    data: bytes = resolve_name(f"{__name__}.{FORMATS[name].write}")(table, problems, facts, skipped)
    return data, skipped


def write_timings(name: str, dataset: Dataset, output: Path) -> bytes:
    """Return a file in one of FORMATS with all timings of the dataset."""
    data: bytes = resolve_name(f"{__name__}.{FORMATS[name].write}")(dataset, output)
    return data
