"""The times of a source's choices against the best, on measured problems."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import orjson

from diode_lut.build.measurements import Measurements, measurements_of
from diode_lut.dataset import Record
from diode_lut.decide.decide import Sources, decide
from diode_lut.decide.sources import THRESHOLD, Source, Threshold
from diode_lut.errors import DatasetError, ExchangeError, ProblemError
from diode_lut.files import has_more_values, read_at_most
from diode_lut.problem import MATMULS, Problem
from diode_lut.templates.config import ATEN, POINTER_TUNABLES, Config, baseline, pointer_gemm

MISS = "miss"
"""The origin of a case that no row or model matched; its choice is the op's baseline."""

Outcome = Literal["measured", "not measured", "failed"]
"""What the timings have for a choice on its problem: a time, nothing, or a failure."""

SLOWER = 0.03
"""A choice counts as slower than the baseline if it is slower by more than this fraction."""

REGRET_LIMITS = (0.005, 0.01, 0.02, 0.05)
"""Where the classes of regret end, as fractions; the last class has all above."""

REGRET_CLASSES = ("under 0.5 %", "0.5 to 1 %", "1 to 2 %", "2 to 5 %", "over 5 %", "not measured")
"""Their names, and that of choices without a time."""

_DIGITS = 6
"""Digits after the point to which regrets are compared, as reports have them."""

WORST = 10
"""Number of problems with the largest regret that are listed."""


class Case(NamedTuple):
    """One problem, the ``choice`` for it, and the measured times in nanoseconds.

    ``origin`` is ``Source.origin`` of the answer, or MISS. ``ns`` is the time of the choice, None unless ``outcome`` is
    ``measured``. ``best`` is the fastest config measured. ``baseline_ns`` is the time of the baseline, None if that was
    not measured.
    """

    problem: Problem
    origin: str
    choice: Config
    outcome: Outcome
    ns: float | None
    best: Config
    best_ns: float
    baseline_ns: float | None

    @property
    def regret(self) -> float:
        """Time of the choice over the best time, minus one; the choice must have been measured."""
        assert self.ns is not None
        return self.ns / self.best_ns - 1

    @property
    def gain(self) -> float | None:
        """Time of the baseline over that of the choice; None if either was not measured."""
        return self.baseline_ns / self.ns if self.baseline_ns is not None and self.ns is not None else None

    @property
    def best_gain(self) -> float | None:
        """Time of the baseline over that of the best config; None if ``gain`` is."""
        return self.baseline_ns / self.best_ns if self.baseline_ns is not None and self.ns is not None else None


class Summary(NamedTuple):
    """Figures of some cases. Fractions and factors are None if no case has one.

    ``coverage`` is the fraction of problems that are not misses. ``not_measured`` and ``failed`` count the choices
    without a time, which the figures after them leave out. ``gain`` and ``best_gain`` are geometric means over the
    problems whose baseline was measured. ``regret`` is the geometric mean of the choices' times over the best times,
    minus one; ``worst_regret`` is the largest regret. ``within_2`` and ``within_5`` are the fractions of problems with
    a regret of at most 2 % and 5 %. ``slower`` counts choices slower than the baseline by more than SLOWER.
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
    """``cases`` has one per problem on which any config succeeded, sorted; ``unsolved`` counts the other problems.

    ``against`` says what the baseline of gains is.
    """

    cases: Sequence[Case]
    unsolved: int
    against: str

    @property
    def usual(self) -> str:
        """What misses count as, by name: that of each op."""
        return usual_kernels(case.problem for case in self.cases)

    @property
    def summary(self) -> Summary:
        """The figures of all cases."""
        return _summary(self.cases)

    @property
    def groups(self) -> dict[str, dict[str, Summary]]:
        """The figures by op, variant, dtype and class of epilogue, and by the origin of the choice.

        By variant there are only the ops that have variants. The name is the op's and the variant's.
        """
        keys: dict[str, Callable[[Case], str]] = {
            "op": lambda case: case.problem.op,
            "variant": lambda case: case.problem.variant and f"{case.problem.op} {case.problem.variant}",
            "dtype": lambda case: case.problem.dtype,
            "epilogue": lambda case: case.problem.epilogue,
            "source": lambda case: case.origin,
        }
        return {name: self._by(key) for name, key in keys.items()}

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

    def _by(self, key: Callable[[Case], str]) -> dict[str, Summary]:
        names = sorted(filter(None, set(map(key, self.cases))))
        return {name: _summary([case for case in self.cases if key(case) == name]) for name in names}


def usual_kernels(problems: Iterable[Problem]) -> str:
    """The baselines of the problems, which Inductor takes on a miss, as text."""
    return " or ".join(sorted({str(baseline(op)) for op in {problem.op for problem in problems}}))


def regret_class(regret: float | None) -> str:
    """The one of REGRET_CLASSES that a regret is in; None was not measured."""
    return REGRET_CLASSES[-1 if regret is None else sum(not _within(regret, limit) for limit in REGRET_LIMITS)]


def _within(regret: float, limit: float) -> bool:
    """Whether a regret is at most the limit; times in whole nanoseconds can give 0.020000000000000018 for 0.02."""
    return round(regret, _DIGITS) <= limit


def _summary(cases: Sequence[Case]) -> Summary:
    regrets = [case.regret for case in cases if case.ns is not None]
    gains = [case.gain for case in cases if case.gain is not None]
    mean_ratio = geometric_mean(regret + 1 for regret in regrets)
    return Summary(
        problems=len(cases),
        coverage=_share([case.origin != MISS for case in cases]),
        not_measured=sum(case.outcome == "not measured" for case in cases),
        failed=sum(case.outcome == "failed" for case in cases),
        gain=geometric_mean(gains),
        best_gain=geometric_mean(case.best_gain for case in cases if case.best_gain is not None),
        regret=None if mean_ratio is None else mean_ratio - 1,
        worst_regret=max(regrets, default=None),
        within_2=_share([_within(regret, 0.02) for regret in regrets]),
        within_5=_share([_within(regret, 0.05) for regret in regrets]),
        slower=sum(gain * (1 + SLOWER) < 1 for gain in gains),
    )


def geometric_mean(factors: Iterable[float]) -> float | None:
    """The geometric mean of positive factors; None if there are none."""
    logarithms = list(map(math.log, factors))
    return math.exp(fmean(logarithms)) if logarithms else None


def _share(flags: Sequence[bool]) -> float | None:
    return fmean(flags) if flags else None


class ReferenceKernels(NamedTuple):
    """What gains are measured against: ``configs`` are those of a problem, of which the fastest counts."""

    name: str
    configs: Callable[[Problem], Collection[Config]]


def evaluate(
    source: Source,
    records: Iterable[Record],
    against: str | ReferenceKernels = str(ATEN),
    threshold: Threshold = THRESHOLD,
) -> Evaluation:
    """Evaluate the source's first config on every problem of the records.

    Timings are combined as ``build`` combines them. A miss counts as ``aten``, which Inductor uses then, or
    ``default``, that of attention. ``against`` is the baseline of gains: a config, written like ``str(config)``, where
    ``aten`` stands for ``default`` too, or ReferenceKernels. DatasetError is raised if no timing was successful, or if
    the baseline was measured on no problem.
    """
    return evaluate_on(source, measurements_of(records), against, threshold)


def evaluate_on(
    source: Source,
    measurements: Measurements,
    against: str | ReferenceKernels = str(ATEN),
    threshold: Threshold = THRESHOLD,
) -> Evaluation:
    """Evaluate one of several sources on the same measurements; otherwise as ``evaluate``."""
    compared = _compared(against, measurements) if isinstance(against, str) else against
    sources = Sources.only(source)
    cases = [
        _case(sources, threshold, problem, number, measurements, compared)
        for number, problem in enumerate(measurements.problems)
    ]
    if all(case.baseline_ns is None for case in cases):
        raise _nothing_to_compare(compared.name)
    return Evaluation(cases, len(measurements.unsolved), compared.name)


def _compared(against: str, measurements: Measurements) -> ReferenceKernels:
    if against == str(ATEN):
        return ReferenceKernels(usual_kernels(measurements.problems), lambda problem: (baseline(problem.op),))
    config = next((config for config in measurements.configs if str(config) == against), None)
    if config is None:
        raise _nothing_to_compare(against)
    return ReferenceKernels(against, lambda _: (config,))


def _nothing_to_compare(name: str) -> DatasetError:
    return DatasetError(f"{name!r} was measured on none of the problems, so there is nothing to compare with")


def _case(
    sources: Sources,
    threshold: Threshold,
    problem: Problem,
    number: int,
    measurements: Measurements,
    compared: ReferenceKernels,
) -> Case:
    times = measurements.times_on(number)
    decision = decide(sources, problem, threshold, padding=any(config.pad > 1 for config in times)).decision
    choice = decision.configs[0] if decision.configs else baseline(problem.op)
    ns = times.get(choice)
    best = min(times, key=times.__getitem__)
    return Case(
        problem=problem,
        origin=decision.origin or MISS,
        choice=choice,
        outcome=_outcome(ns, problem, choice, measurements),
        ns=ns,
        best=best,
        best_ns=times[best],
        baseline_ns=min((times[config] for config in compared.configs(problem) if config in times), default=None),
    )


def _outcome(ns: float | None, problem: Problem, choice: Config, measurements: Measurements) -> Outcome:
    if ns is not None:
        return "measured"
    return "failed" if (problem, choice) in measurements.failed else "not measured"


_MAX_BYTES = 64 << 20
_MAX_VALUES = 5_000_000
_WHAT = "a max-autotune solution of torch-diode, an object with a list 'config' or 'configs'"

_Sizes = tuple[int, int, int] | None
"""M, N and K; None where a config is for all."""


def read_solution(path: Path, contents: bytes | None = None) -> ReferenceKernels:
    """The fastest kernel of a solution file that was measured on a problem; ExchangeError if it is no such file.

    ``contents`` are those of a file that is not on disk.
    """
    data = read_at_most(path, _MAX_BYTES) if contents is None else contents
    if has_more_values(data, _MAX_VALUES):
        raise ExchangeError(f"{path}: more than {_MAX_VALUES} values (expected {_WHAT})")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ExchangeError(f"{path}:{error.lineno}: not JSON: {error.msg} (expected {_WHAT})") from None
    configs: dict[tuple[str, _Sizes], set[Config]] = {}
    faults: Counter[str] = Counter()
    for op, row in _rows(document, path):
        try:
            config = _config(op, row)
        except ProblemError as error:  # noqa: PERF203
            faults[str(error)] += 1
        else:
            configs.setdefault((op, _sizes(row)), set()).add(config)
    if not configs:
        raise ExchangeError(f"{path}: no config in it is one that tables know: {', '.join(faults) or 'it is empty'}")

    def configs_for(problem: Problem) -> set[Config]:
        sizes = problem.m, problem.n, problem.k
        return configs.get((problem.op, None), set()) | configs.get((problem.op, sizes), set())

    return ReferenceKernels(path.name, configs_for)


def _rows(document: Any, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each config with its op; with each op, if the file does not say one."""
    parts = document if isinstance(document, dict) else {}
    by_op = {op: parts[op] for op in MATMULS if op in parts} or dict.fromkeys(MATMULS, parts)
    for op, part in by_op.items():
        rows = part.get("configs", part.get("config")) if isinstance(part, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ExchangeError(f"{path}: not {_WHAT}")
        yield from ((op, row) for row in rows)


def _sizes(row: dict[str, Any]) -> _Sizes:
    m, n, k = (row.get(name) for name in "MNK")
    return (m, n, k) if type(m) is int and type(n) is int and type(k) is int else None


def _config(op: str, row: dict[str, Any]) -> Config:
    return Config.from_json({"template": pointer_gemm(op), **{name: row.get(name) for name in POINTER_TUNABLES}})
