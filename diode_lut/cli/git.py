"""``diff``, ``merge``, and ``git-setup``, which has git use them on tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import click

from diode_lut.cli.inputs import read_whole_table
from diode_lut.cli.output import progress_bars, say
from diode_lut.domain.errors import SettingError, TableError
from diode_lut.domain.printable import printable
from diode_lut.io.files import read_at_most, write_atomically

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


DRIVER = "diode-lut"
"""Git's name for our diff and merge drivers."""

TABLES = ("tables/*.json",)
"""The default patterns of tables, as in gitattributes."""

MODELS = "*.mlp.safetensors"

_MAX_BYTES = 1 << 20
"""Size limit of the attributes file."""


def set_up(directory: Path, python: str, tables: Iterable[str] = TABLES) -> Path:
    """Set up the clone that contains ``directory``, and return its attributes file; a second time changes nothing.

    ``python`` is the interpreter that git runs. Only the clone's own configuration and attributes are written, nothing
    that is committed. SettingError if this is no clone, a pattern is invalid, or git fails.
    """
    for pattern in tables:
        _require_pattern(pattern)
    attributes = directory / _git(directory, "rev-parse", "--git-path", "info/attributes")
    for name, value in _settings(shlex.quote(python)).items():
        _git(directory, "config", "--local", name, value)
    lines = [*(f"{pattern} diff={DRIVER} merge={DRIVER}" for pattern in tables), f"{MODELS} diff={DRIVER}"]
    present = read_at_most(attributes, _MAX_BYTES).decode().splitlines() if attributes.exists() else []
    new = [line for line in lines if line not in present]
    if new:
        attributes.parent.mkdir(exist_ok=True)
        write_atomically(attributes, "".join(f"{line}\n" for line in (*present, *new)).encode())
    return attributes


def _require_pattern(pattern: str) -> None:
    """SettingError unless it is a pattern of paths in the clone, which cannot be read as another line of attributes."""
    plain = re.fullmatch(r"[^\s\"\x00-\x1f\x7f]+", pattern) and not pattern.startswith(("#", "!", "[attr]"))
    if not plain or ".." in pattern.split("/"):
        allowed = "no blanks, quotes or '..', and not beginning with #, ! or [attr]"
        raise SettingError(f"pattern {pattern!r} is not one of files in the clone (allowed: {allowed})")


def _settings(python: str) -> dict[str, str]:
    """Git's settings for our drivers; a file that is no table is shown unchanged."""
    return {
        f"diff.{DRIVER}.textconv": f'show() {{ {python} -m diode_lut show -- "$1" 2>/dev/null || cat -- "$1"; }}; show',
        f"diff.{DRIVER}.xfuncname": "^([^ ].*)$",
        f"merge.{DRIVER}.name": "diode_lut merge",
        f"merge.{DRIVER}.driver": f"{python} -m diode_lut merge %O %A %B -o %A",
    }


def _git(directory: Path, *arguments: str) -> str:
    """What git prints, without the line's end."""
    try:
        completed = subprocess.run(  # noqa: S603
            ["git", "-C", str(directory), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        raise SettingError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise SettingError(f"{error.stderr.strip()}; run this in a clone that you may change") from None
    return completed.stdout.rstrip("\n")


@click.command("git-setup")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
def git_setup_command(patterns: tuple[str, ...]) -> None:
    """Set up this clone, so that git shows and merges tables row by row.

    PATTERN says which files are tables, as in .gitattributes; by default tables/*.json. git diff, log and show then
    print tables and models (*.mlp.safetensors) as the show command does, and git merge uses the merge command. No
    committed file is changed.
    """
    tables = patterns or TABLES
    attributes = set_up(Path.cwd(), sys.executable, tables)
    say(printable(f"{attributes}: {', '.join(tables)}"))
