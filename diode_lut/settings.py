"""The settings, each also an environment variable ``DIODE_LUT_<NAME>`` that is read once, at import."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_lut.domain.errors import SettingError
from diode_lut.io.forks import in_forked_children

TIERS = ("user", "device", "same_arch", "model")
"""Who can answer: the user's own tables, those shipped for this device, those for the same architecture, a model."""

CONFIDENCE, GAIN = 0.95, 0.15
"""The defaults of ``confidence_threshold`` and ``gain_threshold``."""


class _Kind(NamedTuple):
    """What a setting may be: as text, as a check that returns the value to keep, and as an environment variable."""

    allowed: str
    check: Callable[[Any], Any]
    parse: Callable[[str], Any]


def _choice(*values: str) -> _Kind:
    def check(value: Any) -> str:
        if value not in values:
            raise ValueError
        return str(value)

    return _Kind(", ".join(values), check, str)


def _integer(low: int, high: int) -> _Kind:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    return _Kind(f"an integer from {low} to {high}", check, int)


def _fraction() -> _Kind:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError
        return float(value)

    return _Kind("a number from 0 to 1", check, float)


def _check_gain(value: Any) -> float:
    if type(value) not in (int, float) or not value >= 0:
        raise ValueError
    return float(value)


def _check_flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _parse_flag(text: str) -> bool:
    return {"0": False, "false": False, "1": True, "true": True}[text.lower()]


def _check_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # would be taken apart into its letters
        raise TypeError
    return tuple(os.fspath(name) for name in value)


def _check_tiers(value: Any) -> tuple[str, ...]:
    names = set(_check_names(value))
    if not names or names - set(TIERS):
        raise ValueError
    return tuple(name for name in TIERS if name in names)


def _check_path(value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError
    return os.path.abspath(path)  # noqa: PTH100 (pathlib takes longer to import than all the rest)


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(os.pathsep) if name)


_GAIN = _Kind("a number that is not negative; inf for never", _check_gain, float)
_FLAG = _Kind("True or False; in the environment 1, true, 0 or false", _check_flag, _parse_flag)
_NAMES = _Kind(
    f"a list of table names and paths; in the environment separated by {os.pathsep!r}", _check_names, _parse_names
)
_TIERS = _Kind(
    f"a list of some of {', '.join(TIERS)}; in the environment separated by {os.pathsep!r}", _check_tiers, _parse_names
)

_PATH = _Kind("a path, or None", _check_path, lambda text: text or None)

_SETTINGS: dict[str, tuple[_Kind, Any]] = {
    "policy": (_choice("pick", "verify", "off"), "pick"),
    "default_mode": (_FLAG, True),
    "pad": (_FLAG, True),
    "top_k": (_integer(1, 32), 1),
    "fallback_to_autotune": (_FLAG, True),
    "confidence_threshold": (_fraction(), CONFIDENCE),
    "gain_threshold": (_GAIN, GAIN),
    "tables": (_NAMES, ()),
    "tiers": (_TIERS, TIERS),
    "epilogues": (_FLAG, True),
    "strict": (_FLAG, False),
    "receipt": (_PATH, None),
}
"""For each setting what it may be, and its default."""


class _Layer(NamedTuple):
    """Values of some settings: those of a ``patch``, and the thread that entered it. The lowest has all settings."""

    values: dict[str, Any]
    thread: int


_lock = threading.RLock()
"""Held while layers change; reading a setting does not need it."""


class Settings:
    """What the user decides, for the whole process.

    Setting anything to a value that it cannot have raises SettingError and changes nothing. Where ``patch`` blocks
    overlap, in one thread or in several, the block that was entered last counts until it ends. A value that is assigned
    to a setting within a block that changes it lasts as long as that block.
    """

    __slots__ = ("__dict__", "_layers")
    if TYPE_CHECKING:
        _layers: list[_Layer]

    policy: str
    """``pick``: the first config that can run; ``verify``: Inductor times it against aten; ``off``: no answers."""
    default_mode: bool
    """Whether tables answer in default mode too, or under max-autotune only."""
    pad: bool
    """Whether tables and models decide if Inductor pads operands, instead of a benchmark."""
    top_k: int
    """How many configs Inductor gets to choose from, 1 to 32. With 1 nothing is benchmarked."""
    fallback_to_autotune: bool
    """What a miss gets under max-autotune: Inductor's own list of choices, or aten alone."""
    confidence_threshold: float
    """How sure a model must be that its first config is within 5 % of the best, from 0 to 1, to answer."""
    gain_threshold: float
    """A model also answers if it expects its first config to be faster than aten by this fraction."""
    tables: tuple[str, ...]
    """Your own tables and models, as names or paths.

    All tables are asked before the models, of each your own before the shipped ones; the first that answers wins.
    """
    tiers: tuple[str, ...]
    """Who may answer, of TIERS and in their order."""
    epilogues: bool
    """Whether tables and models decide, for what follows a matmul, if it is fused and with which kernel."""
    strict: bool
    """Whether a miss is an error, MissError, instead of being left to Inductor."""
    receipt: str | None
    """The file that says at exit what was asked and answered; None for none."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._begin(
            {name: _from_environment(environment, name, kind, default) for name, (kind, default) in _SETTINGS.items()}
        )

    def __setattr__(self, name: str, value: Any) -> None:
        checked = _checked(name, value)
        with _lock:
            layer = next(layer for layer in reversed(self._layers) if name in layer.values)
            layer.values[name] = checked
            self._apply()

    @contextmanager
    def patch(self, **values: Any) -> Iterator[None]:
        """Other values during a ``with`` block or a decorated function, in all threads."""
        layer = _Layer({name: _checked(name, value) for name, value in values.items()}, threading.get_ident())
        try:
            with _lock:
                self._layers.append(layer)
                self._apply()
            yield
        finally:
            try:
                self._end(layer)
            finally:  # once more: a signal may have interrupted that
                self._end(layer)

    def add_table(self, name: str, path: str) -> None:
        """Put a file behind ``tables``, unless these have it, as ``name`` or as ``path``, already."""
        with _lock:
            if not {name, path}.intersection(self.tables):
                self.tables = (*self.tables, path)

    def copy(self) -> Settings:
        """A copy of the settings, all of one moment; later changes do not reach it."""
        copied = object.__new__(Settings)
        copied._begin(dict(vars(self)))
        return copied

    def forget_other_threads(self) -> None:
        """End the blocks of all threads but this one: in a forked process they would never end."""
        lowest, this = self._layers[0], threading.get_ident()
        self._keep(lambda layer: layer is lowest or layer.thread == this)

    def _end(self, layer: _Layer) -> None:
        with _lock:
            self._keep(lambda other: other is not layer)

    def _begin(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_layers", [_Layer(values, 0)])
        self._apply()

    def _keep(self, wanted: Callable[[_Layer], bool]) -> None:
        self._layers[:] = filter(wanted, self._layers)
        self._apply()

    def _apply(self) -> None:
        """Make the upper layers' values the settings, in one step, so that other threads see all changes or none."""
        values: dict[str, Any] = {}
        for layer in self._layers:
            values.update(layer.values)
        vars(self).update(values)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def autoregister(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether importing diode_lut arms the hook: not with ``DIODE_LUT_AUTOREGISTER=0``."""
    return bool(_from_environment(environment, "autoregister", _FLAG, True))


def faults_in_environment(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """What is wrong with the variables that begin with ``DIODE_LUT_``."""
    kinds = {**{name: kind for name, (kind, _) in _SETTINGS.items()}, "autoregister": _FLAG}
    for variable in sorted(name for name in environment if name.startswith("DIODE_LUT_")):
        kind = kinds.get(variable.removeprefix("DIODE_LUT_").lower())
        if kind is None:
            known = ", ".join(f"DIODE_LUT_{name.upper()}" for name in kinds)
            yield f"{variable}: there is no such setting (known: {known})"
            continue
        try:
            kind.check(kind.parse(environment[variable]))
        except (KeyError, ValueError):
            yield f"{variable}: {environment[variable]!r} is not allowed (allowed: {kind.allowed})"


def _checked(name: str, value: Any) -> Any:
    if name not in _SETTINGS:
        raise SettingError(f"diode_lut.config.{name}: there is no such setting (settings: {', '.join(_SETTINGS)})")
    kind, _ = _SETTINGS[name]
    try:
        return kind.check(value)
    except (TypeError, ValueError):
        raise SettingError(f"diode_lut.config.{name}: {value!r} is not allowed (allowed: {kind.allowed})") from None


def _from_environment(environment: Mapping[str, str], name: str, kind: _Kind, default: Any) -> Any:
    variable = f"DIODE_LUT_{name.upper()}"
    text = environment.get(variable)
    if text is None:
        return default
    try:
        return kind.check(kind.parse(text))
    except (KeyError, ValueError):
        import logging

        logging.getLogger(__name__).warning(
            "%s: %r is not allowed (allowed: %s); using %r", variable, text, kind.allowed, default
        )
        return default


config = Settings()
"""The settings of this process."""


@in_forked_children
def _after_fork() -> None:
    """The lock is free, and the thread that forked is the only one."""
    global _lock
    _lock = threading.RLock()
    config.forget_other_threads()
