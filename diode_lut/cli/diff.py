"""``diff``: what is different between two tables."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.output import progress_bars, say
from diode_lut.errors import TableError

if TYPE_CHECKING:
    from diode_lut.diff.effect import Effect
    from diode_lut.table import Table

_FILE = click.Path(dir_okay=False, path_type=Path)
_FORMATS = ("text", "json", "markdown")


@click.command("diff")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@click.option(
    "--dataset", "inputs", metavar="FILE", multiple=True, type=_FILE, help="Say what it does to time on these."
)
@click.option(
    "--format",
    "style",
    type=click.Choice(_FORMATS),
    default="text",
    show_default=True,
    help="For a terminal, for programs, or for a comment on a pull request.",
)
@click.pass_context
def diff_command(ctx: click.Context, old: Path, new: Path, inputs: tuple[Path, ...], style: str) -> None:
    """Show which rows came, went, cover less or more, or name another kernel.

    Exits with 0 if both tables say the same, in whatever order, with 1 if not, with 2 if one is no table. With
    --dataset, which may be given several times: the problems that get another config, and how much faster or slower
    they are.
    """
    from diode_lut.catalog import open_table
    from diode_lut.diff import compare
    from diode_lut.diff.report import Report

    try:
        old_table, new_table = open_table(old), open_table(new)
    except TableError as error:  # 1 would say that they are different
        say(f"error: {error}", err=True)
        ctx.exit(2)
    diff = compare(old_table, new_table)
    effect = _effect(old_table, new_table, inputs) if inputs else None
    renderer = getattr(import_module(f"diode_lut.diff.as_{style}"), f"as_{style}")
    say(renderer(Report(str(old), str(new), diff, effect)))
    ctx.exit(1 if diff else 0)


def _effect(old: Table, new: Table, inputs: tuple[Path, ...]) -> Effect:

    from diode_lut.cli.inputs import read_datasets_for
    from diode_lut.diff.effect import effect_of

    datasets = read_datasets_for(new, inputs)
    with progress_bars() as progress:
        records = (record for each in datasets for record in progress.track(each, each.path.name))
        return effect_of(old, new, records)
