"""``git-setup``: have git show and merge tables by their rows."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from diode_lut.cli.output import say
from diode_lut.git import TABLES, set_up
from diode_lut.printable import printable


@click.command("git-setup")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
def git_setup_command(patterns: tuple[str, ...]) -> None:
    """Set up this clone, so that git shows and merges tables row by row.

    PATTERN says which files are tables, as .gitattributes has it; by default tables/*.json. git diff, log and show then
    print tables and models (*.mlp.safetensors) as the show command does, and git merge uses the merge command. Nothing
    that is committed is changed.
    """
    tables = patterns or TABLES
    attributes = set_up(Path.cwd(), sys.executable, tables)
    say(printable(f"{attributes}: {', '.join(tables)}"))
