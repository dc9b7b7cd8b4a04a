"""Evaluation of a table or a model: the times of its choices against the best, on measured problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from diode_lut.build.measurements import Measurements, measurements_of
from diode_lut.dataset import Record
from diode_lut.decide.decide import Sources, decide
from diode_lut.decide.sources import THRESHOLD, Source, Threshold
from diode_lut.errors import DatasetError, as_lines, printable
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config, baseline

MISS = "miss"  # The origin of a case without an answer. Its choice is the op's baseline
SLOWER = 0.03  # a choice counts as slower than the baseline if it is slower by a larger fraction
REGRET_LIMITS = (0.005, 0.01, 0.02, 0.05)  # upper ends of the classes of regret but the last, as fractions

REGRET_CLASSES = ("under 0.5 %", "0.5 to 1 %", "1 to 2 %", "2 to 5 %", "over 5 %", "not measured")
"""The names of the classes of regret, and of choices without a time."""

_DIGITS = 6  # number of digits after the point of fractions and factors in reports, and to which regrets are compared
WORST = 10  # number of problems in the list of those with the largest regret


class Case(NamedTuple):
    """A problem, the ``choice`` for it, and the measured times in nanoseconds.

    ``origin`` is ``Source.origin`` of the answer, or MISS. ``ns`` is the time of the choice if its ``outcome`` is
    ``measured``, else None. ``best`` is the fastest measured config. ``baseline_ns`` is the time of the baseline, or
    None if it was not measured.
    """

    problem: Problem
    origin: str
    choice: Config
    outcome: Literal["measured", "not measured", "failed"]
    ns: float | None
    best: Config
    best_ns: float
    baseline_ns: float | None

    @property
    def regret(self) -> float:
        """Time of the choice over the best time, minus 1. The choice must have been measured."""
        assert self.ns is not None
        return self.ns / self.best_ns - 1

    @property
    def gain(self) -> float | None:
        """Time of the baseline over the time of the choice, or None if either was not measured."""
        return self.baseline_ns / self.ns if self.baseline_ns is not None and self.ns is not None else None

    @property
    def best_gain(self) -> float | None:
        """Time of the baseline over the best time, or None if ``gain`` is None."""
        return self.baseline_ns / self.best_ns if self.baseline_ns is not None and self.ns is not None else None


class Summary(NamedTuple):
    """Figures of some cases. Fractions and factors are None without a case.

    ``coverage`` is the fraction of problems with an answer. ``not_measured`` and ``failed`` count the choices without a
    time, which the following figures leave out. ``gain`` and ``best_gain`` are geometric means over the problems with a
    time of the baseline. ``regret`` is the geometric mean of the choices' times over the best times, minus 1, and
    ``worst_regret`` the largest regret. ``within_2`` and ``within_5`` are the fractions of problems with a regret of at
    most 2 % and 5 %. ``slower`` counts choices slower than the baseline by more than SLOWER.
    """

    problems: int
    coverage: float | None
    not_measured: int
    failed: int
    gain: float | None
    best_gain: float | None
    regret: float | None
    worst_regret: float | None
    within_2: float | None
    within_5: float | None
    slower: int


class Evaluation(NamedTuple):
    """The sorted ``cases`` on which any config succeeded, the number of others, and the name of the baseline."""

    cases: Sequence[Case]
    unsolved: int
    against: str

    @property
    def usual(self) -> str:
        """The names of the kernels that misses count as."""
        return usual_kernels(case.problem for case in self.cases)

    @property
    def summary(self) -> Summary:
        """The figures of all cases."""
        return _summary(self.cases)

    @property
    def groups(self) -> dict[str, dict[str, Summary]]:
        """The figures by op, by op and variant if it has any, by dtype, class of epilogue, and origin of the choice."""
        keys: dict[str, Callable[[Case], str]] = {
            "op": lambda case: case.problem.op,
            "variant": lambda case: case.problem.variant and f"{case.problem.op} {case.problem.variant}",
            "dtype": lambda case: case.problem.dtype,
            "epilogue": lambda case: case.problem.epilogue,
            "source": lambda case: case.origin,
        }
        found: dict[str, dict[str, Summary]] = {}
        for name, key in keys.items():
            labels = sorted(filter(None, set(map(key, self.cases))))
            found[name] = {label: _summary([case for case in self.cases if key(case) == label]) for label in labels}
        return found

    @property
    def classes(self) -> dict[str, int]:
        """The number of cases in each of REGRET_CLASSES."""
        counts = Counter(regret_class(case.regret if case.ns is not None else None) for case in self.cases)
        return {name: counts[name] for name in REGRET_CLASSES}

    @property
    def worst(self) -> list[Case]:
        """The cases with the largest regret, largest first."""
        measured = (case for case in self.cases if case.ns is not None)
        return sorted(measured, key=lambda case: (-case.regret, case.problem))[:WORST]


def usual_kernels(problems: Iterable[Problem]) -> str:
    """Return the baselines of the problems, which Inductor takes on a miss, as text."""
    return " or ".join(sorted({str(baseline(op)) for op in {problem.op for problem in problems}}))


def regret_class(regret: float | None) -> str:
    """Return the class of a regret in REGRET_CLASSES. None was not measured."""
    return REGRET_CLASSES[-1 if regret is None else sum(not _within(regret, limit) for limit in REGRET_LIMITS)]


def _within(regret: float, limit: float) -> bool:
    """Return whether a regret is at most the limit, after rounding: 0.02 may be computed as 0.020000000000000018."""
    return round(regret, _DIGITS) <= limit


def _summary(cases: Sequence[Case]) -> Summary:
    def share(flags: Sequence[bool]) -> float | None:
        return fmean(flags) if flags else None

    regrets = [case.regret for case in cases if case.ns is not None]
    gains = [case.gain for case in cases if case.gain is not None]
    mean_ratio = geometric_mean(regret + 1 for regret in regrets)
    return Summary(
        problems=len(cases),
        coverage=share([case.origin != MISS for case in cases]),
        not_measured=sum(case.outcome == "not measured" for case in cases),
        failed=sum(case.outcome == "failed" for case in cases),
        gain=geometric_mean(gains),
        best_gain=geometric_mean(case.best_gain for case in cases if case.best_gain is not None),
        regret=None if mean_ratio is None else mean_ratio - 1,
        worst_regret=max(regrets, default=None),
        within_2=share([_within(regret, 0.02) for regret in regrets]),
        within_5=share([_within(regret, 0.05) for regret in regrets]),
        slower=sum(gain * (1 + SLOWER) < 1 for gain in gains),
    )


def geometric_mean(factors: Iterable[float]) -> float | None:
    """Return the geometric mean of positive factors, or None without factors."""
    logarithms = list(map(math.log, factors))
    return math.exp(fmean(logarithms)) if logarithms else None


class ReferenceKernels(NamedTuple):
    """The baseline of gains: the fastest of ``configs`` of a problem."""

    name: str
    configs: Callable[[Problem], Collection[Config]]


def evaluate(
    source: Source,
    timings: Iterable[Record] | Measurements,
    against: str | ReferenceKernels = str(ATEN),
    threshold: Threshold = THRESHOLD,
) -> Evaluation:
    """Evaluate the source's first config on every problem of the timings.

    Records are combined as in ``build``. For several sources, give Measurements, which are combined already. A miss
    counts as Inductor's choice then, ``aten``, or ``default`` for attention and generated kernels. ``against`` is the
    baseline of gains: ReferenceKernels, or a config, written like ``str(config)``, where ``aten`` stands for
    ``default``, too. DatasetError if no timing was successful, or if the baseline was measured on no problem.
    """
    measurements = timings if isinstance(timings, Measurements) else measurements_of(timings)
    if isinstance(against, ReferenceKernels):
        compared = against
    elif against == str(ATEN):
        compared = ReferenceKernels(usual_kernels(measurements.problems), lambda problem: (baseline(problem.op),))
    else:
        named = [config for config in measurements.configs if str(config) == against]
        compared = ReferenceKernels(against, lambda _: named)
    sources, cases = Sources.only(source), []
    for number, problem in enumerate(measurements.problems):
        times = measurements.times_on(number)
        decision = decide(sources, problem, threshold, padding=any(config.pad > 1 for config in times)).decision
        origin = decision.origin or MISS
        choice = decision.configs[0] if decision.configs else baseline(problem.op)
        best = min(times, key=times.__getitem__)
        of_baseline = [times[config] for config in compared.configs(problem) if config in times]
        outcome: Literal["measured", "not measured", "failed"] = "measured"
        if choice not in times:
            outcome = "failed" if (problem, choice) in measurements.failed else "not measured"
        ns, least = times.get(choice), min(of_baseline, default=None)
        cases.append(Case(problem, origin, choice, outcome, ns, best, times[best], least))
    if all(case.baseline_ns is None for case in cases):
        reason = "was measured on none of the problems, so there is nothing to compare with"
        raise DatasetError(f"{compared.name!r} {reason}")
    return Evaluation(cases, len(measurements.unsolved), compared.name)


_COLUMNS = (
    *("problems", "covered", "gain", "of best", "regret", "worst", "<= 2 %", "<= 5 %"),
    *("slower", "failed", "not measured"),
)
_LEAST_WIDTH = 6  # least width of a figure, for ``100.0%``


def as_columns(evaluation: Evaluation) -> Group:
    """Return the evaluation for rich to print."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", min_width=_LEAST_WIDTH)

    def percent(fraction: float | None, digits: int = 1) -> str:
        return "-" if fraction is None else f"{fraction:.{digits}%}"

    def row(name: str, found: Summary) -> None:
        gains = ("-" if factor is None else f"{factor:.3f}" for factor in (found.gain, found.best_gain))
        regrets = percent(found.regret, 2), percent(found.worst_regret, 2)
        shares = percent(found.within_2), percent(found.within_5)
        counts = str(found.slower), str(found.failed), str(found.not_measured)
        covered = str(found.problems), percent(found.coverage)
        table.add_row(Text(printable(name)), *covered, *gains, *regrets, *shares, *counts)

    row("all", evaluation.summary)
    for name, summaries in evaluation.groups.items():
        if summaries:
            table.add_row(f"by {name}")
        above = ""
        for key, summary in summaries.items():  # variants stand below a line for their op
            op, _, variant = key.partition(" ") if name == "variant" else ("", "", "")
            if op != above:
                above = op
                table.add_row(Text(printable(f"  {op}")))
            row(f"    {variant}" if variant else f"  {key}", summary)
    against, unsolved = evaluation.against, evaluation.unsolved
    left_out = f" Left out: {unsolved} problems on which nothing succeeded." if unsolved else ""
    explained = (
        f"gain: of the choices over {against}; of best: gain of the best configs measured; regret: how much longer "
        f"the choices take than the best, on average; worst: on the one problem where it is most; slower: than "
        f"{against} by over {SLOWER:.0%}. A miss counts as {evaluation.usual}.{left_out}"
    )
    counts = (f"{name}: {count}" for name, count in evaluation.classes.items() if count)
    lines = ["problems with the largest regret:"]
    for case in evaluation.worst:
        choice = f"{case.choice} ({case.origin}), best {case.best}"
        lines.append(f"  {case.regret:.2%} on {case.problem}: {choice}")
    return Group(table, Text(explained), Text(f"problems by regret: {', '.join(counts)}"), Text(as_lines(lines)))


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return all figures and the worst problems. Fractions and factors have six digits, times are in nanoseconds."""
    return {
        "against": evaluation.against,
        "unsolved": evaluation.unsolved,
        "all": _figures(evaluation.summary),
        "by": {name: {key: _figures(own[key]) for key in own} for name, own in evaluation.groups.items()},
        "regret_classes": evaluation.classes,
        "worst": [
            {
                "problem": case.problem._asdict(),
                "source": case.origin,
                "choice": case.choice.to_json(),
                "ns": case.ns,
                "best": case.best.to_json(),
                "best_ns": case.best_ns,
                "baseline_ns": case.baseline_ns,
                "regret": round(case.regret, _DIGITS),
            }
            for case in evaluation.worst
        ],
    }


def _figures(summary: Summary) -> dict[str, float | None]:
    return {name: None if value is None else round(value, _DIGITS) for name, value in summary._asdict().items()}
