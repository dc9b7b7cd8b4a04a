"""``adopt`` and ``verify``: a table for a device that has none, and whether a table's answers hold on a device."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.inputs import require_inductor
from diode_lut.cli.output import say
from diode_lut.domain.errors import HardwareError
from diode_lut.domain.hardware import Hardware, detect_hardware
from diode_lut.domain.printable import as_lines
from diode_lut.io.files import require_writable

if TYPE_CHECKING:
    from diode_lut.adopt.drift import Drift, Interval
    from diode_lut.table import Table

_FILE = click.Path(dir_okay=False, path_type=Path)
_SHOWN = 10
"""Most rows that drifted that are listed."""


@click.command("verify")
@click.argument("table_name", metavar="[TABLE]", required=False)
@click.option("--device", type=click.Choice(("cuda", "cpu")), help="[default: cuda where there is any]")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MINUTES",
    default=0.8,
    show_default=True,
    help="Begin no row after this time.",
)
@click.option(
    "--rows", metavar="N", type=click.IntRange(min=8), default=48, show_default=True, help="Rows to measure, at most."
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=_FILE,
    default=Path("drifted.json"),
    show_default=True,
    help="The problem file to write, with the problems that drifted; without any it is not written.",
)
@click.pass_context
def verify_command(
    context: click.Context, table_name: str | None, device: str | None, budget: float, rows: int, output: Path
) -> None:
    """Say whether a table's answers hold on this machine, from a sample of its rows, within a minute.

    TABLE is a file or the name of a shipped table, by default the first that answers on this device. Half of the sample
    are the rows that gain most. A row has drifted if its gain over aten differs by over 10 % from the recorded one. It
    exits with 0 if the table holds, else with 1.
    """
    from diode_lut.selection.catalog import find_path, open_table

    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write the problems to")
    require_writable(output)
    require_inductor("verify")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a killed run removes its temporary files
    from diode_lut.adopt.verify import sample_of, verify

    found = detect_hardware(device)
    table = open_table(find_path(table_name) if table_name else _table_for(found))
    drift = verify(
        table,
        device=device,
        budget_s=60 * budget,
        sample=sample_of(table, rows),
        report=lambda text: say(text, err=True),
    )
    say(as_lines([f"{table.path}: {_verdict(table, found, drift)}", *_findings(drift)]))
    if drift.drifted:
        _write(output, drift)
        say(as_lines([f"{output}: {len(drift.drifted)} problems that drifted, for `collect --problems`"]))
    context.exit(0 if drift.verdict == "holds" and table.hardware.same_device(found) else 1)


def _table_for(hardware: Hardware) -> Path:
    """The first table that answers on this hardware."""
    from diode_lut.selection.catalog import find_tables, is_model
    from diode_lut.settings import config

    tables = [file for file in find_tables(config.tables) if not is_model(file.path)]
    fitting = [file for file in tables if file.hardware.same_arch(hardware)]
    fitting.sort(key=lambda file: file.shipped and not file.hardware.same_device(hardware))
    if not fitting:
        raise HardwareError(f"no table is for {hardware}: name one, or make one with `diode-lut adopt`")
    return fitting[0].path


def _verdict(table: Table, found: Hardware, drift: Drift) -> str:
    if table.hardware.same_device(found):
        return f"{drift.verdict} on {found}"
    return f"is for {table.hardware}, this is {found}; of its gains the sample says: {drift.verdict}"


def _findings(drift: Drift) -> list[str]:
    share, kept = drift.share, drift.kept
    noise = "not measured" if drift.noise is None else f"{drift.noise:.1%}"
    lines = [
        f"  rows measured: {len(drift.rows)}; difference between two measurements of a gain: {noise}",
        f"  measured gain over recorded gain: {_factor(kept)}",
        f"  drifted by more than {drift.tolerance:.0%}: {len(drift.drifted)}, {_percent(share)}",
    ]
    for row in drift.drifted[:_SHOWN]:
        gain = f"{row.measured[-1]:.3f}" if row.measured[-1] else "does not run"
        lines.append(f"    {row.problem}: recorded {row.recorded:.3f}, measured {gain}")
    return lines + [f"  {text}" for text in [_advice(drift)] if text]


def _advice(drift: Drift) -> str:
    return {
        "too noisy": "measure on an idle machine: times differ too much to say anything",
        "undecided": "too few rows were measured for a verdict: use a larger --budget, or more --rows",
        "does not hold": "measure the problems again, and build the table from all timings",
        "holds": "",
    }[drift.verdict]


def _factor(interval: Interval) -> str:
    return f"{interval.value:.3f} (95 %: {interval.low:.3f} to {interval.high:.3f})"


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} (95 %: {interval.low:.1%} to {interval.high:.1%})"


def _write(path: Path, drift: Drift) -> None:
    import orjson

    from diode_lut.io.files import write_atomically

    lines = (orjson.dumps(row.problem.to_json()) for row in drift.drifted)
    write_atomically(path, b"[\n" + b",\n".join(lines) + b"\n]\n")
