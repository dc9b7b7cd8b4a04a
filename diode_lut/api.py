"""The public functions."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from diode_lut import probe
from diode_lut.decide.catalog import TableFile, find_path, find_tables, open_file
from diode_lut.decide.choosers import LIMIT_S, Chooser, ChooserFunction, Registration, register, registered
from diode_lut.decide.decide import Axis, Sources, decide
from diode_lut.decide.explain import Explanation, OverSizes, explain_over
from diode_lut.decide.explain import explain as explanation_of
from diode_lut.decide.sources import Decision, Threshold
from diode_lut.errors import ProblemError, SettingError
from diode_lut.hardware import Hardware
from diode_lut.log import warn_once
from diode_lut.problem import Problem
from diode_lut.receipts import recorder
from diode_lut.receipts.recorder import Counts
from diode_lut.settings import Settings, config
from diode_lut.snapshot import hardware_called, hardware_of, sources_for, sources_with

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model
    from diode_lut.table import Table


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def get_detected_hardware() -> Hardware:
    """Return torch's device on this machine. HardwareError if torch is missing.

    In a forked process a CPU has the threads that it had when the parent asked.
    """
    return hardware_of()


def list_available_tables() -> list[TableFile]:
    """Return the user's own tables, then the shipped tables. Those with an unreadable head are a warning."""
    return find_tables(config.tables)


def register_table(name_or_path: str) -> None:
    """Append a table or a model to ``config.tables``. TableError or ModelError if it is invalid.

    ``name_or_path`` is a file, or the name, hardware or alias of a shipped table. A model is used on any hardware,
    whatever it was trained for. A table keeps its place if it is there already. A relative path means the same file
    wherever the process goes.
    """
    path = find_path(name_or_path).absolute()
    open_file(path)
    config.add_table(name_or_path, str(path))


def select(problem: Problem, *, hardware: Hardware | str | None = None) -> Decision:
    """Decide about a problem on ``hardware``, by default torch's device.

    A name stands for the hardware of the table with this name, or with hardware of this name. HardwareError if there is
    none, or if torch finds no device. ProblemError if ``problem`` is no Problem.
    """
    settings = config.copy()
    sources = _sources(hardware, None, settings)
    return decide(sources, _checked(problem), Threshold.of(settings), padding=settings.pad).decision


def explain(problem: Problem, *, hardware: Hardware | str | None = None) -> str:
    """Return the decision of ``select`` as text, with its reasons, the next rows, and the models' answers."""
    return str(explanation(problem, hardware=hardware))


def explanation(
    problem: Problem, *, hardware: Hardware | str | None = None, first: Table | Model | None = None
) -> Explanation:
    """Return the parts of ``explain``. ``first`` is asked before the user's own tables or models."""
    settings = config.copy()
    sources = _sources(hardware, first, settings)
    return explanation_of(sources, _checked(problem), Threshold.of(settings), padding=settings.pad)


def explanation_over(
    problem: Problem, axis: Axis, *, hardware: Hardware | str | None = None, first: Table | Model | None = None
) -> OverSizes:
    """Explain the decisions about a problem whose sizes along an axis may change, as ``explanation`` does."""
    settings = config.copy()
    sources, most = _sources(hardware, first, settings), settings.dynamic_kernels
    return explain_over(sources, problem, axis, Threshold.of(settings), most, padding=settings.pad)


def _sources(hardware: Hardware | str | None, first: Table | Model | None, settings: Settings) -> Sources:
    device = hardware_called(hardware, settings) if isinstance(hardware, str) else hardware or get_detected_hardware()
    choosers = registered()
    return sources_for(device, settings, choosers) if first is None else sources_with(first, device, settings, choosers)


def _checked(problem: Problem) -> Problem:
    if not isinstance(problem, Problem):
        raise ProblemError(f"{problem!r} is not a Problem (diode_lut.Problem.of makes one)")
    return problem


def register_chooser(
    function: ChooserFunction,
    *,
    name: str,
    digest: str | None = None,
    before_tables: bool = False,
    after_models: bool = False,
    limit_s: float = LIMIT_S,
    generated: bool = False,
) -> Registration:
    """Ask ``function(problem, hardware)`` for configs after all tables, or before them, or after the models.

    It returns a Config, or a list of them with the best first, or None. It must return the same for the same arguments
    in every process, because compiled code is kept. ``digest`` is any text that changes when its answers do. Without a
    digest, Inductor's caches do not hit while it is registered. An error, a value of another type, or a call of more
    than ``limit_s`` seconds is no match, with one warning. A function replaces another of the same name. With
    ``generated``, it is also asked about the reductions and pointwise kernels that Inductor generates. SettingError if
    an argument is wrong.
    """
    chooser = Chooser(function, name, digest, before_tables, limit_s, after_models, generated)
    if digest is None:
        remedy = "give register_chooser a digest, any text that changes when the answers do"
        warn_once(f"chooser {name} has no digest, so Inductor's caches never hit ({remedy})")
    return register(chooser)


def step() -> None:
    """Mark the end of a step of the program, such as a step of training, for ``diode-lut compare``.

    Under ``compare`` it waits for the GPU and notes the time. Elsewhere it does nothing.
    """
    probe.mark_step()


def get_prediction_stats() -> dict[str, Any]:
    """Return how many decisions this process has asked for, and their results: a copy of its Counts."""
    return recorder.own_counts().as_dict()


def profile_predictions() -> AbstractContextManager[Counts]:
    """Count decisions within a ``with`` block, in any thread. The counts stay readable after it."""
    return recorder.counting()


def set_log_level(level: int | str) -> None:
    """Log messages of this and higher levels: ``debug``, ``info``, ..., or a number of Python's logging.

    They go to stderr unless the program has set up logging. SettingError if there is no such level.
    """
    logger = logging.getLogger("diode_lut")
    try:
        logger.setLevel(level.upper() if isinstance(level, str) else level)
    except (TypeError, ValueError):
        raise SettingError(f"log level: {level!r} is not one of {', '.join(_LEVELS).lower()}") from None
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
