"""``merge``: one table from two."""

from __future__ import annotations

from pathlib import Path

import click

from diode_lut.cli.inputs import read_whole_table
from diode_lut.cli.output import say

_FILE = click.Path(dir_okay=False, path_type=Path)
_REMEDY = "correct it first"


@click.command("merge")
@click.argument("files", metavar="[BASE] OURS THEIRS", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", metavar="OUT", type=_FILE, help="The table to write.  [default: standard output]")
@click.pass_context
def merge_command(ctx: click.Context, files: tuple[Path, ...], output: Path | None) -> None:
    """Merge what OURS and THEIRS made of BASE; without BASE, or with an empty file, unite the rows of both.

    A row that one side changed is taken from that side. Of one that both changed, the better evidence stays: a note,
    a gain larger by more than noise, more measured problems, newer software. If none is clear, OURS stays and its note
    names THEIRS. Prints a line for every row that is gone. Exits with 1 if there are conflicts.
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
