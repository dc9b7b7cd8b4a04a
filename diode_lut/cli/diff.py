"""``diff`` and ``merge``."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import click

from diode_lut.cli.inputs import read_whole_table
from diode_lut.cli.output import progress_bars, say
from diode_lut.domain.errors import TableError

if TYPE_CHECKING:
    from diode_lut.diff.report import Effect
    from diode_lut.table import Table

_FILE = click.Path(dir_okay=False, path_type=Path)
_FORMATS = {style: f"diode_lut.diff.formats:as_{style}" for style in ("text", "json", "markdown")}


@click.command("diff")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@click.option(
    "--dataset",
    "inputs",
    metavar="FILE",
    multiple=True,
    type=_FILE,
    help="Show the effect on these measured problems.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="For a terminal, for programs, or for a comment on a pull request.",
)
@click.pass_context
def diff_command(ctx: click.Context, old: Path, new: Path, inputs: tuple[Path, ...], style: str) -> None:
    """Show which rows were added or removed, cover less or more, or have another first config.

    Exits with 0 if both tables have the same rows, in any order, with 1 if not, with 2 if a file is no table. With
    --dataset, which may be given several times, also shows the problems that get another config, and how much faster
    or slower they are.
    """
    from diode_lut.diff import compare
    from diode_lut.diff.report import Report
    from diode_lut.selection.catalog import open_table

    try:
        old_table, new_table = open_table(old), open_table(new)
    except TableError as error:  # exit code 1 would mean that they differ
        say(f"error: {error}", err=True)
        ctx.exit(2)
    diff = compare(old_table, new_table)
    effect = _effect(old_table, new_table, inputs) if inputs else None
    say(resolve_name(_FORMATS[style])(Report(str(old), str(new), diff, effect)))
    ctx.exit(1 if diff else 0)


def _effect(old: Table, new: Table, inputs: tuple[Path, ...]) -> Effect:

    from diode_lut.cli.inputs import read_datasets_for
    from diode_lut.diff.report import effect_of

    datasets = read_datasets_for(new, inputs)
    with progress_bars() as progress:
        records = (record for each in datasets for record in progress.track(each, each.path.name))
        return effect_of(old, new, records)


_REMEDY = "correct it first"


@click.command("merge")
@click.argument("files", metavar="[BASE] OURS THEIRS", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", metavar="OUT", type=_FILE, help="The table to write.  [default: standard output]")
@click.pass_context
def merge_command(ctx: click.Context, files: tuple[Path, ...], output: Path | None) -> None:
    """Merge the changes of OURS and THEIRS to BASE. Without BASE, or if it is an empty file, unite the rows of both.

    A row that one side changed is taken from that side. If both changed it, the better evidence stays: a note, a gain
    larger by more than noise, more measured problems, newer software. Without evidence OURS stays, and its note names
    THEIRS. Prints a line for every row that is gone. Exits with 1 if there are conflicts.
    """
    from diode_lut.merge import merge
    from diode_lut.table import to_bytes, write_table

    if not 2 <= len(files) <= 3:
        raise click.UsageError("give two tables, or three: BASE OURS THEIRS")
    *bases, ours, theirs = files
    base = next((read_whole_table(path, _REMEDY) for path in bases if path.stat().st_size), None)
    merged = merge(base, read_whole_table(ours, _REMEDY), read_whole_table(theirs, _REMEDY))
    for remark in merged.remarks:
        say(str(remark), err=True)
    if output is None:
        click.echo(to_bytes(merged.table), nl=False)
    else:
        write_table(merged.table, output)
    ctx.exit(1 if merged.conflicts else 0)
