"""``adopt`` and ``verify``: make a table for a device that has none, and check a table's answers on a device."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.arguments import FILE, KERNELS, MINUTES, PROBLEMS, TABLE, Output, Typed, git_output
from diode_lut.cli.inputs import kernels_of, problems_of, require_inductor, require_torch
from diode_lut.cli.output import STOPPED, say
from diode_lut.errors import HardwareError, SettingError, as_lines, install_command, printable
from diode_lut.files import require_writable
from diode_lut.hardware import Hardware, detect_hardware, slug
from diode_lut.measure.methods import SETS
from diode_lut.process import interrupt_on_signals

if TYPE_CHECKING:
    from diode_lut.contribute.verify import Drift


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
    help=f"A shipped set ({', '.join(SETS)}), or any problem file that collect takes.",
)
@KERNELS
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu", "all")),
    help="The device to measure; all: every GPU of this machine.  [default: cuda if there is a GPU, else cpu]",
)
@click.option(
    "-o",
    "--output",
    metavar="DIRECTORY",
    type=Output(file_okay=False, dir_okay=True, allow_dash=False),
    default=Path("adopted"),
    help="The directory to write to, and to continue from.",
)
@click.option(
    "--measured-by", metavar="NAME", help="Who measures, such as 'Name <address>'.  [default: as git calls you]"
)
def adopt_command(
    budget: float,
    problem_file: Typed,
    kernel_directory: Path | None,
    device: str | None,
    output: Path,
    measured_by: str | None,
) -> int | None:
    """Make a table for a device that has none, within a time budget.

    It measures, checks, builds the table, trains a model, evaluates and reports, with the most useful problems first.
    If you run it again with the same directory, it continues where it stopped, with a new budget. It refuses to build
    from noise, or if the GPU was busy or slowed down, and says why. OUTPUT/contribution is ready for a pull request.
    """
    _require_packages(device)
    require_inductor("adopt")
    problems = problems_of(problem_file, lambda: detect_hardware("cuda" if device == "all" else device))
    kernels = kernels_of(kernel_directory)
    interrupt_on_signals()  # so that a killed run removes its temporary files
    from diode_lut.cli.tables import check_table
    from diode_lut.contribute.adopt import Folder, adopt, complete

    def report(text: str) -> None:
        say(printable(text), err=True)

    folder = Folder(output)
    name = slug(problem_file.path.name.partition(".")[0]) or "problems"
    measured_by = _git_user() if measured_by is None else measured_by
    try:
        adopted = adopt(
            problems,
            output,
            name=name,
            budget_s=60 * budget,
            measured_by=measured_by,
            device=device,
            kernels=kernels,
            report=report,
        )
        lines = complete(adopted, folder, report)
    except KeyboardInterrupt:
        report("stopped: run the same command again to go on")
        return STOPPED
    found = check_table(Typed(adopted.table), compiling=True, contribution=True)
    faults = [f"  {error}" for error in found if not error.note]
    refused = f"{folder.contribution}: the table can be used, but `check --contribution` would refuse the folder:"
    ready = f"{folder.contribution}: ready to contribute; README.md says how"
    say(as_lines([*lines, "", *([refused, *faults] if faults else [ready])]))
    return None


def _require_packages(device: str | None) -> None:
    """SettingError if torch is missing, or Triton on a GPU. Otherwise a note names the optional packages missing.

    The message names everything missing, and the command to install it.
    """
    optional = {
        "distributed": ("cluster", "a kernel that hangs or crashes ends the run"),
        "vl_convert": ("report", "there is no report page"),
    }
    needed = [name for name in ("torch", "triton") if find_spec(name) is None]
    if needed == ["triton"]:
        require_torch("adopt")
        import torch

        if device == "cpu" or not torch.cuda.is_available():
            needed = []
    lacking = {package: each for package, each in optional.items() if find_spec(package) is None}
    extras = [*(["torch"] if needed else []), *(extra for extra, _ in lacking.values())]
    without = [f"without {package} {loss}" for package, (_, loss) in lacking.items()]
    text = "; ".join([*([f"adopt needs {' and '.join(needed)}"] if needed else []), *without])
    if needed:
        raise SettingError(f"{text}: {install_command(','.join(extras))}")
    if lacking:
        say(f"note: {text}: {install_command(','.join(extras))}", err=True)


def _git_user() -> str:
    """Return git's name for this user, ``Name <address>``, or an empty text."""
    try:
        fields = (git_output(Path.cwd(), "config", f"user.{field}") for field in ("name", "email"))
        name, address = (field.decode(errors="replace").strip() for field in fields)
    except SettingError:
        return ""
    return f"{name} <{address}>"


@click.command("verify")
@click.argument("table_file", metavar="[TABLE]", required=False, type=TABLE)
@KERNELS
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
    help="Begin no row after this time. A third of it is for measuring, however long it takes to start.",
)
@click.option("--rows", metavar="N", type=click.IntRange(min=8), default=48, help="Rows to measure, at most.")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=Output(PROBLEMS, allow_dash=False),
    default=Path("drifted.json"),
    help="The problem file to write, with the problems that drifted; without any it is not written.",
)
def verify_command(
    table_file: Typed | None,
    kernel_directory: Path | None,
    device: str | None,
    budget: float,
    rows: int,
    output: Path,
) -> int:
    """Say whether a table's answers hold on this machine.

    TABLE is a file or the name of a shipped table, by default the first to answer on this device. It measures a sample
    of the rows, half of them the rows with the largest gains, which takes about a minute. A row has drifted if its gain
    over aten differs by over 10 % from the recorded gain. It exits with 0 if the table holds, else with 1.
    """
    from diode_lut.decide.catalog import open_table

    begun = time.monotonic()
    require_writable(output)
    kernels = kernels_of(kernel_directory)
    require_inductor("verify")
    interrupt_on_signals()  # so that a killed run removes its temporary files
    import orjson

    from diode_lut.contribute.review import datasets_beside
    from diode_lut.contribute.verify import comparable, sample_of, verify
    from diode_lut.files import write_atomically

    found = detect_hardware(device)
    table = open_table(table_file.path, table_file.contents) if table_file else open_table(_table_for(found))
    same_device = table.hardware.same_device(found)
    path = printable(str(table.path))
    if not table.hardware.same_arch(found):
        reason = f"{path}: is for {table.hardware}, this is {found}: its answers are never used here"
        differs = table.hardware.difference_from(found)
        raise HardwareError(f"{reason}{f' ({differs})' if differs else ''}; nothing was measured")
    if not same_device:
        note = f"note: {path} is for {table.hardware}, and may answer on {found} too: measuring what it gains here"
        say(note, err=True)
    # Its datasets are beside it in a clone, and in the folder of ``adopt``
    files = datasets_beside(table.path) if table.path else {}
    datasets = [files[digest] for digest in table.provenance.get("datasets", []) if digest in files]
    drift = verify(
        table,
        device=device,
        budget_s=60 * budget,
        begun=begun,
        sample=sample_of(comparable(table, datasets, kernels), rows),
        kernels=kernels,
        report=lambda text: say(text, err=True),
    )
    other = f"is for {table.hardware}, this is {found}; of its gains the sample says: {drift.verdict}"
    verdict = f"{drift.verdict} on {found}" if same_device else other
    say(as_lines([f"{table.path}: {verdict}", *_findings(drift)]))
    if drift.drifted:
        lines = (orjson.dumps(problem.to_json()) for row in drift.drifted for problem in row.problems)
        write_atomically(output, b"[\n" + b",\n".join(lines) + b"\n]\n")
        say(as_lines([f"{output}: the problems of {len(drift.drifted)} rows that drifted, for `collect --problems`"]))
    return 0 if drift.verdict == "holds" and same_device else 1


def _table_for(hardware: Hardware) -> Path:
    """Return the first table to answer on this hardware."""
    from diode_lut.decide.catalog import find_tables, is_model
    from diode_lut.settings import config

    tables = [file for file in find_tables(config.tables) if not is_model(file.path)]
    fitting = [file for file in tables if file.hardware.same_arch(hardware)]
    fitting.sort(key=lambda file: file.shipped and not file.hardware.same_device(hardware))
    if not fitting:
        raise HardwareError(f"no table is for {hardware}: name one, or make one with `diode-lut adopt --budget 10`")
    return fitting[0].path


def _findings(drift: Drift) -> list[str]:
    share, kept = drift.share, drift.kept
    noise = "not measured" if drift.noise is None else f"{drift.noise:.1%}"
    factor = f"{kept.value:.3f} (95 %: {kept.low:.3f} to {kept.high:.3f})" if kept else "not known"
    percent = f"{share.value:.1%} (95 %: {share.low:.1%} to {share.high:.1%})"
    lines = [
        f"  rows measured: {len(drift.rows)}; difference between two measurements of a gain: {noise}",
        f"  measured gain over recorded gain: {factor}",
        f"  drifted by more than {drift.tolerance:.0%}: {len(drift.drifted)}, {percent}",
    ]
    for row in drift.drifted[:10]:
        gain = f"{row.measured[-1]:.3f}" if row.measured[-1] else "does not run"
        more = f" and {len(row.problems) - 1} more" if len(row.problems) > 1 else ""
        lines.append(f"    {row.problems[0]}{more}: recorded {row.recorded:.3f}, measured {gain}")
    advice = {
        "too noisy": "  measure on an idle machine: times differ too much to say anything",
        "undecided": "  too few rows for a verdict: use a larger --budget, if more rows can be compared",
        "does not hold": "  measure the problems again, and build the table from all timings",
    }
    return [*lines, *([advice[drift.verdict]] if drift.verdict in advice else [])]
