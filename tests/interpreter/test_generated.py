"""Generated kernels with fixed configs, and measured, on the device on which Triton's interpreter executes kernels."""

from typing import Any

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by, found_for
from tests.programs.generate import REDUCTIONS
from tests.sampled import sampled


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run tests/programs/generate.py in a process of its own, and return its findings."""
    return found_for(request, "generate.py", "form")


@pytest.mark.parametrize("form", sampled(REDUCTIONS, "persistent", "looped rows"))
def test_generated_kernels_are_right(found: dict[str, Any], form: str) -> None:
    """Norms, softmax, sums, losses, transposes and gradients are float64's, whatever a row says, for any rows."""
    for each, least in ((found[form], 9), (found[f"{form}, any number"], 2)):
        assert each["errors"] == pytest.approx([0] * len(each["errors"]), abs=1e-5)
        assert each["kernels"]["fixed_config"] >= least


@pytest.fixture(scope="module")
def measured(with_device: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run tests/programs/collect_generated.py in a process of its own, and return its findings."""
    return found_by(with_device, "collect_generated.py", tmp_path_factory.mktemp("generated"))


@pytest.mark.slow
def test_generated_kernels_are_recorded_and_measured(measured: dict[str, Any]) -> None:
    """Each of a program is measured, right with every config, and gets a row; no code is in the dataset."""
    assert measured["skipped"] == {}
    assert sorted(measured["right"]) == [
        "pointwise flat x 900",
        "pointwise tiled-x x 64 y 192 loads 2",
        "reduction inner x 1 r 2000",
        "reduction inner x 21 r 70",
    ]
    for configs in measured["right"].values():
        assert next(iter(configs)) == "default"
        assert len(configs) >= 6
        assert set(configs.values()) == {1_000_000}
    assert measured["rows"] == ["pointwise", "pointwise", "reduction", "reduction"]
    assert not measured["code"]


@pytest.mark.slow
def test_rows_are_verified_on_recorded_kernels(measured: dict[str, Any]) -> None:
    """Each row's config is timed against the first of Inductor's, but for a row that says another form of kernel."""
    assert measured["comparable"] == 4
    others = ["pointwise flat x 900", "pointwise tiled-x x 64 y 192 loads 2", "reduction inner x 1 r 2000"]
    assert measured["drift"] == {problem: [1.0, 1.0] for problem in others}


@pytest.mark.slow
def test_config_that_spills_is_left_out(measured: dict[str, Any]) -> None:
    """Only kernels that do not spill are timed, and the first of Inductor's configs in any case."""
    ((_, configs),) = measured["spilling"].items()
    ((_, all_configs),) = ((problem, each) for problem, each in measured["right"].items() if problem.endswith("r 2000"))
    assert list(configs) == [config for config in all_configs if config == "default" or " w4" in config]
    assert 1 < len(configs) < len(all_configs)


@pytest.mark.slow
def test_config_with_another_result_is_refused(measured: dict[str, Any]) -> None:
    """A kernel whose sum depends on its block: configs with the first's block count, and others do not."""
    ((problem, configs),) = measured["wrong"].items()
    assert problem == "reduction inner x 1 r 2000"
    for config, outcome in configs.items():
        same = config == "default" or "r2048" in config
        assert outcome == (1_000_000 if same else "wrong_result")
    assert "wrong_result" in configs.values()
