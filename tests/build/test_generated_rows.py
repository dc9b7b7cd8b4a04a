"""Rows for generated kernels: ranges of measured sizes, and rows for single problems."""

from diode_lut.build.generated import kernel_rows, rows_of_kernels
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table.lookup import Index
from diode_lut.templates.config import DEFAULT, Config

SHORT, LONG = Config("looped_reduction", (8, 64, 2)), Config("looped_reduction", (1, 1024, 8))
KEPT = Config("persistent_reduction", (2, 2))


def kernel(x: int, r: int) -> Problem:
    return Problem.generated("reduction", "inner", x=x, r=r)


def test_sizes_are_divided_where_it_pays() -> None:
    """Each side of a border gets its config, up to where measurements end. Gains are over Inductor's first config."""
    problems = [kernel(1024, 1 << power) for power in range(5, 15)]
    times = [
        {DEFAULT: 3.0, SHORT: 1.0 if each.r <= 512 else 2.0, LONG: 2.0 if each.r <= 512 else 1.0} for each in problems
    ]
    below, above = sorted(kernel_rows(problems, times), key=lambda row: row.r or (0, 0))
    assert (below.r, above.r) == ((17, 512), (513, 16384))
    assert (below.best, above.best) == ((SHORT, 3000), (LONG, 3000))
    assert (below.x, below.problems, above.problems) == ((513, 1024), 5, 5)
    index = Index([below, above])
    assert index.find(kernel(1000, 17)) == below
    assert index.find(kernel(1000, 16)) is index.find(kernel(1025, 17)) is None


def test_a_problem_with_another_best_config_has_its_own_row() -> None:
    """The row has the best config of each form, because a kernel with several reductions keeps its form."""
    problems = [kernel(1024, 100 + number) for number in range(7)]
    times = [{DEFAULT: 2.0, SHORT: 1.0, KEPT: 1.5} for _ in problems]
    times[3] = {DEFAULT: 2.0, SHORT: 1.5, KEPT: 1.0}
    single, every = sorted(kernel_rows(problems, times), key=lambda row: row.volume)
    assert (single.x, single.r, single.configs) == ((1024, 1024), (103, 103), (KEPT, SHORT))
    assert (every.best.config, every.x, every.r) == (SHORT, (513, 1024), (65, 128))
    assert Index([single, every]).find(problems[3]) == single


def test_the_other_form_must_save_more_than_noise() -> None:
    """The form of most kernels comes first, unless the other saves more than two measurements differ by."""
    problems = [kernel(1 + number, 600) for number in range(6)]
    for saved, first in ((0.985, KEPT), (0.95, SHORT)):
        times = [{DEFAULT: 1.0, KEPT: 1.0, **({SHORT: saved} if number < 4 else {})} for number in range(6)]
        (row,) = [row for row in kernel_rows(problems, times) if row.problems == 6]
        assert row.best.config == first


def test_loads_of_pointwise_kernels() -> None:
    """Kernels that read more have another config. A row for a single size has the range of loads of its part."""
    wide, square = Config("pointwise", (128, 2, 4)), Config("pointwise", (32, 8, 64))
    problems = [
        Problem.generated("pointwise", "tiled", x=x, y=64, loads=loads)
        for x in (300, 400, 500)
        for loads in (1, 5, 6, 7)
    ]
    times = [{wide: 1.0 if each.loads == 1 else 3.0, square: 2.0 if each.loads == 1 else 1.0} for each in problems]
    times[1:4] = [{wide: 1.0, square: 1.2}] * 3
    rows = sorted(kernel_rows(problems, times), key=lambda row: (row.volume, row.loads or (0, 0)))
    assert [(row.best.config, row.x, row.loads) for row in rows] == [
        (wide, (300, 300), (5, 8)),
        (wide, (257, 512), (1, 1)),
        (square, (257, 512), (5, 8)),
    ]


def test_a_form_without_times_has_the_expected_config() -> None:
    """A kernel with several reductions keeps its form, so rows have a config of each."""
    slower = KEPT._replace(params=(8, 2))
    sizes = [Problem.generated("reduction", "outer", x=1024, r=65 + number) for number in range(30)]
    measured = [(problem, {SHORT: 1.0, LONG: 2.0}) for problem in sizes]
    measured += [(problem._replace(variant="default"), {KEPT: 1.0, slower: 2.0}) for problem in sizes]
    rows = rows_of_kernels(measured, Hardware("NVIDIA H100", "sm_90", 132))
    assert {row.variant: row.configs for row in rows} == {"outer": (SHORT, KEPT), "default": (KEPT, SHORT)}
    assert all(row.candidates[-1].gain_permille is None for row in rows)


def test_flat_kernels_have_no_y() -> None:
    (row,) = kernel_rows(
        [Problem.generated("pointwise", "flat", x=x, loads=2) for x in (600, 700)],
        [{Config("pointwise", (512, 4)): 1.0}] * 2,
    )
    assert (row.x, row.y, row.loads) == ((1, 1024), None, (2, 2))


def test_a_split_must_clearly_pay() -> None:
    """Rows leave the number of parts to Inductor where another is slower, or saves less than 10 %."""
    problems = [
        Problem.generated("split_reduction", "inner", x=8, r=r) for r in (9000, 12000, 16000, 40000, 50000, 60000)
    ]
    one, more = Config("in_parts", (1,)), Config("in_parts", (64,))
    times = [{DEFAULT: 1.0, one: 0.8 if each.r < 20000 else 1.2, more: 1.5} for each in problems]
    below, above = sorted(kernel_rows(problems, times), key=lambda row: row.r or (0, 0))
    assert (below.r, below.configs) == ((8193, 16384), (one,))
    assert (above.r, above.configs) == ((32769, 65536), (DEFAULT,))
    for saving, best in ((0.08, DEFAULT), (0.12, one)):
        (row,) = kernel_rows(problems, [{DEFAULT: 1.0, one: 1 - saving} for _ in problems])
        assert row.configs == (best,)


def test_joined_matmuls_between_measured_sizes() -> None:
    """Rows go on to the next measured M up to 64, and leave matmuls apart where a kernel gains less than 5 %."""
    few, many = (Config("triton_joined_mm", (rows, 32, 128, 8, 4, 4)) for rows in (16, 64))
    problems = [
        Problem.of("joined_mm", m, n, 2048, dtype="bfloat16", layout="nt", variant="three")
        for m in (4, 16, 64, 256)
        for n in (3072, 6144)
    ]
    times = [{DEFAULT: 1.0, few: 1.5, many: 1.2} for _ in problems]
    times[:4] = [{DEFAULT: 3.0, few: 1.0, many: 2.0}] * 4
    times[4:6] = [{DEFAULT: 2.0, few: 2.0, many: 1.0}] * 2
    rows = sorted(kernel_rows(problems, times), key=lambda row: row.m or (0, 0))
    assert [(row.m, row.best) for row in rows] == [
        ((1, 16), (few, 3000)),
        ((17, 64), (many, 2000)),
        ((65, 256), (DEFAULT, 1000)),
    ]
    assert {(row.n, row.k, row.dtype, row.layout, row.align, row.variant) for row in rows} == {
        ((2049, 8192), (1025, 2048), "bfloat16", "nt", 16, "three")
    }
    for time, best in ((1.04, DEFAULT), (1.06, few)):
        (row,) = kernel_rows(problems[:2], [{DEFAULT: time, few: 1.0}] * 2)
        assert row.best.config == best


def test_joined_matmuls_of_many_rows() -> None:
    """With more than 64 rows, a row for a range joins matmuls only if they gain more than idle processors cost."""
    kernel = Config("triton_joined_mm", (128, 128, 64, 8, 4, 8))
    problems = [
        Problem.of("joined_mm", m, 16384, 2048, dtype="bfloat16", layout="nt", variant="swiglu") for m in (256, 1024)
    ]
    rows = kernel_rows(problems, [{DEFAULT: 1.2, kernel: 1.0}, {DEFAULT: 1.02, kernel: 1.0}])
    assert {row.m: row.configs for row in rows} == {(1, 1024): (DEFAULT,), (256, 256): (kernel,)}
    (row,) = kernel_rows(problems, [{DEFAULT: 1.4, kernel: 1.0}, {DEFAULT: 1.34, kernel: 1.0}])
    assert (row.m, row.configs) == ((1, 1024), (kernel,))
    few = [each._replace(m=each.m // 16) for each in problems]
    (row,) = kernel_rows(few, [{DEFAULT: 1.2, kernel: 1.0}] * 2)
    assert (row.m, row.configs) == ((1, 64), (kernel,))
