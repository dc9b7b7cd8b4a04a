"""``check``, ``show``, ``tables`` and ``fmt``."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from io import BytesIO
from pathlib import Path

import click

from diode_lut.cli.output import ERROR, REPORTERS, changing, exit_code, is_standard, progress_bars, say
from diode_lut.cli.typed import TABLE, Typed
from diode_lut.domain.errors import ModelError, TableError
from diode_lut.domain.printable import printable


@click.command("show")
@click.argument("file", type=TABLE)
def show_command(file: Typed) -> None:
    """Print a table, dataset or model as text.

    A table has one line for each row and one for each kernel, and equal tables are printed equally. A dataset is
    printed with all times, a model with its metadata and tensors.
    """
    from diode_lut.dataset import is_dataset, read_dataset

    contents = file.whole()
    if is_dataset(contents):
        from diode_lut.dataset.formats import as_lines

        for line in as_lines(read_dataset(file.path, contents=contents)):
            say(line)
    else:
        say(_table_or_model(contents, file.path))


def _table_or_model(contents: bytes, path: Path) -> str:
    from diode_lut.model.header import header_text
    from diode_lut.table.read import table_of
    from diode_lut.table.table import as_text

    is_json = contents.lstrip().startswith(b"{")
    return as_text(table_of(path, contents)) if is_json else header_text(BytesIO(contents), path)


@click.command("tables")
def tables_command() -> None:
    """List the tables and models, and the hardware that they are for."""
    from diode_lut.domain.errors import DiodeLutError
    from diode_lut.runtime import api
    from diode_lut.selection.catalog import is_model, try_model
    from diode_lut.selection.sources import shown

    for file in api.list_available_tables():
        if is_model(file.path) and isinstance(try_model(str(file.path)), DiodeLutError):
            continue
        origin = "shipped" if file.shipped else "user"
        say(printable(f"{file.name}  {file.hardware}  {origin}  {shown(file.path)}"))


@click.command("fmt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=TABLE)
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file is not in canonical form.")
@click.option("--upgrade", is_flag=True, help="Write version 2 of the format; by default files keep their version.")
@click.pass_context
def fmt_command(ctx: click.Context, files: tuple[Typed, ...], check: bool, upgrade: bool) -> None:
    """Put tables in canonical form, after jq or an editor.

    What a table says does not change. The names of the files that change are printed. A file with an invalid row is an
    error and is not changed.
    """
    codes = [_format(file, check, upgrade) for file in files]
    ctx.exit(max(codes))


def _format(file: Typed, check: bool, upgrade: bool) -> int:
    """The exit code for one file: the others are formatted whatever is wrong with this one."""
    from diode_lut.cli.inputs import read_whole_table
    from diode_lut.table import to_bytes

    target = None if check else file.target
    printed = target is not None and is_standard(target)
    try:
        with nullcontext() if target is None else changing(target) as save:
            table = read_whole_table(file, "correct it first")
            wanted = table.upgraded() if upgrade else table
            changes = wanted.canonical_digest() != table.digest
            if save is not None and (changes or printed):
                save(to_bytes(wanted))
    except TableError as error:
        say(f"error: {error}", err=True, colors=ERROR)
        return exit_code(error)
    except OSError as error:
        say(printable(f"error: {error.filename}: {error.strerror}"), err=True, colors=ERROR)
        return exit_code(error)
    if changes and not printed:
        say(printable(str(file.path)))
    return int(check and changes)


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=TABLE)
@click.option(
    "--compile",
    "compiling",
    is_flag=True,
    help="Also compile every config with Triton, for the table's architecture, without a GPU. Triton keeps what it has "
    "compiled.",
)
@click.option(
    "--contribution",
    is_flag=True,
    help="Find everything that a pull request with these tables would be refused for; implies --compile. A FILE may be "
    "the folder that adopt has written.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(REPORTERS)),
    default="text",
    show_default=True,
    help="Lines for people, a JSON list, or annotations for GitHub Actions.",
)
@click.pass_context
def check_command(ctx: click.Context, files: tuple[Typed, ...], compiling: bool, contribution: bool, form: str) -> None:
    """Find everything that is wrong with tables.

    It finds what the schema forbids, rows that contradict each other or can never answer, configs that the architecture
    cannot launch, and files that fmt would change. Each problem is one line: FILE:LINE:COLUMN: PATH: what was found and
    what is allowed. Of a model it says only whether it can be used, and if not, why. A note does not change the exit
    code: it says what would take too long to check.

    With --contribution, notes also give the figures: gain over aten with its interval, and regret, on the measured
    problems and on held-out ones.
    """
    if contribution:
        files = tuple(table for file in files for table in _contributed(file))
    errors = [error for file in files for error in _check(file, compiling or contribution, contribution)]
    for line in REPORTERS[form](errors):
        say(line)
    notes = sum(error.note for error in errors)
    counts = [_count(len(files), "file"), _count(len(errors) - notes, "problem")]
    say(", ".join([*counts, *([_count(notes, "note")] if notes else [])]), err=True)
    ctx.exit(max(map(exit_code, errors), default=0))


def check_contributed(table: Path) -> list[TableError]:
    """What ``check --contribution`` says of a table: all that it would be refused for, and notes."""
    return _check(Typed(table), compiling=True, contribution=True)


def _contributed(file: Typed) -> list[Typed]:
    """The tables in a folder that is ready to contribute; a file as it is."""
    if file.contents is not None or not file.path.is_dir():
        return [file]
    tables = sorted(file.path.glob("tables/*.json"))
    if not tables:
        raise TableError(
            "has no tables/*.json (name the folder that `adopt` calls ready to contribute)", path=file.path
        )
    return [Typed(table) for table in tables]


def _check(file: Typed, compiling: bool, contribution: bool) -> list[TableError]:
    from diode_lut.selection.catalog import is_model
    from diode_lut.table.check import check_file
    from diode_lut.table.read import read_bytes

    if is_model(file.path):
        return _check_model(file.file)
    try:
        data = file.read(read_bytes)
    except TableError as error:
        return [error]
    return [
        *check_file(file.path, data),
        *(_review(file.file, data) if contribution else ()),
        *(_compile(file.file, data) if compiling else ()),
    ]


def _check_model(file: Path) -> list[TableError]:
    """What is wrong with a model, in the form in which it is said of tables."""
    from diode_lut.selection.catalog import open_model

    try:
        open_model(file)
    except ModelError as error:
        found = TableError(str(error).removeprefix(printable(f"{file}: ")), path=file)
        found.__cause__ = error.__cause__
        return [found]
    return []


def _compile(file: Path, data: bytes) -> list[TableError]:
    """What Triton says about the configs of a table; nothing if the file is none, which is said elsewhere."""
    from diode_lut.compilation import check_compiling

    with progress_bars() as progress, suppress(TableError):
        return check_compiling(file, data, lambda done, total: progress.track(done, file.name, total))
    return []


def _review(file: Path, data: bytes) -> list[TableError]:
    """What a contributed table lacks, and its figures; nothing if the file is no table, which is said elsewhere."""
    from diode_lut.adopt.review import review

    with progress_bars() as progress, suppress(TableError):
        return review(file, data, lambda dataset: progress.track(dataset, dataset.path.name))
    return []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
