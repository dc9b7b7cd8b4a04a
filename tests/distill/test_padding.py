"""The regression for padded operands."""

import math
import random

import pytest

from diode_lut.dataset import Record, Timing
from diode_lut.distill import MIN_PADDED_PROBLEMS, fit_padding
from diode_lut.distill.examples import Target, targets_of
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN
from tests.model.small import MM, SMALL


def rule(problem: Problem) -> float:
    """A made-up law: the larger M is, the more padding gains."""
    return 0.6 - 0.1 * math.log2(problem.m)


def drawn(count: int, dtype: str = "bfloat16", noise: float = 0.0) -> list[Target]:
    """Targets of problems with an odd K, on which padding costs what the rule says."""
    draw = random.Random(1)
    found = []
    for _ in range(count):
        m, n, k = (2 ** draw.randint(3, 12) for _ in range(3))
        problem = MM._replace(dtype=dtype, align=2, m=m, n=n, k=k + 1)
        time = rule(problem) + draw.gauss(0, noise)
        found.append(Target(problem, {ATEN: 0.0}, 0.0, padded={ATEN.padded(8): time}))
    return found


def test_a_law_is_found() -> None:
    """Expected times of new problems follow the law of those that the regression was fitted to."""
    padding = fit_padding(drawn(400), seed=0)
    assert padding is not None
    assert padding.error < 0.05
    for m in (24, 300, 3000):
        problem = MM._replace(align=2, m=m, n=100, k=333)
        (expected,) = padding.times(problem, [1.0], best=1.0)
        assert math.log(expected) == pytest.approx(rule(problem), abs=0.1)


def test_the_error_is_that_on_other_problems() -> None:
    """It is as large as the noise of the times, although a regression with many terms could follow that closely."""
    padding = fit_padding(drawn(200, noise=0.3), seed=0)
    assert padding is not None
    assert 0.2 < padding.error < 0.4


def test_the_best_without_padding_is_the_measure() -> None:
    """Where kernels are faster than aten, padding has to be faster than these."""
    faster = [target._replace(best=-1.0, times={ATEN: 0.0, SMALL: -1.0}) for target in drawn(400)]
    padding = fit_padding(faster, seed=0)
    assert padding is not None
    problem = MM._replace(align=2, m=300, n=100, k=333)
    (expected,) = padding.times(problem, [1.0], best=math.exp(-1.0))
    assert math.log(expected) == pytest.approx(rule(problem), abs=0.1)


def test_rare_kinds_are_left_out() -> None:
    """A pair of op and dtype of which few problems were timed with padding is not known; without any, nothing is."""
    padding = fit_padding([*drawn(100), *drawn(5, "float16")], seed=0)
    assert padding is not None
    assert padding.kinds == (("mm", "bfloat16"),)
    assert fit_padding(drawn(MIN_PADDED_PROBLEMS - 1), seed=0) is None


def test_problems_that_are_measured_again_with_padding() -> None:
    """Networks are trained on the times of the first dataset; those with padding come from the other."""
    problem = MM._replace(align=2, k=777)
    first = Record(problem, (Timing(ATEN, 100.0), Timing(SMALL, 80.0)), "final")
    again = Record(problem, (Timing(ATEN, 200.0), Timing(SMALL, 190.0), Timing(ATEN.padded(8), 50.0)), "final")
    (target,) = targets_of([first], [again])
    assert target.times == pytest.approx({ATEN: 0.0, SMALL: math.log(0.8)})
    assert target.padded == pytest.approx({ATEN.padded(8): math.log(0.25)})
    assert target.best == pytest.approx(math.log(0.8))
