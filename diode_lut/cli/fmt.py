"""``fmt``: tables in canonical form."""

from __future__ import annotations

from pathlib import Path

import click

from diode_lut import cli
from diode_lut.cli.output import say
from diode_lut.errors import TableError
from diode_lut.printable import printable


@click.command("fmt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file is not in canonical form.")
@click.pass_context
def fmt_command(ctx: click.Context, files: tuple[Path, ...], check: bool) -> None:
    """Put tables in canonical form, after jq or any editor; what they say stays as it is.

    Prints the name of each file that is not in that form. A file with an invalid row is an error, and left alone.
    """
    codes = [_format(file, check) for file in files]
    ctx.exit(max(codes))


def _format(file: Path, check: bool) -> int:
    """The exit code for one file: the others are formatted whatever is wrong with this one."""
    from diode_lut.cli.inputs import read_whole_table
    from diode_lut.table import to_bytes, write_table
    from diode_lut.table.read import read_bytes

    try:
        table = read_whole_table(file, "correct it first")
    except TableError as error:
        say(f"error: {error}", err=True)
        return cli.exit_code(error)
    if read_bytes(file) == to_bytes(table):
        return 0
    say(printable(str(file)))
    if not check:
        write_table(table, file)
    return int(check)
