"""``adopt``, ``pack``, ``build``, ``distill`` and ``verify``: from a device or from timings to a table and a model."""

from __future__ import annotations

import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli import arguments
from diode_lut.cli.output import (
    DATASET,
    MODEL,
    PICTURE_OUTPUT,
    PROBLEMS,
    STOPPED,
    TABLE_OUTPUT,
    Output,
    changing,
    in_a_file,
    is_standard,
    output_option,
    progress_bars,
    say,
)
from diode_lut.errors import HardwareError, SettingError, as_lines, counted, install_command, printable
from diode_lut.files import require_writable
from diode_lut.hardware import detect_hardware, slug
from diode_lut.measure import SETS
from diode_lut.process import interrupt_on_signals
from diode_lut.settings import config

if TYPE_CHECKING:
    from diode_lut.build import BuildResult
    from diode_lut.contribute.judge import Drift
    from diode_lut.problem import Problem
    from diode_lut.table import Table
    from diode_lut.templates.config import Config


@click.command("adopt")
@click.option(
    "--budget",
    type=arguments.MINUTES,
    required=True,
    help="Time to spend: 10 gives a first table, 60 most of the models, a night all problems.",
)
@click.option(
    "--problems",
    "problem_file",
    type=arguments.FILE,
    metavar="SET|FILE",
    default="models",
    help=f"A shipped set ({', '.join(SETS)}), or any problem file that collect takes.",
)
@arguments.KERNELS
@arguments.DEVICE
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
    problem_file: arguments.Typed,
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
    arguments.require_inductor("adopt")
    problems = arguments.problems_of(problem_file, lambda: detect_hardware("cuda" if device == "all" else device))
    kernels = arguments.kernels_of(kernel_directory)
    interrupt_on_signals()  # so that a killed run removes its temporary files
    from diode_lut.cli.tables import check_table
    from diode_lut.contribute.adopt import adopt, complete

    def report(text: str) -> None:
        say(printable(text), err=True)

    name = slug(problem_file.path.name.partition(".")[0]) or "problems"
    if measured_by is None:  # as git calls the user, or nothing
        measured_by = ""
        with suppress(SettingError):
            user, address = (arguments.git_output(Path.cwd(), "config", f"user.{field}") for field in ("name", "email"))
            measured_by = f"{user.decode(errors='replace').strip()} <{address.decode(errors='replace').strip()}>"
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
        lines = complete(adopted, report)
    except KeyboardInterrupt:
        report("stopped: run the same command again to go on")
        return STOPPED
    found = check_table(arguments.Typed(adopted.table), compiling=True, contribution=True)
    faults = [f"  {error}" for error in found if not error.note]
    refused = f"{adopted.contribution}: the table can be used, but `check --contribution` would refuse the folder:"
    ready = f"{adopted.contribution}: ready to contribute; README.md says how"
    say(as_lines([*lines, "", *([refused, *faults] if faults else [ready])]))
    return None


def _require_packages(device: str | None) -> None:
    """Note missing optional packages. SettingError if torch is missing, or Triton on a GPU. Both say how to install."""
    needed = [name for name in ("torch", "triton") if find_spec(name) is None]
    if needed == ["triton"]:
        arguments.require_torch("adopt")
        import torch

        if device == "cpu" or not torch.cuda.is_available():
            needed = []
    reports = find_spec("vl_convert") is not None
    lacking = "" if reports else "without vl_convert there is no report page"
    if needed:
        text = "; ".join(filter(None, (f"adopt needs {' and '.join(needed)}", lacking)))
        raise SettingError(f"{text}: {install_command('torch' if reports else 'torch,report')}")
    if lacking:
        say(f"note: {lacking}: {install_command('report')}", err=True)


@click.command("pack")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=arguments.FILE)
@output_option(type=Output(DATASET, ".msgpack.zst", ".zst", ".msgpack"), help="The file to write: NAME.msgpack.zst.")
@click.option(
    "--measured-by",
    metavar="NAME",
    default="",
    show_default=False,
    help="Who measured, for the header, such as 'Name <address>'.  [default: whom the inputs name]",
)
def pack_command(inputs: tuple[arguments.Typed, ...], output: Path, measured_by: str) -> int:
    """Join datasets of the same hardware and software in a file.

    The file is compact, and is read like any other dataset. The same timings give the same bytes, in any order. OUT may
    be among the inputs.
    """
    from diode_lut.dataset import open_stream, pack

    datasets = [open_stream(each.path, each.contents) for each in inputs]
    with progress_bars() as progress, in_a_file(output) as path:
        packed = pack(datasets, path, progress.records, measured_by=measured_by)
        size = path.stat().st_size
    stages = ", ".join(f"{stage}: {count}" for stage, count in sorted(packed.timings.items())) or "none"
    timings = counted(sum(packed.timings.values()), "timing")
    counts = f"{counted(packed.problems, 'problem')}, {timings} ({stages})"
    say(printable(f"{output}: {counts}, {size} bytes"), err=is_standard(output))
    if packed.copies:
        say(f"  copies of other records, left out: {packed.copies}", err=is_standard(output))
    return arguments.say_losses(datasets)


@click.command("build")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=arguments.FILE)
@output_option(type=TABLE_OUTPUT, help="The table to write.")
@arguments.table_option(
    "--previous",
    help="A table whose rows with a note are kept, and whose answers are preferred if they are equally good.  "
    "[default: OUT, if it exists]",
)
@click.option(
    "--hardware",
    metavar="NAME",
    help="The hardware that the table is for: a table's name or its GPU's, or NAME,ARCH,SMS[,ALIAS...], for example "
    "'NVIDIA H200,sm_90,132'.  [default: that of the previous table or the datasets]",
)
@click.option(
    "--epsilon",
    metavar="FRACTION",
    type=arguments.FRACTION,
    default=0.02,
    help="How much slower than the best measured config an answer may be.",
)
@click.option(
    "--layout",
    type=arguments.LAYOUT,
    default="nn",
    help="The layout of A and B in datasets that do not say it (torch-diode's).",
)
@click.option(
    "--prune-with",
    "model_file",
    metavar="MODEL",
    type=arguments.TABLE,
    help="Leave out rows if this model, trained for the same device, answers as well for their problems.",
)
def build_command(
    inputs: tuple[arguments.Typed, ...],
    output: Path,
    previous: arguments.Typed | None,
    hardware: str | None,
    epsilon: float,
    layout: str,
    model_file: arguments.Typed | None,
) -> int:
    """Build a table from datasets.

    The table is small, and gives every measured problem a config within --epsilon of the best measured config. Another
    config than aten is chosen only if it is faster than aten by more than noise. Datasets are those of collect, or
    torch-diode's, as JSON or msgpack.
    """
    from diode_lut.build import Pruning, build
    from diode_lut.decide.catalog import open_model
    from diode_lut.decide.sources import ModelSource, Threshold
    from diode_lut.table import placed, to_bytes

    with changing(output) as save:
        before = previous or (arguments.Typed(output) if output.exists() else None)
        table = arguments.read_whole_table(before, "correct it first, or build to another file") if before else None
        device = arguments.hardware_of(hardware) if hardware is not None else None
        datasets = arguments.read_datasets(inputs, device or (table.hardware if table else None), layout)
        pruned = None
        if model_file is not None:
            model = open_model(model_file.file)
            arguments.require_same_device(datasets, model)
            source, threshold = ModelSource(model, model.hardware), Threshold.of(config)

            def choose(problem: Problem) -> Config | None:
                answer = source.ask(problem, threshold, padding=True)
                return answer.configs[0] if answer is not None and answer.configs else None

            sure = f"with confidence {threshold.confidence:g} or a gain of {threshold.gain:g}"
            pruned = Pruning(choose, f"sha256:{model.digest}, {sure}")
        with progress_bars() as progress:
            result = build(
                datasets, hardware=device, previous=table, epsilon=epsilon, prune_with=pruned, progress=progress.records
            )
        save(to_bytes(placed(result.table, output)))
    say(as_lines(_summary(result, table, output)), err=is_standard(output))
    return arguments.say_losses(datasets)


def _summary(result: BuildResult, previous: Table | None, output: Path) -> list[str]:
    """Return the numbers of timings and rows, and the regret of the table."""
    entries = result.table.entries
    was = f" (before: {len(previous.entries)})" if previous else ""
    ranges = counted(result.range_rows, "range")
    lines = [
        f"{counted(result.timings, 'timing')} of {counted(result.problems + result.unsolved, 'problem')}",
        *([f"  outdone by the final stage: {result.outdone}"] if result.outdone else []),
        *(f"  failed, {reason}: {count}" for reason, count in sorted(result.failures.items())),
        *(f"  skipped, {reason}: {count}" for reason, count in sorted(result.skipped.items())),
        f"{output}: {counted(len(entries), 'row')}{was}, {result.exact_rows} exact and {ranges}",
    ]
    served = sum(entry.problems or 0 for entry in result.pruned)
    if result.pruned:
        lines.append(f"  rows left to the model: {len(result.pruned)}, of {counted(served, 'problem')}")
    if result.kept:
        others = result.problems - len(result.regrets) - served
        lines.append(f"  rows with a note: {len(result.kept)}, kept; they answer for {others} of the problems")
    if result.unsolved:
        lines.append(f"  problems without a row, because nothing succeeded on them: {result.unsolved}")
    if result.too_noisy:
        noisy = f"{len(result.too_noisy)} of {result.problems} problems"
        lines.append(f"  too noisy to decide: {noisy}, whose rows say aten")
    lines += [f"  left out, because these cannot be its times: {reason}" for reason in result.doubted]
    lines += [f"  implausible, so the row says aten: {reason}" for reason in result.implausible]
    if result.without_aten:
        not_compared = "problems whose answer was not compared with aten, which was not measured"
        lines.append(f"  {not_compared}: {result.without_aten}")
    if result.regrets:
        lines.append(f"regret: {result.worst_regret:.2%} at worst, {result.mean_regret:.2%} on average")
    return lines


@click.command("distill")
@click.argument("inputs", metavar="DATASET...", nargs=-1, required=True, type=arguments.FILE)
@output_option(type=Output(MODEL, allow_dash=False), help="The weights file to write.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    help="Seed of the split and of training: the same seed gives the same model.",
)
@click.option(
    "--epochs",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    help="Number of passes over the problems; fewer take less time.",
)
@click.option(
    "--test",
    metavar="FRACTION",
    type=arguments.FRACTION_FOR_TESTS,
    default=0.2,
    help="Fraction of the problems that is kept for testing.",
)
@click.option(
    "--leave-out",
    "families",
    metavar="FAMILY",
    multiple=True,
    help="Keep all of these for testing as well: op=mm,layout=nt,m=1:64. Can be given several times.",
)
@click.option("--picture", type=PICTURE_OUTPUT, help="Draw loss and regret by epoch in this .png, .svg or .pdf file.")
@click.option(
    "--device", type=click.Choice(("cpu", "cuda")), default="cpu", help="The device that trains.", show_default=True
)
def distill_command(
    inputs: tuple[arguments.Typed, ...],
    output: Path,
    seed: int,
    epochs: int,
    test: float,
    families: tuple[str, ...],
    picture: Path | None,
    device: str,
) -> int:
    """Train a model for GEMMs that no table covers.

    It uses the timings of both stages, and validates the model on problems kept from training. Training takes a quarter
    of an hour for 10,000 problems on two CPU cores, and two minutes on a GPU. The model is for the device of the first
    dataset. Others may be of devices with the same architecture and SM count.
    """
    from diode_lut.model import SUFFIX
    from diode_lut.model.weights import write_model

    if output.suffix != SUFFIX:
        raise click.UsageError(f"{output}: the name of a model must end with {SUFFIX}")
    require_writable(output)
    if picture is not None:
        arguments.require_picture(picture)
    arguments.require_torch("distill")

    from diode_lut.distill import as_text, distill, save_history
    from diode_lut.distill.training import TrainingPlan
    from diode_lut.model import Split, parse_family

    split = Split(seed, test, tuple(map(parse_family, families)))
    datasets = arguments.read_datasets(inputs)
    distilled = distill(datasets, split, TrainingPlan(seed, epochs, device), report=lambda text: say(text, err=True))
    write_model(distilled.model, output)
    for name, validation in distilled.validations.items():
        say(as_text(name, validation))
    say(printable(f"{output}: {output.stat().st_size} bytes, {len(distilled.model.candidates)} candidates"))
    if picture is not None:
        title = f"{output.name}, trained on {distilled.training_problems} problems"
        save_history(distilled.histories, picture, title)
    return arguments.say_losses(datasets)


@click.command("verify")
@click.argument("table_file", metavar="[TABLE]", required=False, type=arguments.TABLE)
@arguments.KERNELS
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    help="The device to measure.  [default: cuda if there is a GPU, else cpu]",
)
@click.option(
    "--budget",
    type=arguments.MINUTES,
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
    table_file: arguments.Typed | None,
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
    from diode_lut.decide.catalog import find_tables, is_model, open_table

    begun = time.monotonic()
    require_writable(output)
    kernels = arguments.kernels_of(kernel_directory)
    arguments.require_inductor("verify")
    interrupt_on_signals()  # so that a killed run removes its temporary files
    import orjson

    from diode_lut.contribute.judge import comparable, datasets_beside, sample_of, verify
    from diode_lut.files import write_atomically

    found = detect_hardware(device)
    if table_file is not None:
        table = open_table(table_file.path, table_file.contents)
    else:
        tables = [file for file in find_tables(config.tables) if not is_model(file.path)]
        fitting = [file for file in tables if file.hardware.same_arch(found)]
        fitting.sort(key=lambda file: file.shipped and not file.hardware.same_device(found))
        if not fitting:
            raise HardwareError(f"no table is for {found}: name one, or make one with `diode-lut adopt --budget 10`")
        table = open_table(fitting[0].path)
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
    gains = comparable(table, datasets, kernels)
    drift = verify(
        table,
        sample_of(gains, rows),
        device=device,
        budget_s=60 * budget,
        begun=begun,
        kernels=kernels,
        report=lambda text: say(text, err=True),
    )
    other = f"is for {table.hardware}, this is {found}; of its gains the sample says: {drift.verdict}"
    verdict = f"{drift.verdict} on {found}" if same_device else other
    say(as_lines([f"{table.path}: {verdict}", *_findings(drift, len(gains))]))
    if drift.drifted:
        lines = (orjson.dumps(problem.to_json()) for row in drift.drifted for problem in row.problems)
        write_atomically(output, b"[\n" + b",\n".join(lines) + b"\n]\n")
        drifted = counted(len(drift.drifted), "row")
        say(as_lines([f"{output}: the problems of {drifted} that drifted, for `collect --problems`"]))
    return 0 if drift.verdict == "holds" and same_device else 1


def _findings(drift: Drift, most: int) -> list[str]:
    """Return lines about the sample. ``most`` is the number of rows that it could have had."""
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
    whole = len(drift.rows) == most
    remedy = "the table has no more that can be compared" if whole else "give a larger --budget, or more --rows"
    advice = {
        "too noisy": "  measure on an idle machine: times differ too much to say anything",
        "undecided": f"  too few rows for a verdict: {remedy}",
        "does not hold": "  measure the problems again, and build the table from all timings",
    }
    return [*lines, *([advice[drift.verdict]] if drift.verdict in advice else [])]
