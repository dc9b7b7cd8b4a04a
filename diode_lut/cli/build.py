"""``pack``, ``build`` and ``distill``: from timings to a dataset, a table and a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.arguments import (
    DATASET,
    FILE,
    FRACTION,
    FRACTION_FOR_TESTS,
    LAYOUT,
    MODEL,
    PICTURE_OUTPUT,
    TABLE,
    TABLE_OUTPUT,
    Output,
    Typed,
    hardware_of,
    output_option,
)
from diode_lut.cli.inputs import (
    read_datasets,
    read_whole_table,
    require_picture,
    require_same_device,
    require_torch,
    say_losses,
)
from diode_lut.cli.output import changing, in_a_file, is_standard, progress_bars, say
from diode_lut.errors import as_lines, printable
from diode_lut.files import require_writable

if TYPE_CHECKING:
    from diode_lut.build import BuildResult, Pruning
    from diode_lut.model.ranking import Model
    from diode_lut.problem import Problem
    from diode_lut.table import Table
    from diode_lut.templates.config import Config


@click.command("pack")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=FILE)
@output_option(type=Output(DATASET, ".msgpack.zst", ".zst", ".msgpack"), help="The file to write: NAME.msgpack.zst.")
@click.option(
    "--measured-by",
    metavar="NAME",
    default="",
    show_default=False,
    help="Who measured, for the header, such as 'Name <address>'.  [default: whom the inputs name]",
)
def pack_command(inputs: tuple[Typed, ...], output: Path, measured_by: str) -> int:
    """Join datasets of the same hardware and software in a file.

    The file is compact, and is read like any other dataset. The same timings give the same bytes, in any order. OUT may
    be among the inputs.
    """
    from diode_lut.dataset import open_stream, pack

    datasets = [open_stream(each.path, each.contents) for each in inputs]
    with progress_bars() as progress, in_a_file(output) as path:
        packed = pack(datasets, path, progress.records, measured_by=measured_by)
        size = path.stat().st_size
    stages = ", ".join(f"{stage}: {timings}" for stage, timings in sorted(packed.timings.items())) or "none"
    counts = f"{packed.problems} problems, {sum(packed.timings.values())} timings ({stages})"
    say(printable(f"{output}: {counts}, {size} bytes"), err=is_standard(output))
    if packed.copies:
        say(f"  copies of other records, left out: {packed.copies}", err=is_standard(output))
    return say_losses(datasets)


@click.command("build")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=FILE)
@output_option(type=TABLE_OUTPUT, help="The table to write.")
@click.option(
    "--previous",
    metavar="FILE",
    type=TABLE,
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
    type=FRACTION,
    default=0.02,
    help="How much slower than the best measured config an answer may be.",
)
@click.option(
    "--layout", type=LAYOUT, default="nn", help="The layout of A and B in datasets that do not say it (torch-diode's)."
)
@click.option(
    "--prune-with",
    "model_file",
    metavar="MODEL",
    type=TABLE,
    help="Leave out rows if this model, trained for the same device, answers as well for their problems.",
)
def build_command(
    inputs: tuple[Typed, ...],
    output: Path,
    previous: Typed | None,
    hardware: str | None,
    epsilon: float,
    layout: str,
    model_file: Typed | None,
) -> int:
    """Build a table from datasets.

    The table is small, and gives every measured problem a config within --epsilon of the best measured config. Another
    config than aten is chosen only if it is faster than aten by more than noise. Datasets are those of collect, or
    torch-diode's, as JSON or msgpack.
    """
    from diode_lut.build import build
    from diode_lut.decide.catalog import open_model
    from diode_lut.table import placed, to_bytes

    with changing(output) as save:
        before = previous or (Typed(output) if output.exists() else None)
        table = read_whole_table(before, "correct it first, or build to another file") if before else None
        device = hardware_of(hardware) if hardware is not None else None
        datasets = read_datasets(inputs, device or (table.hardware if table else None), layout)
        model = open_model(model_file.file) if model_file else None
        if model:
            require_same_device(datasets, model)
        with progress_bars() as progress:
            result = build(
                datasets,
                hardware=device,
                previous=table,
                epsilon=epsilon,
                prune_with=_pruning(model) if model else None,
                progress=progress.records,
            )
        save(to_bytes(placed(result.table, output)))
    say(as_lines(_summary(result, table, output)), err=is_standard(output))
    return say_losses(datasets)


def _pruning(model: Model) -> Pruning:
    """Return pruning by the model's answers above the thresholds of the settings."""
    from diode_lut.build import Pruning
    from diode_lut.decide.sources import ModelSource, Threshold
    from diode_lut.settings import config

    threshold = Threshold.of(config)
    source = ModelSource(model, model.hardware)
    name = f"sha256:{model.digest}, with confidence {threshold.confidence:g} or a gain of {threshold.gain:g}"

    def choose(problem: Problem) -> Config | None:
        answer = source.ask(problem, threshold, padding=True)
        return answer.configs[0] if answer is not None and answer.configs else None

    return Pruning(choose, name)


def _summary(result: BuildResult, previous: Table | None, output: Path) -> list[str]:
    """Return the numbers of timings and rows, and the regret of the table."""
    entries = result.table.entries
    was = f" (before: {len(previous.entries)})" if previous else ""
    lines = [
        f"{result.timings} timings of {result.problems + result.unsolved} problems",
        *([f"  outdone by the final stage: {result.outdone}"] if result.outdone else []),
        *(f"  failed, {reason}: {count}" for reason, count in sorted(result.failures.items())),
        *(f"  skipped, {reason}: {count}" for reason, count in sorted(result.skipped.items())),
        f"{output}: {len(entries)} rows{was}, {result.exact_rows} exact and {result.range_rows} ranges",
    ]
    served = sum(entry.problems or 0 for entry in result.pruned)
    if result.pruned:
        lines.append(f"  rows left to the model: {len(result.pruned)}, of {served} problems")
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
@click.argument("inputs", metavar="DATASET...", nargs=-1, required=True, type=FILE)
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
    type=FRACTION_FOR_TESTS,
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
@click.option(
    "--picture",
    metavar="FILE",
    type=PICTURE_OUTPUT,
    help="Draw loss and regret by epoch in this .png, .svg or .pdf file.",
)
def distill_command(
    inputs: tuple[Typed, ...],
    output: Path,
    seed: int,
    epochs: int,
    test: float,
    families: tuple[str, ...],
    picture: Path | None,
) -> int:
    """Train a model for GEMMs that no table covers.

    It uses the timings of both stages, and validates the model on problems kept from training. Training takes a quarter
    of an hour for 10,000 problems on two CPU cores.
    """
    from diode_lut.model import SUFFIX
    from diode_lut.model.weights import write_model

    if output.suffix != SUFFIX:
        raise click.UsageError(f"{output}: the name of a model must end with {SUFFIX}")
    require_writable(output)
    if picture is not None:
        require_picture(picture)
    require_torch("distill")

    from diode_lut.distill import distill
    from diode_lut.distill.training import TrainingPlan
    from diode_lut.distill.validation import as_text, save_history
    from diode_lut.model import Split, parse_family

    split = Split(seed, test, tuple(map(parse_family, families)))
    datasets = read_datasets(inputs)
    distilled = distill(datasets, split, TrainingPlan(seed, epochs), report=lambda text: say(text, err=True))
    write_model(distilled.model, output)
    for name, validation in distilled.validations.items():
        say(as_text(name, validation))
    say(printable(f"{output}: {output.stat().st_size} bytes, {len(distilled.model.candidates)} candidates"))
    if picture is not None:
        title = f"{output.name}, trained on {distilled.training_problems} problems"
        save_history(distilled.histories, picture, title)
    return say_losses(datasets)
