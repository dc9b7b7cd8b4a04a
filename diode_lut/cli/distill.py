"""The command ``distill``: a model from datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.evaluate import check_picture
from diode_lut.cli.inputs import end_with_losses, require_torch
from diode_lut.cli.output import say
from diode_lut.cli.typed import FILE, MODEL, PICTURE_OUTPUT, Output, Typed
from diode_lut.cli.values import FRACTION_FOR_TESTS
from diode_lut.domain.printable import printable
from diode_lut.io.files import require_writable
from diode_lut.model.header import SUFFIX

if TYPE_CHECKING:
    from diode_lut.distill import Distilled


@click.command("distill")
@click.argument("inputs", metavar="DATASET...", nargs=-1, required=True, type=FILE)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    required=True,
    type=Output(MODEL, allow_dash=False),
    help="The weights file to write.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of the split and of training: the same seed gives the same model.",
)
@click.option(
    "--epochs",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Number of passes over the problems; fewer take less time.",
)
@click.option(
    "--test",
    metavar="FRACTION",
    type=FRACTION_FOR_TESTS,
    default=0.2,
    show_default=True,
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
) -> None:
    """Train a model for GEMMs that no table covers.

    It uses the timings of both stages, and validates the model on problems that it was not trained on. Training takes a
    quarter of an hour for 10,000 problems on two CPU cores.
    """
    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write the model to")
    if output.suffix != SUFFIX:
        raise click.UsageError(f"{output}: the name of a model must end with {SUFFIX}")
    require_writable(output)
    if picture is not None:
        check_picture(picture)
    require_torch("distill")

    from diode_lut.dataset import read_dataset
    from diode_lut.distill import TrainingPlan, distill
    from diode_lut.model.training_set import Split, parse_family
    from diode_lut.model.weights import write_model

    split = Split(seed, test, tuple(map(parse_family, families)))
    datasets = [read_dataset(each.path, contents=each.contents) for each in inputs]
    distilled = distill(datasets, split, TrainingPlan(seed, epochs), report=lambda text: say(text, err=True))
    write_model(distilled.model, output)
    _print(distilled, output)
    if picture is not None:
        from diode_lut.distill.validation import save_history

        save_history(distilled.histories, picture, f"{output.name}, trained on {distilled.training_problems} problems")
    end_with_losses(datasets)


def _print(distilled: Distilled, output: Path) -> None:
    from diode_lut.distill.validation import as_text

    for name, validation in distilled.validations.items():
        say(as_text(name, validation))
    say(printable(f"{output}: {output.stat().st_size} bytes, {len(distilled.model.candidates)} candidates"))
