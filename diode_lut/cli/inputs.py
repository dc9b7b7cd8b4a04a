"""What commands read: whole tables, and the datasets for a table or model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import click

from diode_lut.cli.output import say
from diode_lut.cli.typed import Typed
from diode_lut.domain.errors import BROKEN_IMPORT, DatasetError, SettingError, TableError, install_command
from diode_lut.domain.printable import printable

if TYPE_CHECKING:
    from diode_lut.dataset import Dataset
    from diode_lut.domain.hardware import Hardware
    from diode_lut.model.ranking import Model
    from diode_lut.table import Table


_REMEDY = "get an undamaged copy, or measure their problems again; `pack` writes a file of what is left"


def read_whole_table(typed: Typed, remedy: str) -> Table:
    """The table; TableError, with the remedy, if writing it again would lose something.

    Lost would be an invalid row, or the first of two fields with the same name.
    """
    from diode_lut.table.check import written_twice
    from diode_lut.table.read import located, read_bytes, table_of

    data = typed.read(read_bytes)
    table = table_of(typed.path, data)
    for error in table.errors or located(typed.path, data, written_twice(data)):
        raise TableError(f"{error} ({remedy})")
    return table


def read_datasets_for(table: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """The datasets, or DatasetError if one of them was measured on another device than the table or model is for."""
    from diode_lut.dataset import read_dataset

    datasets = [read_dataset(each.path, hardware=table.hardware, contents=each.contents) for each in inputs]
    require_same_device(datasets, table)
    return datasets


def read_datasets_answered_by(chooser: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """The datasets, or DatasetError if one of them was measured on a device that the table or model never answers for.

    It answers for its own device, and for others with the same architecture and SM count, which is said once.
    """
    from diode_lut.dataset import read_dataset

    datasets = [read_dataset(each.path, contents=each.contents) for each in inputs]
    require_same_device([each for each in datasets if not each.header.hardware.same_arch(chooser.hardware)], chooser)
    for found in dict.fromkeys(each.header.hardware for each in datasets):
        if not found.same_device(chooser.hardware):
            say(f"note: {printable(str(chooser.path))} is for {chooser.hardware}; measured on {found}", err=True)
    return datasets


def require_same_device(datasets: Iterable[Dataset], table: Table | Model) -> None:
    """DatasetError if one of the datasets was measured on another device than the table or model is for."""
    for dataset in datasets:
        found = dataset.header.hardware
        if not found.same_device(table.hardware):
            raise DatasetError(f"{dataset.path}: measured on {found}, but {table.path} is for {table.hardware}")


def read_datasets_alike(inputs: Iterable[Typed]) -> tuple[list[Dataset], Hardware]:
    """The datasets and what they were measured on, or DatasetError if that is not one device for all of them."""
    from diode_lut.dataset import read_dataset

    first, *others = datasets = [read_dataset(each.path, contents=each.contents) for each in inputs]
    device = first.header.hardware
    for other in others:
        if not other.header.hardware.same_device(device):
            raise DatasetError(f"{other.path}: measured on {other.header.hardware}, but {first.path} on {device}")
    return datasets, device


def end_with_losses(datasets: Iterable[Dataset]) -> None:
    """At the end of a command: exit with 1 if datasets were damaged, and say how many places were left out."""
    lost = {dataset.path: len(dataset.lost) for dataset in datasets if dataset.lost}
    for path, places in lost.items():
        say(printable(f"{path}: damaged places, whose records are lost: {places} ({_REMEDY})"), err=True)
    if lost:
        click.get_current_context().exit(1)


def require_torch(command: str) -> None:
    """SettingError, with the command that installs torch, if torch is missing or broken."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise SettingError(f"{command} needs torch: {install_command('torch')}") from error
    except BROKEN_IMPORT as error:
        raise SettingError(f"{command} needs torch, which cannot be imported ({error}): install it again") from error


class Optional(NamedTuple):
    """A package that a command can do without: the extra that has it, and what is missing then, as text."""

    package: str
    extra: str
    loss: str


def require_packages(command: str, device: str | None, optional: Sequence[Optional]) -> None:
    """SettingError if torch is missing, or Triton and this is for a GPU; else a note on the optional ones that are.

    One message names all that is missing, and the command that installs it.
    """
    needed = [name for name in ("torch", "triton") if find_spec(name) is None]
    if needed == ["triton"] and not _is_for_gpu(command, device):
        needed = []
    lacking = [each for each in optional if find_spec(each.package) is None]
    extras = dict.fromkeys([*(["torch"] if needed else []), *(each.extra for each in lacking)])
    without = [f"without {each.package} {each.loss}" for each in lacking]
    text = "; ".join([*([f"{command} needs {' and '.join(needed)}"] if needed else []), *without])
    if needed:
        raise SettingError(f"{text}: {install_command(','.join(extras))}")
    if lacking:
        say(f"note: {text}: {install_command(','.join(extras))}", err=True)


def _is_for_gpu(command: str, device: str | None) -> bool:
    require_torch(command)
    import torch

    return device != "cpu" and torch.cuda.is_available()


def require_inductor(command: str) -> None:
    """SettingError, which says what to do, if torch is missing, or if Inductor, which imports Triton, is broken."""
    require_torch(command)
    try:
        import diode_lut.inductor.problems  # noqa: F401
    except BROKEN_IMPORT as error:
        remedy = "install torch and triton again; on a CPU, triton can be removed"
        raise SettingError(f"{command} needs Inductor, which cannot be imported ({error}): {remedy}") from error
