"""``pack``: one compact dataset from many."""

from __future__ import annotations

from pathlib import Path

import click

from diode_lut.cli.inputs import end_with_losses
from diode_lut.cli.output import progress_bars, say
from diode_lut.printable import printable

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("pack")
@click.argument("inputs", metavar="IN...", nargs=-1, required=True, type=_FILE)
@click.option("-o", "--output", metavar="OUT", required=True, type=_FILE, help="The file to write: NAME.msgpack.zst.")
def pack_command(inputs: tuple[Path, ...], output: Path) -> None:
    """Unite datasets of the same hardware and software in one compact file, which is read like any other.

    Records are sorted, and equal ones stored once: the same timings give the same bytes. IN may include OUT.
    """
    from diode_lut.dataset import pack
    from diode_lut.dataset.stream import open_stream

    if not output.parent.is_dir():
        raise click.UsageError(f"{output.parent}: no such directory to write the dataset to")
    datasets = [open_stream(path) for path in inputs]
    with progress_bars() as progress:
        packed = pack(datasets, output, lambda dataset: progress.track(dataset, dataset.path.name))
    count, size = sum(packed.timings.values()), output.stat().st_size
    stages = ", ".join(f"{stage}: {timings}" for stage, timings in sorted(packed.timings.items()))
    say(printable(f"{output}: {packed.problems} problems, {count} timings ({stages or 'none'}), {size} bytes"))
    if packed.copies:
        say(f"  copies of other records, left out: {packed.copies}")
    end_with_losses(datasets)
