"""A user's function as a source of answers. If it raises, returns nonsense or never returns, it has no match."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

from diode_lut.decide.sources import Answer, Source, Threshold, unmeasured_time
from diode_lut.errors import ProblemError, SettingError, let_pass, printable
from diode_lut.hardware import Hardware
from diode_lut.log import log
from diode_lut.problem import GENERATED, TOGETHER, Problem
from diode_lut.settings import CHOOSER
from diode_lut.templates.config import Config

ChooserFunction = Callable[[Problem, Hardware], "Config | Sequence[Config] | None"]
"""A function that returns configs, best first, or none for a miss, the same in every thread and process."""

LIMIT_S = 2.0  # default limit of a call, in seconds
_MAX_LIMIT_S = 3600


@dataclass(eq=False)
class Chooser:
    """A registered function, its name in messages, and the user's ``digest`` of its answers for caches, or None.

    It is asked before all tables, after all models, or else between tables and models. It is asked once about each
    problem, and not again after a call of more than ``limit_s`` seconds. ``faulty`` is true after any fault. Only if
    ``generated``, it is asked about generated kernels.
    """

    function: ChooserFunction
    name: str
    digest: str | None = None
    before_tables: bool = False
    limit_s: float = LIMIT_S
    after_models: bool = False
    generated: bool = False
    _answers: dict[tuple[Problem, Hardware], Answer] = field(default_factory=dict, init=False, repr=False)
    faulty: bool = field(default=False, init=False, repr=False)
    _too_slow: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SettingError(f"chooser: {self.function!r:.60} is not a function of a Problem and a Hardware")
        if not isinstance(self.name, str) or not self.name:
            raise SettingError(f"chooser: name: {self.name!r:.60} is not a name")
        if self.digest is not None and (not isinstance(self.digest, str) or not self.digest):
            raise SettingError(f"chooser {self.name}: digest: {self.digest!r:.60} is neither text nor None")
        if self.before_tables and self.after_models:
            raise SettingError(f"chooser {self.name}: before_tables and after_models exclude each other")
        if type(self.limit_s) not in (int, float) or not 0 < self.limit_s <= _MAX_LIMIT_S:
            reason = f"is not allowed (allowed: a positive number of seconds, up to {_MAX_LIMIT_S})"
            raise SettingError(f"chooser {self.name}: limit_s: {self.limit_s!r:.60} {reason}")

    @property
    def is_identified(self) -> bool:
        """Whether the digest stands for all answers. A fault may not happen again."""
        return self.digest is not None and not self.faulty

    def ask(self, problem: Problem, hardware: Hardware) -> Answer:
        """Return the answer, with the reason if it has no configs."""
        if problem.op in GENERATED and not self.generated:
            return Answer((), "not asked about generated kernels: it is registered without generated=True")
        if problem.op in TOGETHER:
            return Answer((), f"not asked about {problem.op}")
        key = problem, hardware
        known = self._answers.get(key)
        if known is not None:
            return known
        if self._too_slow:
            return self._answers.setdefault(key, Answer((), "not asked, because it took too long before"))
        answers: list[Answer] = []

        def call() -> None:
            try:
                returned: Any = self.function(problem, hardware)
                found = () if returned is None else (returned,) if isinstance(returned, Config) else returned
                if not isinstance(found, (list, tuple)):
                    raise _Nonsense(f"returned {returned!r:.100}, not a Config, a list of them or None")
                answers.append(Answer(tuple(map(_checked, found))))
            except _Nonsense as nonsense:
                answers.append(Answer((), str(nonsense)))
            except BaseException as error:  # noqa: BLE001 (the user's function may raise anything)
                answers.append(Answer((), f"raised {type(error).__name__}"))
                answers.append(Answer((), f"raised {type(error).__name__}: {error}"))  # this may raise, too

        thread = Thread(target=call, name="diode_lut chooser", daemon=True)  # it can be abandoned
        thread.start()
        thread.join(self.limit_s)
        if thread.is_alive():
            self._too_slow = True
            answer = Answer((), f"took longer than {self.limit_s:g} s, so it is not asked again")
        else:
            answer = answers[-1]
        if answer.reason:
            level = logging.DEBUG if self.faulty else logging.WARNING  # users are warned of the first fault
            self.faulty = True
            text = f"chooser {self.name}: {answer.reason}, for {problem} on {hardware}; that counts as no match"
            log.log(level, "%s", printable(text))
        elif not answer.configs:
            answer = Answer((), "has no config for it")
        return self._answers.setdefault(key, answer)


class _Nonsense(Exception):  # noqa: N818 (becomes a fault as text)
    """A chooser returned no configs."""


def _checked(config: Any) -> Config:
    """Return the config, if a table could have it."""
    if not isinstance(config, Config):
        raise _Nonsense(f"returned {config!r:.100} where a Config should be")
    try:
        checked = Config.from_json(config.to_json())
    except (AttributeError, KeyError, TypeError, ProblemError) as error:
        raise _Nonsense(f"returned {tuple(config)!r:.100}, which is no config: {error}") from None
    if checked != config:
        raise _Nonsense(f"returned {tuple(config)!r:.100}, which has more values than {config.template} has tunables")
    return checked


class ChooserSource(Source):
    """A chooser for one hardware."""

    def __init__(self, chooser: Chooser, hardware: Hardware) -> None:
        super().__init__(hardware, None)
        self.chooser = chooser

    @property
    def digest(self) -> str:
        """SHA-256 of the chooser's name and digest, in hexadecimal."""
        return hashlib.sha256(repr((self.chooser.name, self.chooser.digest)).encode()).hexdigest()

    @property
    def identity(self) -> str:
        return f"{self.digest} {self.chooser.generated} {tuple(self.hardware)!r}"

    @property
    def has_own_kernels(self) -> bool:
        return self.chooser.generated

    def ask(self, problem: Problem, threshold: Threshold, *, padding: bool) -> Answer | None:
        """Return the configs of the function. As in rows, they may have a ``pad`` without ``padding``."""
        answer = self.chooser.ask(problem, self.hardware)
        return answer if answer.configs else None

    def no_match(self, problem: Problem) -> str:
        return self.chooser.ask(problem, self.hardware).reason

    def times(self, problem: Problem, *, padding: bool) -> Mapping[Config, float]:
        """Return assumed times: its configs count as faster than aten, in their order."""
        configs = self.chooser.ask(problem, self.hardware).configs
        usable = [config for config in configs if padding or config.pad == 1]
        return {config: unmeasured_time(place) for place, config in reversed(list(enumerate(usable)))}

    def name(self, answer: Answer | None = None) -> str:
        return printable(self.chooser.name)

    def origin(self, answer: Answer) -> str:
        return CHOOSER

    def description(self) -> str:
        """Return the word chooser, and its digest."""
        digest = self.chooser.digest
        return "a chooser without a digest" if digest is None else printable(f"a chooser, digest {digest}")


def load_function(place: str) -> ChooserFunction:
    """Import the function ``MODULE:FUNCTION``, also from the working directory. SettingError if that fails."""
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise SettingError(f"{place!r} is not MODULE:FUNCTION, for example my_rules:choose")
    if module.endswith(".py"):
        raise SettingError(f"{place}: a module is named without .py: {module.removesuffix('.py')}:{name}")
    try:
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # the user's module may raise anything
        let_pass(error)
        raise SettingError(f"{place}: cannot be imported: {type(error).__name__}: {error}") from error
    return found  # type: ignore[return-value]  # a Chooser checks it


_registered: dict[str, Chooser] = {}  # choosers by name, in the order of asking


def registered() -> tuple[Chooser, ...]:
    """Return all choosers registered at this moment."""
    return tuple(_registered.values())


class Registration(AbstractContextManager["Registration"]):
    """A registered chooser. ``remove``, or the end of a ``with`` block, takes it away."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser

    def remove(self) -> None:
        """Stop asking it from the next compile on, unless another chooser has taken its place."""
        if _registered.get(self.chooser.name) is self.chooser:
            del _registered[self.chooser.name]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def register(chooser: Chooser) -> Registration:
    """Ask it from the next compile on, in place of another chooser of the same name."""
    _registered[chooser.name] = chooser
    return Registration(chooser)
