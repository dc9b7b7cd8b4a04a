"""``diff``, ``merge``, ``resolve``, and ``git-setup``, by which git uses them on tables."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import click

from diode_lut.cli.arguments import FILE, TABLE, Typed, git_output, read_datasets_for, read_whole_table, records_of
from diode_lut.cli.output import CHANGES, ERROR, STANDARD, TABLE_OUTPUT, changing, format_option, say, say_error
from diode_lut.errors import SettingError, TableError, as_command, counted, printable
from diode_lut.files import read_at_most, replacing

if TYPE_CHECKING:
    from diode_lut.table import Table
    from diode_lut.table.edit import Merged

_FORMATS = {style: f"diode_lut.diff:as_{style}" for style in ("text", "json", "markdown")}


@click.command("diff")
@click.argument("old", type=TABLE)
@click.argument("new", type=TABLE)
@click.option(
    "--dataset", "inputs", metavar="FILE", multiple=True, type=FILE, help="Show the effect on these measured problems."
)
@format_option(*_FORMATS, about="For a terminal, for programs, or for a comment on a pull request.")
@click.option(
    "--filter",
    "condition",
    metavar="JMESPATH",
    help="Show only rows for which this holds before or after, such as 'op==`\"bmm\"`', and no header.",
)
def diff_command(old: Typed, new: Typed, inputs: tuple[Typed, ...], form: str, condition: str | None) -> int:
    """Show how two tables differ, row by row.

    It lists added and removed rows, and rows with a larger or smaller coverage or another first config. With --dataset,
    which may be given several times, it also shows the problems with another config, and how much faster or slower they
    are. It exits with 0 if both tables have the same rows, in any order, with 1 if not, and with 2 if a file is no
    table.
    """
    from diode_lut.decide.catalog import open_table
    from diode_lut.diff import compare, effect_of

    if inputs and condition is not None:
        raise click.UsageError("--filter and --dataset exclude each other: the effect is that of all rows.")
    try:
        old_table, new_table = open_table(old.path, old.contents), open_table(new.path, new.contents)
    except TableError as error:
        say_error(error)
        return 2  # 1 would mean that they differ
    diff = compare(old_table, new_table)
    if condition is not None:
        import orjson

        from diode_lut.cli.query import search

        if "entries" in condition:
            reason = 'is a condition on a row, such as op==`"bmm"`: leave out entries'
            raise click.BadParameter(reason, param_hint="--filter")
        pairs = [(change, row) for change in diff.changes for row in (change.old, change.new) if row is not None]
        rows = orjson.loads(orjson.dumps([row.to_json() for _, row in pairs]))  # JMESPath takes lists, not tuples
        unchanged = [row.to_json() for row in new_table.entries[:1]]  # so that a wrong condition is one without changes
        found = search(f"[?{condition}]", rows or orjson.loads(orjson.dumps(unchanged)), "--filter")
        kept = {id(row) for row in found} if isinstance(found, list) else set()
        changes = {id(change): change for (change, _), row in zip(pairs, rows, strict=True) if id(row) in kept}
        diff = diff._replace(header=(), changes=tuple(changes.values()))
    records = records_of(read_datasets_for(new_table, inputs))
    effect = effect_of(old_table, new_table, records) if inputs else None
    report = resolve_name(_FORMATS[form])(str(old.path), str(new.path), diff, effect)
    say(report, colors=CHANGES if form == "text" else None)
    return 1 if diff else 0


@click.command("merge")
@click.argument("files", metavar="[BASE] OURS THEIRS", nargs=-1, required=True, type=TABLE)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=TABLE_OUTPUT,
    default=STANDARD,
    show_default=False,
    help="The table to write.  [default: standard output]",
)
@click.option("--path", metavar="PATH", help="What messages call the table, whose versions git has in temporary files.")
def merge_command(files: tuple[Typed, ...], output: Path, path: str | None) -> int:
    """Merge two changes of a table, or join two tables.

    With BASE, the result has the changes of OURS and THEIRS. Without BASE, or if BASE is an empty file, it has the rows
    of both. If both sides changed a row, the row with the better evidence stays: a note, a gain larger by more than
    noise, more measured problems, newer software. If nothing decides, it is a conflict: OURS stays, and its note names
    THEIRS. A line is printed for every dropped row. The exit code is 1 if there are conflicts.
    """
    from diode_lut.table import read_bytes, to_bytes
    from diode_lut.table.edit import merge

    if not 2 <= len(files) <= 3:
        raise click.UsageError("give two tables, or three: BASE OURS THEIRS")
    if path is not None:
        sides = zip(files, ("base", "ours", "theirs")[-len(files) :], strict=True)
        files = tuple(Typed(Path(f"{path} ({side})"), file.read(read_bytes)) for file, side in sides)
    *bases, ours, theirs = files
    # git gives an empty file where both sides added the same file
    bases = [each for each in bases if (each.path.stat().st_size if each.contents is None else each.contents)]
    with changing(output) as save:
        base = read_whole_table(bases[0]) if bases else None
        merged = merge(base, read_whole_table(ours), read_whole_table(theirs))
        _say_remarks(merged)
        save(to_bytes(merged.table))
    return 1 if merged.conflicts else 0


def _say_remarks(merged: Merged) -> None:
    for remark in merged.remarks:
        say(str(remark), err=True, colors=ERROR)


@click.command("resolve")
@click.argument("file", metavar="TABLE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--ours", is_flag=True, help="Take the row of the branch that is merged into.")
@click.option("--theirs", is_flag=True, help="Take the row of the branch that is merged.")
@click.option("--best", is_flag=True, help="Take the row with the larger gain, if one has it.")
def resolve_command(file: Path, **sides: bool) -> int:
    """Decide the conflicts of a git merge or rebase in a table.

    The three versions in git's index are merged again, row by row. Rows in conflict are taken from the side named. Then
    `git add` the file. It works without git-setup as well. A file edited since the merge is not changed. The exit code
    is 1 if conflicts are left.
    """
    from diode_lut.table import read_bytes, to_bytes
    from diode_lut.table.edit import merge

    chosen = [side for side, is_given in sides.items() if is_given]
    if len(chosen) != 1:
        raise click.UsageError("give --ours, --theirs or --best, and only one of them")
    (prefer,) = chosen
    versions: dict[int, Table] = {}
    for stage in (1, 2, 3):  # in git's index: the common version, ours, theirs
        with suppress(SettingError):
            data = git_output(file.absolute().parent, "cat-file", "blob", f":{stage}:./{file.name}")
            versions[stage] = read_whole_table(Typed(file, data))
    base, ours, theirs = map(versions.get, (1, 2, 3))
    if ours is None or theirs is None:
        raise SettingError(f"{file}: is not in conflict: in git, no merge of it is waiting for a decision")
    before, merged = merge(base, ours, theirs), merge(base, ours, theirs, prefer)
    with changing(file) as save:
        found = read_bytes(file).replace(b"\r\n", b"\n")  # as core.autocrlf writes files
        if found != to_bytes(before.table) and b"\n<<<<<<< " not in found:
            remedy = f"`{as_command('git', 'checkout', '--merge', '--', file)}` brings the conflict back"
            raise SettingError(f"{file}: was edited since the merge: {remedy}")
        save(to_bytes(merged.table))
    _say_remarks(merged)
    decided = len(before.conflicts) - len(merged.conflicts)
    say(printable(f"{file}: {decided} of {counted(len(before.conflicts), 'conflict')} decided"))
    return 1 if merged.conflicts else 0


DRIVER = "diode-lut"  # git's name for our diff and merge drivers
TABLES = ("tables/*.json",)  # the default patterns of tables, as in gitattributes

MODELS = "*.mlp.safetensors"


@click.command("git-setup")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
def git_setup_command(patterns: tuple[str, ...]) -> None:
    """Have git, in this clone, show and merge tables row by row.

    PATTERN names the tables, as in .gitattributes; by default tables/*.json. After it, git diff, log and show print
    tables and models (*.mlp.safetensors) as the command show does, and git merge uses the command merge. No committed
    file is changed.
    """
    tables = patterns or TABLES
    attributes = set_up(Path.cwd(), sys.executable, tables)
    say(printable(f"{attributes}: {', '.join(tables)}"))


def set_up(directory: Path, python: str, tables: Iterable[str] = TABLES) -> Path:
    """Set up the clone of a directory, and return its attributes file. A second time changes nothing.

    ``python`` is the interpreter for git to run. Only the clone's own configuration and attributes are written, nothing
    committed. SettingError if there is no clone, a pattern is invalid, or git fails.
    """

    def git(*arguments: str) -> str:
        return os.fsdecode(git_output(directory, *arguments)).rstrip("\n")

    for pattern in tables:  # none may be read as another line of attributes
        plain = re.fullmatch(r"[^\s\"\x00-\x1f\x7f]+", pattern) and not pattern.startswith(("#", "!", "[attr]"))
        if not plain or ".." in pattern.split("/"):
            allowed = "no blanks, quotes or '..', and not beginning with #, ! or [attr]"
            raise SettingError(f"pattern {pattern!r} is not one of files in the clone (allowed: {allowed})")
    attributes = directory / git("rev-parse", "--git-path", "info/attributes")
    command = f"{shlex.quote(python)} -m diode_lut"
    settings = {  # a file that is no table is shown unchanged
        f"diff.{DRIVER}.textconv": f'show() {{ {command} show -- "$1" 2>/dev/null || cat -- "$1"; }}; show',
        f"diff.{DRIVER}.xfuncname": "^([^ ].*)$",
        f"merge.{DRIVER}.name": "diode_lut merge",
        f"merge.{DRIVER}.driver": f"{command} merge %O %A %B -o %A --path %P",
    }
    for name, value in settings.items():
        git("config", "--local", name, value)
    # Tables have the line ends of their canonical form, whatever core.autocrlf says
    lines = [*(f"{pattern} eol=lf diff={DRIVER} merge={DRIVER}" for pattern in tables), f"{MODELS} diff={DRIVER}"]
    attributes.parent.mkdir(exist_ok=True)
    with replacing(attributes) as save:
        present = os.fsdecode(read_at_most(attributes, 1 << 20)).splitlines() if attributes.exists() else []
        new = [line for line in lines if line not in present]
        if new:
            save(os.fsencode("".join(f"{line}\n" for line in (*present, *new))))
    return attributes
