"""``adopt`` and ``verify``: a table for a device that has none, and whether a table's answers hold on a device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.arguments import (
    FILE,
    MINUTES,
    PROBLEMS,
    TABLE,
    Named,
    Optional,
    Output,
    Typed,
    git_user,
    require_inductor,
    require_packages,
)
from diode_lut.cli.output import say
from diode_lut.errors import HardwareError, as_lines, printable
from diode_lut.files import require_writable
from diode_lut.hardware import Hardware, detect_hardware
from diode_lut.measure.methods import SETS
from diode_lut.process import interrupt_on_signals

if TYPE_CHECKING:
    from diode_lut.contribute.verify import Drift, Interval
    from diode_lut.dataset import Dataset
    from diode_lut.table import Table

_OPTIONAL = (
    Optional("distributed", "cluster", "a kernel that hangs or crashes ends the run"),
    Optional("vl_convert", "report", "there is no report page"),
)
_SHOWN = 10
"""Most rows that drifted that are listed."""


@click.command("adopt")
@click.option(
    "--budget",
    type=MINUTES,
    metavar="MINUTES",
    required=True,
    help="Time to spend: 10 gives a first table, 60 most of the models, a night all problems.",
)
@click.option(
    "--problems",
    "problem_file",
    type=FILE,
    metavar="SET|FILE",
    default="models",
    show_default=True,
    help=f"A shipped set ({', '.join(SETS)}), or any problem file that collect takes.",
)
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu", "all")),
    help="The device to measure; all: every GPU of this machine.  [default: cuda if there is a GPU, else cpu]",
)
@click.option(
    "-o",
    "--output",
    metavar="DIRECTORY",
    type=Named(file_okay=False, path_type=Path),
    default=Path("adopted"),
    show_default=True,
    help="The directory to write to, and to continue from.",
)
@click.option(
    "--measured-by", metavar="NAME", help="Who measures, such as 'Name <address>'.  [default: as git calls you]"
)
@click.pass_context
def adopt_command(
    context: click.Context,
    budget: float,
    problem_file: Typed,
    device: str | None,
    output: Path,
    measured_by: str | None,
) -> None:
    """Make a table for a device that has none, within a time budget.

    It measures, checks, builds the table, trains a model, evaluates and reports, with the most useful problems first.
    If you run it again with the same directory, it continues where it stopped, with a new budget. It refuses to build
    from noise, or if the GPU was busy or slowed down, and says why. OUTPUT/contribution has all that a pull request
    needs.
    """
    from diode_lut.cli.timings import STOPPED, problems_of

    require_packages("adopt", device, _OPTIONAL)
    require_inductor("adopt")
    problems = problems_of(problem_file, lambda: detect_hardware("cuda" if device == "all" else device))
    interrupt_on_signals()  # so that a killed run removes its temporary files
    from diode_lut.contribute.adopt import Folder, adopt, complete
    from diode_lut.hardware import slug

    def report(text: str) -> None:
        say(printable(text), err=True)

    name = slug(problem_file.path.name.partition(".")[0]) or "problems"
    try:
        adopted = adopt(
            problems,
            output,
            name=name,
            budget_s=60 * budget,
            measured_by=git_user() if measured_by is None else measured_by,
            device=device,
            report=report,
        )
        lines = complete(adopted, Folder(output), report)
    except KeyboardInterrupt:
        report("stopped: run the same command again to go on")
        context.exit(STOPPED)
    say(as_lines([*lines, "", *_readiness(Folder(output).contribution, adopted.table)]))


def _readiness(folder: Path, table: Path) -> list[str]:
    """Whether a pull request with the folder would pass, by the same check."""
    from diode_lut.cli.tables import check_contributed

    faults = [str(error) for error in check_contributed(table) if not error.note]
    if not faults:
        return [f"{folder}: ready to contribute; README.md says how"]
    heading = f"{folder}: the table can be used, but `check --contribution` would refuse the folder:"
    return [heading, *(f"  {fault}" for fault in faults)]


@click.command("verify")
@click.argument("table_file", metavar="[TABLE]", required=False, type=TABLE)
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    help="The device to measure.  [default: cuda if there is a GPU, else cpu]",
)
@click.option(
    "--budget",
    type=MINUTES,
    metavar="MINUTES",
    default=0.85,
    show_default=True,
    help="Begin no row after this time. A third of it is for measuring, however long it takes to start.",
)
@click.option(
    "--rows", metavar="N", type=click.IntRange(min=8), default=48, show_default=True, help="Rows to measure, at most."
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=Output(PROBLEMS, allow_dash=False),
    default=Path("drifted.json"),
    show_default=True,
    help="The problem file to write, with the problems that drifted; without any it is not written.",
)
@click.pass_context
def verify_command(
    context: click.Context, table_file: Typed | None, device: str | None, budget: float, rows: int, output: Path
) -> None:
    """Say whether a table's answers hold on this machine.

    TABLE is a file or the name of a shipped table, by default the first that answers on this device. It measures a
    sample of the rows, half of them those that gain most, which takes about a minute. A row has drifted if its gain
    over aten differs by over 10 % from the recorded one. It exits with 0 if the table holds, else with 1.
    """
    from diode_lut.decide.catalog import open_table

    begun = time.monotonic()
    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write the problems to")
    require_writable(output)
    require_inductor("verify")
    interrupt_on_signals()  # so that a killed run removes its temporary files
    from diode_lut.contribute.verify import comparable, sample_of, verify

    found = detect_hardware(device)
    table = open_table(table_file.path, table_file.contents) if table_file else open_table(_table_for(found))
    _require_comparable(table, found)
    drift = verify(
        table,
        device=device,
        budget_s=60 * budget,
        begun=begun,
        sample=sample_of(comparable(table, _datasets_of(table)), rows),
        report=lambda text: say(text, err=True),
    )
    say(as_lines([f"{table.path}: {_verdict(table, found, drift)}", *_findings(drift)]))
    if drift.drifted:
        _write(output, drift)
        say(as_lines([f"{output}: the problems of {len(drift.drifted)} rows that drifted, for `collect --problems`"]))
    context.exit(0 if drift.verdict == "holds" and table.hardware.same_device(found) else 1)


def _require_comparable(table: Table, found: Hardware) -> None:
    """HardwareError, before anything is started, if the table never answers here; a note if it is another device's."""
    path = printable(str(table.path))
    if not table.hardware.same_arch(found):
        differs = table.hardware.difference_from(found)
        reason = f"{path}: is for {table.hardware}, this is {found}: its answers are never used here"
        raise HardwareError(f"{reason}{f' ({differs})' if differs else ''}; nothing was measured")
    if not table.hardware.same_device(found):
        note = f"note: {path} is for {table.hardware}, and may answer on {found} too: measuring what it gains here"
        say(note, err=True)


def _datasets_of(table: Table) -> list[Dataset]:
    """Those that the table was built from, if they are beside it, as in a clone and in what ``adopt`` has written."""
    from diode_lut.contribute.review import datasets_beside

    if table.path is None:
        return []
    files = datasets_beside(table.path)
    return [files[digest] for digest in table.provenance.get("datasets", []) if digest in files]


def _table_for(hardware: Hardware) -> Path:
    """The first table that answers on this hardware."""
    from diode_lut.decide.catalog import find_tables, is_model
    from diode_lut.settings import config

    tables = [file for file in find_tables(config.tables) if not is_model(file.path)]
    fitting = [file for file in tables if file.hardware.same_arch(hardware)]
    fitting.sort(key=lambda file: file.shipped and not file.hardware.same_device(hardware))
    if not fitting:
        raise HardwareError(f"no table is for {hardware}: name one, or make one with `diode-lut adopt --budget 10`")
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
        more = f" and {len(row.problems) - 1} more" if len(row.problems) > 1 else ""
        lines.append(f"    {row.problems[0]}{more}: recorded {row.recorded:.3f}, measured {gain}")
    return lines + [f"  {text}" for text in [_advice(drift)] if text]


def _advice(drift: Drift) -> str:
    return {
        "too noisy": "measure on an idle machine: times differ too much to say anything",
        "undecided": "too few rows for a verdict: use a larger --budget, if more rows can be compared",
        "does not hold": "measure the problems again, and build the table from all timings",
        "holds": "",
    }[drift.verdict]


def _factor(interval: Interval | None) -> str:
    if interval is None:
        return "not known"
    return f"{interval.value:.3f} (95 %: {interval.low:.3f} to {interval.high:.3f})"


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} (95 %: {interval.low:.1%} to {interval.high:.1%})"


def _write(path: Path, drift: Drift) -> None:
    import orjson

    from diode_lut.files import write_atomically

    lines = (orjson.dumps(problem.to_json()) for row in drift.drifted for problem in row.problems)
    write_atomically(path, b"[\n" + b",\n".join(lines) + b"\n]\n")
