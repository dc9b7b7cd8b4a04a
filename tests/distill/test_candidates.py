"""Candidates are those that are worth most."""

from __future__ import annotations

import itertools

from diode_lut.distill.candidates import MOST, Target, choose
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
    """Each config is the best of one problem, the later ones by more: as many as allowed are taken, the last ones."""
    count = len(CONFIGS)
    assert count > MOST
    targets = [target(mm(number), {config: -0.002 * (number + 1)}) for number, config in enumerate(CONFIGS)]
    assert choose(targets) == [*sorted(CONFIGS[count - MOST + 1 :]), ATEN]


def test_what_never_helps_is_no_candidate() -> None:
    """Neither what is slower than aten, nor what another candidate is as good as."""
    slow, fast, equal = CONFIGS[:3]
    targets = [target(mm(number), {slow: 0.1, fast: -0.2, equal: -0.2}) for number in range(9)]
    assert choose(targets) == [fast, ATEN]


def test_candidates_have_one_group_size() -> None:
    """Other groups were only tried where one was good already: how they do elsewhere is not known. Others may be."""
    other = CONFIGS[0]._replace(params=(*CONFIGS[0].params[:3], 4, *CONFIGS[0].params[4:]))
    targets = [target(mm(0), {other: -0.5, CONFIGS[0]: -0.3}), target(mm(1), {CUT: -0.3, CONFIGS[0]: 0.0})]
    assert choose(targets) == [CONFIGS[0], ATEN, CUT]


def test_products_with_a_batch_have_candidates_of_their_own() -> None:
    """They are chosen apart, however many others there are."""
    targets = [target(mm(number), {config: -0.5}) for number, config in enumerate(CONFIGS)]
    found = choose([*targets, target(BMM, {BATCHED: -0.01})])
    assert len(found) == MOST + 1
    assert BATCHED in found
