"""Find tables and models by the heads of their files, and open them for a device. Keep those opened last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.decide.choosers import Chooser, ChooserSource
from diode_lut.decide.decide import Sources, Tier
from diode_lut.decide.sources import ModelSource, TableSource
from diode_lut.errors import HardwareError, ModelError, TableError, as_command, let_shortage_pass, printable
from diode_lut.files import distrust, own_tables_directory, tables_directory
from diode_lut.hardware import Hardware, is_called, known_gpu, slug
from diode_lut.log import log, warn_once
from diode_lut.model import SUFFIX, read_model_hardware
from diode_lut.process import in_forked_children
from diode_lut.settings import CHOOSER, DEVICE, MODEL, SAME_ARCH, TIERS, USER, Settings
from diode_lut.table import Table, read_hardware, read_table, table_of

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model


_SHIPPED = _TABLES, _MODELS = ".json", SUFFIX  # ends of the names of tables and of models
_MISSING = "no such file"
_ROWS_NAMED = 10  # number of bad rows of a file in the log


class TableFile(NamedTuple):
    """A usable table or model: its file and hardware, whether it is shipped, and whether the user has named it."""

    path: Path
    hardware: Hardware
    shipped: bool
    named: bool = False

    @property
    def name(self) -> str:
        """The file's name without ``.json`` or ``.safetensors``."""
        return self.path.stem

    def called(self, name: str) -> bool:
        """Return whether ``name`` is a table's file, hardware or alias, or a model's file."""
        return slug(name) == slug(self.name) or (not is_model(self.path) and is_called(self.hardware, name))


def find_tables(user_tables: Iterable[str]) -> list[TableFile]:
    """Return the user's own tables, named tables first, then the shipped tables by name. Bad files are a warning."""
    named = [file._replace(named=True) for file in _readable(user_tables, shipped=False)]
    return [*named, *_own_tables(), *_shipped(*_SHIPPED)]


def find_path(name_or_path: str) -> Path:
    """Return the file of a path, or of the name of a shipped or an own table or model. TableError if there is none."""
    path = Path(name_or_path)
    fault = _no_file(path)
    if not fault:
        return path
    shipped, own = _shipped(*_SHIPPED), _own_tables()
    for file in (*shipped, *own):
        if file.called(name_or_path):
            return file.path
    if fault == _MISSING:
        from difflib import get_close_matches

        known = ", ".join(file.name for file in shipped) or "none"
        mine = f"; your own: {', '.join(file.name for file in own)}" if own else ""
        close = get_close_matches(name_or_path, [file.name for file in (*shipped, *own)], 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        fault += f", and no table of that name (shipped: {known}{mine}){hint}"
    if name_or_path.startswith("~"):
        fault += " (~ is your home directory only in a shell, and without quotes)"
    elif any(each in name_or_path.strip() for each in (",", ";", " ")):
        fault += f" (several tables are separated by '{os.pathsep}')"
    raise TableError(fault, path=path) from OSError(name_or_path)


def _no_file(path: Path) -> str:
    """Return why the path is no file, or an empty text. TableError if the system does not say."""
    try:
        if path.is_file():
            return ""
        if path.is_dir():
            return "is a directory"
        if path.exists():
            return "is no regular file"
        return "is a symbolic link that leads to no file" if path.is_symlink() else _MISSING
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", path=path) from error


def find_hardware(name: str, user_tables: Iterable[str]) -> Hardware:
    """Return the hardware of a table by name, hardware or alias, or else a well-known GPU's. HardwareError if none."""
    files = find_tables(user_tables)
    found = next((file.hardware for file in files if file.called(name)), None) or known_gpu(name)
    if found is None:
        known = f"tables: {', '.join(dict.fromkeys(file.name for file in files)) or 'none'}"
        raise HardwareError(f"{name}: no table is for hardware of that name ({known}), and no GPU is known by it")
    return found


def open_table(path: Path, data: bytes | None = None) -> Table:
    """Open a table, with a warning for each skipped row. TableError if the whole file is bad.

    ``data`` is the file's content, if it was read before.
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
    """Return whether a file is a model, by its name."""
    return path.suffix == SUFFIX


def open_model(path: Path) -> Model:
    """Open a model. ModelError if it is bad, or if NumPy or safetensors cannot be imported."""
    try:
        from diode_lut.model.weights import read_model
    except ImportError as error:
        raise ModelError(f"{path}: NumPy or safetensors, which models need, cannot be imported: {error}") from error
    return read_model(path)


def open_file(path: Path) -> Table | Model:
    """Open a table or a model. TableError or ModelError if it is bad."""
    return open_model(path) if is_model(path) else open_table(path)


def try_model(name_or_path: str) -> Model | TableError | ModelError:
    """Open a model, or return the error, after a warning."""
    try:
        return open_model(find_path(name_or_path))
    except (TableError, ModelError) as error:
        let_shortage_pass(error)
        warn_once(f"model left out: {error}")
        return error


@lru_cache(maxsize=8)
def warn_of_useless(user_tables: tuple[str, ...], devices: tuple[Hardware, ...]) -> None:
    """Warn once of each of the user's tables that is for none of these devices. Models are for any."""
    for file in _readable(user_tables, shipped=False):
        if not is_model(file.path) and not any(file.hardware.same_arch(device) for device in devices):
            useless = f"{file.path}: is for {file.hardware}, so it is of no use on {', '.join(map(str, devices))}"
            warn_once(f"{useless}: {file.hardware.why_none_of(devices)}")


def shipped_paths(endings: Iterable[str] = _SHIPPED) -> list[str]:
    """Return the shipped files whose owner is trusted, good or bad, by default all tables, then all models."""
    return _trusted(_listed(tables_directory(), *endings))


def own_paths() -> list[str]:
    """Return the trusted tables in the user's directory of tables, good or bad, by name."""
    return _trusted(_listed(own_tables_directory(), _TABLES))


def distrusted() -> list[str]:
    """Return why files are not used: others could have written them, and the user did not name them."""
    paths = (*_listed(tables_directory(), *_SHIPPED), *_listed(own_tables_directory(), _TABLES))
    return [reason for path in paths if (reason := _against(path))]


def _own_tables() -> list[TableFile]:
    return _readable(map(Path, own_paths()), shipped=False)


def _shipped(*endings: str) -> list[TableFile]:
    return _readable(map(Path, shipped_paths(endings)), shipped=True)


def _listed(directory: Path | None, *endings: str) -> list[Path]:
    """List a directory by ending and by name, or warn if it cannot be read."""
    if directory is None:
        return []
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
    """Return the paths of files that others could not have written, and warn about the rest."""
    reasons = {path: _against(path) for path in paths}
    for path, reason in reasons.items():
        if reason:
            warn_once(f"{_kind(path)} left out: {reason}")
    return [str(path) for path, reason in reasons.items() if not reason]


def _against(path: Path) -> str:
    try:
        return distrust(path)
    except OSError as error:
        let_shortage_pass(error)
        return f"{path}: cannot be read: {error.strerror}"


def _readable(names: Iterable[str | Path], *, shipped: bool) -> list[TableFile]:
    """Return the files with a good head, given names of tables, or paths of listed files."""
    found = []
    for name in names:
        try:
            path = name if isinstance(name, Path) else find_path(name)
            fault = _no_file(path)  # of a path: to find it by name would be to list all again
            if fault:
                raise TableError(fault, path=path) from OSError(str(path))
            found.append(TableFile(path, head_of(path), shipped))
        except (TableError, ModelError) as error:  # noqa: PERF203 (most are good)
            let_shortage_pass(error)
            warn_once(f"{_kind(Path(name))} left out: {error}")
    return found


def head_of(path: Path) -> Hardware:
    """Return the hardware of a table or a model from its head. TableError or ModelError if the head is bad."""
    return read_model_hardware(path) if is_model(path) else read_hardware(path)


def _kind(path: Path) -> str:
    return "model" if is_model(path) else "table"


def tiers_for(
    hardware: Hardware,
    user_tables: Sequence[str],
    allowed: Collection[str] = TIERS,
    choosers: Sequence[Chooser] = (),
    first: Table | Model | None = None,
) -> tuple[Tier, ...]:
    """Open the tiers for ``hardware``.

    These are the user's tables, the tables shipped for the device, the tables shipped for another device with the same
    architecture and SM count, and the models. ``choosers`` come before, among and after them. ``first`` is asked before
    the user's own tables or models.

    The user's named tables come first, for any device with the same architecture and SM count, then the tables for the
    device in the user's directory. The user's own models come first, trained for any hardware, then the shipped models
    for the device, then those for its architecture. An unusable file is left out with a warning, and a shipped table
    for other hardware without. Nothing is opened for tiers outside of ``allowed``.
    """
    tables: list[str | Table] = [first] if isinstance(first, Table) else []
    models: list[str | Model] = [] if first is None or isinstance(first, Table) else [first]
    for name in user_tables:
        try:
            path = find_path(name)
        except TableError as error:
            let_shortage_pass(error)
            path = Path(name)
        (models if is_model(path) else tables).append(name)
    shipped = _shipped(_TABLES)
    device = [str(file.path) for file in shipped if file.hardware.same_device(hardware)]
    same_arch = [str(file.path) for file in shipped if file.hardware.same_arch(hardware)]
    others = [path for path in same_arch if path not in device]

    def opened(name: str, open_tier: Callable[[], Tier]) -> Tier:
        return open_tier() if name in allowed else Tier(name, left_out=("switched off by the setting tiers",))

    def asked(some: Sequence[Chooser]) -> list[Tier]:
        sources = tuple(ChooserSource(chooser, hardware) for chooser in some)
        return [opened(CHOOSER, lambda: Tier(CHOOSER, sources))] if some else []

    no_table = f"no shipped table is for {hardware}"
    no_other = f"no shipped table is for another device like {hardware}"
    return (
        *asked([chooser for chooser in choosers if chooser.before_tables]),
        opened(USER, lambda: _user_tier(hardware, tables)),
        opened(DEVICE, lambda: _tier(DEVICE, hardware, device, Hardware.same_device, no_table)),
        opened(SAME_ARCH, lambda: _tier(SAME_ARCH, hardware, others, Hardware.same_arch, no_other)),
        *asked([chooser for chooser in choosers if not (chooser.before_tables or chooser.after_models)]),
        opened(MODEL, lambda: _model_tier(hardware, models)),
        *asked([chooser for chooser in choosers if chooser.after_models]),
    )


def _user_tier(hardware: Hardware, named: Sequence[str | Table]) -> Tier:
    own = _own_tables()
    fitting = [file for file in own if file.hardware.same_device(hardware)]
    files = [*named, *(str(file.path) for file in fitting)]
    tier = _tier(USER, hardware, files, Hardware.same_arch, "no table of the user's own")
    reasons = []
    if hardware.is_cpu and not fitting:
        for file in own:
            if file.hardware.is_cpu and file.hardware.called(hardware.name):
                reason = f"{file.path}: is for {file.hardware}: {file.hardware.difference_from(hardware)}"
                warn_once(f"table left out: {reason}")
                reasons.append(f"left out: {reason}")
    return tier._replace(left_out=(*(tier.left_out if named else ()), *reasons)) if reasons else tier


def _model_tier(hardware: Hardware, own: Iterable[str | Model]) -> Tier:
    shipped = [file for file in _shipped(_MODELS) if file.hardware.same_arch(hardware)]
    # A model of fewer problems is asked first: its name goes on where the other's ends
    shipped.sort(key=lambda file: (not file.hardware.same_device(hardware), file.path.name))
    models, left_out = [], []
    named = tuple(own)
    for place, file in enumerate((*named, *(str(file.path) for file in shipped))):
        found = try_model(file) if isinstance(file, str) else file
        if isinstance(found, (TableError, ModelError)):
            left_out.append(f"left out: {found}")
        else:
            models.append(ModelSource(found, hardware, own=place < len(named)))
    return Tier(MODEL, tuple(models), tuple(left_out if models or left_out else [f"no model is for {hardware}"]))


def _tier(
    name: str,
    hardware: Hardware,
    files: Iterable[str | Table],
    fits: Callable[[Hardware, Hardware], bool],
    reason_if_none: str,
) -> Tier:
    """Open the tables whose hardware fits the device's."""
    tables, left_out = [], []
    for file in files:
        try:
            table: Table | None
            if isinstance(file, Table):
                path, found, table = file.path, file.hardware, file
            else:
                path = find_path(file)
                found = read_hardware(path)
                table = open_table(path) if fits(found, hardware) else None
            # Check again: the file may have been replaced in between by a table for other hardware.
            if table is not None and fits(table.hardware, hardware):
                tables.append(TableSource(table))
                continue
            difference = found.difference_from(hardware)
            reason = ": ".join(filter(None, (f"it is for {found}, not for {hardware}", difference)))
            left_out.append(f"left out: {TableError(reason, path=path, where='hardware')}")
        except TableError as error:
            let_shortage_pass(error)
            warn_once(f"table left out: {error}")
            left_out.append(f"left out: {error}")
    return Tier(name, tuple(tables), tuple(left_out if tables or left_out else [reason_if_none]))


_lock = threading.RLock()  # held while tables are read, so that several threads read them once


def hardware_called(name: str, settings: Settings) -> Hardware:
    """Return the hardware of a name, as ``find_hardware`` does. Files looked at lately are not read again."""
    with _lock:
        return _find_hardware(name, settings.tables)


def sources_for(hardware: Hardware, settings: Settings, choosers: tuple[Chooser, ...]) -> Sources:
    """Return the sources for ``hardware`` under these settings. Tables read for it lately are not read again."""
    with _lock:
        return _open_sources(hardware, settings.tables, settings.tiers, choosers)


def sources_with(
    opened: Table | Model, hardware: Hardware, settings: Settings, choosers: tuple[Chooser, ...]
) -> Sources:
    """Return the sources with an opened table or model as the first of the user's own."""
    return Sources(hardware, tiers_for(hardware, settings.tables, settings.tiers, choosers, opened))


def forget_tables() -> None:
    """Have tables and models read again from now on."""
    with _lock:
        _open_sources.cache_clear()
        _find_hardware.cache_clear()


_find_hardware = lru_cache(maxsize=8)(find_hardware)


@lru_cache(maxsize=8)
def _open_sources(
    hardware: Hardware, user_tables: tuple[str, ...], tiers: tuple[str, ...], choosers: tuple[Chooser, ...]
) -> Sources:
    sources = Sources(hardware, tiers_for(hardware, user_tables, tiers, choosers))
    by_tier = {tier.name: tier.sources for tier in sources.tiers}
    asked = ((tier.name, source) for tier in sources.tiers for source in tier.sources)
    names = [f"{tier}: {source.path or source.name()} ({source.description()})" for tier, source in asked]
    log.info("%s: %s", hardware, printable(", ".join(names)) or "no tables")
    others = by_tier.get(SAME_ARCH)
    if others and not (by_tier.get(USER) or by_tier.get(DEVICE)):
        elsewhere = f"{others[0].path} answers, which was measured on another GPU with the same architecture and SMs"
        verify = "python -m diode_lut verify says whether its gains hold here"
        warn_once(f"no table is for {hardware}: {elsewhere}; {verify}")
    return sources


@in_forked_children
def _begin_again() -> None:
    """Renew the lock: the reading thread is not in the forked process."""
    global _lock
    _lock = threading.RLock()
