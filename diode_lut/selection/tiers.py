"""Which tables, models and choosers answer for some hardware, and in which order they are asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.domain.errors import DiodeLutError, TableError, let_shortage_pass
from diode_lut.domain.hardware import Hardware
from diode_lut.io.log import warn_once
from diode_lut.selection.catalog import (
    TableFile,
    find_path,
    is_model,
    open_table,
    own_tables,
    shipped_models,
    shipped_tables,
    try_model,
)
from diode_lut.selection.chooser import Chooser, ChooserSource
from diode_lut.selection.models import ModelSource
from diode_lut.selection.selector import Tier, switched_off
from diode_lut.selection.sources import Source
from diode_lut.selection.tables import TableSource
from diode_lut.settings import CHOOSER, DEVICE, MODEL, SAME_ARCH, TIERS, USER
from diode_lut.table import Table, read_hardware

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model


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
