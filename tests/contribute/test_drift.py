import pytest

from diode_lut.contribute.judge import Drift, RemeasuredRow, noise_of, wilson
from diode_lut.problem import Problem

PROBLEM = Problem.of("mm", 64, 96, 128, dtype="float16", layout="nt")


def rows(drifted: int, count: int) -> list[RemeasuredRow]:
    return [RemeasuredRow((PROBLEM,), 1.5, (1.2,) if number < drifted else (1.48,)) for number in range(count)]


@pytest.mark.parametrize(
    ("drifted", "count", "verdict"),
    [
        (0, 48, "holds"),
        (2, 48, "holds"),
        (3, 48, "does not hold"),
        (14, 48, "does not hold"),
        (0, 16, "undecided"),
        (0, 32, "holds"),
        (4, 4, "undecided"),
    ],
)
def test_verdict_follows_the_interval(drifted: int, count: int, verdict: str) -> None:
    """A table fails if some rows surely drifted, and holds if surely few did; a few rows decide nothing."""
    assert Drift(rows(drifted, count), 0.01).verdict == verdict


def test_drift_is_what_both_measurements_find() -> None:
    """One outlier is no drift, nor are two in different directions; a config that does not run is."""
    measured = [(1.2, 1.5), (1.2, 1.9), (1.2, 1.2), (1.8, 1.8), (0.0, 0.0)]
    drift = Drift([RemeasuredRow((PROBLEM,), 1.5, each) for each in measured], 0.01)
    assert [row.measured for row in drift.drifted] == [(0.0, 0.0), (1.2, 1.2), (1.8, 1.8)]


def test_noise_widens_the_tolerance_until_nothing_can_be_said() -> None:
    """A drift must be large against the noise, and with much noise there is no verdict."""
    assert Drift(rows(10, 48), 0.04).tolerance == pytest.approx(0.16)
    assert Drift(rows(0, 48), 0.06).verdict == "too noisy"


def test_noise_is_the_typical_difference() -> None:
    """Half of the differences are larger; what failed does not count."""
    assert noise_of([(1.0, 1.01), (1.0, 1.02), (2.0, 1.0), (0.0, 1.0)]) == pytest.approx(0.02)
    assert noise_of([]) is None


def test_kept_gain_has_an_interval() -> None:
    """The measured gain over the recorded one is a geometric mean, with what its spread allows."""
    kept = Drift([RemeasuredRow((PROBLEM,), 1.0, (gain,)) for gain in (1.21, 1 / 1.21, 1.0)], None).kept
    assert kept is not None
    assert kept.value == pytest.approx(1)
    assert kept.low < 1 / 1.1 < 1.1 < kept.high
    assert Drift(rows(0, 1), None).kept is None


def test_wilson() -> None:
    """The interval is Wilson's, also at the ends: 0 of 10 is at most 28 %."""
    assert wilson(0, 10) == pytest.approx((0, 0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) == (0, 0, 1)
