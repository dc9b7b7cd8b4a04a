"""Evaluations, checked against hand-made figures and plain sums."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.build import build
from diode_lut.dataset import Dataset, Header, Record, Timing
from diode_lut.decide.sources import EXACT, RANGE, TableSource, Threshold
from diode_lut.errors import DatasetError
from diode_lut.evaluate import MISS, Evaluation, as_json, evaluate, regret_class
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table
from diode_lut.templates.config import ATEN, Config

H200 = Hardware("NVIDIA H200", "sm_90", 132)
A, B, C = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 64, 128))


def problem(m: int) -> Problem:
    return Problem("mm", "float16", "nn", 16, 1, m, 8, 8)


def record(m: int, times: dict[Config, float | None], stage: str = "final") -> Record:
    timings = tuple(Timing(config, ns, None if ns else "wrong_result") for config, ns in times.items())
    return Record(problem(m), timings, stage)


def evaluated(choice: Config | None, *records: Record, against: str = "aten") -> Evaluation:
    """The evaluation of a table that has the same answer for every problem, or no row."""
    sizes = (1, 1000)
    rows = [] if choice is None else [Entry(None, None, None, None, None, sizes, None, None, (Candidate(choice),))]
    return evaluate(TableSource(Table(H200, rows)), records, against)


measured = st.dictionaries(st.sampled_from((ATEN, A, B, C)), st.floats(1, 1e6) | st.none(), min_size=1)
many = st.dictionaries(st.integers(1, 50), measured, min_size=1, max_size=20).filter(
    lambda problems: any(times.get(ATEN) for times in problems.values())
)


@given(many, st.sampled_from((A, B, ATEN, None)))
def test_figures_are_those_of_plain_sums(
    problems: dict[int, dict[Config, float | None]], choice: Config | None
) -> None:
    """Means, shares and counts agree with their definitions, and no problem is dropped."""
    figures = evaluated(choice, *(record(m, times) for m, times in problems.items())).summary
    taken = choice or ATEN
    solved = [times for times in problems.values() if any(times.values())]
    pairs = [(ns, min(filter(None, times.values())), times) for times in solved if (ns := times.get(taken))]
    assert figures.problems == len(solved)
    assert figures.coverage == (1 if choice else 0)
    assert figures.failed == sum(taken in times and times[taken] is None for times in solved)
    assert figures.not_measured == sum(taken not in times for times in solved)
    assert len(pairs) + figures.failed + figures.not_measured == figures.problems
    if pairs:
        regrets = [ns / best - 1 for ns, best, _ in pairs]
        assert figures.regret == pytest.approx(math.prod(1 + regret for regret in regrets) ** (1 / len(pairs)) - 1)
        assert figures.worst_regret == pytest.approx(max(regrets))
        assert figures.within_2 == pytest.approx(sum(regret <= 0.02 for regret in regrets) / len(pairs))
        assert figures.within_5 == pytest.approx(sum(regret <= 0.05 for regret in regrets) / len(pairs))
    else:
        assert figures[6:10] == (None,) * 4
    compared = [(aten / ns, aten / best) for ns, best, times in pairs if (aten := times.get(ATEN))]
    assert figures.slower == sum(gain < 1 / 1.03 for gain, _ in compared)
    for found, gains in ((figures.gain, [pair[0] for pair in compared]), (figures.best_gain, [p[1] for p in compared])):
        expected = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None
        assert found is None if expected is None else found == pytest.approx(expected)


def test_a_built_table_keeps_its_promise(tmp_path: Path) -> None:
    """On the timings that it was built from, a table covers all problems within 2 %, and is never slower than aten."""
    records = [record(m, {A: 100.0 + m % 7, B: 103.0, ATEN: 90.0 + m}) for m in range(1, 40)]
    (tmp_path / "d").touch()
    table = build([Dataset(tmp_path / "d", Header(H200), lambda *_: iter(records))]).table
    figures = evaluate(TableSource(table), records).summary
    assert (figures.problems, figures.coverage, figures.within_2, figures.slower) == (39, 1, 1, 0)
    assert figures.not_measured == figures.failed == 0


@pytest.mark.parametrize(("min_gain", "choice"), [(0.2, ATEN), (0.1, A)])
def test_small_gains_are_not_taken(min_gain: float, choice: Config) -> None:
    """The choice is that of the hook: the library, if the row gains less than ``min_gain``."""
    row = Entry("mm", None, None, None, None, None, None, None, (Candidate(A, 1150),))
    source = TableSource(Table(H200, [row]))
    (case,) = evaluate(source, [record(4, {A: 100.0, ATEN: 115.0})], threshold=Threshold(min_gain=min_gain)).cases
    assert (case.choice, case.origin) == (choice, RANGE)


def test_origins_of_choices() -> None:
    """A choice is from an exact row, from a row for ranges, or a miss, which counts as aten."""
    rows = [
        Entry("mm", "float16", "nn", 16, None, m, (8, 8), (8, 8), (Candidate(config),))
        for m, config in (((1, 9), A), ((5, 5), B))
    ]
    records = [record(m, {A: 50.0, B: 100.0, ATEN: 200.0}) for m in (4, 5, 10)]
    evaluation = evaluate(TableSource(Table(H200, rows)), records)
    found = [(case.origin, case.choice, case.gain, case.regret) for case in evaluation.cases]
    assert found == [(RANGE, A, 4, 0), (EXACT, B, 2, 1), (MISS, ATEN, 1, 3)]
    assert evaluation.summary.coverage == pytest.approx(2 / 3)
    assert list(evaluation.groups["source"]) == [EXACT, MISS, RANGE]


def test_a_choice_without_a_time_is_counted_apart() -> None:
    """A choice that failed or was not measured is left out of means, and has a count of its own."""
    evaluation = evaluated(A, record(1, {A: None, ATEN: 1.0}), record(2, {ATEN: 1.0}), record(3, {A: 1.0, ATEN: 2.0}))
    assert [case.outcome for case in evaluation.cases] == ["failed", "not measured", "measured"]
    figures = evaluation.summary
    assert (figures.failed, figures.not_measured, figures.gain, figures.regret) == (1, 1, 2, 0)
    assert [case.problem.m for case in evaluation.worst] == [3]


def test_final_timings_decide() -> None:
    """If a problem has final timings, its other timings are ignored."""
    evaluation = evaluated(A, record(1, {A: 9.0, B: 1.0}, "sweep"), record(1, {A: 2.0, ATEN: 4.0}))
    assert (evaluation.summary.gain, evaluation.summary.regret) == (2, 0)


def test_problems_without_any_success_are_counted() -> None:
    """A problem on which nothing succeeded is counted, and is not a case."""
    evaluation = evaluated(A, record(1, {A: None}), record(2, {A: 1.0, ATEN: 1.0}))
    assert (len(evaluation.cases), evaluation.unsolved) == (1, 1)


def test_another_baseline_can_be_named() -> None:
    """Gains are over the baseline, which is named like ``str(config)``."""
    assert evaluated(A, record(1, {A: 1.0, B: 3.0, ATEN: 9.0}), against=str(B)).summary.gain == pytest.approx(3)
    with pytest.raises(DatasetError, match="'triton' was measured on none of the problems"):
        evaluated(A, record(1, {A: 1.0}), against="triton")


def test_groups_are_by_op_dtype_epilogue_and_source() -> None:
    """Each group has its own figures."""
    other = Record(
        problem(1)._replace(op="bmm", dtype="bfloat16", epilogue="heavy"), (Timing(ATEN, 2.0), Timing(A, 1.0))
    )
    groups = evaluated(A, other, record(1, {A: 4.0, ATEN: 4.0})).groups
    assert {name: {key: each.gain for key, each in group.items()} for name, group in groups.items()} == {
        "op": {"bmm": 2, "mm": 1},
        "variant": {},
        "dtype": {"bfloat16": 2, "float16": 1},
        "epilogue": {"heavy": 2, "none": 1},
        "source": {"range": pytest.approx(math.sqrt(2))},
    }


def test_nothing_measured_is_an_error() -> None:
    """Records without a successful timing are an error."""
    for records in ([], [record(1, {A: None})]):
        with pytest.raises(DatasetError, match="no usable timing"):
            evaluated(A, *records)


def test_json_has_the_ten_worst() -> None:
    """JSON lists the ten worst problems with choice and best config, the largest regret first."""
    records = [record(m, {A: 100.0 + m, B: 100.0, ATEN: 200.0}) for m in range(1, 20)]
    worst = as_json(evaluated(A, *records))["worst"]
    assert [each["regret"] for each in worst] == [m / 100 for m in range(19, 9, -1)]
    assert worst[0]["problem"] == problem(19)._asdict()
    assert (worst[0]["choice"], worst[0]["best"]) == (A.to_json(), B.to_json())
    assert (worst[0]["ns"], worst[0]["best_ns"], worst[0]["baseline_ns"]) == (119.0, 100.0, 200.0)


def test_classes_of_regret_are_those_of_the_page() -> None:
    """A regret at a limit is within it, though a computer's division gives a little more."""
    assert 102 / 100 - 1 > 0.02
    assert [regret_class(each) for each in (0.0, 102 / 100 - 1, 0.020001, 0.06, None)] == [
        "under 0.5 %",
        "1 to 2 %",
        "2 to 5 %",
        "over 5 %",
        "not measured",
    ]
    evaluation = evaluated(A, record(1, {A: 102.0, B: 100.0, ATEN: 100.0}))
    assert (evaluation.summary.within_2, evaluation.classes["1 to 2 %"]) == (1.0, 1)
