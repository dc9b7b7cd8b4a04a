"""``git-setup``: configures git, in one clone, to show and merge tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from diode_lut.cli.output import say
from diode_lut.domain.errors import SettingError
from diode_lut.domain.printable import printable
from diode_lut.io.bounded import read_at_most
from diode_lut.io.files import write_atomically

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
