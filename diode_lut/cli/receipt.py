"""``receipt``: what programs asked, and what they missed."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import click

from diode_lut.cli.output import say

_FORMATS = {"text": "diode_lut.receipt.as_text:as_text", "json": "diode_lut.receipt.as_json:as_json"}


@click.command("receipt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write them all as one receipt there."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="A report for people, or figures and all misses for programs.",
)
def receipt_command(files: tuple[Path, ...], output: Path | None, form: str) -> None:
    """Sum up what programs asked that ran with DIODE_LUT_RECEIPT=FILE.

    For each kind of hardware: who answered how many calls, and the misses, by the time they may have cost: that of a
    roofline, less what the model expects, or typical tables save. `collect --problems` takes receipts as they are.
    """
    from diode_lut.files import write_atomically
    from diode_lut.receipt import merge_receipts
    from diode_lut.receipt.encode import receipt_bytes
    from diode_lut.receipt.read import read_receipt

    merged = merge_receipts(map(read_receipt, files))
    if output is not None:
        write_atomically(output, receipt_bytes(merged))
    say(resolve_name(_FORMATS[form])(merged))
