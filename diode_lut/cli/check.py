"""``check``: everything that is wrong with table files."""

from __future__ import annotations

from pathlib import Path

import click

from diode_lut import cli
from diode_lut.cli.reporters import REPORTERS


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(list(REPORTERS)),
    default="text",
    show_default=True,
    help="Lines for people, a JSON list, or annotations for GitHub Actions.",
)
@click.pass_context
def check_command(ctx: click.Context, files: tuple[Path, ...], form: str) -> None:
    """Find everything that is wrong with tables.

    That is what the schema says, rows that contradict each other or can never answer, configs that the architecture
    cannot launch, and any form but that of fmt. Prints one line for each problem, as FILE:LINE:COLUMN: PATH: what was
    found and what is allowed.
    """
    from diode_lut.table import check_file

    errors = [error for file in files for error in check_file(file)]
    for line in REPORTERS[form](errors):
        click.echo(line)
    click.echo(f"{_count(len(files), 'file')}, {_count(len(errors), 'problem')}", err=True)
    ctx.exit(max(map(cli.exit_code, errors), default=0))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
