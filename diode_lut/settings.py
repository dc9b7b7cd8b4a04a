"""The settings: ``diode_lut.config``, and the environment variable of each.

This module is imported with the package in every program, so it imports little. pathlib would take longer than all the
rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_lut.errors import SettingError
from diode_lut.process import in_forked_children

TIERS = USER, DEVICE, SAME_ARCH, CHOOSER, MODEL = ("user", "device", "same_arch", "chooser", "model")
"""Who can answer: the user's own tables, those shipped for this device, those for the same architecture, the user's own
functions (unless they are registered to be asked first), a model."""

CONFIDENCE, GAIN = 0.9, 0.05  # the defaults of ``confidence_threshold`` and ``gain_threshold``


class Allowed(NamedTuple):
    """The allowed values: as text, as a check that returns the value to keep, and as an environment variable.

    ``check`` raises TypeError or ValueError for other values, ``parse`` KeyError or ValueError.
    """

    text: str
    check: Callable[[Any], Any]
    parse: Callable[[str], Any]


def _if(is_allowed: Callable[[Any], bool], kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the check of a condition. Values are kept as this kind."""

    def check(value: Any) -> Any:
        if not is_allowed(value):
            raise ValueError
        return kind(value)

    return check


def _integer(high: int) -> Allowed:
    check = _if(lambda value: type(value) is int and 1 <= value <= high, int)
    return Allowed(f"an integer from 1 to {high}", check, int)


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(os.pathsep) if name)


def _check_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # would be taken apart into its letters
        raise TypeError
    return tuple(os.fspath(name) for name in value)


def _check_tiers(value: Any) -> tuple[str, ...]:
    names = set(_check_names(value))
    if not names or names - set(TIERS):
        raise ValueError
    return tuple(name for name in TIERS if name in names)


def _check_tables(value: Any) -> tuple[str, ...]:
    """Return names and paths. A relative path of a file means that file, wherever the process goes."""

    def absolute(name: str) -> str:
        try:
            return os.path.abspath(name) if os.path.isfile(name) else name  # noqa: PTH100, PTH113
        except FileNotFoundError:  # the working directory has been removed
            return name

    return tuple(map(absolute, _check_names(value)))


def _check_path(value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError
    try:
        return os.path.abspath(path)  # noqa: PTH100
    except FileNotFoundError:  # there is no directory to start from
        raise ValueError from None


_FLAGS = {"0": False, "false": False, "1": True, "true": True}
_IN_THE_ENVIRONMENT = f"in the environment separated by {os.pathsep!r}"
POLICY = Allowed("pick, verify, off", _if(lambda value: value in ("pick", "verify", "off"), str), str)
FRACTION = Allowed(
    "a number from 0 to 1", _if(lambda value: type(value) in (int, float) and 0 <= value <= 1, float), float
)
NOT_NEGATIVE = Allowed(
    "a number that is not negative; inf for never",
    _if(lambda value: type(value) in (int, float) and value >= 0, float),
    float,
)
FLAG = Allowed(
    "True or False; in the environment 1, true, 0 or false",
    _if(lambda value: type(value) is bool, bool),
    lambda text: _FLAGS[text.lower()],
)
SOME_TIERS = Allowed(f"a list of some of {', '.join(TIERS)}; {_IN_THE_ENVIRONMENT}", _check_tiers, _parse_names)
NAMES = Allowed(f"a list of table names and paths; {_IN_THE_ENVIRONMENT}", _check_tables, _parse_names)
PATH = Allowed("a path, not a relative one in a directory that is gone, or None", _check_path, str)

_SETTINGS: dict[str, tuple[Allowed, Any]] = {
    "policy": (POLICY, "pick"),
    "default_mode": (FLAG, True),
    "pad": (FLAG, True),
    "top_k": (_integer(32), 1),
    "dynamic_kernels": (_integer(8), 3),
    "fallback_to_autotune": (FLAG, True),
    "confidence_threshold": (FRACTION, CONFIDENCE),
    "gain_threshold": (NOT_NEGATIVE, GAIN),
    "min_gain": (NOT_NEGATIVE, 0.0),
    "tables": (NAMES, ()),
    "tiers": (SOME_TIERS, TIERS),
    "epilogues": (FLAG, True),
    "generated": (FLAG, True),
    "strict": (FLAG, False),
    "receipt": (PATH, None),
}
"""The allowed values of each setting, and its default."""

_PREFIX = "DIODE_LUT_"
_VARIABLES = {f"{_PREFIX}{name.upper()}": values for name, (values, _) in _SETTINGS.items()}
_VARIABLES[f"{_PREFIX}AUTOREGISTER"] = FLAG  # all environment variables, and their allowed values


class _Layer(NamedTuple):
    """Values of some settings: those of a ``patch``, and its thread. The lowest has all settings."""

    values: dict[str, Any]
    thread: int


_lock = threading.RLock()  # Held while layers change. Reading a setting does not need it


class Settings:
    """The user's settings, for the whole process.

    A value that is not allowed raises SettingError and changes nothing. If ``patch`` blocks overlap, in one thread or
    in several, the block entered last counts until it ends. If a block changes a setting, a value assigned within it
    lasts as long as the block.
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
    dynamic_kernels: int
    """How many kernels a matmul with a dynamic size gets at most, 1 to 8, for parts of the size's range."""
    fallback_to_autotune: bool
    """If true, Inductor autotunes a miss as usual under max-autotune. If false, it uses aten without benchmarking."""
    confidence_threshold: float
    """How sure a model must be that its first config is within 5 % of the best, from 0 to 1, to answer."""
    gain_threshold: float
    """A model also answers if it expects its first config to be faster than aten by this fraction."""
    min_gain: float
    """If the first config is known to gain less over aten than this fraction, aten is taken: it compiles nothing."""
    tables: tuple[str, ...]
    """Your own tables and models, as names or paths.

    All tables are asked before the models, of each your own before the shipped ones. The first answer wins.
    """
    tiers: tuple[str, ...]
    """Who may answer, of TIERS and in their order."""
    epilogues: bool
    """Whether tables and models decide if the work after a matmul is fused, and with which kernel."""
    generated: bool
    """Whether tables and models decide about the kernels that Inductor generates: pointwise work and reductions."""
    strict: bool
    """Whether a miss is an error, MissError, instead of being left to Inductor."""
    receipt: str | None
    """The file that lists all questions and answers, written after each graph and at exit. None for no file."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._begin({name: _from_environment(environment, name, default) for name, (_, default) in _SETTINGS.items()})
        for fault in _unknown(environment):
            _warn(fault)

    def __setattr__(self, name: str, value: Any) -> None:
        checked = _checked(name, value)
        with _lock:
            layer = next(layer for layer in reversed(self._layers) if name in layer.values)
            layer.values[name] = checked
            self._apply()

    @contextmanager
    def patch(self, **values: Any) -> Iterator[None]:
        """Set other values during a ``with`` block or a decorated function, in all threads."""
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
        """Add a file to the end of ``tables``, unless these have it, as ``name`` or as ``path``, already."""
        with _lock:
            if not {name, path}.intersection(self.tables):
                self.tables = (*self.tables, path)

    def copy(self) -> Settings:
        """Return a copy of the settings, all of one moment. Later changes do not reach it."""
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
        """Make the upper layers' values the settings, in one step: other threads see all changes or none."""
        values: dict[str, Any] = {}
        for layer in self._layers:
            values.update(layer.values)
        vars(self).update(values)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def autoregister(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether importing diode_lut arms the hook: not with ``DIODE_LUT_AUTOREGISTER=0``."""
    return bool(_from_environment(environment, "autoregister", True))


def faults_in_environment() -> Iterator[str]:
    """Yield the faults of the variables named ``DIODE_LUT_...``."""
    yield from _unknown(os.environ)
    for variable in sorted(_VARIABLES.keys() & os.environ):
        _, fault = _parsed(variable, os.environ, None)
        if fault:
            yield fault


def _checked(name: str, value: Any) -> Any:
    if name not in _SETTINGS:
        from difflib import get_close_matches

        close = get_close_matches(name, _SETTINGS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"settings: {', '.join(_SETTINGS)}"
        raise SettingError(f"diode_lut.config.{name}: there is no such setting ({hint})")
    allowed, _ = _SETTINGS[name]
    try:
        return allowed.check(value)
    except (TypeError, ValueError):
        raise SettingError(f"diode_lut.config.{name}: {value!r} is not allowed (allowed: {allowed.text})") from None


def _from_environment(environment: Mapping[str, str], name: str, default: Any) -> Any:
    value, fault = _parsed(f"{_PREFIX}{name.upper()}", environment, default)
    if fault:
        _warn(f"{fault}; using {default!r}")
    return value


def _parsed(variable: str, environment: Mapping[str, str], default: Any) -> tuple[Any, str]:
    """Return the value of a variable, or the default if it is unset or empty; and what is wrong with its text."""
    allowed, text = _VARIABLES[variable], environment.get(variable, "")
    if not text:
        return default, ""
    try:
        return allowed.check(allowed.parse(text)), ""
    except (KeyError, ValueError):
        return default, f"{variable}: {text!r} is not allowed (allowed: {allowed.text})"


def _unknown(environment: Mapping[str, str]) -> Iterator[str]:
    """Say of each unknown variable named as those of settings that it is unknown, and suggest another."""
    for variable in sorted(name for name in environment if name.startswith(_PREFIX) and name not in _VARIABLES):
        from difflib import get_close_matches  # rarely needed

        names = [name.removeprefix(_PREFIX) for name in _VARIABLES]
        close = get_close_matches(variable.removeprefix(_PREFIX).upper(), names, n=1)
        hint = f"did you mean {_PREFIX}{close[0]}?" if close else f"known: DIODE_LUT, {', '.join(_VARIABLES)}"
        yield f"{variable}: there is no such setting ({hint})"


def _warn(message: str) -> None:
    import logging

    from diode_lut.errors import printable

    logging.getLogger(__name__).warning("%s", printable(message))


config = Settings()  # the settings of this process


@in_forked_children
def _after_fork() -> None:
    """Make the lock free, and forget all threads but the present."""
    global _lock
    _lock = threading.RLock()
    config.forget_other_threads()
