"""Problems drawn for the student are new and plausible."""

import random

from diode_lut.distill.examples import draw_problems
from diode_lut.model import kinds_of
from diode_lut.problem import ITEMSIZES, Problem, contiguous_align


def measured() -> list[Problem]:
    """Small and large problems, aligned and not, with a batch and without."""
    source = random.Random(1)
    sizes = [[source.choice((16, 50, 64, 333, 1024, 4096)) for _ in "mnk"] for _ in range(120)]
    plain = [Problem.of("mm", *each, dtype="float16", layout=source.choice(("nn", "nt"))) for each in sizes]
    batched = [
        Problem.of("bmm", *each, dtype="float32", layout="nn", b=b)
        for b, each in zip(range(3, 363, 3), sizes, strict=True)
    ]
    return list(dict.fromkeys(plain + batched))


def data(problem: Problem) -> int:
    b, m, n, k = problem.sizes
    return ITEMSIZES[problem.dtype] * b * (m * k + k * n + m * n)


def test_drawn_problems_are_new() -> None:
    """Drawn problems differ from the measured ones and from each other, and the same seed draws the same."""
    problems = measured()
    drawn = draw_problems(problems, kinds_of(problems), 300, 7)
    assert len(drawn) == len(set(drawn)) == 300
    assert set(drawn).isdisjoint(problems)
    assert drawn == draw_problems(problems, kinds_of(problems), 300, 7)
    assert drawn != draw_problems(problems, kinds_of(problems), 300, 8)


def test_drawn_problems_are_plausible() -> None:
    """Drawn problems have known kinds and sizes, the alignment of packed operands, and no more bytes than others."""
    problems = measured()
    kinds = {kind.key: kind for kind in kinds_of(problems)}
    assert {kind.align for kind in kinds.values()} == {2, 16}
    drawn = draw_problems(problems, list(kinds.values()), 300, 7)
    assert {problem.kind for problem in drawn} == kinds.keys()
    for problem in drawn:
        assert kinds[problem.kind].outside(problem) == ""
        packed = contiguous_align(problem.dtype, problem.layout, problem.m, problem.n, problem.k, problem.b)
        assert problem.align == packed
        assert data(problem) <= max(data(each) for each in problems if each.kind == problem.kind)
        assert problem.op == "bmm" or problem.b == 1


def test_sizes_of_several_problems_are_mixed() -> None:
    """Some drawn problems have only measured sizes, some have new ones; a drawn batch is always a measured one."""
    problems = measured()
    drawn = draw_problems(problems, kinds_of(problems), 300, 7)
    known = {size for problem in problems for size in (problem.m, problem.n, problem.k)}
    new = [[size for size in (problem.m, problem.n, problem.k) if size not in known] for problem in drawn]
    assert 50 < sum(map(bool, new)) < 250
    odd = [size for sizes in new for size in sizes if size % 8]
    assert 10 < len(odd) < 150
    assert {problem.b for problem in drawn} <= {problem.b for problem in problems}


def test_layers_of_bytes_stay_round() -> None:
    """N and K of layers in int8 that were multiples of 128 stay so: blocks that do not divide K are no answer."""
    layers = [(4096, 4096), (6144, 4096), (1024, 8192), (28672, 1280)]
    problems = [Problem.of("int_mm", m, n, k, dtype="int8", layout="nt") for m in (17, 32, 100) for n, k in layers]
    drawn = draw_problems(problems, kinds_of(problems), 50, 7)
    assert len(drawn) == 50
    assert all(problem.n % 128 == problem.k % 128 == 0 for problem in drawn)
    assert any((problem.n, problem.k) not in layers for problem in drawn)
