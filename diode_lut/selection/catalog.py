"""Which tables and models there are, and which of them speak for some hardware.

Only the heads of the files are read until a table is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.domain.errors import DiodeLutError, HardwareError, ModelError, TableError, let_pass
from diode_lut.domain.gpus import known_gpu
from diode_lut.domain.hardware import Hardware, slug
from diode_lut.io.log import warn_once
from diode_lut.io.permissions import distrust
from diode_lut.io.resources import own_tables_directory, tables_directory
from diode_lut.model.header import SUFFIX, read_model_hardware
from diode_lut.selection.selector import Tier, switched_off
from diode_lut.selection.sources import ModelSource, TableSource
from diode_lut.settings import TIERS
from diode_lut.table import Table, read_hardware, read_table
from diode_lut.table.read import table_of

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model

_SHIPPED = _TABLES, _MODELS = "*.json", f"*{SUFFIX}"
_MISSING = "no such file"
_DANGLING = "is a symbolic link that leads to no file"
_ROWS_NAMED = 10
"""Number of bad rows of a file that are named one by one in the log."""


class _Tables(NamedTuple):
    """What tables are in a tier: those whose hardware fits the device's; and the reason if there are none.

    ``fits`` gets the table's hardware and the device's, ``reason_if_none`` is formatted with the device's.
    """

    fits: Callable[[Hardware, Hardware], bool]
    reason_if_none: str


_USER = _Tables(Hardware.same_arch, "no table of the user's own")
_SHIPPED_TABLES = {
    "device": _Tables(Hardware.same_device, "no shipped table is for {0}"),
    "same_arch": _Tables(Hardware.same_arch, "no shipped table is for another device like {0}"),
}
"""The tiers of shipped tables, by name. A table is in the first tier that it fits."""


class TableFile(NamedTuple):
    """A table or model that can be used: its file, what it is for, and whether it is the user's own or shipped.

    ``named`` is whether the user has named it, as opposed to files that were found in a directory.
    """

    path: Path
    hardware: Hardware
    shipped: bool
    named: bool = False

    @property
    def name(self) -> str:
        """What to call it: the file's name without ``.json`` or ``.safetensors``."""
        return self.path.stem

    def called(self, name: str) -> bool:
        """Whether ``name`` means this: a table by its file, its hardware or an alias of that; a model by its file."""
        return slug(name) == slug(self.name) or (not is_model(self.path) and self._for(name))

    def _for(self, name: str) -> bool:
        """Whether it is for the hardware of that name, or for the well-known GPU that the name means."""
        gpu = known_gpu(name)
        return self.hardware.called(name) or (gpu is not None and gpu.same_device(self.hardware))


def find_tables(user_tables: Iterable[str]) -> list[TableFile]:
    """The user's own tables, named ones first, then the shipped ones by name; bad files are left out with a warning."""
    return [*_named_files(user_tables), *_files(own_paths(), shipped=False), *_shipped(*_SHIPPED)]


def find_path(name_or_path: str) -> Path:
    """The file of a path, or of a shipped table's or model's name; TableError if there is none."""
    path = Path(name_or_path)
    fault = _no_file(path)
    if not fault:
        return path
    shipped = _shipped(*_SHIPPED)
    for file in shipped:
        if file.called(name_or_path):
            return file.path
    known = ", ".join(file.name for file in shipped) or "none"
    more = f", and no shipped table of that name (shipped: {known})" if fault == _MISSING else ""
    raise TableError(f"{fault}{more}{_meant(name_or_path)}", path=path) from OSError(name_or_path)


def _meant(name: str) -> str:
    """What a setting with names of tables lacks, as text; empty if nothing is known."""
    if name.startswith("~"):
        return " (~ is your home directory only in a shell, and without quotes)"
    several = [each for each in (",", ";", " ") if each in name.strip()]
    return f" (several tables are separated by '{os.pathsep}')" if several else ""


def _no_file(path: Path) -> str:
    """What is there instead of a file, as text; empty if it is one. TableError if the system will not say."""
    try:
        if path.is_file():
            return ""
        return (
            "is a directory"
            if path.is_dir()
            else "is no regular file"
            if path.exists()
            else _DANGLING
            if path.is_symlink()
            else _MISSING
        )
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", path=path) from error


def find_hardware(name: str, user_tables: Iterable[str]) -> Hardware:
    """The hardware that some table is for, by its name, its alias or the table's; else the well-known GPU of that name.

    HardwareError if there is none.
    """
    files = find_tables(user_tables)
    found = next((file.hardware for file in files if file.called(name)), None) or known_gpu(name)
    if found is None:
        known = ", ".join(dict.fromkeys(file.name for file in files)) or "none"
        raise HardwareError(
            f"{name}: no table is for hardware of that name (tables: {known}), and no GPU is known by it"
        )
    return found


def open_table(path: Path, data: bytes | None = None) -> Table:
    """The table in a file, with a warning for each row that is skipped; TableError if the whole file is bad.

    ``data`` is the file's content, if that was read before.
    """
    table = read_table(path) if data is None else table_of(path, data)
    for error in table.errors[:_ROWS_NAMED]:
        warn_once(f"row skipped: {error}")
    more = len(table.errors) - _ROWS_NAMED
    if more > 0:
        warn_once(f"{path}: {more} more rows skipped; `python -m diode_lut check` lists them")
    return table


def is_model(path: Path) -> bool:
    """Whether a file is a model, by its name."""
    return path.suffix == SUFFIX


def open_model(path: Path) -> Model:
    """The model in a file; ModelError if it is bad, or if what models need is not installed, or broken."""
    try:
        from diode_lut.model.weights import read_model
    except ImportError as error:
        raise ModelError(f"{path}: NumPy or safetensors, which models need, cannot be imported: {error}") from error
    return read_model(path)


def tiers_for(
    hardware: Hardware, user_tables: Sequence[str], allowed: Collection[str] = TIERS, first: Table | Model | None = None
) -> tuple[Tier, ...]:
    """The tiers that answer for ``hardware``: the user's tables, those shipped for it, those shipped
    for another device with the same architecture and SM count, models.

    Of the user's tables, those that are named come first, whatever device they are for, as long as the architecture and
    the SM count are right. Then come those for this device in the user's directory of tables.
    Of models, the user's own come first, whatever they were trained for, then those shipped for this device, then
    those for the same architecture. What cannot be used is left out with one warning, a table for other hardware
    without. Of a tier that is not among the ``allowed`` nothing is opened. ``first`` is the first of the user's own.
    """
    tables: list[str | Table] = [name for name in user_tables if not _names_model(name)]
    models: list[str | Model] = [name for name in user_tables if _names_model(name)]
    if isinstance(first, Table):
        tables.insert(0, first)
    elif first is not None:
        models.insert(0, first)
    left = _shipped(_TABLES)
    openers: dict[str, Callable[[], Tier]] = {
        "user": partial(_user_tier, "user", hardware, tables),
        "model": partial(_model_tier, "model", hardware, models),
    }
    for name, shipped in _SHIPPED_TABLES.items():
        fitting = [file for file in left if shipped.fits(file.hardware, hardware)]
        left = [file for file in left if file not in fitting]
        openers[name] = partial(_tier, name, hardware, [str(file.path) for file in fitting], shipped)
    return tuple(openers[name]() if name in allowed else switched_off(name) for name in TIERS if name in openers)


def _names_model(name: str) -> bool:
    """Whether a name is a model's; where there is no such file, whether it looks like a model's."""
    try:
        return is_model(find_path(name))
    except TableError as error:
        let_pass(error)
        return is_model(Path(name))


def _user_tier(name: str, hardware: Hardware, named: Iterable[str | Table]) -> Tier:
    own = [file for file in _files(own_paths(), shipped=False) if file.hardware.same_device(hardware)]
    return _tier(name, hardware, [*named, *(str(file.path) for file in own)], _USER)


def _model_tier(name: str, hardware: Hardware, mine: Iterable[str | Model]) -> Tier:
    shipped = [file for file in _shipped(_MODELS) if file.hardware.same_arch(hardware)]
    shipped.sort(key=lambda file: not file.hardware.same_device(hardware))
    files = [*mine, *(str(file.path) for file in shipped)]
    opened = [try_model(file) if isinstance(file, str) else file for file in files]
    left_out = tuple(f"left out: {found}" for found in opened if isinstance(found, DiodeLutError))
    models = tuple(ModelSource(found, hardware) for found in opened if not isinstance(found, DiodeLutError))
    return Tier(name, models, left_out if opened else (f"no model is for {hardware}",))


def try_model(name_or_path: str) -> Model | TableError | ModelError:
    """The model, or why there is none to use, which is a warning as well."""
    try:
        return open_model(find_path(name_or_path))
    except (TableError, ModelError) as error:
        let_pass(error)
        warn_once(f"model left out: {error}")
        return error


def warn_of_useless(user_tables: Iterable[str], devices: Sequence[Hardware]) -> None:
    """Warn once of each of the user's own tables that is for none of these devices; models are of use on any."""
    for file in _named_files(user_tables):
        if not is_model(file.path) and not any(file.hardware.same_arch(device) for device in devices):
            useless = f"{file.path}: is for {file.hardware}, so it is of no use on {', '.join(map(str, devices))}"
            warn_once(f"{useless}: {file.hardware.why_none_of(devices)}")


def _tier(name: str, hardware: Hardware, files: Iterable[str | Table], tables: _Tables) -> Tier:
    opened = [_open_for(hardware, file, tables.fits) for file in files]
    left_out = [str(found) for found in opened if isinstance(found, TableError)]
    return Tier(
        name,
        tuple(TableSource(found) for found in opened if isinstance(found, Table)),
        tuple(f"left out: {reason}" for reason in left_out) if opened else (tables.reason_if_none.format(hardware),),
    )


def _open_for(hardware: Hardware, file: str | Table, fits: Callable[[Hardware, Hardware], bool]) -> Table | TableError:
    """The table, or why it cannot answer for ``hardware``."""
    try:
        path: Path | None
        if isinstance(file, str):
            path = find_path(file)
            found = read_hardware(path)
            table = open_table(path) if fits(found, hardware) else None
        else:
            path, found, table = file.path, file.hardware, file
        # The second check: the file may have been replaced in between by a table for other hardware.
        if table is not None and fits(table.hardware, hardware):
            return table
        reason = ": ".join(filter(None, (f"it is for {found}, not for {hardware}", found.difference_from(hardware))))
        return TableError(reason, path=path, where="hardware")
    except TableError as error:
        let_pass(error)
        warn_once(f"table left out: {error}")
        return error


def _named_files(user_tables: Iterable[str]) -> list[TableFile]:
    return [file._replace(named=True) for file in _files(user_tables, shipped=False)]


def _shipped(*patterns: str) -> list[TableFile]:
    return _files(shipped_paths(patterns), shipped=True)


def shipped_paths(patterns: Iterable[str] = _SHIPPED) -> list[str]:
    """The shipped files, good or bad, that can be trusted, which matters because the user did not name them.

    By default these are all tables, then all models.
    """
    return _trusted(path for pattern in patterns for path in sorted(tables_directory().glob(pattern)))


def own_paths() -> list[str]:
    """The tables in the user's directory of tables that can be trusted, good or bad, by name."""
    return _trusted(sorted(own_tables_directory().glob("*.json")))


def _trusted(paths: Iterable[Path]) -> list[str]:
    """The paths without those that others could have written, each of which is a warning."""
    reasons = {path: _against(path) for path in paths}
    for path, reason in reasons.items():
        if reason:
            warn_once(f"{_kind(path)} left out: {reason}")
    return [str(path) for path, reason in reasons.items() if not reason]


def distrusted() -> list[str]:
    """Why files that the user did not name, and that others could have written, are not used."""
    shipped = (path for pattern in _SHIPPED for path in sorted(tables_directory().glob(pattern)))
    paths = (*shipped, *sorted(own_tables_directory().glob("*.json")))
    return [reason for path in paths if (reason := _against(path))]


def _against(path: Path) -> str:
    try:
        return distrust(path)
    except OSError as error:
        let_pass(error)
        return f"{path}: cannot be read: {error.strerror}"


def _files(tables: Iterable[str], *, shipped: bool) -> list[TableFile]:
    return [file for table in tables if (file := _file(table, shipped)) is not None]


def _file(name_or_path: str, shipped: bool) -> TableFile | None:
    try:
        path = _shipped_file(name_or_path) if shipped else find_path(name_or_path)
        return TableFile(path, read_model_hardware(path) if is_model(path) else read_hardware(path), shipped)
    except (TableError, ModelError) as error:
        let_pass(error)
        warn_once(f"{_kind(Path(name_or_path))} left out: {error}")
        return None


def _kind(path: Path) -> str:
    return "model" if is_model(path) else "table"


def _shipped_file(name: str) -> Path:
    """The path of a shipped file; TableError if there is none. To find it by name would be to list them all again."""
    path = Path(name)
    if fault := _no_file(path):
        raise TableError(fault, path=path) from OSError(name)
    return path
