import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.measure.problems import LARGEST_UNIFORM, LOG_NORMAL, MAX_BYTES, ROUNDED, UNIT, random_problems
from diode_lut.problem import DOMAINS, GEMMS, ITEMSIZES, LAYOUTS, Problem, contiguous_align

CHOICES = st.fixed_dictionaries(
    {
        "seed": st.integers(-(2**63), 2**63),
        "log_normal": st.booleans(),
        "ops": st.lists(st.sampled_from(GEMMS), min_size=1),
        "dtypes": st.lists(st.sampled_from(DOMAINS["mm"].dtypes), min_size=1),
        "layouts": st.lists(st.sampled_from(LAYOUTS), min_size=1),
    }
)


@settings(max_examples=50)
@given(count=st.integers(1, 40), choices=CHOICES)
def test_problems_are_valid_different_and_fit_in_memory(count: int, choices: dict[str, object]) -> None:
    """As many different problems come as asked for, each possible, drawn from the choices, and not too large."""
    problems = random_problems(count, **choices)  # type: ignore[arg-type]
    assert len(set(problems)) == len(problems) == count
    for each in problems:
        assert Problem.checked(*each) == each
        assert each.align == contiguous_align(each.dtype, each.layout, each.m, each.n, each.k, each.b)
        assert each.op in choices["ops"]  # type: ignore[operator]
        assert each.dtype in choices["dtypes"]  # type: ignore[operator]
        assert each.layout in choices["layouts"]  # type: ignore[operator]
        elements = each.m * each.k + each.k * each.n + 2 * each.m * each.n
        assert each.b * elements * ITEMSIZES[each.dtype] <= MAX_BYTES


@given(choices=CHOICES)
@settings(max_examples=20)
def test_a_seed_always_draws_the_same(choices: dict[str, object]) -> None:
    """The same arguments give the same problems, and more of them begin with the same ones."""
    few = random_problems(5, **choices)  # type: ignore[arg-type]
    assert few == random_problems(20, **choices)[:5]  # type: ignore[arg-type]


def test_a_seed_draws_the_same_in_every_version() -> None:
    """The problems of a seed are pinned, so that a dataset can be collected again elsewhere."""
    assert random_problems(2, seed=0, log_normal=True, ops=GEMMS, dtypes=("bfloat16",), layouts=("nn",)) == [
        Problem("baddbmm", "bfloat16", "nn", 2, 5, 777, 1189, 402),
        Problem("addmm", "bfloat16", "nn", 16, 1, 13512, 1960, 1800),
    ]


@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_log_normal_sizes_have_the_stated_moments(name: str) -> None:
    """Mean and deviation of the sizes' logarithms are the stated ones, but for rounding and the memory limit."""
    problems = random_problems(5000, seed=1, log_normal=True, ops=("mm",), dtypes=("bfloat16",), layouts=("nn",))
    logarithms = [math.log(getattr(each, name)) for each in problems]
    mean, deviation = LOG_NORMAL[name]
    assert statistics.fmean(logarithms) == pytest.approx(mean, abs=0.1)
    assert statistics.stdev(logarithms) == pytest.approx(deviation, abs=0.1)


def test_other_sizes_cover_every_order_of_magnitude() -> None:
    """Without ``log_normal`` each octave from 1 to the largest size is about as likely as any other."""
    problems = random_problems(5000, seed=1, log_normal=False, ops=("mm",), dtypes=("bfloat16",), layouts=("nn",))
    assert all(1 <= size <= LARGEST_UNIFORM for each in problems for size in (each.m, each.n, each.k))
    octaves = [math.log2(each.m) for each in problems]
    assert statistics.fmean(octaves) == pytest.approx(7, abs=0.2)
    assert statistics.quantiles(octaves, n=4) == pytest.approx([3.5, 7, 10.5], abs=0.6)


def test_most_sizes_are_round_and_some_are_odd() -> None:
    """As many problems as stated have sizes that are multiples of eight or less than that; odd ones remain."""
    problems = random_problems(4000, seed=1, log_normal=True, ops=("mm",), dtypes=("bfloat16",), layouts=("nn",))
    is_round = [all(size < UNIT or size % UNIT == 0 for size in (each.m, each.n, each.k)) for each in problems]
    assert statistics.fmean(is_round) == pytest.approx(ROUNDED, abs=0.03)
    assert any(each.m % 2 and each.n % 2 and each.k % 2 for each in problems)
