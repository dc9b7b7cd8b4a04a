"""What this process answers, and the public functions."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from diode_lut import probe
from diode_lut.decide.catalog import TableFile, find_path, find_tables, open_file
from diode_lut.decide.choosers import LIMIT_S, Chooser, Function, Registration, register, registered
from diode_lut.decide.dynamic import Axis
from diode_lut.decide.explain import Explanation, OverSizes, explain_over
from diode_lut.decide.explain import explain as explanation_of
from diode_lut.decide.selector import Decision, Selector
from diode_lut.decide.sources import Threshold
from diode_lut.errors import ProblemError, SettingError
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.process import warn_once
from diode_lut.receipts import recorder
from diode_lut.receipts.recorder import Counts
from diode_lut.settings import Settings, config
from diode_lut.snapshot import hardware_called, hardware_of, selector_for, selector_with

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model
    from diode_lut.table import Table


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def get_detected_hardware() -> Hardware:
    """The device that torch would use on this machine; HardwareError if torch is missing.

    In a forked process a CPU has the threads that it had when the parent asked.
    """
    return hardware_of()


def list_available_tables() -> list[TableFile]:
    """The user's own tables, then the shipped ones; those whose head cannot be read are left out with a warning."""
    return find_tables(config.tables)


def register_table(name_or_path: str) -> None:
    """Put a table or a model behind the user's own in ``config.tables``; TableError or ModelError if it is invalid.

    ``name_or_path`` is a file, or the name of a shipped table, of its hardware or an alias of that. A model is used on
    any hardware, whatever it was trained for. What is there already stays where it is, and a relative path means the
    same file wherever the process goes.
    """
    path = find_path(name_or_path).absolute()
    open_file(path)
    config.add_table(name_or_path, str(path))


def select(problem: Problem, *, hardware: Hardware | str | None = None) -> Decision:
    """The decision for one problem on ``hardware``: by default the device that torch would use.

    A name stands for the hardware of the table that is called so, or that is for hardware called so. HardwareError if
    there is none, or if torch finds no device; ProblemError if ``problem`` is no Problem.
    """
    settings = config.copy()
    selector = selector_for(_hardware(hardware, settings), settings, registered())
    return selector.select(_checked(problem), Threshold.of(settings), padding=settings.pad)


def explain(problem: Problem, *, hardware: Hardware | str | None = None) -> str:
    """What ``select`` decides and why, as text: also which rows come next, and what the models say."""
    return str(explanation(problem, hardware=hardware))


def explanation(
    problem: Problem, *, hardware: Hardware | str | None = None, first: Table | Model | None = None
) -> Explanation:
    """What ``explain`` says, in its parts; ``first`` is asked before the user's own tables, or models."""
    settings = config.copy()
    selector = _selector(hardware, first, settings)
    return explanation_of(selector, _checked(problem), Threshold.of(settings), padding=settings.pad)


def explanation_over(
    problem: Problem, axis: Axis, *, hardware: Hardware | str | None = None, first: Table | Model | None = None
) -> OverSizes:
    """What a problem gets whose sizes along an axis may change; the other arguments are those of ``explanation``."""
    settings = config.copy()
    selector, most = _selector(hardware, first, settings), settings.dynamic_kernels
    return explain_over(selector, problem, axis, Threshold.of(settings), most, padding=settings.pad)


def _selector(hardware: Hardware | str | None, first: Table | Model | None, settings: Settings) -> Selector:
    if first is None:
        return selector_for(_hardware(hardware, settings), settings, registered())
    assert first.path is not None
    mine = TableFile(first.path, first.hardware, shipped=False)
    called = isinstance(hardware, str) and mine.called(hardware)
    device = mine.hardware if called else _hardware(hardware, settings)
    return selector_with(first, device, settings, registered())


def _checked(problem: Problem) -> Problem:
    if not isinstance(problem, Problem):
        raise ProblemError(f"{problem!r} is not a Problem (diode_lut.Problem.of makes one)")
    return problem


def _hardware(hardware: Hardware | str | None, settings: Settings) -> Hardware:
    if hardware is None:
        return get_detected_hardware()
    return hardware_called(hardware, settings) if isinstance(hardware, str) else hardware


def register_chooser(
    function: Function,
    *,
    name: str,
    digest: str | None = None,
    before_tables: bool = False,
    after_models: bool = False,
    limit_s: float = LIMIT_S,
) -> Registration:
    """Have ``function(problem, hardware)`` asked for configs: after all tables, or before them, or after the models.

    It gets a Problem and a Hardware, and returns a Config, a list of them with the best first, or None where it has
    none. It must return the same for the same arguments in every process, because compiled code is kept: ``digest`` is
    any text that changes when its answers do. Without a digest, Inductor's caches do not hit as long as it is
    registered. An error, a value of another type, or a call that takes more than ``limit_s`` seconds is no match, with
    one warning. A function takes the place of another one of the same name. SettingError if an argument is wrong.
    """
    chooser = Chooser(function, name, digest, before_tables, limit_s, after_models)
    if digest is None:
        remedy = "give register_chooser a digest, any text that changes when the answers do"
        warn_once(f"chooser {name} has no digest, so Inductor's caches never hit ({remedy})")
    return register(chooser)


def step() -> None:
    """Mark the end of a step of the program, such as one of training, for ``diode-lut compare``.

    Under ``compare`` it waits for the GPU and notes the time; elsewhere it does nothing.
    """
    probe.mark_step()


def get_prediction_stats() -> dict[str, Any]:
    """How many decisions this process has asked for, and what became of them: a copy of its Counts."""
    return recorder.own_counts().as_dict()


def profile_predictions() -> AbstractContextManager[Counts]:
    """Count what happens within a ``with`` block, in any thread; the counts stay readable after it."""
    return recorder.counting()


def set_log_level(level: int | str) -> None:
    """Log messages of this and higher levels: ``debug``, ``info``, ..., or a number as logging has them.

    They go to stderr unless the program has set up logging. SettingError if there is no such level.
    """
    logger = logging.getLogger("diode_lut")
    try:
        logger.setLevel(level.upper() if isinstance(level, str) else level)
    except (TypeError, ValueError):
        raise SettingError(f"log level: {level!r} is not one of {', '.join(_LEVELS).lower()}") from None
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
