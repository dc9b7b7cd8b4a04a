"""``show``, ``tables``, ``fmt``, ``check``, ``set`` and ``unset``: reading and editing tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

import click

from diode_lut.cli import arguments, output
from diode_lut.errors import (
    DiodeLutError,
    ModelError,
    ProblemError,
    SettingError,
    TableError,
    as_json,
    as_lines,
    counted,
    printable,
)
from diode_lut.problem import ALIGNS, ATTENTION, BATCHED, MATMUL_SIZES, OP_SIZES, attention_align, contiguous_align
from diode_lut.templates.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.hardware import Hardware
    from diode_lut.table import Entry, Table
    from diode_lut.table.edit import Edit


@click.command("show")
@click.argument("file", type=arguments.TABLE)
def show_command(file: arguments.Typed) -> None:
    """Print a table, dataset or model as text.

    A table has a line for each row and for each kernel, and equal tables are printed equally. A dataset is
    printed with all times, a model with its metadata and tensors.
    """
    from diode_lut.dataset import is_dataset, read_dataset
    from diode_lut.dataset.dataset import as_lines
    from diode_lut.model import header_text
    from diode_lut.table import table_of
    from diode_lut.table.format import as_text

    contents = file.whole()
    if is_dataset(contents):
        for line in as_lines(read_dataset(file.path, contents=contents)):
            output.say(line)
    elif contents.lstrip().startswith(b"{"):
        output.say(as_text(table_of(file.path, contents)))
    else:
        output.say(header_text(BytesIO(contents), file.path))


@click.command("tables")
@output.TEXT_OR_JSON
def tables_command(form: str) -> None:
    """List the tables and models, with their hardware."""
    from diode_lut import api
    from diode_lut.decide.catalog import is_model, try_model
    from diode_lut.decide.sources import shown

    files = [
        {
            "name": file.name,
            "hardware": str(file.hardware),
            "origin": "shipped" if file.shipped else "user",
            "file": shown(file.path),
        }
        for file in api.list_available_tables()
        if not (is_model(file.path) and isinstance(try_model(str(file.path)), DiodeLutError))
    ]
    if form == "json":
        output.say(as_json(files))
    else:
        for each in files:
            output.say(printable("  ".join(each.values())))


@click.command("fmt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=arguments.TABLE)
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file is not in canonical form.")
def fmt_command(files: tuple[arguments.Typed, ...], check: bool) -> int:
    """Put tables in canonical form, after jq or an editor.

    The meaning of a table does not change. The names of changed files are printed. A file with an invalid row is an
    error and is not changed.
    """
    from diode_lut.table import to_bytes

    code = 0
    for file in files:
        target = None if check else file.target
        printed = target is not None and output.is_standard(target)
        try:
            with nullcontext() if target is None else output.changing(target) as save:
                table = arguments.read_whole_table(file)
                changes = table.canonical_digest() != table.digest
                if save is not None and (changes or printed):
                    save(to_bytes(table))
        except (TableError, OSError) as error:  # other files are formatted all the same
            code = max(code, output.say_error(error))
            continue
        if changes and not printed:
            output.say(printable(str(file.path)))
        code = max(code, int(check and changes))
    return code


@click.command("check")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=arguments.TABLE)
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
@arguments.files_option(
    "--dataset",
    "inputs",
    help="Note gains that are not those of these timings; can be repeated.  [default: the timings that `tune` keeps "
    "beside the table]",
)
@output.format_option(*output.REPORTERS, about="Lines for people, a JSON list, or annotations for GitHub Actions.")
def check_command(
    files: tuple[arguments.Typed, ...],
    compiling: bool,
    contribution: bool,
    inputs: tuple[arguments.Typed, ...],
    form: str,
) -> int:
    """Find everything wrong with tables.

    It finds violations of the schema, rows that contradict each other or can never answer, configs that the
    architecture cannot launch, and files not in the canonical form. Each fault is a line, FILE:LINE:COLUMN: PATH:
    with the value found and the values allowed. Of a model it says only whether it can be used, and if not, why. A note
    does not change the exit code: it names a check that would take too long, or a gain that was measured for another
    config, as the last commit or timings show.

    With --contribution, notes also give the figures: gain over aten with its interval, and regret, on the measured
    problems and on problems held out.
    """
    checked: list[arguments.Typed] = []
    for file in files:
        if contribution and file.contents is None and file.path.is_dir():
            tables = sorted(file.path.glob("tables/*.json"))
            if not tables:
                reason = "has no tables/*.json (name the folder that `adopt` calls ready to contribute)"
                raise TableError(reason, path=file.path)
            checked += map(arguments.Typed, tables)
        else:
            checked.append(file)
    errors = [error for file in checked for error in check_table(file, compiling or contribution, contribution, inputs)]
    for line in output.REPORTERS[form](errors):
        output.say(line)
    notes = sum(error.note for error in errors)
    counts = {"file": len(checked), "fault": len(errors) - notes, **({"note": notes} if notes else {})}
    output.say(", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()), err=True)
    return max(map(output.exit_code, errors), default=0)


def check_table(
    file: arguments.Typed, compiling: bool, contribution: bool, inputs: tuple[arguments.Typed, ...] = ()
) -> list[TableError]:
    """Return everything wrong with a table or a model, and notes."""
    from diode_lut.decide.catalog import is_model, open_model
    from diode_lut.table import read_bytes
    from diode_lut.table.lint import check_file

    if is_model(file.path):
        try:
            open_model(file.file)
        except ModelError as error:
            found = TableError(str(error).removeprefix(printable(f"{file.path}: ")), path=file.path)
            found.__cause__ = error.__cause__
            return [found]
        return []
    try:
        data = file.read(read_bytes)
    except TableError as error:
        return [error]
    errors = list(check_file(file.path, data))
    with suppress(TableError):  # check_file has found that the file is no table
        errors += _stale_gains(file, data, inputs)
    if not compiling and not contribution:
        return errors
    from diode_lut.compile_check import check_compiling
    from diode_lut.contribute.judge import review

    with output.progress_bars() as progress, suppress(TableError):
        if contribution:
            errors += review(file.file, data, progress.records)
        if compiling:
            errors += check_compiling(file.file, data, lambda done, total: progress.track(done, file.path.name, total))
    return errors


def _stale_gains(file: arguments.Typed, data: bytes, inputs: tuple[arguments.Typed, ...]) -> list[TableError]:
    """Return notes on gains that the last commit or the timings have for another config. TableError if not a table."""
    from diode_lut.files import timings_of
    from diode_lut.table import located, table_of
    from diode_lut.table.faults import Fault
    from diode_lut.table.lint import edited_gains

    table, faults = table_of(file.path, data), list[Fault]()
    if file.contents is None:
        with suppress(SettingError, TableError):  # no repository, or no such table in its last commit
            committed = arguments.git_output(file.path.parent, "cat-file", "blob", f"HEAD:./{file.path.name}")
            if committed != data:
                faults += edited_gains(table, table_of(file.path, committed))
    kept = map(arguments.Typed, sorted(timings_of(file.path).glob("*.msgpack")))
    datasets = arguments.read_datasets_for(table, inputs or kept)
    if datasets:
        from diode_lut.contribute.judge import stale_gains

        faults += stale_gains(table, datasets)
    return located(file.path, data, faults)


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the key of a row. Without an option, the key matches anything."""
    sizes: dict[str, Any] = {"type": arguments.size_range, "metavar": "SIZES"}
    decorators = (
        click.option("--b", **sizes, help="The batch of a bmm or baddbmm, as for --m."),
        click.option("--m", **sizes, help="Rows of A: 1024, or a range like 513-1024.  [default: any]"),
        click.option("--n", **sizes, help="Columns of B, as for --m."),
        click.option("--k", **sizes, help="Columns of A, as for --m."),
        click.option("--h", **sizes, help="Query heads of attention, as for --m."),
        click.option("--g", **sizes, help="Query heads of attention that share keys and values, as for --m."),
        click.option("--v", **sizes, help="Head dimension of attention's values, as for --m."),
        click.option("--x", **sizes, help="Of a generated kernel, as explain takes it, as for --m."),
        click.option("--y", **sizes, help="Rows of a tiled pointwise kernel, as for --m."),
        click.option("--r", **sizes, help="Elements that a reduction reduces to one, as for --m."),
        click.option("--loads", **sizes, help="Elements that a pointwise kernel reads for each it writes, as for --m."),
        click.option(
            "--n-align",
            type=click.Choice((*ALIGNS, arguments.ANY)),
            help="Of a range of N, 16 for values with which every row of a packed result starts on a 16-byte boundary, "
            "2 for all others.  [default: any]",
        ),
        click.option("--dtype", type=arguments.DTYPE, help="Type of the inputs.  [default: any]"),
        click.option("--layout", type=arguments.LAYOUT, help="Of A and B.  [default: any]"),
        click.option(
            "--epilogue",
            type=arguments.EPILOGUE,
            help="Class of the pointwise work that is fused after the GEMM: light such as relu, medium such as silu "
            "or a residual, heavy such as gelu with tanh.  [default: any]",
        ),
        click.option(
            "--variant",
            type=arguments.VARIANT,
            metavar="VARIANT",
            help="Of scaled_mm, such as row-bfloat16, of attention, such as causal, or of a generated kernel, such as "
            "inner.  [default: any]",
        ),
        click.option(
            "--align",
            type=click.Choice((*ALIGNS, arguments.ANY)),
            help="16 if every row of A and B starts on a 16-byte boundary, else 2.  "
            "[default: as packed matrices have it, if all else is exact; otherwise any]",
        ),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@click.command("set")
@click.argument("table_file", metavar="TABLE", type=arguments.TABLE)
@click.argument("op", type=arguments.ANY_OP, metavar="OP", required=False, is_eager=True)
@_key_options
@click.option(
    "--config",
    "configs",
    metavar="CONFIG",
    multiple=True,
    help="What to answer, as explain writes it: 'triton_mm 128x128x64 g8 s4 w8'. Several times: best first.",
)
@click.option("--note", help="Why; needed. Rows with a note survive rebuilds.")
@click.option(
    "--rows",
    "rows_file",
    type=arguments.FILE,
    help="Set all rows of this JSON list, as a table's entries have them, at once; - is standard input. --note is for "
    "those without a note.",
)
@click.option("--hardware", metavar="NAME", help="Make a table for this hardware, if there is no such file.")
def set_command(
    table_file: arguments.Typed,
    op: str | None,
    configs: tuple[str, ...],
    note: str | None,
    rows_file: arguments.Typed | None,
    hardware: str | None,
    **key: Any,
) -> None:
    """Add a row to a table, or replace the row with the same key.

    OP is an op of the table format, such as mm or bmm, or any for a row of all ops with two matrices.

    The row is refused, and the file stays as it is, if the row could never answer or contradicts another row.
    """
    from diode_lut.table.edit import set_row

    if hardware is None and table_file.contents is None and not table_file.path.exists():
        raise click.UsageError(f"{table_file.path}: no such file (--hardware NAME makes a table for this hardware)")
    if note is not None and not note.strip():
        raise click.UsageError("--note: is empty; say why, so that others know whether the row is still right")
    if rows_file is not None:
        given = ["OP"] * (op is not None) + ["--config"] * bool(configs)
        given += [f"--{name.replace('_', '-')}" for name, value in key.items() if value is not None]
        if given:
            raise click.UsageError(f"--rows: its rows have their own keys and configs: leave out {', '.join(given)}")
        entries = _entries(rows_file, note)
    else:
        needed = {"argument 'OP'": op, "option '--config'": configs, "option '--note'": note}
        missing = next((name for name, value in needed.items() if not value), None)
        if missing is not None:
            raise click.UsageError(f"Missing {missing}.")
        row = {"configs": [Config.parse(config).to_json() for config in configs], "note": note}
        entries = [_entry({**_key(op or arguments.ANY, **key), **row})]
    _edit(table_file, set_row, entries, None if hardware is None else arguments.hardware_of(hardware))


def _entries(file: arguments.Typed, note: str | None) -> list[Entry]:
    """Read a JSON list of rows, each with a note and a key of its own. TableError with the place in the list."""
    from diode_lut.table import MAX_VALUES, parse
    from diode_lut.table.row import coverage

    rows = parse(file.path, file.whole(), MAX_VALUES)
    if not isinstance(rows, list):
        reason = "expected a JSON list of rows; of a table, give its entries: query TABLE entries"
        raise TableError(reason, path=file.path)
    found: dict[object, Entry] = {}
    for number, row in enumerate(rows):
        noted = {**row, "note": row.get("note", note)} if isinstance(row, dict) else row
        try:
            if isinstance(row, dict) and not str(noted["note"] or "").strip():
                raise ProblemError("it has no note: give it one, or give --note for all rows without one")
            entry = _entry(noted)
        except ProblemError as error:
            raise TableError(str(error), path=file.path, where=f"[{number}]") from None
        if found.setdefault(coverage(entry), entry) is not entry:
            reason = "an earlier row of the list has the same key: keep one of them"
            raise TableError(reason, path=file.path, where=f"[{number}]")
    return [*found.values()]


@click.command("unset")
@click.argument("table_file", metavar="TABLE", type=arguments.TABLE)
@click.argument("op", type=arguments.ANY_OP, metavar="OP", is_eager=True)
@_key_options
def unset_command(table_file: arguments.Typed, **key: Any) -> None:
    """Remove the row with this key from a table.

    OP is an op of the table format, such as mm or bmm, or any for a row of all ops with two matrices.
    """
    from diode_lut.table.edit import unset_row

    anything = {"configs": [ATEN.to_json()]}
    _edit(table_file, unset_row, [_entry({**_key(**key), **anything})])


def _key(op: str, align: int | str | None, **fields: Any) -> dict[str, Any]:
    """Return the key as a table file has it. For a single problem, ``align`` is from packed matrices."""
    key = {name: value for name, value in {"op": op, **fields}.items() if value not in (None, arguments.ANY)}
    if align is not None:
        return key if align == arguments.ANY else {**key, "align": align}
    sizes = {**({} if op in BATCHED else {"b": [1, 1]}), **key}
    exact = {name: size[0] for name, size in sizes.items() if isinstance(size, list) and size[0] == size[1]}
    dtype, layout = key.get("dtype"), key.get("layout")
    if op == arguments.ANY or not dtype or not layout or exact.keys() != {*MATMUL_SIZES, *OP_SIZES[op]}:
        return key
    if op in ATTENTION:
        return {**key, "align": attention_align(dtype, exact["k"], exact["v"])}
    return {**key, "align": contiguous_align(dtype, layout, **exact)}


def _entry(row: dict[str, Any]) -> Entry:
    from diode_lut.table import decode_entry
    from diode_lut.table.faults import Fault, dotted

    try:
        return decode_entry(row)
    except Fault as fault:
        raise ProblemError(": ".join(filter(None, (dotted(fault.path), fault.reason)))) from None


def _edit(
    table_file: arguments.Typed,
    change: Callable[[Table, Entry], Edit],
    rows: Iterable[Entry],
    hardware: Hardware | None = None,
) -> None:
    """Change the table for each row, write it once, and print the changes. A missing one is made for ``hardware``."""
    from diode_lut.files import own_tables_directory
    from diode_lut.table import Table, placed, to_bytes
    from diode_lut.table.format import candidate_text, key_text

    def shown(entry: Entry) -> str:
        note = f"; note: {entry.note}" if entry.note else ""
        return f"{key_text(entry)}: {', '.join(map(candidate_text, entry.candidates))}{note}"

    target = table_file.target
    edits = []
    if hardware is not None and target.parent == own_tables_directory():
        target.parent.mkdir(parents=True, exist_ok=True)
    with output.changing(target) as save:
        if hardware is not None and table_file.contents is None and not target.exists():
            table = placed(Table(hardware, ()), target)
        else:
            table = arguments.read_whole_table(table_file)
        if hardware is not None and not table.hardware.same_device(hardware):
            raise TableError(f"is for {table.hardware}, not for {hardware}", path=target)
        for row in rows:
            edits.append(change(table, row))
            table = edits[-1].table
        save(to_bytes(table))
    lines = []
    for edit in edits:
        lines += [f"{sign} {shown(entry)}" for sign, entry in (("-", edit.gone), ("+", edit.new)) if entry is not None]
        if edit.narrower:
            lines.append(f"more specific rows go on answering some of it: {len(edit.narrower)}")
            lines += [f"  {shown(entry)}" for entry in edit.narrower[:3]]
        if edit.wider and edit.gone is None:
            lines += ["until now it was answered by", f"  {shown(edit.wider[0])}"]
        if edit.undecided:
            undecided = counted(edit.undecided, "row")
            lines.append(f"not looked for, because it takes too long: whether {undecided} of it can still answer")
    output.say(as_lines(lines), err=output.is_standard(target), colors=output.CHANGES)
