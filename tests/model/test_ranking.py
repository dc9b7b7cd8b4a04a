"""The rankings of a model."""

import math

import numpy as np
import pytest

from diode_lut.hardware import Hardware, architecture
from diode_lut.model import unknown
from diode_lut.model.features import CONFIG_FEATURES, JOINT_FEATURES, PROBLEM_FEATURES, Candidates
from diode_lut.model.ranking import MAX_RANKED, MAX_WEIGHT, Calibration, Model, Weights
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.model.small import BATCHED, BMM, CANDIDATES, CUT, KINDS, LARGE, MM, SMALL, model, weights


def test_fastest_comes_first_with_its_time_over_atens() -> None:
    """Configs are ranked by their expected time over aten's; equal ones stay in the candidates' order."""
    ranking = model(advantage=0.5).rank(MM)
    assert ranking is not None
    assert ranking.configs == (SMALL, LARGE, ATEN)
    assert ranking.times == pytest.approx((math.exp(-0.5), math.exp(-0.5), 1.0), abs=1e-3)
    assert ranking.confidence == 0.99


@pytest.mark.parametrize("weight", [-MAX_WEIGHT, MAX_WEIGHT])
def test_expected_times_are_finite(weight: float) -> None:
    """With the largest allowed weights, expected times are neither zero nor infinite, and the confidence is 0."""
    huge = Weights(*(np.full_like(tensor, MAX_WEIGHT) for tensor in weights(0.5)))
    huge = huge._replace(last=np.full_like(huge.last, weight), doubt=np.full_like(huge.doubt, MAX_WEIGHT))
    with np.errstate(all="raise"):
        ranking = model(weights=huge).rank(MM)
    assert ranking is not None
    assert all(0 < time < math.inf for time in ranking.times)
    assert ranking.confidence == 0


def test_what_was_learned_of_a_candidate_is_its_own() -> None:
    """Learned features belong to one candidate, at any index in its family."""
    candidates = (BATCHED, SMALL, LARGE, ATEN)
    learned = np.array([[each == LARGE for each in candidates]], np.float32)
    blind = weights(0.5, candidates=len(candidates))
    own = np.zeros_like(blind.config)
    own[0, -1] = 1
    ranking = model(candidates=candidates, weights=blind._replace(config=own, learned=learned)).rank(MM)
    assert ranking is not None
    assert ranking.configs == (LARGE, SMALL, ATEN)
    assert ranking.times == pytest.approx((math.exp(-0.5), 1.0, 1.0), abs=1e-3)


def test_aten_can_win() -> None:
    """Aten is first if tiled configs are expected to be slower."""
    ranking = model(advantage=-0.5).rank(MM)
    assert ranking is not None
    assert ranking.configs[0] == ATEN


def test_classes_of_epilogues_can_have_different_answers() -> None:
    """A model may choose a Triton kernel for a GEMM alone, and aten with an epilogue, with a confidence of its own."""
    chooser = by_epilogue()
    for epilogue, expected, confidence in (("none", SMALL, 0.99), ("light", SMALL, 0.7), ("heavy", ATEN, 0.7)):
        ranking = chooser.rank(MM._replace(epilogue=epilogue))
        assert ranking is not None
        assert (ranking.configs[0], ranking.confidence) == (expected, confidence)
    assert chooser.rank(MM._replace(epilogue="medium")) is None
    assert model().rank(MM._replace(epilogue="light")) is None


def by_epilogue() -> Model:
    """A model that expects SMALL to be faster than aten, but not with a heavy epilogue. It knows no medium ones."""
    config = np.zeros((2, len(CONFIG_FEATURES) + 1), np.float32)
    config[0, CONFIG_FEATURES.index("tiled")] = config[1, CONFIG_FEATURES.index("aten")] = 1
    problem = np.zeros((2, len(PROBLEM_FEATURES)), np.float32)
    problem[0, PROBLEM_FEATURES.index("epilogue_heavy")] = -1
    two = Weights(
        learned=np.zeros((1, len(CANDIDATES)), np.float32),
        problem=problem,
        config=config,
        joint=np.zeros((2, len(JOINT_FEATURES)), np.float32),
        first_bias=np.array([[0], [-0.5]], np.float32),
        second=np.eye(2, dtype=np.float32),
        second_bias=np.zeros((2, 1), np.float32),
        last=np.array([[-1, -1]], np.float32),
        last_bias=np.zeros((1, 1), np.float32),
        doubt=np.zeros((1, 4), np.float32),
        doubt_bias=np.array([[-1]], np.float32),
    )
    kinds = [*KINDS, *(KINDS[0]._replace(epilogue=name) for name in ("light", "heavy"))]
    return model(weights=two, kinds=kinds, fused_calibration=Calibration(0.0, (0.0,), (0.7,)))


def test_problems_with_a_batch_have_candidates_of_their_own() -> None:
    """A ranking for a bmm has only configs whose templates compute a bmm."""
    ranking = model().rank(BMM)
    assert ranking is not None
    assert ranking.configs == (BATCHED, ATEN)


def test_only_candidates_that_fit_are_ranked() -> None:
    """Tiles twice as large as the problem are left out, and K is split only if it is long and divisible."""
    small = model().rank(MM._replace(m=64, k=16 * 128 * 8))
    assert small is not None
    assert set(small.configs) == {SMALL, CUT, ATEN}
    odd = model().rank(MM._replace(m=64, k=16 * 128 * 8 + 8))
    assert odd is not None
    assert set(odd.configs) == {SMALL, ATEN}


def test_no_single_step_without_tensor_cores() -> None:
    """In float32, tiles as long as K are left out."""
    kinds = [kind._replace(dtype="float32") for kind in KINDS]
    for k, tiled in ((64, {ATEN}), (65, {SMALL, ATEN})):
        ranking = model(kinds=kinds).rank(MM._replace(dtype="float32", k=k))
        assert ranking is not None
        assert set(ranking.configs) == tiled


@pytest.mark.parametrize(
    ("op", "dtype", "variant", "small"),
    [("scaled_mm", "float8_e4m3fn", "row-bfloat16-fast", True), ("int_mm", "int8", "", False)],
)
def test_blocks_of_bytes(op: str, dtype: str, variant: str, small: bool) -> None:
    """They divide K, and in float8 they may have the rows of a matrix instruction, even if the problem has fewer."""
    tile, of_k = Config("triton_mm", (64, 32, 64, 8, 4, 4)), Config("triton_mm", (16, 32, 128, 8, 4, 4))
    of_bytes = Problem.of(op, 17, 4096, 4096, dtype=dtype, layout="nt", variant=variant)
    kind = KINDS[0]._replace(op=op, dtype=dtype, variant=variant)
    asked = model(candidates=(tile, of_k, ATEN), kinds=(kind,))
    for k, expected in ((4096, {tile, of_k} if small else {of_k}), (4160, {tile} if small else set())):
        ranking = asked.rank(of_bytes._replace(k=k))
        assert ranking is not None
        assert set(ranking.configs) == {*expected, ATEN}


@pytest.mark.parametrize(
    "huge", [Config("triton_mm", (256, 128, 128, 8, 5, 8)), Config("triton_mm_persistent_tma", (128, 256, 64, 8, 4, 8))]
)
def test_tiles_need_shared_memory(huge: Config) -> None:
    """A config is not ranked if its stages, and with TMA its result as well, do not fit into shared memory."""
    ranking = model(candidates=(huge, BATCHED, ATEN)).rank(MM)
    assert ranking is not None
    assert ranking.configs == (ATEN,)


def test_tma_is_for_aligned_rows() -> None:
    """TMA configs are ranked only for rows that are aligned to 16 bytes, and only for enough rows."""
    tma = Config("triton_mm_persistent_tma", (64, 64, 64, 8, 3, 4))
    kinds = [kind._replace(align=align) for kind in KINDS for align in (2, 16)]
    asked = model(candidates=(tma, ATEN), kinds=kinds)
    for problem, ranked in ((MM, True), (MM._replace(align=2), False), (MM._replace(m=48), False)):
        ranking = asked.rank(problem)
        assert ranking is not None
        assert (tma in ranking.configs) is ranked


def test_long_rankings_end_with_aten() -> None:
    """A ranking has at most MAX_RANKED configs, and aten is one of them."""
    blocks = (16, 32, 64, 128)
    many = tuple(Config("triton_mm", (m, n, 32, 8, 3, 4)) for m in blocks for n in blocks)
    more = tuple(config._replace(params=tuple(config.tiles._replace(num_stages=4))) for config in many)
    again = tuple(config._replace(params=tuple(config.tiles._replace(num_stages=5))) for config in many)
    ranking = model(candidates=(*many, *more, *again, ATEN)).rank(MM)
    assert ranking is not None
    assert len(ranking.configs) == MAX_RANKED
    assert ranking.configs[-1] == ATEN


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"op": "addmm"}, "not trained for op=addmm"),
        ({"dtype": "float32"}, "not trained for op=mm dtype=float32"),
        ({"layout": "tn"}, "not trained for op=mm dtype=bfloat16 layout=tn"),
        ({"align": 2}, "not trained for op=mm dtype=bfloat16 layout=nt align=2"),
        ({"m": 70_000}, "not trained for these sizes: m=70000 is outside 1 to 65536"),
    ],
)
def test_unknown_problems_are_not_ranked(changes: dict[str, object], reason: str) -> None:
    """Problems that the model was not trained for have no ranking, but a reason."""
    problem = MM._replace(**changes)  # type: ignore[arg-type]
    assert model().rank(problem) is None
    assert unknown(model().kinds, problem) == reason


def test_waves_are_those_of_the_hardware_asked_about() -> None:
    """The features use the SM count of the device that will run the kernel."""
    tiling = Candidates(CANDIDATES, range(len(CANDIDATES)), architecture("sm_90")).tiling
    few, many = (tiling.features(MM, sm_count) for sm_count in (66, 132))
    assert few[4, : tiling.count] == pytest.approx(many[4, : tiling.count] + 1, abs=1e-5)


def test_configs_that_the_asked_architecture_cannot_launch_are_left_out() -> None:
    """A model for one architecture ranks on another without its TMA kernels, and those with too much shared memory."""
    tma, deep = Config("triton_mm_persistent_tma", SMALL.params), LARGE.with_tiles(LARGE.tiles._replace(num_stages=5))
    ranks = model(candidates=(tma, deep, SMALL, ATEN), weights=weights(0.5, candidates=4)).rank
    own, other = ranks(MM), ranks(MM, Hardware("NVIDIA L40S", "sm_89", 142))
    assert own is not None
    assert other is not None
    assert own.configs == (tma, deep, SMALL, ATEN)
    assert other.configs == (SMALL, ATEN)


def test_confidence_grows_with_the_lead() -> None:
    """The further the first choice is ahead of the second, up to a cap, the smaller is the doubt in it."""
    # SMALL and LARGE are equally fast: no lead. One of them alone has a lead of ``advantage`` over aten.
    calibration = Calibration(10.0, (-5.0, -2.0, 0.0), (0.9, 0.8, 0.7))
    for advantage, candidates, confidence in (
        (0.2, (SMALL, LARGE, ATEN), 0.7),
        (0.05, (SMALL, ATEN), 0.7),
        (0.2, (SMALL, ATEN), 0.8),
        (0.9, (SMALL, ATEN), 0.9),
        (0.2, (ATEN,), 0.9),
    ):
        ranking = model(advantage, candidates=candidates, calibration=calibration).rank(MM)
        assert ranking is not None
        assert ranking.confidence == confidence, (advantage, candidates)


def test_calibration_steps_down() -> None:
    """A doubt counts as the next larger one of the calibration; above the largest the confidence is 0."""
    calibration = Calibration(0.0, (-3.0, -2.0), (1.0, 0.9))
    assert [calibration.confidence(doubt) for doubt in (-4, -3, -2.5, -2, -1)] == [1.0, 1.0, 0.9, 0.9, 0.0]
