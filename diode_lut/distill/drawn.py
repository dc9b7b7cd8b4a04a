"""Problems like those measured, which only the teacher knows: what the student learns from, too."""

from __future__ import annotations

import random
from collections.abc import Sequence

from diode_lut.model.kinds import Kind
from diode_lut.problem import ITEMSIZES, Problem, contiguous_align

_MIXED, _JITTERED = 0.4, 0.4
"""How often a size is another problem's, and how often it is changed by up to a factor of two."""

_UNIT = 8
_TRIES = 50


def draw_problems(problems: Sequence[Problem], kinds: Sequence[Kind], count: int, seed: int) -> list[Problem]:
    """New problems of known kinds, drawn with a mixture of the sizes that problems of their kind have."""
    draw = random.Random(seed)  # noqa: S311 (no secret)
    known = {kind.key: kind for kind in kinds}
    groups = {key: [problem for problem in problems if problem.kind == key] for key in known}
    largest = {key: max(map(_bytes, group)) for key, group in groups.items()}
    parents = [problem for group in groups.values() for problem in group]
    taken = set(problems)
    drawn: list[Problem] = []
    for _ in range(_TRIES * count):
        if len(drawn) == count:
            break
        parent = draw.choice(parents)
        child = _child(draw, parent, groups[parent.kind])
        plausible = child.align == _align(child) and _bytes(child) <= largest[child.kind]
        if plausible and child not in taken and not known[child.kind].outside(child):
            taken.add(child)
            drawn.append(child)
    return drawn


def _child(draw: random.Random, parent: Problem, group: Sequence[Problem]) -> Problem:
    sizes = []
    for place, size in enumerate(parent.sizes):
        chance = draw.random()
        if chance < _MIXED:
            sizes.append(draw.choice(group).sizes[place])
        elif chance < _MIXED + _JITTERED and size >= _UNIT and place > 0:
            jittered = round(size * 2 ** draw.uniform(-1, 1))
            sizes.append(-(-jittered // _UNIT) * _UNIT if size % _UNIT == 0 else jittered)
        else:
            sizes.append(size)
    return Problem(*parent.kind, *sizes)


def _align(problem: Problem) -> int:
    return contiguous_align(problem.dtype, problem.layout, problem.m, problem.n, problem.k, problem.b)


def _bytes(problem: Problem) -> int:
    b, m, n, k = problem.sizes
    return ITEMSIZES[problem.dtype] * b * (m * k + k * n + m * n)
