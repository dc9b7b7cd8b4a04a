"""The features of problems and candidates."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.hardware import architecture
from diode_lut.model.features import (
    CONFIG_FEATURES,
    JOINT_FEATURES,
    OF_BYTES_FEATURES,
    PROBLEM_FEATURES,
    Candidates,
    Tiling,
    config_features,
    exp,
    log2,
    problem_features,
)
from diode_lut.problem import EPILOGUES, Problem
from diode_lut.templates.config import ATEN, Config
from tests.model.small import CANDIDATES, LARGE, MM, SMALL

SM_90 = architecture("sm_90")
sizes = st.integers(1, 10**6)
problems = st.builds(
    Problem, st.just("bmm"), st.sampled_from(["float16", "float32"]), st.just("nt"), st.just(16), sizes, sizes, sizes,
    sizes, variant=st.just(""),
)  # fmt: skip


@given(problem=problems)
def test_features_are_finite(problem: Problem) -> None:
    """Each feature is a finite number for all sizes."""
    of_problem = problem_features(problem, 132)
    joint = Tiling(CANDIDATES, SM_90).features(problem, 132)
    assert of_problem.shape == (len(PROBLEM_FEATURES), 1)
    assert joint.shape == (len(JOINT_FEATURES), len(CANDIDATES))
    assert np.isfinite(of_problem).all()
    assert np.isfinite(joint).all()


@given(problem=problems)
def test_a_candidate_is_described_alone(problem: Problem) -> None:
    """A candidate's column is the same in every list of candidates."""
    together = Tiling([SMALL, LARGE, ATEN], SM_90).features(problem, 132)
    for column, config in enumerate([SMALL, LARGE, ATEN]):
        assert (Tiling([config], SM_90).features(problem, 132)[:, 0] == together[:, column]).all()


def joint(config: Config, problem: Problem = MM) -> dict[str, float]:
    """The joint features of one config by name."""
    return dict(zip(JOINT_FEATURES, Tiling([config], SM_90).features(problem, 132)[:, 0].tolist(), strict=True))


def test_tiles_and_waves() -> None:
    """1000 x 1030 in tiles of 128 x 128 is 8 x 9 tiles, which are less than one wave; edge tiles are partly empty."""
    found = joint(LARGE, MM._replace(m=1000, n=1030, k=100))
    assert found["log_tiles"] == pytest.approx(math.log2(72))
    assert (found["log_tile_rows"], found["log_steps"]) == (3, 1)
    assert found["row_fill"] == pytest.approx(1000 / 1024)
    assert found["column_fill"] == pytest.approx(1030 / (9 * 128))
    assert found["step_fill"] == pytest.approx(100 / 128)
    assert found["tile_wave_fill"] == pytest.approx(72 / 132)
    assert (found["even_k"], joint(LARGE)["even_k"]) == (0, 1)


def test_stages_take_shared_memory() -> None:
    """Four stages of 128 x 64 and 64 x 128 two-byte elements are 128 KiB: one tile at a time fits."""
    found = joint(LARGE)
    assert (found["log_shared_memory"], found["occupancy"]) == (17, 1)
    assert joint(SMALL)["occupancy"] > 1


def test_what_is_not_tiled_has_no_joint_features() -> None:
    """For aten all joint features are zero, and of its config features only ``aten`` is set."""
    assert set(joint(ATEN).values()) == {0}
    column = dict(zip(CONFIG_FEATURES, config_features([ATEN])[:, 0].tolist(), strict=True))
    assert {name for name, value in column.items() if value} == {"aten"}


def test_kernels_for_few_rows_have_tiles() -> None:
    """A kernel for few rows is described by its columns and its steps along K, and is not called tiled."""
    few = Config.parse("triton_few_rows 2x512 s4 w4")
    column = dict(zip(CONFIG_FEATURES, config_features([few])[:, 0].tolist(), strict=True))
    assert {name for name in ("aten", "tiled", "tma", "decompose_k") if column[name]} == set()
    assert [column[f"log_{name}"] for name in ("block_n", "block_k", "num_warps")] == [1, 9, 2]
    found = joint(few, MM._replace(m=3, n=1000, k=4096))
    assert (found["log_tiles"], found["log_tile_rows"], found["log_steps"]) == (pytest.approx(math.log2(500)), 0, 3)


@pytest.mark.parametrize(
    ("changes", "applies"), [({}, True), ({"m": 5}, False), ({"layout": "nn"}, False), ({"epilogue": "light"}, False)]
)
def test_kernels_for_few_rows_apply_where_they_were_timed(changes: dict[str, Any], applies: bool) -> None:
    """They are candidates for up to 4 rows, column-major B and no epilogue."""
    candidates = Candidates([Config.parse("triton_few_rows 2x512 s4 w4"), ATEN], [0, 1], SM_90)
    problem = MM._replace(m=4, dtype="bfloat16", layout="nt")._replace(**changes)
    assert candidates.applicable(problem).tolist() == [applies, True]


def test_problem_features_by_name() -> None:
    """Sizes are features as logarithms; op, dtype and layout are flags."""
    problem = Problem("addmm", "float16", "nt", 16, 1, 64, 96, 1024)
    found = dict(zip(PROBLEM_FEATURES, problem_features(problem, 132)[:, 0].tolist(), strict=True))
    assert (found["log_m"], found["log_k"], found["log_flops"]) == (6, 10, pytest.approx(math.log2(2 * 64 * 96 * 1024)))
    flags = ("bias", "batched", "float16", "float32", "a_transposed", "b_transposed", "aligned", "n_multiple_of_64")
    assert [found[name] for name in flags] == [1, 0, 1, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_classes_of_epilogues_are_flags(epilogue: str) -> None:
    """Of the features of a problem, the one of its class is set; all others are as without an epilogue."""
    alone, found = (problem_features(problem, 132)[:, 0] for problem in (MM, MM._replace(epilogue=epilogue)))
    changed = [name for name, one, other in zip(PROBLEM_FEATURES, alone, found, strict=True) if one != other]
    assert changed == ([] if epilogue == "none" else [f"epilogue_{epilogue}"])


@pytest.mark.parametrize(
    ("op", "dtype", "variant", "expected"),
    [
        ("mm", "bfloat16", "", []),
        ("int_mm", "int8", "", ["int8"]),
        ("scaled_mm", "float8_e4m3fn", "tensor-bfloat16-fast", ["float8"]),
        ("scaled_mm", "float8_e5m2", "row-bfloat16-bias", ["bias", "float8", "row_scales"]),
    ],
)
def test_types_and_scales_of_bytes_are_flags(op: str, dtype: str, variant: str, expected: list[str]) -> None:
    """They are the last features of a problem."""
    problem = Problem.of(op, 64, 4096, 4096, dtype=dtype, layout="nt", variant=variant)
    found = dict(zip(PROBLEM_FEATURES, problem_features(problem, 132)[:, 0].tolist(), strict=True))
    assert [*found][-3:] == [*OF_BYTES_FEATURES]
    assert [name for name in ("bias", *OF_BYTES_FEATURES) if found[name]] == expected


@pytest.mark.parametrize(
    ("dtype", "layout", "expected"),
    [
        ("float16", "nn", (4, 8, 8)),  # rows of A are K long, those of B and C are N long
        ("float16", "tn", (16, 8, 8)),
        ("float16", "nt", (4, 4, 8)),
        ("float32", "nt", (8, 8, 16)),
    ],
)
def test_vectors_by_layout(dtype: str, layout: str, expected: tuple[int, int, int]) -> None:
    """A thread loads as many bytes at once as a matrix's rows are aligned to, up to 16."""
    problem = Problem("mm", dtype, layout, 2, 1, 72, 100, 770)
    found = dict(zip(PROBLEM_FEATURES, problem_features(problem, 132)[:, 0].tolist(), strict=True))
    assert tuple(2 ** found[f"log_{matrix}_vector"] for matrix in "abc") == expected


def test_loads_of_a_thread() -> None:
    """128 x 64 of A by 2 bytes, and 64 x 128 of B by 16 bytes, are 32 and 4 loads per thread of 256."""
    assert joint(LARGE, MM._replace(layout="nn", align=2, k=1023))["log_loads"] == pytest.approx(math.log2(36))
    assert joint(LARGE)["log_loads"] == 3


def test_logarithms_do_not_depend_on_the_processor() -> None:
    """They equal those of the same steps on one number at a time in Python, and are exact for powers of two."""
    values = np.exp2(np.random.default_rng(1).uniform(-30, 60, 5000)).tolist()
    assert log2(values).tolist() == [log2_in_python(value) for value in values]
    assert np.abs(log2(values) - np.log2(values)).max() < 2e-9
    assert log2([2.0**power for power in range(-60, 60)]).tolist() == [*range(-60, 60)]


def log2_in_python(value: float) -> float:
    """The series of ``log2``, whose steps Python rounds one by one."""
    mantissa, exponent = math.frexp(value)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = 2 * mantissa, exponent - 1
    ratio = (mantissa - 1) / (mantissa + 1)
    first, *others = (2.8853900817779268 / power for power in (1, 3, 5, 7, 9))
    series = 0.0
    for coefficient in reversed(others):
        series = (series + coefficient) * (ratio * ratio)
    return (series + first) * ratio + exponent


def test_times_do_not_depend_on_the_processor() -> None:
    """No score's time is within a hundred last digits of float64 of where float32 would round it the other way."""
    scores = np.arange(-100_000, 100_001) / 10_000
    times, rounded = np.exp(np.round(scores, 4)), exp(scores)
    for bound in (0, np.inf):
        middle = (rounded + np.nextafter(rounded, np.float32(bound)).astype(np.float64)) / 2
        assert (np.abs(times - middle) > 100 * np.spacing(times)).all()
    assert rounded.tolist() == times.astype(np.float32).tolist()
    assert (exp(-1e9), exp(1e9)) == (rounded[0], rounded[-1])
