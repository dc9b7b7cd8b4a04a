"""Validation of a model whose first choice is known, on hand-made times."""

import math

import pytest

from diode_lut.dataset import Record, Timing
from diode_lut.distill import Validation, as_text, validate
from diode_lut.distill.examples import targets_of
from diode_lut.templates.config import ATEN, Config
from tests.model.small import KINDS, LARGE, MM, SMALL, model

NEARLY = math.log(0.9)  # log(time / time of aten) that the model expects of both tiled configs; SMALL comes first


def validated(small: float | None, *, aten: float = 1.0, large: float = 1.0, timed: bool = True) -> Validation:
    """The validation, given the times of the first choice (None if it failed), of aten and of the second choice."""
    first = (Timing(SMALL, small, None if small else "wrong_result"),) if timed else ()
    record = Record(MM, (*first, Timing(ATEN, aten), Timing(LARGE, large)), "final")
    return validate(model(-NEARLY), targets_of([record]))


def test_a_choice_that_failed_is_no_slow_one() -> None:
    """A failed choice is neither good nor slow, is first among the worst, and is printed without a time."""
    validation = validated(None, large=0.8)
    (choice,) = validation.failed
    assert (choice.config, choice.good, validation.slow, validation.worst) == (SMALL, False, [], (choice,))
    text = as_text("test", validation)
    assert f"failed on {MM}: {SMALL}, no time (expected 0.900" in text
    assert "failed: 1, of which answered: 1\n" in text
    assert "1.5" not in text
    assert validated(1.2).failed == []
    assert [each.time for each in validated(1.2).slow] == [pytest.approx(1.2)]
    assert "failed" not in as_text("test", validated(1.2))


def test_failed_choices_are_the_worst() -> None:
    """Failed choices come before slow ones."""
    other = MM._replace(m=2048)
    slow = Record(other, (Timing(SMALL, 9.0), Timing(ATEN, 1.0)), "final")
    wrong = Record(MM, (Timing(SMALL, None, "wrong_result"), Timing(ATEN, 1.0)), "final")
    assert [choice.problem for choice in validate(model(-NEARLY), targets_of([slow, wrong])).worst] == [MM, other]


@pytest.mark.parametrize(("over", "good"), [(0.049, True), (0.051, False), (0.09, False)])
def test_a_choice_is_good_within_five_per_cent(over: float, good: bool) -> None:
    """A choice is good if its time is within 5 % of the best time, for any time of aten."""
    (choice,) = validated(1 + over, aten=7.0).choices
    assert (choice.good, choice.best_config) == (good, LARGE)
    assert choice.tops[:2] == (pytest.approx(1 + over), pytest.approx(1.0))
    assert (choice.time, choice.best) == (pytest.approx((1 + over) / 7), pytest.approx(1 / 7))


@pytest.mark.parametrize(("expected", "used"), [(0.99, ATEN), (0.97, SMALL)])
def test_answers_are_what_the_hook_uses(expected: float, used: Config) -> None:
    """Where less than 2 % is expected of the first choice, the answer is aten, with its time and its regret."""
    record = Record(MM, (Timing(SMALL, 1.2), Timing(ATEN, 1.0), Timing(LARGE, 0.8)), "final")
    validation = validate(model(-math.log(expected)), targets_of([record]))
    (answer,) = validation.answered().choices
    assert [choice.config for choice in validation.choices] == [SMALL]
    assert (answer.config, answer.time) == (used, pytest.approx(1.2 if used == SMALL else 1.0))
    assert answer.tops[0] == pytest.approx(1.5 if used == SMALL else 1.25)


def test_a_choice_without_a_time_is_slow() -> None:
    """A choice that was not timed or failed counts as 1.5 times as long as aten, and has no error."""
    for validation in (validated(None, timed=False), validated(None)):
        (choice,) = validation.choices
        assert (choice.good, choice.time, choice.tops[0]) == (False, pytest.approx(1.5), pytest.approx(1.5))
        assert validation.gain == pytest.approx(1 / 1.5)
        assert len(choice.errors) == 2, "of aten and LARGE"
    assert len(validated(None, timed=False).slow) == 1
    assert validated(None, timed=False).failed == []


def test_an_estimate_stands_for_a_time() -> None:
    """With an epilogue, a choice that was timed only without it has an estimated time, and is counted."""
    alone = Record(MM, (Timing(ATEN, 100.0), Timing(BESIDE, 50.0), Timing(SMALL, 60.0)))
    fused = Record(MM._replace(epilogue="light"), (Timing(ATEN, 200.0), Timing(BESIDE, 150.0)))
    kinds = [KINDS[0]._replace(epilogue="light")]
    target = next(each for each in targets_of([alone, fused]) if each.problem != MM)
    validation = validate(model(-NEARLY, kinds=kinds), [target])
    (choice,) = validation.choices
    assert (choice.config, choice.timed, choice.time) == (SMALL, False, pytest.approx(0.9))
    assert ", 1 without a time of their own\n" in as_text("test", validation)


BESIDE = Config("triton_mm", (*SMALL.params[:4], 3, SMALL.params[5]))  # SMALL with another number of stages
