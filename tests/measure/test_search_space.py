"""Which configs are tried."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.dataset import read_dataset
from diode_lut.hardware import Hardware
from diode_lut.measure.tasks import (
    apart,
    candidates,
    in_default_search_space,
    padded_candidates,
    read_default_search_space,
    variations,
)
from diode_lut.problem import DOMAINS, GEMMS, ITEMSIZES, Problem
from diode_lut.templates.config import ATEN, DEFAULT, Config
from diode_lut.templates.template import GROUP_M
from tools.choose_candidates import NEAR, choose, swept

H200 = Hardware("NVIDIA H200", "sm_90", 132)
DATASETS = Path(__file__).parents[2] / "tables" / "datasets"


def problem(op: str, m: int, n: int, k: int, **others: Any) -> Problem:
    return Problem.of(op, m, n, k, **{"dtype": "bfloat16", "layout": "nn", **others})


FLOAT8 = partial(
    Problem.of, "scaled_mm", n=4096, k=4096, dtype="float8_e4m3fn", layout="nt", variant="row-bfloat16-fast"
)
sizes = st.integers(1, 20_000)
of_gemms = DOMAINS["mm"]
problems = st.builds(
    problem,
    *(st.sampled_from(GEMMS), sizes, sizes, sizes),
    dtype=st.sampled_from(of_gemms.dtypes),
    layout=st.sampled_from(of_gemms.layouts),
)


@given(problems)
def test_every_problem_has_candidates(problem: Problem) -> None:
    """They are aten and some kernels, each valid, each once, and the same each time."""
    found = candidates(problem, H200)
    assert found[0] == ATEN
    assert len(found) > 1 or (problem.dtype == "float32" and problem.k <= 32)
    assert len(set(found)) == len(found)
    assert [Config.from_json(config.to_json()) for config in found] == found
    assert candidates(problem, H200) == found


@given(problems)
def test_tiles_fit_the_problem(problem: Problem) -> None:
    """No tile is twice as large as the problem needs along any side, but for the smallest."""
    for config in candidates(problem, H200):
        if config.kernel.tiled:
            for block, size in zip(config.params, (problem.m, problem.n, problem.k), strict=False):
                assert block == 16 or block < 2 * size


@pytest.mark.parametrize(
    ("each", "rows", "stages"),
    [
        (problem("mm", 16, 4096, 4096), {16}, {2, 3, 4, 5, 6, 8}),
        (problem("mm", 128, 4096, 4096), {16, 32, 64, 128}, {2, 3, 4, 5, 6, 8}),
        (problem("mm", 129, 4096, 4096), {16, 32, 64, 128, 256}, {2, 3, 4, 5}),
        (problem("mm", 16, 4096, 4096, dtype="tf32"), {16}, {2, 3, 4, 5}),
        (FLOAT8(m=16), {16, 64}, {2, 3, 4, 5, 6, 8}),
        (FLOAT8(m=256), {16, 32, 64, 128, 256}, {2, 3, 4, 5}),
    ],
)
def test_few_rows_have_deep_pipelines(each: Problem, rows: set[int], stages: set[int]) -> None:
    """Up to 128 rows of narrow types get more stages, and fewer than 64 of float8 get blocks of one instruction."""
    tiles = [config.tiles for config in candidates(each, H200, "exhaustive") if config.template == "triton_mm"]
    assert ({found.block_m for found in tiles}, {found.num_stages for found in tiles}) == (rows, stages)
    deep = {found.block_k * ITEMSIZES[each.dtype] for found in tiles if found.num_stages > 5}
    assert min(deep, default=128) == 128


def test_an_instruction_has_64_rows_from_hopper_on() -> None:
    """In float8, other GPUs try no blocks of 64 rows on 16; neither do those whose operands are in registers."""
    for arch, rows in (("sm_89", {16}), ("sm_90", {16, 64}), ("sm_100", {16, 64}), ("sm_120", {16})):
        found = candidates(FLOAT8(m=16), Hardware("a GPU", arch, 132), "exhaustive")
        assert {each.tiles.block_m for each in found if each.kernel.tiled} == rows


def joined(variant: str, m: int, layout: str = "nt") -> Problem:
    return Problem.of("joined_mm", m, 1536, 512, dtype="bfloat16", layout=layout, variant=variant)


@pytest.mark.parametrize(
    ("each", "templates"),
    [
        (problem("mm", 512, 512, 512), {"aten", "triton_mm", "triton_mm_persistent_tma"}),
        (problem("mm", 512, 511, 512), {"aten", "triton_mm"}),
        (problem("mm", 1, 512, 512), {"aten", "triton_mm"}),
        (problem("mm", 32, 32, 8192), {"aten", "triton_mm", "decompose_k"}),
        (problem("addmm", 32, 32, 8192), {"aten", "triton_mm"}),
        (problem("bmm", 512, 512, 512), {"aten", "triton_bmm"}),
        (joined("three", 4), {"default", "triton_joined_mm", "triton_few_rows"}),
        (joined("swiglu", 64), {"default", "triton_joined_mm"}),
        (joined("two", 4, "nn"), {"default", "triton_joined_mm"}),
    ],
)
def test_templates_that_can_compute_it(each: Problem, templates: set[str]) -> None:
    """Only templates for the op, TMA only where it is legal, K cut up only where it is long."""
    assert {config.template for config in candidates(each, H200)} == templates


@pytest.mark.parametrize(
    ("each", "pad", "templates"),
    [
        (problem("mm", 512, 512, 512), None, set()),
        (problem("mm", 513, 512, 512), None, set()),  # no row of a matrix becomes aligned by that
        (problem("mm", 512, 511, 512, layout="nt"), 8, {"aten", "triton_mm", "triton_mm_persistent_tma"}),
        (problem("mm", 512, 512, 511, dtype="tf32"), 4, {"aten", "triton_mm", "triton_mm_persistent_tma"}),
        (problem("bmm", 512, 512, 511, b=3), 8, {"aten", "triton_bmm"}),
        (problem("baddbmm", 512, 512, 511, b=3), None, set()),
        (problem("mm", 32, 32, 8191), 8, {"aten", "triton_mm"}),
    ],
)
def test_padded_candidates(each: Problem, pad: int | None, templates: set[str]) -> None:
    """Where padding aligns rows, the padded problem's candidates are tried with it, those that have such a tunable."""
    found = padded_candidates(each, H200)
    assert {config.template for config in found} == templates
    assert {config.pad for config in found} == ({pad} if pad else set())
    assert len(set(found)) == len(found)


@given(problems)
def test_no_single_step_without_tensor_cores(problem: Problem) -> None:
    """In float32 the loop over K of every kernel has two steps at least."""
    tiles = (config for config in candidates(problem, H200) if config.kernel.tiled)
    assert problem.dtype != "float32" or all(config.tiles.block_k < problem.k for config in tiles)


def test_default_search_space_leaves_configs_out() -> None:
    """On an architecture that was swept before, other kernels are left to an exhaustive search; elsewhere none are."""
    each = problem("mm", 4096, 4096, 4096)
    everything = set(candidates(each, H200, "exhaustive"))
    assert set(candidates(each, H200._replace(arch="another"))) == everything
    assert set(candidates(each, H200)) - {ATEN} == everything & read_default_search_space()["sm_90"]


def test_wide_types_share_the_default_search_space() -> None:
    """A float32 tile is tried if the default search space has it, or one of a type half as wide with as many bytes."""
    each = problem("mm", 4096, 4096, 4096, dtype="float32")
    found, everything, known = (
        {config.tiles for config in configs if config.template == "triton_mm"}
        for configs in (
            candidates(each, H200),
            candidates(each, H200, "exhaustive"),
            read_default_search_space()["sm_90"],
        )
    )
    assert found == {p for p in everything if p in known or p._replace(block_k=2 * p.block_k) in known}
    assert found - known


def test_narrow_types_share_the_default_search_space() -> None:
    """A float8 tile is tried if the default search space has the tile of a wider type with as many bytes."""
    each = Problem.of("scaled_mm", 512, 4096, 4096, dtype="float8_e4m3fn", layout="nt", variant="row-bfloat16-fast")
    known = read_default_search_space()["sm_90"]
    kernels = [config for config in candidates(each, H200, "exhaustive") if config.kernel.tiled]
    found = [config for config in candidates(each, H200) if config.kernel.tiled]
    assert found == [c for c in kernels if c.with_tiles(c.tiles._replace(block_k=c.tiles.block_k // 2)) in known]
    assert {config.template for config in found} == {"triton_mm", "triton_mm_persistent_tma"}


def test_default_search_space_has_all_of_a_template_that_was_not_swept() -> None:
    """Where earlier sweeps chose no config of a template, all its configs are tried; of others only the chosen ones."""
    each = problem("mm", 4096, 4096, 4096)
    kernels = [config for config in candidates(each, H200, "exhaustive") if config.kernel.tiled]
    chosen = next(config for config in kernels if config.template == "triton_mm")
    found = in_default_search_space(each, kernels, frozenset([chosen]))
    others = [config for config in kernels if config.template == "triton_mm_persistent_tma"]
    assert others
    assert found == [chosen, *others]


def test_default_search_space_comes_from_the_shipped_sweep() -> None:
    """The list is what the tool chooses from the shipped timings."""
    names = "nvidia-h200-models*", "few-rows/nvidia-h200-exhaustive*", "attention/nvidia-h200-exhaustive*"
    paths = (path for name in names for path in DATASETS.glob(name))
    kinds = swept(record for path in paths for record in read_dataset(path))
    chosen = (config for kind in kinds for config in choose(kind))
    assert read_default_search_space() == {"sm_90": frozenset(chosen)}


factors = st.dictionaries(
    st.builds(lambda stages: Config("triton_mm", (64, 64, 64, 8, stages, 4)), st.integers(1, 8)), st.floats(1, 1.1)
)


@given(st.lists(factors, max_size=20))
def test_choice_leaves_each_problem_good_ones(problems: list[dict[Config, float]]) -> None:
    """Of each problem's good configs three are chosen, or all that it has."""
    chosen = choose(problems)
    assert len(set(chosen)) == len(chosen)
    for each in problems:
        good = {config for config, factor in each.items() if factor <= NEAR}
        assert len(good & set(chosen)) >= min(3, len(good))


def test_attention_is_not_compiled_for_what_cannot_be_launched() -> None:
    """Candidates are just those that compiled in the shipped sweep, which also tried the others; and the default."""
    failed = 0
    for record in read_dataset(DATASETS / "attention" / "nvidia-h200-exhaustive.msgpack.zst"):
        if record.stage == "sweep":
            compiled = {timing.config for timing in record.timings if timing.ns is not None}
            failed += len(record.timings) - len(compiled)
            assert set(candidates(record.problem, H200, "exhaustive")) == {DEFAULT, *compiled}
    assert failed == 863


def test_search_space_of_amd() -> None:
    """On an AMD GPU there is no TMA, and kernels have the two stages that Inductor has there."""
    hardware = Hardware("AMD Instinct MI300X", "gfx942", 304)
    kernels = [each for each in candidates(problem("mm", 4096, 4096, 4096), hardware) if each.kernel.tiled]
    assert len(set(kernels)) == len(kernels) > 50
    assert {(each.template, each.tiles.num_stages) for each in kernels} == {("triton_mm", 2)}


def test_other_groups_where_order_matters() -> None:
    """Another group_m is tried where more tiles than run at once are in more rows than it has; the rest stays."""
    config = Config("triton_mm", (128, 128, 64, GROUP_M, 3, 8))
    large = problem("mm", 8192, 8192, 512)
    others = variations(large, config, H200)
    assert [each.tiles.group_m for each in others] == [1, 4, 16]
    assert {each.tiles._replace(group_m=GROUP_M) for each in others} == {config.tiles}
    assert variations(problem("mm", 512, 512, 512), config, H200) == []
    assert variations(problem("mm", 128, 65536, 512), config, H200) == []
    assert variations(large, ATEN, H200) == []
    padded = config._replace(params=(*config.params, 16))
    assert {each.params[-1] for each in variations(large, padded, H200)} == {16}


def test_options_of_the_compiler_for_amd() -> None:
    """On an AMD GPU each option of Triton's compiler is tried besides, one at a time."""
    config = Config("triton_mm", (128, 128, 64, GROUP_M, 2, 8))
    found = variations(problem("mm", 512, 512, 512), config, Hardware("AMD Instinct MI300X", "gfx942", 304))
    assert [str(each).removeprefix(str(config)) for each in found] == [" waves2", " mfma32", " kpack1"]


def test_each_joined_kernel_has_a_rival_apart() -> None:
    """Matmuls apart are tried with the library, and with the same tiles as joined ones."""
    each = joined("three", 2)
    apart_of = {"triton_joined_mm": "triton_mm"}
    rivals = [Config(apart_of.get(known.template, known.template), known.params) for known in candidates(each, H200)]
    assert apart(each, H200) == [ATEN, *rivals[1:]]


def test_joined_float8_has_as_many_bytes_along_k() -> None:
    """Joined kernels of float8 have blocks twice as long along K. Apart, no kernel for few rows multiplies float8."""
    problem = joined("three", 2)
    of_float8 = problem._replace(dtype="float8_e4m3fn")
    lengths, longer = (
        [c.tiles.block_k for c in candidates(each, H200) if c.template == "triton_joined_mm"]
        for each in (problem, of_float8)
    )
    assert longer == [2 * length for length in lengths]
    assert {config.template for config in apart(of_float8, H200)} == {"aten", "triton_mm"}


def test_work_after_a_matmul_has_rivals_that_fuse_it() -> None:
    """QuACK's kernels are tried on Hopper, beside the library and Triton's largest tiles."""
    each = Problem.of("fused_mm", 4096, 3072, 768, dtype="bfloat16", layout="nt", variant="gelu")
    kernels = candidates(each, H200)
    assert (kernels[0], {config.template for config in kernels[1:]}) == (DEFAULT, {"quack_gemm"})
    assert candidates(each, Hardware("NVIDIA A100", "sm_80", 108)) == [DEFAULT]
    library, *rivals = apart(each, H200)
    assert library == ATEN
    assert {config.tiles.block_m * config.tiles.block_n for config in rivals} == {32768}
