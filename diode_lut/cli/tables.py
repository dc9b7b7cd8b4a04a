"""``check``, ``show``, ``tables`` and ``fmt``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diode_lut.cli.arguments import ANY, ANY_OP, DTYPE, EPILOGUE, LAYOUT, SIZES, TABLE, VARIANT, Typed
from diode_lut.cli.output import CHANGES, ERROR, REPORTERS, changing, exit_code, is_standard, progress_bars, say
from diode_lut.errors import ModelError, ProblemError, TableError, as_lines, printable
from diode_lut.problem import ALIGNS, ATTENTION, BATCHED, MATMUL_SIZES, OP_SIZES, attention_align, contiguous_align
from diode_lut.templates.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.table import Entry, Table
    from diode_lut.table.edit import Edit


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
        from diode_lut.dataset.dataset import as_lines

        for line in as_lines(read_dataset(file.path, contents=contents)):
            say(line)
    else:
        say(_table_or_model(contents, file.path))


def _table_or_model(contents: bytes, path: Path) -> str:
    from diode_lut.model.weights import header_text
    from diode_lut.table.read import table_of
    from diode_lut.table.table import as_text

    is_json = contents.lstrip().startswith(b"{")
    return as_text(table_of(path, contents)) if is_json else header_text(BytesIO(contents), path)


@click.command("tables")
def tables_command() -> None:
    """List the tables and models, and the hardware that they are for."""
    from diode_lut import api
    from diode_lut.decide.catalog import is_model, try_model
    from diode_lut.decide.sources import shown
    from diode_lut.errors import DiodeLutError

    for file in api.list_available_tables():
        if is_model(file.path) and isinstance(try_model(str(file.path)), DiodeLutError):
            continue
        origin = "shipped" if file.shipped else "user"
        say(printable(f"{file.name}  {file.hardware}  {origin}  {shown(file.path)}"))


@click.command("fmt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=TABLE)
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file is not in canonical form.")
@click.pass_context
def fmt_command(ctx: click.Context, files: tuple[Typed, ...], check: bool) -> None:
    """Put tables in canonical form, after jq or an editor.

    What a table says does not change. The names of the files that change are printed. A file with an invalid row is an
    error and is not changed.
    """
    codes = [_format(file, check) for file in files]
    ctx.exit(max(codes))


def _format(file: Typed, check: bool) -> int:
    """The exit code for one file: the others are formatted whatever is wrong with this one."""
    from diode_lut.cli.arguments import read_whole_table
    from diode_lut.table import to_bytes

    target = None if check else file.target
    printed = target is not None and is_standard(target)
    try:
        with nullcontext() if target is None else changing(target) as save:
            table = read_whole_table(file, "correct it first")
            changes = table.canonical_digest() != table.digest
            if save is not None and (changes or printed):
                save(to_bytes(table))
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
    from diode_lut.decide.catalog import is_model
    from diode_lut.table.lint import check_file
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
    from diode_lut.decide.catalog import open_model

    try:
        open_model(file)
    except ModelError as error:
        found = TableError(str(error).removeprefix(printable(f"{file}: ")), path=file)
        found.__cause__ = error.__cause__
        return [found]
    return []


def _compile(file: Path, data: bytes) -> list[TableError]:
    """What Triton says about the configs of a table; nothing if the file is none, which is said elsewhere."""
    from diode_lut.compile_check import check_compiling

    with progress_bars() as progress, suppress(TableError):
        return check_compiling(file, data, lambda done, total: progress.track(done, file.name, total))
    return []


def _review(file: Path, data: bytes) -> list[TableError]:
    """What a contributed table lacks, and its figures; nothing if the file is no table, which is said elsewhere."""
    from diode_lut.contribute.review import review

    with progress_bars() as progress, suppress(TableError):
        return review(file, data, lambda dataset: progress.track(dataset, dataset.path.name))
    return []


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_REMEDY = "correct it first"


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments and options that make the key of a row; what is left out matches anything."""
    sizes: dict[str, Any] = {"type": SIZES, "metavar": "SIZES"}
    decorators = (
        click.argument("table_file", metavar="TABLE", type=TABLE),
        click.argument("op", type=ANY_OP, metavar="OP"),
        click.option("--b", **sizes, help="The batch of a bmm or baddbmm, as for --m."),
        click.option("--m", **sizes, help="Rows of A: 1024, or a range like 513-1024.  [default: any]"),
        click.option("--n", **sizes, help="Columns of B, as for --m."),
        click.option("--k", **sizes, help="Columns of A, as for --m."),
        click.option("--h", **sizes, help="Query heads of attention, as for --m."),
        click.option("--g", **sizes, help="Query heads of attention that share keys and values, as for --m."),
        click.option("--v", **sizes, help="Head dimension of attention's values, as for --m."),
        click.option(
            "--n-align",
            type=click.Choice((*map(str, ALIGNS), ANY)),
            help="Of a range of N, 16 for values with which every row of a packed result starts on a 16-byte boundary, "
            "2 for all others.  [default: any]",
        ),
        click.option("--dtype", type=DTYPE, help="Type of the inputs.  [default: any]"),
        click.option("--layout", type=LAYOUT, help="Of A and B.  [default: any]"),
        click.option(
            "--epilogue",
            type=EPILOGUE,
            help="Class of the pointwise work that is fused behind the GEMM: light such as relu, medium such as silu "
            "or a residual, heavy such as gelu with tanh.  [default: any]",
        ),
        click.option(
            "--variant",
            type=VARIANT,
            metavar="VARIANT",
            help="Of scaled_mm, such as row-bfloat16, or of attention, such as causal.  [default: any]",
        ),
        click.option(
            "--align",
            type=click.Choice((*map(str, ALIGNS), ANY)),
            help="16 if every row of A and B starts on a 16-byte boundary, else 2.  "
            "[default: as packed matrices have it, if all else is exact; otherwise any]",
        ),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@click.command("set")
@_key_options
@click.option(
    "--config",
    "configs",
    metavar="CONFIG",
    multiple=True,
    required=True,
    help="What to answer, as explain writes it: 'triton_mm 128x128x64 g8 s4 w8'. Several times: best first.",
)
@click.option("--note", required=True, help="Why. Rows with a note survive rebuilds.")
def set_command(table_file: Typed, configs: tuple[str, ...], note: str, **key: Any) -> None:
    """Add a row to a table, or replace the row with the same key.

    OP is an op of the table format, such as mm or bmm, or any for a row that covers all that multiply two matrices.

    The row is refused, and the file stays as it is, if the row could never answer or contradicts another one.
    """
    from diode_lut.table.edit import set_row

    if not note.strip():
        raise click.UsageError("--note: is empty; say why, so that others know whether the row is still right")
    row = {"configs": [Config.parse(config).to_json() for config in configs], "note": note}
    _edit(table_file, lambda table: set_row(table, _entry({**_key(**key), **row})))


@click.command("unset")
@_key_options
def unset_command(table_file: Typed, **key: Any) -> None:
    """Remove the row with this key from a table.

    OP is an op of the table format, such as mm or bmm, or any for a row that covers all that multiply two matrices.
    """
    from diode_lut.table.edit import unset_row

    anything = {"configs": [ATEN.to_json()]}
    _edit(table_file, lambda table: unset_row(table, _entry({**_key(**key), **anything})))


def _edit(table_file: Typed, change: Callable[[Table], Edit]) -> None:
    """Read the table, write it changed, and say what changed; other writers wait meanwhile."""
    from diode_lut.cli.arguments import read_whole_table
    from diode_lut.table import to_bytes

    target = table_file.target
    with changing(target) as save:
        edit = change(read_whole_table(table_file, _REMEDY))
        save(to_bytes(edit.table))
    say(as_lines(_summary(edit)), err=is_standard(target), colors=CHANGES)


def _key(op: str, align: str | None, **fields: Any) -> dict[str, Any]:
    """The key as a table file has it."""
    key = {name: value for name, value in {"op": op, **fields}.items() if value not in (None, ANY)}
    if "n_align" in key:
        key["n_align"] = int(key["n_align"])
    if align is None:
        batch = {} if op in BATCHED else {"b": [1, 1]}
        return {**key, **_packed_align(**{"op": ANY, **batch, **key})}
    return key if align == ANY else {**key, "align": int(align)}


def _packed_align(
    op: str,
    dtype: str = "",
    layout: str = "",
    epilogue: str = "",
    variant: str = "",
    n_align: int | None = None,
    **sizes: list[int],
) -> dict[str, int]:
    """The field ``align`` of packed matrices, if the rest of the key is for one problem."""
    del epilogue, variant, n_align  # they do not change A and B
    exact = {name: low for name, (low, high) in sizes.items() if low == high}
    if op == ANY or not dtype or not layout or exact.keys() != {*MATMUL_SIZES, *OP_SIZES[op]}:
        return {}
    if op in ATTENTION:
        return {"align": attention_align(dtype, exact["k"], exact["v"])}
    return {"align": contiguous_align(dtype, layout, **exact)}


def _entry(row: dict[str, Any]) -> Entry:
    from diode_lut.table.faults import Fault, dotted
    from diode_lut.table.read import decode_entry

    try:
        return decode_entry(row)
    except Fault as fault:
        raise ProblemError(f"{dotted(fault.path)}: {fault.reason}") from None


def _summary(edit: Edit) -> list[str]:
    from diode_lut.table.format import candidate_text, key_text

    def shown(entry: Entry) -> str:
        return f"{key_text(entry)}: {', '.join(map(candidate_text, entry.candidates))}"

    lines = [f"{sign} {shown(entry)}" for sign, entry in (("-", edit.gone), ("+", edit.new)) if entry is not None]
    if edit.narrower:
        lines.append(f"more specific rows go on answering some of it: {len(edit.narrower)}")
        lines += [f"  {shown(entry)}" for entry in edit.narrower[:3]]
    if edit.wider and edit.gone is None:
        lines.append("until now it was answered by")
        lines.append(f"  {shown(edit.wider[0])}")
    if edit.undecided:
        lines.append(f"not looked for, because it takes too long: whether {edit.undecided} rows are still used")
    return lines
