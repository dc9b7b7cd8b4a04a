"""The choice of candidates."""

import itertools
import math

import pytest

from diode_lut.dataset import Record, Timing
from diode_lut.distill.examples import (
    MAX_CANDIDATES,
    MAX_LOSS,
    Space,
    Target,
    choose,
    examples_of,
    targets_of,
    without_few_rows,
)
from diode_lut.hardware import architecture
from diode_lut.model.features import families
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.model.small import BATCHED, BMM, CUT, H200, MM

BLOCKS = itertools.product((16, 32, 64, 128), repeat=3)
CONFIGS = [Config("triton_mm", (*blocks, 8, stages, 4)) for blocks in BLOCKS for stages in (3, 4)]


def target(problem: Problem, times: dict[Config, float]) -> Target:
    times = {ATEN: 0.0, **times}
    return Target(problem, times, min(times.values()))


def mm(number: int) -> Problem:
    return MM._replace(m=number + 1)


def test_candidates_are_those_that_help_most() -> None:
    """If each config is the best on one problem, those with the largest benefit are taken, up to MAX_CANDIDATES."""
    count = len(CONFIGS)
    assert count > MAX_CANDIDATES
    targets = [target(mm(number), {config: -0.002 * (number + 1)}) for number, config in enumerate(CONFIGS)]
    assert choose(targets) == [*sorted(CONFIGS[count - MAX_CANDIDATES + 1 :]), ATEN]


def test_what_never_helps_is_no_candidate() -> None:
    """A config that is slower than aten, or no better than another candidate, is not chosen."""
    slow, fast, equal = CONFIGS[:3]
    targets = [target(mm(number), {slow: 0.1, fast: -0.2, equal: -0.2}) for number in range(9)]
    assert choose(targets) == [fast, ATEN]


def test_candidates_have_one_group_size() -> None:
    """Tiled candidates have the default group_m, because others were timed only for the best configs."""
    other = CONFIGS[0]._replace(params=tuple(CONFIGS[0].tiles._replace(group_m=4)))
    targets = [target(mm(0), {other: -0.5, CONFIGS[0]: -0.3}), target(mm(1), {CUT: -0.3, CONFIGS[0]: 0.0})]
    assert choose(targets) == [CONFIGS[0], ATEN, CUT]


def test_problems_with_a_batch_have_candidates_of_their_own() -> None:
    """Candidates for problems with a batch are chosen apart from those for problems without one."""
    targets = [target(mm(number), {config: -0.5}) for number, config in enumerate(CONFIGS)]
    found = choose([*targets, target(BMM, {BATCHED: -0.01})])
    assert len(found) == MAX_CANDIDATES + 1
    assert BATCHED in found


def test_few_rows_are_learned_without_their_kernels_too() -> None:
    """Without kernels for few rows, the best is another, and they neither apply nor are known."""
    few, problem = Config.parse("triton_few_rows 2x512 s4 w4"), MM._replace(m=2, layout="nt")
    found = target(problem, {few: -0.4, CONFIGS[0]: -0.1})
    again = without_few_rows(found)
    assert again is not None
    assert (again.times, again.best) == ({ATEN: 0.0, CONFIGS[0]: -0.1}, -0.1)
    assert without_few_rows(again) is None
    space = Space.of(*families([few, CONFIGS[0], ATEN], architecture(H200.arch)), H200)
    examples = examples_of([problem] * 2, space, [found, again])
    assert examples.applies[:, :3].tolist() == examples.known[:, :3].tolist() == [[True] * 3, [False, True, True]]
    assert examples.losses[:, 1].tolist() == pytest.approx([0.3, 0.0])


def test_padding_has_no_part() -> None:
    """Times on padded operands are neither candidates nor the best: the network ranks for operands as they are."""
    padded = Config.parse("aten pad8")
    timings = (Timing(ATEN, 100.0), Timing(padded, 20.0), Timing(CONFIGS[0], 50.0))
    (found,) = targets_of([Record(mm(0), timings, "final")])
    assert found.times == {ATEN: 0.0, CONFIGS[0]: pytest.approx(math.log(0.5))}
    assert found.best == pytest.approx(math.log(0.5))


def test_configs_without_a_time_are_estimated() -> None:
    """An epilogue costs a config without a time the same factor as configs with the same tile and number of warps."""
    timed, other, wide, failing, beside = (
        Config("triton_mm", tiles)
        for tiles in (
            (64, 64, 32, 8, 3, 4),
            (64, 64, 64, 8, 4, 4),
            (64, 64, 32, 8, 3, 8),
            (64, 64, 128, 8, 3, 4),
            (128, 64, 32, 8, 3, 4),
        )
    )
    alone = Record(
        MM,
        tuple(
            Timing(config, ns)
            for config, ns in (
                (ATEN, 100.0),
                (timed, 80.0),
                (other, 88.0),
                (wide, 60.0),
                (failing, 81.0),
                (beside, 70.0),
            )
        ),
    )
    fused = Record(
        MM._replace(epilogue="light"),
        (Timing(ATEN, 200.0), Timing(timed, 120.0), Timing(failing, None, "wrong_result")),
    )
    plain, light = sorted(targets_of([alone, fused]), key=lambda target: target.problem.epilogue == "light")
    assert not plain.estimated
    assert set(light.times) == {ATEN, timed}
    assert light.estimated == {other: pytest.approx(math.log(0.6 * 88 / 80))}
    assert light.expected == {**light.times, **light.estimated}
    assert targets_of([fused])[0].estimated == {}


def test_no_estimate_is_better_than_the_best_time() -> None:
    """A config that was not timed is expected to be no better than the best that was."""
    fast, slow = (Config("triton_mm", (64, 64, 32, 8, stages, 4)) for stages in (3, 4))
    alone = Record(MM, (Timing(ATEN, 100.0), Timing(fast, 50.0), Timing(slow, 80.0)))
    fused = Record(MM._replace(epilogue="light"), (Timing(ATEN, 200.0), Timing(slow, 120.0)))
    light = next(target for target in targets_of([alone, fused]) if target.problem != MM)
    assert light.estimated == {fast: light.best}


def test_losses_are_known_unless_another_sweep_would_have_timed_the_config() -> None:
    """A config that failed, or that no sweep tries on the problem, has the largest loss; others have none."""
    problem = MM._replace(m=4096, n=4096, k=4096)
    timed, failing, other, small = (
        Config("triton_mm", tiles)
        for tiles in ((128, 256, 64, 8, 3, 8), (128, 128, 64, 8, 3, 8), (128, 128, 64, 8, 4, 8), (16, 16, 64, 8, 3, 2))
    )
    found = Target(problem, {ATEN: 0.0, timed: -0.1}, -0.1, frozenset({failing}))
    space = Space.of(*families([timed, failing, other, small, ATEN], architecture(H200.arch)), H200)
    examples = examples_of([problem], space, [found])
    assert examples.applies.tolist() == [[True] * 5]
    assert examples.known.tolist() == [[True, True, False, True, True]]
    assert examples.losses[0].tolist() == pytest.approx([0.0, MAX_LOSS, MAX_LOSS, MAX_LOSS, 0.1])
