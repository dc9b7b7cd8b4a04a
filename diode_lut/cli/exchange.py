"""``import`` and ``export``: tables and timings of other tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.inputs import end_with_losses, read_whole_table
from diode_lut.cli.output import in_a_file, is_standard, say, write
from diode_lut.cli.typed import ANY_OUTPUT, FILE, TABLE, Typed, require_kind
from diode_lut.cli.values import DTYPE, LAYOUT, OP, hardware_of
from diode_lut.domain.errors import ExchangeError
from diode_lut.domain.printable import printable
from diode_lut.exchange import FORMATS

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset, Record
    from diode_lut.exchange.content import Facts, Timings
    from diode_lut.table import Table

_EXPORTED = tuple(name for name, each in FORMATS.items() if each.write)


def _listed(names: Iterable[str]) -> str:
    lines = (f"  {name}: {FORMATS[name].description} ({FORMATS[name].holds})" for name in names)
    return "\n".join(("\b", "Formats:", *lines))


_LAYOUT = click.option(
    "--layout",
    type=LAYOUT,
    help="The layout of A and B, where the file cannot say it.  [default: nn, but none for timings]",
)


@click.command("import", epilog=_listed(FORMATS))
@click.argument("name", metavar="FORMAT", type=click.Choice(tuple(FORMATS)))
@click.argument("source", metavar="IN", type=FILE)
@click.option("-o", "--output", metavar="OUT", required=True, type=ANY_OUTPUT, help="The table or dataset to write.")
@click.option(
    "--hardware", metavar="NAME", help="The hardware that was measured: a table's name or its GPU's, or NAME,ARCH,SMS."
)
@click.option("--op", type=OP, help="The op of all GEMMs, where the file does not say it.")
@click.option(
    "--dtype",
    type=DTYPE,
    help="The type of the inputs, where the file does not say it; or tf32 for float32.",
)
@_LAYOUT
def import_command(
    name: str, source: Typed, output: Path, hardware: str | None, op: str | None, dtype: str | None, layout: str | None
) -> None:
    """Convert another tool's table or timings, or your own timings.

    Timings become a dataset, from which build makes a table. What is skipped is counted, with the reason.
    """
    from diode_lut.exchange import read
    from diode_lut.exchange.content import Facts

    if not is_standard(output) and output.exists() and output.stat().st_size:
        raise ExchangeError(f"{output}: exists already, and an import adds nothing to a file: name another one")
    facts = Facts(hardware_of(hardware) if hardware is not None else None, op, dtype, layout, source.contents)
    content, skipped = read(name, source.path, facts)
    try:
        taken = _save_timings(content, output) if isinstance(content, tuple) else _save_table(content, output)
    finally:
        _say(skipped)
    say(printable(f"{output}: {taken}"), err=is_standard(output))


@click.command("export", epilog=_listed(_EXPORTED))
@click.argument("name", metavar="FORMAT", type=click.Choice(_EXPORTED))
@click.argument("typed", metavar="IN", type=TABLE)
@click.option("-o", "--output", metavar="OUT", required=True, type=ANY_OUTPUT, help="The file to write.")
@click.option(
    "--problems",
    type=FILE,
    metavar="SET|FILE",
    help="A set or file as collect takes it: export the table's answers for these problems.  [default: those with a "
    "row of their own]",
)
@click.option(
    "--dtype",
    type=DTYPE,
    help="tf32 exports a table's answers for tf32 instead of float32, where the file cannot say which.",
)
@_LAYOUT
def export_command(
    name: str, typed: Typed, output: Path, problems: Typed | None, dtype: str | None, layout: str | None
) -> None:
    """Convert a table or dataset for another tool.

    Other tools have no ranges, so a table's answers for single problems are exported. What is skipped is counted, with
    the reason.
    """
    from diode_lut.exchange import write_timings
    from diode_lut.exchange.content import Facts

    require_kind(output, name)
    skipped: Counter[str] = Counter()
    datasets: list[Dataset] = []
    if FORMATS[name].holds == "timings":
        from diode_lut.dataset import read_dataset

        datasets = [read_dataset(typed.path, contents=typed.contents)]
        data = write_timings(name, datasets[0], output)
    else:
        data, skipped = _table_bytes(name, typed, problems, Facts(dtype=dtype, layout=layout))
    write(output, data)
    say(printable(f"{output}: {len(data)} bytes"), err=is_standard(output))
    _say(skipped)
    end_with_losses(datasets)


def _save_timings(timings: Timings, output: Path) -> str:
    """Write a dataset, and describe its size."""
    from diode_lut.dataset.writer import write_stream

    count, problems = 0, set()

    def counted() -> Iterator[Record]:
        nonlocal count
        for record in timings.records:
            count += len(record.timings)
            problems.add(record.problem)
            yield record
        if not count:
            raise ExchangeError("nothing in it could be imported")

    with in_a_file(output) as path:
        write_stream(path, timings.header, counted())
    return f"{count} timings of {len(problems)} problems"


def _save_table(table: Table, output: Path) -> str:
    """Write a table, and describe its size."""
    from diode_lut.table import placed, to_bytes

    if not table.entries:
        raise ExchangeError("nothing in it could be imported")
    write(output, to_bytes(placed(table, output)))
    return f"{len(table.entries)} rows"


def _table_bytes(name: str, typed: Typed, problems: Typed | None, facts: Facts) -> tuple[bytes, Counter[str]]:
    from diode_lut.cli.collect import problems_of
    from diode_lut.exchange import write_table
    from diode_lut.exchange.content import exact_problems

    table = read_whole_table(typed, "correct it first")
    left_out: Counter[str] = Counter()
    wanted = exact_problems(table, left_out) if problems is None else problems_of(problems, None)
    data, skipped = write_table(name, table, wanted, facts)
    return data, left_out + skipped


def _say(skipped: Counter[str]) -> None:
    for reason, count in sorted(skipped.items()):
        say(printable(f"  skipped: {count}: {reason}"), err=True)
