"""Models that know what padding costs or gains."""

import math
from typing import Any

import pytest

from diode_lut.model import Kind
from diode_lut.model.ranking import Model, Ranking
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN
from tests.model.small import BMM, KINDS, LARGE, MM, SMALL, WIDE, model, padding

ODD = Problem("mm", "bfloat16", "nt", 2, 1, 4096, 4095, 4095)
ODD_KIND = Kind("mm", "bfloat16", "nt", 2, (1, 1), WIDE, WIDE, WIDE)
NN_KIND = Kind("mm", "bfloat16", "nn", 16, (1, 1), WIDE, WIDE, WIDE)
"""What the odd problem is once its operands are copied."""


def asked(log_time: float, advantage: float = -0.5, **fields: Any) -> Model:
    kinds = (*KINDS, ODD_KIND, NN_KIND)
    return model(advantage, **{"kinds": kinds, "padding": padding(log_time), **fields})


def ranked(chooser: Model, problem: Problem = ODD, *, may_pad: bool = True) -> Ranking:
    ranking = chooser.rank(problem, padding=may_pad)
    assert ranking is not None
    return ranking


def test_padded_operands_come_first_where_that_pays() -> None:
    """Configs with a pad have a place in the ranking, by their times with copies over that of aten without."""
    ranking = ranked(asked(-0.4))
    times = dict(zip(ranking.configs, ranking.times, strict=True))
    assert ranking.configs[0] == ATEN.padded(8)
    assert (times[ATEN.padded(8)], times[ATEN]) == pytest.approx((math.exp(-0.4), 1.0))
    assert set(ranking.configs) == {config.padded(pad) for config in (ATEN, SMALL, LARGE) for pad in (1, 8)}
    assert list(ranking.times) == sorted(ranking.times)
    assert ranking.confidence == pytest.approx(0.99, abs=1e-3)


def test_copies_take_as_long_for_each_kernel() -> None:
    """A kernel that takes half of aten's time takes more than half with the copies, which aten needs as well."""
    ranking = ranked(asked(math.log(1.4), advantage=math.log(2)))
    times = dict(zip(ranking.configs, ranking.times, strict=True))
    assert times[SMALL] == pytest.approx(0.5, abs=1e-3)
    assert times[SMALL.padded(8)] == pytest.approx(0.7, abs=1e-3)
    assert 0.8 < times[ATEN.padded(8)] < 1.2
    assert ranking.configs[0] == SMALL


def test_the_best_kernels_of_both_ways_are_compared() -> None:
    """The best with padding is relative to the best without, however slow the library is on such operands."""
    for advantage in (math.log(2), -0.5):
        ranking = ranked(asked(math.log(1.1), advantage))
        times = dict(zip(ranking.configs, ranking.times, strict=True))
        alone, with_padding = (min(time for config, time in times.items() if config.pad == pad) for pad in (1, 8))
        assert with_padding == pytest.approx(1.1 * alone, rel=1e-3)


@pytest.mark.parametrize(("log_time", "error", "expected"), [(0.0, 0.1, 0.687), (-0.2, 0.1, 0.994), (-0.2, 0.5, 0.69)])
def test_confidence_is_less_where_both_ways_are_close(log_time: float, error: float, expected: float) -> None:
    """It is that in the kernel, times the probability that the way it is called is the faster one, or nearly so."""
    ranking = ranked(asked(log_time, padding=padding(log_time, error)))
    assert ranking.confidence / 0.99 == pytest.approx(expected, abs=1e-3)


def test_where_nothing_can_be_padded() -> None:
    """The ranking is that without padding, also where only M is no multiple and all rows are aligned."""
    with_padding, without = asked(-0.4), asked(-0.4, padding=None)
    assert ranked(with_padding, may_pad=False) == ranked(without)
    for problem in (MM, BMM, MM._replace(m=MM.m - 1)):
        assert ranked(with_padding, problem) == ranked(without, problem)


@pytest.mark.parametrize(
    "fields",
    [{"padding": padding(-0.4, op="bmm")}, {"padding": padding(-0.4, dtype="float16")}, {"kinds": (*KINDS, ODD_KIND)}],
    ids=["other op", "other dtype", "padded problem unknown"],
)
def test_what_is_not_known_about_padding_is_left_out(fields: dict[str, Any]) -> None:
    """Without a regression for its op and dtype, or a ranking for the padded problem, a problem is ranked as it is."""
    assert ranked(asked(-0.4, **fields)) == ranked(asked(-0.4, padding=None))
