"""``check``: everything that is wrong with table files."""

from __future__ import annotations

from pathlib import Path

import click

from diode_lut import cli


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def check_command(ctx: click.Context, files: tuple[Path, ...]) -> None:
    """Check tables against the schema, and for rows that contradict each other.

    Prints one line for each problem, as FILE:LINE: PATH: what was found and what is allowed.
    """
    from diode_lut.table import check_file

    errors = [error for file in files for error in check_file(file)]
    for error in errors:
        click.echo(str(error))
    click.echo(f"{_count(len(files), 'file')}, {_count(len(errors), 'problem')}", err=True)
    ctx.exit(max(map(cli.exit_code, errors), default=0))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
