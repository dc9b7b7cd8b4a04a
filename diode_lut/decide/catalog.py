"""Which tables and models there are, and how they are opened.

Only the heads of the files are read until a table is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.decide.choosers import Chooser, ChooserSource
from diode_lut.decide.selector import Tier, switched_off
from diode_lut.decide.sources import ModelSource, Source, TableSource
from diode_lut.errors import DiodeLutError, HardwareError, ModelError, TableError, as_command, let_shortage_pass
from diode_lut.files import distrust
from diode_lut.hardware import Hardware, is_called, known_gpu, slug
from diode_lut.model.weights import SUFFIX, read_model_hardware
from diode_lut.process import own_tables_directory, tables_directory, warn_once
from diode_lut.settings import CHOOSER, DEVICE, MODEL, SAME_ARCH, TIERS, USER
from diode_lut.table import Table, read_hardware, read_table
from diode_lut.table.read import table_of

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model


_SHIPPED = _TABLES, _MODELS = ".json", SUFFIX
"""How the names of tables and of models end."""
_MISSING = "no such file"
_DANGLING = "is a symbolic link that leads to no file"
_ROWS_NAMED = 10
"""Number of bad rows of a file that are named one by one in the log."""


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
        return slug(name) == slug(self.name) or (not is_model(self.path) and is_called(self.hardware, name))


def find_tables(user_tables: Iterable[str]) -> list[TableFile]:
    """The user's own tables, named ones first, then the shipped ones by name; bad files are left out with a warning."""
    return [*_named_files(user_tables), *own_tables(), *_shipped(*_SHIPPED)]


def find_path(name_or_path: str) -> Path:
    """The file of a path, or of the name of a shipped table or model, or of a table in the user's directory of tables.

    TableError if there is none. A shipped table is meant if both are called so.
    """
    path = Path(name_or_path)
    fault = _no_file(path)
    if not fault:
        return path
    shipped, own = _shipped(*_SHIPPED), own_tables()
    for file in (*shipped, *own):
        if file.called(name_or_path):
            return file.path
    more = _no_table(name_or_path, shipped, own) if fault == _MISSING else ""
    raise TableError(f"{fault}{more}{_meant(name_or_path)}", path=path) from OSError(name_or_path)


def _no_table(name: str, shipped: Sequence[TableFile], own: Sequence[TableFile]) -> str:
    """That no table has this name, which names there are, and which of them may be meant."""
    from difflib import get_close_matches

    known = ", ".join(file.name for file in shipped) or "none"
    mine = f"; your own: {', '.join(file.name for file in own)}" if own else ""
    close = get_close_matches(name, [file.name for file in (*shipped, *own)], 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f", and no table of that name (shipped: {known}{mine}){hint}"


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
        check = as_command("python", "-m", "diode_lut", "check", path)
        warn_once(f"{path}: {more} more rows skipped; `{check}` lists them")
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


def open_file(path: Path) -> Table | Model:
    """The table or model in a file; TableError or ModelError."""
    return open_model(path) if is_model(path) else open_table(path)


def try_model(name_or_path: str) -> Model | TableError | ModelError:
    """The model, or why there is none to use, which is a warning as well."""
    try:
        return open_model(find_path(name_or_path))
    except (TableError, ModelError) as error:
        let_shortage_pass(error)
        warn_once(f"model left out: {error}")
        return error


def warn_of_useless(user_tables: Iterable[str], devices: Sequence[Hardware]) -> None:
    """Warn once of each of the user's own tables that is for none of these devices; models are of use on any."""
    for file in _named_files(user_tables):
        if not is_model(file.path) and not any(file.hardware.same_arch(device) for device in devices):
            useless = f"{file.path}: is for {file.hardware}, so it is of no use on {', '.join(map(str, devices))}"
            warn_once(f"{useless}: {file.hardware.why_none_of(devices)}")


def own_tables() -> list[TableFile]:
    """The tables in the user's directory of tables, by name; bad files are left out with a warning."""
    return _files(map(Path, own_paths()), shipped=False)


def shipped_tables() -> list[TableFile]:
    """The shipped tables, by name; bad files are left out with a warning."""
    return _shipped(_TABLES)


def shipped_models() -> list[TableFile]:
    """The shipped models, by name; bad files are left out with a warning."""
    return _shipped(_MODELS)


def _named_files(user_tables: Iterable[str]) -> list[TableFile]:
    return [file._replace(named=True) for file in _files(user_tables, shipped=False)]


def _shipped(*endings: str) -> list[TableFile]:
    return _files(map(Path, shipped_paths(endings)), shipped=True)


def shipped_paths(endings: Iterable[str] = _SHIPPED) -> list[str]:
    """The shipped files, good or bad, that can be trusted, which matters because the user did not name them.

    By default these are all tables, then all models.
    """
    return _trusted(_listed(tables_directory(), *endings))


def own_paths() -> list[str]:
    """The tables in the user's directory of tables that can be trusted, good or bad, by name."""
    return _trusted(_own_listed())


def _own_listed() -> list[Path]:
    directory = own_tables_directory()
    return [] if directory is None else _listed(directory, _TABLES)


def _listed(directory: Path, *endings: str) -> list[Path]:
    """List the directory by ending and by name; warn about a directory that cannot be read."""
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 (names are what matters)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        let_shortage_pass(error)
        warn_once(f"tables left out: {directory}: cannot be read: {error.strerror}")
        return []
    return [directory / name for ending in endings for name in names if name.endswith(ending)]


def _trusted(paths: Iterable[Path]) -> list[str]:
    """The paths without those that others could have written, each of which is a warning."""
    reasons = {path: _against(path) for path in paths}
    for path, reason in reasons.items():
        if reason:
            warn_once(f"{_kind(path)} left out: {reason}")
    return [str(path) for path, reason in reasons.items() if not reason]


def distrusted() -> list[str]:
    """Why files that the user did not name, and that others could have written, are not used."""
    paths = (*_listed(tables_directory(), *_SHIPPED), *_own_listed())
    return [reason for path in paths if (reason := _against(path))]


def _against(path: Path) -> str:
    try:
        return distrust(path)
    except OSError as error:
        let_shortage_pass(error)
        return f"{path}: cannot be read: {error.strerror}"


def _files(tables: Iterable[str | Path], *, shipped: bool) -> list[TableFile]:
    """The tables of these names, or in the files of these paths."""
    return [file for table in tables if (file := _file(table, shipped)) is not None]


def _file(name_or_path: str | Path, shipped: bool) -> TableFile | None:
    try:
        path = _existing(name_or_path) if isinstance(name_or_path, Path) else find_path(name_or_path)
        return TableFile(path, read_model_hardware(path) if is_model(path) else read_hardware(path), shipped)
    except (TableError, ModelError) as error:
        let_shortage_pass(error)
        warn_once(f"{_kind(Path(name_or_path))} left out: {error}")
        return None


def _kind(path: Path) -> str:
    return "model" if is_model(path) else "table"


def _existing(path: Path) -> Path:
    """The path of a file that was listed; TableError if it is none. To find it by name would be to list all again."""
    if fault := _no_file(path):
        raise TableError(fault, path=path) from OSError(str(path))
    return path


class _Tables(NamedTuple):
    """What tables are in a tier: those whose hardware fits the device's; and the reason if there are none.

    ``fits`` gets the table's hardware and the device's, ``reason_if_none`` is formatted with the device's.
    """

    fits: Callable[[Hardware, Hardware], bool]
    reason_if_none: str


_USER = _Tables(Hardware.same_arch, "no table of the user's own")
_SHIPPED_TABLES = {
    DEVICE: _Tables(Hardware.same_device, "no shipped table is for {0}"),
    SAME_ARCH: _Tables(Hardware.same_arch, "no shipped table is for another device like {0}"),
}
"""The tiers of shipped tables, by name. A table is in the first tier that it fits."""


def tiers_for(
    hardware: Hardware,
    user_tables: Sequence[str],
    allowed: Collection[str] = TIERS,
    choosers: Sequence[Chooser] = (),
    first: Table | Model | None = None,
) -> tuple[Tier, ...]:
    """The tiers that answer for ``hardware``: the user's tables, those shipped for it, those shipped
    for another device with the same architecture and SM count, models; and ``choosers`` before, among and behind them.

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
    left = shipped_tables()
    openers: dict[str, Callable[[], Tier]] = {
        USER: partial(_user_tier, USER, hardware, tables),
        MODEL: partial(_model_tier, MODEL, hardware, models),
    }
    for name, shipped in _SHIPPED_TABLES.items():
        fitting = [file for file in left if shipped.fits(file.hardware, hardware)]
        left = [file for file in left if file not in fitting]
        openers[name] = partial(_tier, name, hardware, [str(file.path) for file in fitting], shipped)
    *of_tables, of_models = (
        openers[name]() if name in allowed else switched_off(name) for name in TIERS if name in openers
    )
    before = _chooser_tiers(hardware, [each for each in choosers if each.before_tables], allowed)
    behind = _chooser_tiers(hardware, [each for each in choosers if each.after_models], allowed)
    others = [each for each in choosers if not (each.before_tables or each.after_models)]
    return (*before, *of_tables, *_chooser_tiers(hardware, others, allowed), of_models, *behind)


def source_of(opened: Table | Model, hardware: Hardware | None = None) -> Source:
    """What answers as a table or model does for ``hardware``, by default for the hardware that it is for."""
    return TableSource(opened) if isinstance(opened, Table) else ModelSource(opened, hardware or opened.hardware)


def _names_model(name: str) -> bool:
    """Whether a name is a model's; where there is no such file, whether it looks like a model's."""
    try:
        return is_model(find_path(name))
    except TableError as error:
        let_shortage_pass(error)
        return is_model(Path(name))


def _user_tier(name: str, hardware: Hardware, named: Sequence[str | Table]) -> Tier:
    own = own_tables()
    fitting = [str(file.path) for file in own if file.hardware.same_device(hardware)]
    tier = _tier(name, hardware, [*named, *fitting], _USER)
    reasons = () if fitting else tuple(_of_this_cpu(own, hardware))
    return tier._replace(left_out=(*(tier.left_out if named else ()), *reasons)) if reasons else tier


def _of_this_cpu(own: Iterable[TableFile], hardware: Hardware) -> Iterator[str]:
    """Why tables in the user's directory that are for this CPU cannot be used, each also a warning."""
    for file in own:
        if hardware.is_cpu and file.hardware.is_cpu and file.hardware.called(hardware.name):
            reason = f"{file.path}: is for {file.hardware}: {file.hardware.difference_from(hardware)}"
            warn_once(f"table left out: {reason}")
            yield f"left out: {reason}"


def _model_tier(name: str, hardware: Hardware, mine: Iterable[str | Model]) -> Tier:
    shipped = [file for file in shipped_models() if file.hardware.same_arch(hardware)]
    shipped.sort(key=lambda file: not file.hardware.same_device(hardware))
    files = [*mine, *(str(file.path) for file in shipped)]
    opened = [try_model(file) if isinstance(file, str) else file for file in files]
    left_out = tuple(f"left out: {found}" for found in opened if isinstance(found, DiodeLutError))
    models = tuple(ModelSource(found, hardware) for found in opened if not isinstance(found, DiodeLutError))
    return Tier(name, models, left_out if opened else (f"no model is for {hardware}",))


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
        let_shortage_pass(error)
        warn_once(f"table left out: {error}")
        return error


def _chooser_tiers(hardware: Hardware, choosers: Sequence[Chooser], allowed: Collection[str]) -> list[Tier]:
    """One tier, or none where there is no chooser."""
    if not choosers:
        return []
    if CHOOSER not in allowed:
        return [switched_off(CHOOSER)]
    return [Tier(CHOOSER, tuple(ChooserSource(chooser, hardware) for chooser in choosers))]
