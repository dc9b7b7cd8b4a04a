"""``run``, ``tune`` and ``compare``: the user's own programs, as they are."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from diode_lut.cli.output import say

_AS_TYPED = {"ignore_unknown_options": False, "allow_interspersed_args": False}
"""Options end where the program begins, with or without ``--``."""

_COMMAND = click.argument(
    "command", metavar="[--] PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED
)
_FILE = click.Path(dir_okay=False, path_type=Path)
_TABLES = click.option(
    "--table",
    "tables",
    metavar="TABLE",
    multiple=True,
    help="A table or model of your own, by path or name, asked before those of DIODE_LUT_TABLES; can be repeated.",
)


@click.command("run", context_settings=_AS_TYPED)
@_TABLES
@click.option(
    "--receipt",
    metavar="FILE",
    type=_FILE,
    help="Where to write the receipt.  [default: DIODE_LUT_RECEIPT, else diode-lut-receipt.json]",
)
@_COMMAND
@click.pass_context
def run_command(ctx: click.Context, command: tuple[str, ...], tables: tuple[str, ...], receipt: Path | None) -> None:
    """Run a program with tuned kernels, in all of its processes, without an edit, and sum up what was answered.

    The exit code is the program's: 128 and the signal's number where a signal ended it, 127 where there is no such
    program, 126 where it cannot be started.
    """
    from diode_lut.programs.account import run_with_receipt, summary

    destination = receipt or Path(os.environ.get("DIODE_LUT_RECEIPT") or "diode-lut-receipt.json").absolute()
    run = run_with_receipt(command, with_tables(tables), destination)
    tell(summary(run, destination, f"diode-lut tune -- {shlex.join(command)}"))
    ctx.exit(run.ended.code)


def with_tables(tables: Sequence[str]) -> dict[str, str]:
    """The environment with more tables, which may be relative to our directory; TableError if there is no such file."""
    from diode_lut.selection.catalog import find_path

    named = [str(find_path(name).absolute()) for name in tables]
    names = os.pathsep.join([*named, *filter(None, [os.environ.get("DIODE_LUT_TABLES")])])
    return {**os.environ, **({"DIODE_LUT_TABLES": names} if names else {})}


def tell(lines: Sequence[str]) -> None:
    """Print lines on standard error, so that the program's own output stays what it is."""
    for line in lines:
        say(f"diode-lut: {line}", err=True)
