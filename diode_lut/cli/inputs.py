"""Opening the files of arguments, and requirements to check before the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from diode_lut.cli.output import progress_bars, say
from diode_lut.errors import BROKEN_IMPORT, DatasetError, SettingError, TableError, install_command, printable
from diode_lut.files import require_writable

if TYPE_CHECKING:
    from diode_lut.cli.arguments import Typed
    from diode_lut.dataset import Dataset, Record
    from diode_lut.hardware import Hardware
    from diode_lut.model.ranking import Model
    from diode_lut.problem import Problem
    from diode_lut.table import Table


def read_whole_table(typed: Typed, remedy: str = "correct it first") -> Table:
    """Read a table to write it again. TableError, with the remedy, if something would be lost.

    Lost would be an invalid row, or the first of two fields with the same name.
    """
    from diode_lut.table import located, read_bytes, table_of
    from diode_lut.table.lint import written_twice

    data = typed.read(read_bytes)
    table = table_of(typed.path, data)
    for error in table.errors or located(typed.path, data, written_twice(data)):
        raise TableError(f"{error} ({remedy})")
    return table


def read_datasets(inputs: Iterable[Typed], hardware: Hardware | None = None, layout: str = "nn") -> list[Dataset]:
    """Open datasets. ``hardware`` and ``layout`` are for files without their own."""
    from diode_lut.dataset import read_dataset

    return [read_dataset(each.path, hardware=hardware, layout=layout, contents=each.contents) for each in inputs]


def require_same_device(datasets: Iterable[Dataset], table: Table | Model) -> None:
    """DatasetError if a dataset was measured on another device than the table's or model's."""
    for dataset in datasets:
        found = dataset.header.hardware
        if not found.same_device(table.hardware):
            raise DatasetError(f"{dataset.path}: measured on {found}, but {table.path} is for {table.hardware}")


def read_datasets_for(table: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """Open datasets. DatasetError if one was measured on another device than the table's or model's."""
    datasets = read_datasets(inputs, table.hardware)
    require_same_device(datasets, table)
    return datasets


def read_datasets_answered_by(chooser: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """Open datasets. DatasetError if the table or model never answers for the device of a dataset.

    It answers for its own device, and for others with the same architecture and SM count, with a note.
    """
    datasets = read_datasets(inputs)
    require_same_device([each for each in datasets if not each.header.hardware.same_arch(chooser.hardware)], chooser)
    for found in dict.fromkeys(each.header.hardware for each in datasets):
        if not found.same_device(chooser.hardware):
            say(f"note: {printable(str(chooser.path))} is for {chooser.hardware}; measured on {found}", err=True)
    return datasets


def records_of(datasets: Iterable[Dataset]) -> Iterator[Record]:
    """Yield the records of datasets, with progress bars."""
    with progress_bars() as progress:
        for dataset in datasets:
            yield from progress.records(dataset)


def say_losses(datasets: Iterable[Dataset]) -> int:
    """Say how many damaged places of the datasets were left out, and return the exit code for it."""
    lost = {dataset.path: len(dataset.lost) for dataset in datasets if dataset.lost}
    remedy = "get an undamaged copy, or measure their problems again; `pack` writes a file of what is left"
    for path, places in lost.items():
        say(printable(f"{path}: damaged places, whose records are lost: {places} ({remedy})"), err=True)
    return int(bool(lost))


def problems_of(typed: Typed, find_hardware: Callable[[], Hardware] | None) -> list[Problem]:
    """Read the problems of a shipped set or of a file. UsageError if there is no such file."""
    from diode_lut.measure.methods import SETS
    from diode_lut.measure.problems import problem_set, read_problems

    name = str(typed.path)
    if typed.contents is None and name in SETS:
        return problem_set(name)
    if typed.contents is None and not typed.path.exists():
        raise click.UsageError(f"--problems: {name}: no such file, and no shipped set ({', '.join(SETS)})")
    return read_problems(typed.path, find_hardware, typed.contents)


def require_torch(command: str) -> None:
    """SettingError, with the command to install torch, if torch is missing or broken."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise SettingError(f"{command} needs torch: {install_command('torch')}") from error
    except BROKEN_IMPORT as error:
        raise SettingError(f"{command} needs torch, which cannot be imported ({error}): install it again") from error


def require_inductor(command: str) -> None:
    """SettingError, with a remedy, if torch is missing, or if Inductor, with Triton, is broken."""
    require_torch(command)
    try:
        import diode_lut.hook.problems  # noqa: F401
    except BROKEN_IMPORT as error:
        remedy = "install torch and triton again; on a CPU, triton can be removed"
        raise SettingError(f"{command} needs Inductor, which cannot be imported ({error}): {remedy}") from error


def require_picture(path: Path) -> None:
    """SettingError or OSError if no picture can be drawn and written."""
    require_writable(path)
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise SettingError(f"--picture needs matplotlib: {install_command('report')}") from error
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        raise SettingError(f"--picture: {path.name}: the name must end with one of .{', .'.join(sorted(formats))}")
