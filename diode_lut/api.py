"""The public functions, and explanations of decisions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_lut import probe
from diode_lut.decide import catalog
from diode_lut.decide.choosers import LIMIT_S, Chooser, ChooserFunction, Registration, register, registered
from diode_lut.decide.decide import NOT_AS_TIMED, Axis, Piece, Sources, decide
from diode_lut.decide.sources import ABSTAIN, THRESHOLD, Answer, Decision, Source, Threshold
from diode_lut.errors import ProblemError, SettingError, as_lines
from diode_lut.hardware import Hardware, hardware_of
from diode_lut.log import warn_once
from diode_lut.problem import JOINED, NO_EPILOGUE, Problem
from diode_lut.receipts import recorder
from diode_lut.receipts.recorder import Counts
from diode_lut.settings import MODEL, Settings, config
from diode_lut.table import Entry
from diode_lut.table.format import winner_text
from diode_lut.templates.config import Config, baseline

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model
    from diode_lut.table import Table

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def get_detected_hardware() -> Hardware:
    """Return torch's device on this machine. HardwareError if torch is missing.

    In a forked process a CPU has the threads that it had when the parent asked.
    """
    return hardware_of()


def list_available_tables() -> list[catalog.TableFile]:
    """Return the user's own tables, then the shipped tables. Those with an unreadable head are a warning."""
    return catalog.find_tables(config.tables)


def register_table(name_or_path: str) -> None:
    """Append a table or a model to ``config.tables``. TableError or ModelError if it is invalid.

    ``name_or_path`` is a file, or the name, hardware or alias of a shipped table. A model is used on any hardware,
    whatever it was trained for. A table keeps its place if it is there already. A relative path means the same file
    wherever the process goes.
    """
    path = catalog.find_path(name_or_path).absolute()
    catalog.open_file(path)
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
    """Explain the decisions about a problem whose sizes along an axis may change, as ``explanation`` does.

    No part of the range is the library's if an epilogue is fused into the kernels, or if they are joined.
    """
    settings = config.copy()
    sources = _sources(hardware, first, settings)
    answers = decide(sources, problem, Threshold.of(settings), axes=(axis,), padding=settings.pad)
    library = problem.epilogue == NO_EPILOGUE and problem.op not in JOINED
    parts = answers.pieces(settings.dynamic_kernels, library=library)
    return OverSizes(problem, parts, answers.decision)


def _sources(hardware: Hardware | str | None, first: Table | Model | None, settings: Settings) -> Sources:
    if isinstance(hardware, str):
        hardware = catalog.hardware_called(hardware, settings)
    device, choosers = hardware or get_detected_hardware(), registered()
    if first is None:
        return catalog.sources_for(device, settings, choosers)
    return catalog.sources_with(first, device, settings, choosers)


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


_SHOWN = 10  # Number of next rows shown. To find the line of each, the table is read again


class Explanation(NamedTuple):
    """A decision and its alternatives, if a row or a chooser answers.

    ``rivals`` are the other rows for the problem, each with its tier and source, in the order of answering. ``models``
    is the models' decision, or None if they were asked anyway. ``times`` are measured times of the problem in
    nanoseconds, if there are any.
    """

    decision: Decision
    rivals: tuple[tuple[str, Source, Entry], ...]
    models: Decision | None
    times: Mapping[Config, float] = {}

    def __str__(self) -> str:
        """Return the explanation for people, in several lines."""
        lines = self.decision.lines()
        if self.times:
            usual, best = baseline(self.decision.problem.op), min(self.times, key=self.times.__getitem__)
            named = list(dict.fromkeys((usual, *self.decision.configs)))[: _SHOWN + 1]
            shown = [f"{each} {self.times[each] / 1000:.2f} us" for each in named if each in self.times]
            if best not in named:
                shown.append(f"and the fastest of {len(self.times)}, {best} {self.times[best] / 1000:.2f} us")
            lines.append(f"    measured: {', '.join(shown)}")
        answering = self.decision.entry
        if answering is not None and not self.rivals:
            lines.append("  runner-up: none, for no other row covers it")
        for number, (tier, source, entry) in enumerate(self.rivals[:_SHOWN]):
            if answering is None or source is not self.decision.source:
                why = f"{tier}: its table is asked later"
            elif entry.volume == answering.volume:
                why = "covers as many problems as the row that answers, which contradicts it (check finds such rows)"
            else:
                times = entry.volume / answering.volume
                factor = f"{times:,.3f}".rstrip("0").rstrip(".") if times < 10**7 else f"{times:.1e}"
                why = f"covers {factor} times as many problems as the row that answers"
            place = source.name(Answer(entry.configs, entry=entry))
            lines.append(f"  {'then' if number else 'runner-up'}: {place}: {winner_text(entry)}; {why}")
        if len(self.rivals) > _SHOWN:
            lines.append(f"  and {len(self.rivals) - _SHOWN} more rows")
        if self.models is not None:
            lines += (f"  {step.describe(self.decision.problem)}" for step in self.models.tried)
            if self.models.configs:
                confidence = self.models.confidence
                sure = "" if confidence is None else f", with confidence {confidence:.3f}"
                lines.append(f"  {self.models.tier}: {self.models.where} would answer{sure}")
            lines += self.models.details()
        return as_lines(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the decision, and the rows that would answer next, for programs."""
        rivals = [
            {
                "tier": tier,
                "where": source.name(Answer(entry.configs, entry=entry)),
                "configs": [each.to_json() for each in entry.candidates],
            }
            for tier, source, entry in self.rivals[:_SHOWN]
        ]
        times = [{"config": config.to_json(), "ns": round(ns, 1)} for config, ns in self.times.items()]
        return {**_as_dict(self.decision), "steps": self.decision.steps, "runners_up": rivals, "times": times}


def explanation_of(
    sources: Sources, problem: Problem, threshold: Threshold = THRESHOLD, *, padding: bool = True
) -> Explanation:
    """Explain the decision of these sources about a problem. ``padding`` says whether operands may be padded."""
    decision = decide(sources, problem, threshold, padding=padding).decision
    if decision.tier in (ABSTAIN, MODEL):
        return Explanation(decision, (), None)
    rivals = (
        (tier.name, source, entry)
        for tier in sources.tiers
        for source in tier.sources
        for entry in source.covering(problem)
        if entry is not decision.entry
    )
    models = Sources(sources.hardware, (tier for tier in sources.tiers if tier.name == MODEL))
    return Explanation(decision, tuple(rivals), decide(models, problem, threshold, padding=padding).decision)


class OverSizes(NamedTuple):
    """The decisions about a problem whose size may change: for parts of the range, and for all of it.

    There are no parts if a single config is as good.
    """

    problem: Problem
    parts: tuple[Piece, ...]
    whole: Decision

    def as_dict(self) -> dict[str, Any]:
        """Return the decisions for programs."""
        asked = ((decision, config.to_json()) for _, decision, config in self.parts)
        parts = [{"over": decision.over, "config": config, "where": decision.where} for decision, config in asked]
        left_out = [config.to_json() for config in self.whole.left_out]
        return {**_as_dict(self.whole), "over": self.whole.over, "left_out": left_out, "parts": parts}

    def __str__(self) -> str:
        """Return the decisions for people, in several lines."""
        lines = [f"{self.problem} on {self.whole.hardware}, {self.whole.over}"]
        lines += [f"  {config} is left out: {NOT_AS_TIMED}" for config in self.whole.left_out]
        for _, decision, chosen in self.parts:
            if decision.configs:
                lines.append(f"  {_who(decision, chosen)}")
            else:
                lines.append(f"  {decision.over}: {chosen}, because no table and no model answers")
        name = "where there can be one kernel only: " if self.parts else ""
        taken = next(iter(self.whole.configs), baseline(self.problem.op))
        return as_lines([*lines, f"  {name}{_who(self.whole, taken)}"])


def _as_dict(decision: Decision) -> dict[str, Any]:
    entry = decision.entry if decision.configs else None
    gains = {} if entry is None else {each.config: each.to_json() for each in entry.candidates}
    return {
        "problem": decision.problem.to_json(),
        "hardware": str(decision.hardware),
        "tier": decision.tier,
        "where": decision.where,
        "configs": [gains.get(config, config.to_json()) for config in decision.configs],
        "expected_time": decision.expected_time,
        "confidence": decision.confidence,
    }


def _who(decision: Decision, config: Config) -> str:
    if not decision.configs:
        return f"{decision.over}: Inductor decides as it would without diode_lut, because no table and no model answers"
    return f"{decision.over}: {config}, as {decision.where} has it for {decision.problem}"
