"""Scores are exact sums, so that they do not depend on who adds them up."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.hardware import architecture
from diode_lut.measure.problems import random_problems
from diode_lut.model.features import Candidates, Floats
from diode_lut.model.ranking import MAX_WEIGHT, Scorer, Weights, _product, _rounded
from tests.model.small import CANDIDATES, weights

FIRST, SECOND = 96, 64


def cancelling() -> Weights:
    """Weights as large as a file may have, of which each row adds up to little."""
    draw = np.random.default_rng(3)
    shapes = weights(0)._replace(second=np.zeros((SECOND, FIRST), np.float32)).shapes(len(CANDIDATES))
    drawn = {name: draw.uniform(-MAX_WEIGHT, MAX_WEIGHT, size=shape) for name, shape in shapes.items()}
    for name in ("second", "last", "doubt"):
        half = drawn[name].shape[1] // 2
        drawn[name][:, half:] = -drawn[name][:, :half] + draw.normal(size=(len(drawn[name]), half))
    return Weights(**{name: tensor.astype(np.float32) for name, tensor in drawn.items()})


def reordered(given: Weights, first: list[int], second: list[int]) -> Weights:
    """The same network with its neurons in another order."""
    return given._replace(
        **{name: getattr(given, name)[first] for name in ("problem", "config", "joint", "first_bias")},
        second=given.second[second][:, first],
        second_bias=given.second_bias[second],
        last=given.last[:, second],
        doubt=given.doubt[:, [*first, *(FIRST + place for place in second)]],
    )


def test_the_order_of_neurons_does_not_matter() -> None:
    """Scores and doubts are the same to the last bit, where float64 alone gives others."""
    candidates, draw = Candidates(CANDIDATES, range(len(CANDIDATES)), architecture("sm_90")), np.random.default_rng(4)
    first, second = draw.permutation(FIRST).tolist(), draw.permutation(SECOND).tolist()
    one, other = cancelling(), reordered(cancelling(), first, second)
    scorers = Scorer(one, candidates), Scorer(other, candidates)
    kinds = {"ops": ("mm", "addmm"), "dtypes": ("bfloat16",), "layouts": ("nn",)}
    for problem in random_problems(50, seed=1, log_normal=True, **kinds):
        (scores, doubts), (again, doubts_again) = (scorer.scores(problem, 132) for scorer in scorers)
        assert scores.tolist() == again.tolist()
        assert doubts.tolist() == doubts_again.tolist()
    plain, again = ((each.second.astype(np.float64) @ each.joint.astype(np.float64)) for each in (one, other))
    assert (plain[second] != again).any()


@given(rows=st.integers(1, 8), columns=st.integers(1, 64), spread=st.integers(0, 40), seed=st.integers(0, 1000))
def test_products_are_exact(rows: int, columns: int, spread: int, seed: int) -> None:
    """A product is the sum, as fractions, of the rounded factors' products, which are close to the factors'."""
    draw = np.random.default_rng(seed)
    matrix, inputs = (_drawn(draw, shape, spread) for shape in ((rows, columns), (columns, 3)))
    rounded = _rounded(matrix)
    unit = Fraction(2) ** (np.frexp(np.abs(inputs).max())[1].item() - 26)
    whole = [[round(Fraction(value) / unit) for value in row] for row in inputs.tolist()]
    product = _product(rounded, inputs.copy())
    for row, results in zip(rounded.tolist(), product.tolist(), strict=True):
        for place, result in enumerate(results):
            terms = [Fraction(weight) * values[place] for weight, values in zip(row, whole, strict=True)]
            assert result == sum(terms) * unit
    bound = np.abs(matrix).sum(axis=1, keepdims=True) * np.abs(inputs).max() * columns * 2.0**-24
    assert (np.abs(product - matrix @ inputs) <= bound).all()


def _drawn(draw: np.random.Generator, shape: tuple[int, int], spread: int) -> Floats:
    """Numbers whose magnitudes differ by up to two to the power of ``spread``."""
    return draw.normal(size=shape) * 2.0 ** draw.integers(-spread, 1, size=shape)


def test_nothing_is_divided_by_zero() -> None:
    """Matrices and inputs of zeros have products of zeros."""
    assert (_product(_rounded(np.zeros((2, 3))), np.zeros((3, 4))) == 0).all()
