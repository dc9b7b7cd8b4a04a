"""Which configs are tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.collect.candidates import GROUP_M, candidates, other_groups
from diode_lut.collect.dropped import read_dropped
from diode_lut.dataset import Record, Timing, read_dataset
from diode_lut.problem import ATEN, DTYPES, LAYOUTS, OPS, Config, Problem
from tools.prune_candidates import hopeless

DATASETS = Path(__file__).parents[2] / "tables" / "datasets"


def problem(op: str, m: int, n: int, k: int, **others: Any) -> Problem:
    return Problem.of(op, m, n, k, **{"dtype": "bfloat16", "layout": "nn", **others})


sizes = st.integers(1, 20_000)
problems = st.builds(
    problem, st.sampled_from(OPS), sizes, sizes, sizes, dtype=st.sampled_from(DTYPES), layout=st.sampled_from(LAYOUTS)
)


@given(problems)
def test_every_problem_has_candidates(problem: Problem) -> None:
    """They are aten and some kernels, each valid, each once, and the same each time."""
    found = candidates(problem, "sm_90")
    assert found[0] == ATEN
    assert len(found) > 1
    assert len(set(found)) == len(found)
    assert [Config.from_json(config.to_json()) for config in found] == found
    assert candidates(problem, "sm_90") == found


@given(problems)
def test_tiles_fit_the_problem(problem: Problem) -> None:
    """No tile is twice as large as the problem needs along any side, but for the smallest."""
    for config in candidates(problem, "sm_90"):
        if config.template.startswith("triton"):
            for block, size in zip(config.params, (problem.m, problem.n, problem.k), strict=False):
                assert block == 16 or block < 2 * size


@pytest.mark.parametrize(
    ("each", "templates"),
    [
        (problem("mm", 512, 512, 512), {"aten", "triton_mm", "triton_mm_persistent_tma"}),
        (problem("mm", 512, 511, 512), {"aten", "triton_mm"}),
        (problem("mm", 1, 512, 512), {"aten", "triton_mm"}),
        (problem("mm", 32, 32, 8192), {"aten", "triton_mm", "decompose_k"}),
        (problem("addmm", 32, 32, 8192), {"aten", "triton_mm"}),
        (problem("bmm", 512, 512, 512), {"aten", "triton_bmm"}),
    ],
)
def test_templates_that_can_compute_it(each: Problem, templates: set[str]) -> None:
    """Only templates for the op, TMA only where it is legal, K cut up only where it is long."""
    assert {config.template for config in candidates(each, "sm_90")} == templates


def test_what_sweeps_have_shown_to_be_hopeless_is_dropped() -> None:
    """It is left out on the architecture where that was seen, and tried on any other."""
    each = problem("mm", 4096, 4096, 4096)
    left_out = set(candidates(each, "another")) - set(candidates(each, "sm_90"))
    assert left_out
    assert left_out <= read_dropped()["sm_90"]


def test_what_is_dropped_comes_from_the_shipped_sweep() -> None:
    """Nothing is on the list that the shipped timings do not show to be hopeless."""
    (path,) = DATASETS.glob("nvidia-h200-models*")
    assert read_dropped() == {"sm_90": hopeless(read_dataset(path))}


def test_hopeless_is_what_never_came_near() -> None:
    """A config is dropped if it was far from the best on many problems, and on all."""
    near, far, rare = (Config("triton_mm", (64, 64, 64, 8, stages, 4)) for stages in (2, 3, 4))
    records = [
        Record(
            problem("mm", 64 + number, 64, 64),
            (Timing(ATEN, 100), Timing(near, 111 if number else 109), Timing(far, 111), Timing(rare, 200))[
                : 4 if number else 3
            ],
            "sweep",
        )
        for number in range(30)
    ]
    assert hopeless(records) == {far}


def test_other_groups_where_order_matters() -> None:
    """Another group_m is tried where more tiles than run at once are in more rows than it has."""
    config = Config("triton_mm", (128, 128, 64, GROUP_M, 3, 8))
    large = problem("mm", 8192, 8192, 512)
    assert [each.params[3] for each in other_groups(large, config)] == [1, 4, 16]
    assert {each.params[:3] + each.params[4:] for each in other_groups(large, config)} == {(128, 128, 64, 3, 8)}
    assert other_groups(problem("mm", 512, 512, 512), config) == []
    assert other_groups(problem("mm", 128, 65536, 512), config) == []
    assert other_groups(large, ATEN) == []
