"""``set`` and ``unset``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from diode_lut.cli.output import CHANGES, changing, is_standard, say
from diode_lut.cli.typed import TABLE, Typed
from diode_lut.cli.values import ANY, ANY_OP, DTYPE, EPILOGUE, LAYOUT, SIZES, VARIANT
from diode_lut.domain.errors import ProblemError
from diode_lut.domain.ops import ALIGNS, ATTENTION, BATCHED, MATMUL_SIZES, OP_SIZES
from diode_lut.domain.printable import as_lines
from diode_lut.domain.problem import attention_align, contiguous_align
from diode_lut.kernels.config import ATEN, Config

if TYPE_CHECKING:
    from diode_lut.table import Entry, Table
    from diode_lut.table.edit import Edit

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
    from diode_lut.cli.inputs import read_whole_table
    from diode_lut.table import to_bytes

    target = table_file.target
    with changing(target) as save:
        edit = change(read_whole_table(table_file, _REMEDY))
        save(to_bytes(edit.table))
    say(as_lines(_summary(edit)), err=is_standard(target), colors=CHANGES)


def _key(op: str, align: str | None, **fields: Any) -> dict[str, Any]:
    """The key as a table file has it."""
    key = {name: value for name, value in {"op": op, **fields}.items() if value not in (None, ANY)}
    if align is None:
        batch = {} if op in BATCHED else {"b": [1, 1]}
        return {**key, **_packed_align(**{"op": ANY, **batch, **key})}
    return key if align == ANY else {**key, "align": int(align)}


def _packed_align(
    op: str, dtype: str = "", layout: str = "", epilogue: str = "", variant: str = "", **sizes: list[int]
) -> dict[str, int]:
    """The field ``align`` of packed matrices, if the rest of the key is for one problem."""
    del epilogue, variant  # they do not change A and B
    exact = {name: low for name, (low, high) in sizes.items() if low == high}
    if op == ANY or not dtype or not layout or exact.keys() != {*MATMUL_SIZES, *OP_SIZES[op]}:
        return {}
    if op in ATTENTION:
        return {"align": attention_align(dtype, exact["k"], exact["v"])}
    return {"align": contiguous_align(dtype, layout, **exact)}


def _entry(row: dict[str, Any]) -> Entry:
    from diode_lut.table.position import Fault, dotted
    from diode_lut.table.wire import decode_entry

    try:
        return decode_entry(row)
    except Fault as fault:
        raise ProblemError(f"{dotted(fault.path)}: {fault.reason}") from None


def _summary(edit: Edit) -> list[str]:
    from diode_lut.table.canonical import candidate_text, key_text

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
