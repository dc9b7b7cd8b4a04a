"""The choice of candidates."""

from __future__ import annotations

import itertools

from diode_lut.distill.targets import MAX_CANDIDATES, Target, choose
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import ATEN, Config
from tests.model.small import BATCHED, BMM, CUT, MM

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
