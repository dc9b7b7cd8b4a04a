"""Which configs a problem gets: tiers of tables, then models, asked in order, and the decision that comes out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import as_lines, printable
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config
from diode_lut.settings import CONFIDENCE, GAIN, Settings
from diode_lut.table import Candidate, Entry, Table, of_kind

if TYPE_CHECKING:
    from diode_lut.model.ranking import Model, Ranking

ABSTAIN = "abstain"
"""The tier of a decision that leaves everything to Inductor."""

_RANKED = 5
"""So many configs of a model's ranking are shown."""


class Step(NamedTuple):
    """One thing that ``select`` tried in vain: a table without an answer, or the reason why there was none to ask."""

    tier: str
    table: Table | None
    reason: str = ""

    def describe(self, problem: Problem) -> str:
        """The step in plain words."""
        if self.table is None:
            return f"{self.tier}: {self.reason}"
        return f"{self.tier}: {table_name(self.table)}: {_why_not(self.table, problem)}"


class Tier(NamedTuple):
    """Tables or models of one rank, in the order in which they are asked, and why others of that rank are not."""

    name: str
    tables: tuple[Table, ...]
    left_out: tuple[str, ...] = ()
    models: tuple[Model, ...] = ()


class Opinion(NamedTuple):
    """What a model says about a problem, whether or not that is the answer."""

    model: Model
    ranking: Ranking


class Demand(NamedTuple):
    """What a model must say to be heard: one of the two is enough.

    ``confidence``, from 0 to 1, is that its first config is within 5 % of the best. ``gain`` is by what fraction that
    is expected to be faster than aten: then another may be better still, but aten hardly is.
    """

    confidence: float = CONFIDENCE
    gain: float = GAIN

    @classmethod
    def of(cls, settings: Settings) -> Demand:
        """What the user demands."""
        return cls(settings.confidence_threshold, settings.gain_threshold)

    def met(self, confidence: float, time: float) -> bool:
        """Whether it is, with this confidence in a config that is expected to take ``time``, over that of aten."""
        return confidence >= self.confidence or time * (1 + self.gain) <= 1

    def unmet(self, ranking: Ranking) -> str:
        """Why it is not, in words."""
        expected = f"expected to be {1 / ranking.times[0]:.3f} times as fast as aten, not {1 + self.gain:g}"
        return f"confidence {ranking.confidence:.3f} is below {self.confidence:g}, and it is {expected}"


DEMAND = Demand()
"""What is demanded unless somebody says otherwise."""


class Decision(NamedTuple):
    """What ``select`` answers: configs, best first; none means that Inductor does what it would have done anyway.

    ``tier`` is the one of TIERS that answered, or ABSTAIN; ``entry`` and ``table`` say where, and are None unless a
    table answered. ``tried`` is what was asked before. ``opinion`` is that of the last model that was asked and knows
    the problem: the one that answered, or one that is not sure enough.
    """

    problem: Problem
    hardware: Hardware
    tier: str
    configs: tuple[Config, ...]
    entry: Entry | None
    table: Table | None
    tried: tuple[Step, ...]
    opinion: Opinion | None = None

    @property
    def steps(self) -> tuple[str, ...]:
        """What was tried in which order, in plain words, down to the tier that answered."""
        return (*(step.describe(self.problem) for step in self.tried), self._answer())

    def explain(self) -> str:
        """The decision for people: the problem, the steps, and the configs with what they gain over aten."""
        return as_lines(self.lines())

    def lines(self) -> list[str]:
        """What ``explain`` says, line by line; what others wrote is not escaped."""
        lines = [f"{self.problem} on {self.hardware}", *(f"  {step}" for step in self.steps)]
        if self.entry is not None and self.table is not None:
            lines += [f"    {_in_words(candidate)}" for candidate in self.entry.candidates]
        elif self.opinion is not None:
            lines += ranking_in_words(self.opinion.ranking)
        return lines

    @property
    def where(self) -> str:
        """The file and line of the row that answered, or the model's file; empty if nothing did."""
        if self.entry is not None and self.table is not None:
            return row_name(self.table, self.entry)
        return model_name(self.opinion.model) if self.opinion is not None and self.configs else ""

    @property
    def confidence(self) -> float | None:
        """How sure the model is that answered, from 0 to 1; None if none did."""
        return self.opinion.ranking.confidence if self.opinion is not None and self.configs else None

    def _answer(self) -> str:
        if not self.configs:
            return f"{ABSTAIN}: Inductor decides as it would without diode_lut"
        if self.entry is None:
            assert self.opinion is not None
            remark = trained_for(self.opinion.model, self.hardware)
            return f"{self.tier}: {self.where}{remark and f'{remark},'} answers, with confidence {self.confidence:.3f}"
        note = f" ({self.entry.note})" if self.entry.note else ""
        return f"{self.tier}: {self.where} answers{note}"


class Selector:
    """Answers for one kind of hardware: walks the tiers and stops at the first table that covers the problem.

    Where none does, it asks the models. ``digest`` is a SHA-256 in hexadecimal over everything that an answer can
    depend on, but for the problem and what is demanded of models: tables and models, their order and their tiers. With
    each model goes the SM count by which it ranks, on a CPU the number of threads: compiled code keeps the number that
    it was made for, or takes the process's, and Inductor's keys have neither under all of its settings. Without a model
    that number has no part in it, nor have tables of other hardware.
    """

    def __init__(self, hardware: Hardware, tiers: Iterable[Tier]) -> None:
        self.hardware = hardware
        self.tiers = tuple(tiers)
        self.digest = _digest(self.tiers, hardware.sm_count)
        tried: list[Step] = []
        self._tables: list[tuple[str, Table, tuple[Step, ...]]] = []
        self._models: list[tuple[str, Model]] = []
        for tier in self.tiers:
            tried += (Step(tier.name, None, reason) for reason in tier.left_out)
            for table in tier.tables:
                self._tables.append((tier.name, table, tuple(tried)))
                tried.append(Step(tier.name, table))
            self._models += ((tier.name, model) for model in tier.models)
        self._tried = tuple(tried)

    def select(self, problem: Problem, demand: Demand = DEMAND) -> Decision:
        """The decision for one problem; the same in every process that has the same tables and models."""
        for tier, table, tried in self._tables:
            entry = table.lookup(problem)
            if entry is not None:
                return Decision(problem, self.hardware, tier, entry.configs, entry, table, tried)
        return self.ask_models(problem, demand, self._tried)

    def ask_models(self, problem: Problem, demand: Demand, before: Iterable[Step] = ()) -> Decision:
        """What the models answer, whether or not a table does; ``before`` is what was tried in vain before."""
        tried, opinion = list(before), None
        for tier, model in self._models:
            ranking = model.rank(problem, self.hardware, demand.gain)
            if ranking is None:
                tried.append(self._abstains(tier, model, model.unknown(problem)))
                continue
            opinion = Opinion(model, ranking)
            if demand.met(ranking.confidence, ranking.times[0]):
                return Decision(problem, self.hardware, tier, ranking.configs, None, None, tuple(tried), opinion)
            tried.append(self._abstains(tier, model, demand.unmet(ranking)))
        return Decision(problem, self.hardware, ABSTAIN, (), None, None, tuple(tried), opinion)

    def _abstains(self, tier: str, model: Model, reason: str) -> Step:
        return Step(tier, None, f"{model_name(model)}{trained_for(model, self.hardware)}: {reason}")


def table_name(table: Table) -> str:
    """What to call a table in messages: its file, relative to the working directory where it lies below that."""
    return shown(table.path) if table.path else printable(f"table for {table.hardware.name}")


def model_name(model: Model) -> str:
    """What to call a model in messages, in the same way."""
    return shown(model.path) if model.path else printable(f"model for {model.hardware.name}")


def shown(path: Path) -> str:
    """The path as messages show it: relative to the working directory where it lies below that."""
    with suppress(FileNotFoundError):  # the working directory may have been removed
        if path.is_relative_to(Path.cwd()):
            return printable(os.path.relpath(path))
    return printable(str(path))


def _digest(tiers: Iterable[Tier], sm_count: int) -> str:
    lines: list[str] = []
    for tier in tiers:
        lines += (f"{tier.name} {table.digest}\n" for table in tier.tables)
        lines += (f"{tier.name} {model.digest} {sm_count}\n" for model in tier.models)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def row_name(table: Table, entry: Entry) -> str:
    """What to call a row in messages: the table and, where that is a file, the line."""
    line = table.line_of(entry)
    return table_name(table) if line is None else f"{table_name(table)}:{line}"


def _in_words(candidate: Candidate) -> str:
    if candidate.gain_permille is None:
        return str(candidate.config)
    return f"{candidate.config} ({candidate.gain_permille / 1000:.3f} times as fast as aten)"


def ranking_in_words(ranking: Ranking) -> list[str]:
    """Lines for the best of a ranking, with what is expected of them, and how sure that is."""
    best = islice(zip(ranking.configs, ranking.times, strict=True), _RANKED)
    shown = [f"    {config} ({1 / time:.3f} times as fast as aten, expected)" for config, time in best]
    return [*shown, f"    the first is within 5 % of the best with confidence {ranking.confidence:.3f}"]


def trained_for(model: Model, hardware: Hardware) -> str:
    """A remark where the model is another device's."""
    return "" if model.hardware.same_device(hardware) else f", trained for {model.hardware}"


def _why_not(table: Table, problem: Problem) -> str:
    """The first fields of the problem that no entry has; else that it is about the sizes."""
    entries, kind = of_kind(table.entries, problem)
    if not entries:
        return f"no entry for {kind}"
    return f"no entry covers b={problem.b} m={problem.m} n={problem.n} k={problem.k}, out of {len(entries)} for {kind}"
