"""The regressions of a model for generated kernels."""

from itertools import product
from pathlib import Path

import pytest

from diode_lut.decide.sources import THRESHOLD, ModelSource
from diode_lut.errors import ModelError
from diode_lut.hardware import Hardware
from diode_lut.model.generated import KernelModel, Times, fit_kernels
from diode_lut.model.ranking import Model
from diode_lut.model.weights import read_model, write_model
from diode_lut.problem import MAX_SIZE, Problem
from diode_lut.templates.config import Config

H100 = Hardware("NVIDIA H100", "sm_90", 132)
SHIPPED = Path(__file__).parent.parent.parent / "tables" / "nvidia-h100.mlp.safetensors"

LOOPED = [Config("looped_reduction", (1, block, 4)) for block in (256, 512, 1024, 2048)]
KEPT = [Config("persistent_reduction", (x, 4)) for x in (1, 2, 4)]


def kernel(x: int, r: int) -> Problem:
    return Problem.generated("reduction", "inner", x=x, r=r)


@pytest.fixture(scope="module")
def measured() -> Times:
    """Few rows want long steps, and many want short ones. Up to r = 1,024 it is faster to keep all of r."""
    times = []
    for x, r in product([1 << power for power in range(4, 14)], (300, 700, 1500, 3000)):
        best = 2048 if x < 512 else 256
        looped = {config: 2 * (1 + abs(config.tunables["block_r"] - best) / 4096) for config in LOOPED}
        kept = {config: (1 if r <= 1024 else 4) * (1 + config.tunables["block_x"] / 8) for config in KEPT}
        times.append((kernel(x, r), looped | kept))
    return times


def test_sizes_that_were_not_measured(measured: Times) -> None:
    """The form that is expected to be faster comes first, then what is expected to lose least."""
    model = fit_kernels(measured, H100)
    short, long = model.ranked(kernel(24, 2900)), model.ranked(kernel(6000, 2900))
    assert (short[0], long[0]) == (LOOPED[-1], LOOPED[0])
    assert model.ranked(kernel(24, 600))[0] == KEPT[0]
    assert set(short) == {*LOOPED, *KEPT}


def test_sizes_that_may_change(measured: Times) -> None:
    """The config with the least mean loss over the range, which is the same for any size in it."""
    model = fit_kernels(measured, H100)
    few, many = model.ranked_over(kernel(24, 2900), 2, 300), model.ranked_over(kernel(24, 2900), 2048, 1 << 20)
    assert (few[0], many[0]) == (LOOPED[-1], LOOPED[0])
    assert model.ranked_over(kernel(6000, 2900), 2, 300) == few
    for most in (300, 1 << 20):  # few rows wait for steps, and a thread's elements
        first, *_ = model.ranked_over(kernel(24, 2900), 1, most)
        assert first == max(LOOPED, key=lambda config: (config.tunables["block_r"], config.tunables["num_warps"]))
    assert model.ranked_over(kernel(24, 1 << 15), 1, 300) == ()
    assert model.ranked_over(kernel(24, 2900), 300, 300) == model.ranked(kernel(300, 2900))
    assert model.ranked_over(kernel(24, 1 << 15), 2, 300) == ()
    assert model.ranked_over(Problem.generated("reduction", "outer", x=64, r=300), 2, 300) == ()


def test_no_block_is_longer_than_its_size(measured: Times) -> None:
    ranked = fit_kernels(measured, H100).ranked(kernel(1, 200))
    assert set(ranked) == {LOOPED[0], KEPT[0]}


def test_the_longest_reduction(measured: Times) -> None:
    """An r whose next power of two is beyond all sizes is ranked like the longest that was measured."""
    assert LOOPED[-1] in fit_kernels(measured, H100).ranked(kernel(64, MAX_SIZE))


def test_too_few_kernels(measured: Times) -> None:
    """Other variants are read along another dimension, and a regression needs some kernels."""
    assert fit_kernels(measured, H100).ranked(Problem.generated("reduction", "outer", x=64, r=300)) == ()
    assert fit_kernels(measured[:20], H100).ranked(kernel(64, 300)) == ()


def test_a_model_answers_on_devices_like_its_own(measured: Times, tmp_path: Path) -> None:
    """The regressions are in the weights file. A device with the same architecture and SMs gets the same ranking."""
    base, kernels = read_model(SHIPPED), fit_kernels(measured, H100)
    model = Model(
        *(base.hardware, base.weights, base.candidates, base.kinds, base.calibration, base.split), kernels=kernels
    )
    write_model(model, tmp_path / "own.safetensors")
    source = ModelSource(read_model(tmp_path / "own.safetensors"), base.hardware)
    problem = kernel(6000, 2900)
    answer = source.ask(problem, THRESHOLD, padding=False)
    assert answer is not None
    assert answer.configs == kernels.ranked(problem)
    assert "least expected time" in source.line_about(answer)
    assert source.details(answer)[0].strip() == str(answer.configs[0])
    other = ModelSource(model, Hardware("NVIDIA H200", "sm_90", 132))
    assert other.ask(problem, THRESHOLD, padding=False) == answer


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"features": 0}, "distill the model again"),
        ({"configs": []}, "IndexError"),
        (
            {
                "regressions": [
                    {"template": "", "reading": "inner", "spans": [[1.0]] * 3, "coefficients": [], "tried": {}}
                ]
            },
            "four",
        ),
    ],
)
def test_damaged_regressions(
    measured: Times, change: dict[str, object], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = read_model(SHIPPED)
    fields = {**fit_kernels(measured, base.hardware).to_json(), **change}
    monkeypatch.setattr(KernelModel, "to_json", lambda _: fields)
    with pytest.raises(ModelError, match=complaint):
        write_model(base, tmp_path / "damaged.safetensors")
