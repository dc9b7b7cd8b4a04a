"""The model as the last tier: when it answers, what the decision says, and how digests depend on it."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load, save

import diode_lut
from diode_lut.decide import catalog as tiers
from diode_lut.decide.catalog import find_path, find_tables, tiers_for, warn_of_useless
from diode_lut.decide.decide import Sources, Tier, decide
from diode_lut.decide.sources import ModelSource, Threshold
from diode_lut.errors import ModelError
from diode_lut.hardware import Hardware
from diode_lut.model import KEY, metadata_of
from diode_lut.model.weights import read_model, write_model
from diode_lut.templates.config import ATEN
from tests.commands import call
from tests.model.small import H200, LARGE, MM, SMALL, model

A100 = Hardware("NVIDIA A100-SXM4-80GB", "sm_80", 108)
FLOAT32 = MM._replace(dtype="float32")


def selector(confidence: float = 0.99, hardware: Hardware = H200) -> Sources:
    return Sources(hardware, [Tier("model", (ModelSource(model(confidence=confidence), hardware),))])


@pytest.fixture
def shipped_model(shipped: Path) -> Path:
    """The only shipped file: a model for the H200."""
    path = shipped / "nvidia-h200.mlp.safetensors"
    write_model(model(), path)
    return path


def test_a_sure_model_answers() -> None:
    """With enough confidence the model's ranking is the answer."""
    decision = decide(selector(0.96), MM).decision
    assert (decision.tier, decision.configs) == ("model", (SMALL, LARGE, ATEN))
    assert (decision.entry, decision.confidence) == (None, 0.96)
    assert decision.steps == ("model: model for NVIDIA H200 answers, with confidence 0.960",)


def test_an_unsure_model_abstains() -> None:
    """Below both thresholds the model abstains, and the step says its confidence and the expected gain."""
    decision = decide(selector(0.89), MM, Threshold(gain=0.7)).decision
    assert (decision.tier, decision.configs, decision.confidence) == ("abstain", (), None)
    expected = "expected to be 1.649 times as fast as aten, not 1.7"
    assert decision.steps[0] == f"model: model for NVIDIA H200: confidence 0.890 is below 0.9, and it is {expected}"
    assert decide(selector(0.89), MM, Threshold(0.8, math.inf)).decision.tier == "model"


def test_a_gain_makes_up_for_doubt() -> None:
    """With little confidence the model answers if it expects enough gain over aten; aten itself has no gain."""
    assert decide(selector(0.1), MM, Threshold(gain=0.6)).decision.tier == "model"
    aten_first = Sources(H200, [Tier("model", (ModelSource(model(-0.5, confidence=0.1), H200),))])
    assert decide(aten_first, MM, Threshold(gain=0.0)).decision.configs[0] == ATEN
    assert decide(aten_first, MM, Threshold(gain=0.01)).decision.tier == "abstain"


def test_a_gain_that_may_be_none_is_left_to_aten() -> None:
    """Aten is the answer if less than 2 % is expected, however sure the model is, unless the user wants less."""
    asked = Sources(H200, [Tier("model", (ModelSource(model(0.015, confidence=0.99), H200),))])
    decision = decide(asked, MM).decision
    assert (decision.tier, decision.configs, decision.expected_time) == ("model", (ATEN,), 1.0)
    assert decision.steps[0].endswith("confidence 0.990; the expected gain is less than 2%, so aten is taken")
    assert decision.details()[0].endswith(f"{SMALL} (1.015 times as fast as aten, expected)")
    assert decide(asked, MM, Threshold(gain=0.01)).decision.configs[0] == SMALL


def test_an_unknown_problem_is_a_step() -> None:
    """For a problem that the model was not trained for, the step says so."""
    decision = decide(selector(), FLOAT32).decision
    assert decision.steps[0] == "model: model for NVIDIA H200: not trained for op=mm dtype=float32"


def test_explain_shows_the_ranking_in_any_case() -> None:
    """Explain shows the expected gains and the confidence, whether the model answers or abstains."""
    for confidence in (0.94, 0.96):
        lines = decide(selector(confidence), MM).decision.explain().splitlines()
        assert "    triton_mm 64x32x64 g8 s4 w4 (1.649 times as fast as aten, expected)" in lines
        assert lines[-1] == f"    the first is within 5 % of the best with confidence {confidence:.3f}"


def test_another_devices_model_says_so() -> None:
    """On other hardware, explain names the hardware that the model was trained for, with and without an answer."""
    name = "model: model for NVIDIA H200, trained for NVIDIA H200 (sm_90, 132 SMs)"
    asked = selector(hardware=A100)
    assert decide(asked, MM).decision.steps[-1].startswith(f"{name}, answers")
    assert decide(asked, FLOAT32).decision.steps[0].startswith(f"{name}: not trained")


def test_digest_depends_on_the_model(tmp_path: Path) -> None:
    """Another model, or no model, gives another digest."""
    digests = set()
    for advantage in (0.5, 0.6):
        path = tmp_path / "x.mlp.safetensors"
        write_model(model(advantage), path)
        digests.add(Sources(H200, tiers_for(H200, (str(path),))).digest)
    assert len({*digests, Sources(H200, ()).digest}) == 3


def test_digest_depends_on_the_sm_count() -> None:
    """A model's ranking depends on the SM count, on a CPU on the threads; a table's answer does not."""
    devices = [H200, H200._replace(sm_count=66)]
    assert len({selector(hardware=device).digest for device in devices}) == 2
    assert len({Sources(device, ()).digest for device in devices}) == 1
    assert len({selector(hardware=device._replace(arch="cpu-avx512")).digest for device in devices}) == 2


def test_names_without_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a working directory that has been removed, explain shows absolute paths."""
    write_model(model(confidence=0.1), path := tmp_path / "x.mlp.safetensors")
    asked = Sources(H200, [Tier("model", (ModelSource(read_model(path), H200),))])
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert f"model: {path}: confidence 0.100 is below" in decide(asked, MM, Threshold(gain=0.7)).decision.explain()


def test_shipped_models_are_for_their_device_and_its_architecture(shipped_model: Path) -> None:
    """Shipped models are listed, found by name, and asked only on their architecture with the same SM count."""
    assert [(file.name, file.hardware) for file in find_tables(())] == [("nvidia-h200.mlp", H200)]
    assert find_path("nvidia-h200.mlp") == shipped_model
    for hardware, count in ((H200, 1), (H200._replace(name="NVIDIA H100"), 1), (A100, 0)):
        *_, tier = tiers_for(hardware, ())
        assert (tier.name, len(tier.sources)) == ("model", count)


def test_own_models_come_first_on_any_hardware(shipped_model: Path, tmp_path: Path) -> None:
    """A model that the user registers is asked on any hardware, before the shipped ones."""
    mine = tmp_path / "mine.safetensors"
    write_model(model(), mine)
    with diode_lut.config.patch(tables=()):
        diode_lut.register_table(str(mine))
        for hardware, paths in ((H200, [mine, shipped_model]), (A100, [mine])):
            assert [each.path for each in tiers_for(hardware, diode_lut.config.tables)[-1].sources] == paths
        decision = diode_lut.select(MM, hardware=A100)
    assert (decision.tier, decision.where) == ("model", str(mine))


def test_a_model_of_fewer_problems_is_asked_first(shipped_model: Path) -> None:
    """Of a device's models, the one whose name goes on after the other's is asked first."""
    few = shipped_model.with_name("nvidia-h200-few-rows.mlp.safetensors")
    write_model(model(), few)
    assert [source.path for source in tiers_for(H200, ())[-1].sources] == [few, shipped_model]


def test_tables_come_before_models(shipped_model: Path, table_file: Callable[..., Path]) -> None:
    """If a table covers the problem, no model answers, not even the user's own."""
    table_file("tables/nvidia-h200.json", {"op": "mm", "configs": [{"template": "aten"}]})
    for mine in (), (str(shipped_model),):
        with diode_lut.config.patch(tables=mine):
            assert diode_lut.select(MM, hardware=H200).tier == "device"
            assert diode_lut.select(MM._replace(op="bmm", b=2), hardware=H200).tier == "model"


def test_a_bad_model_costs_itself_and_a_warning(shipped_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged model is left out with a warning; registering it is an error."""
    shipped_model.write_bytes(shipped_model.read_bytes()[:-4])
    *_, tier = tiers_for(H200, ())
    assert tier.sources == ()
    assert tier.left_out[0].startswith(f"left out: {shipped_model}: damaged")
    assert caplog.messages[0].startswith(f"model left out: {shipped_model}: damaged")
    with pytest.raises(ModelError):
        diode_lut.register_table(str(shipped_model))


def test_an_own_model_that_vanishes(
    shipped_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that is removed after its name was looked up is left out; other models are asked."""
    mine = shipped_model.parent.parent / "mine.safetensors"
    mine.touch()
    find = tiers.find_path

    def find_and_remove(name: str) -> Path:
        path = find(name)
        if path == mine:
            path.unlink()
        return path

    monkeypatch.setattr(tiers, "find_path", find_and_remove)
    *_, tier = tiers_for(H200, (str(mine),))
    assert [each.path for each in tier.sources] == [shipped_model]
    assert caplog.messages[0].startswith(f"model left out: {mine}: no such file")


@pytest.mark.parametrize("missing", ["numpy", "safetensors"])
def test_models_cost_only_themselves_where_their_libraries_are_broken(
    missing: str,
    shipped_model: Path,
    table_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Tables answer without these libraries, each model is left out with a warning, and commands say why."""
    table_file("tables/nvidia-h200.json", {"op": "mm", "configs": [{"template": "aten"}]})
    mine = shipped_model.parent.parent / "mine.safetensors"
    mine.write_bytes(shipped_model.read_bytes())
    monkeypatch.delitem(sys.modules, "diode_lut.model.weights")
    monkeypatch.setitem(sys.modules, missing, None)
    with diode_lut.config.patch(tables=(str(mine),)):
        assert diode_lut.select(MM, hardware=H200).tier == "device"
        decision = diode_lut.select(MM._replace(op="bmm", b=2), hardware=H200)
    why = "NumPy or safetensors, which models need, cannot be imported: "
    assert (decision.tier, len(decision.steps)) == ("abstain", 6)
    assert [message.partition("cannot be")[0] for message in caplog.messages] == [
        f"model left out: {path}: NumPy or safetensors, which models need, " for path in (mine, shipped_model)
    ]
    result = call("explain", "mm", 8, 8, 8, "--hardware", "nvidia-h200", "--table", mine)
    assert (result.exit_code, result.stderr.startswith(f"error: {mine}: {why}")) == (1, True)


def test_tables_command_lists_models_that_can_be_used(shipped_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that is cut off, or made for other features, is a warning instead of a line."""
    good = shipped_model.read_bytes()
    metadata = metadata_of(good, shipped_model)
    metadata["features"]["version"] += 1
    for bad in (good[:-4], save(load(good), {KEY: json.dumps(metadata)})):
        assert str(shipped_model) in call("tables").stdout
        shipped_model.write_bytes(bad)
        assert call("tables").stdout == ""
        shipped_model.write_bytes(good)
    why = ("damaged: ", "features.version: expected ")
    assert all(map(str.startswith, caplog.messages, [f"model left out: {shipped_model}: {prefix}" for prefix in why]))
    assert len(caplog.messages) == len(why)


def test_threshold_is_a_setting(shipped_model: Path) -> None:
    """The settings for confidence and gain decide whether the model answers, and are part of the caches' keys."""
    pytest.importorskip("torch")
    from diode_lut.hook.snapshot import InductorSnapshot

    with diode_lut.config.patch(tables=(), confidence_threshold=0.999, gain_threshold=math.inf):
        assert diode_lut.select(MM, hardware=H200).tier == "abstain"
        strict = InductorSnapshot().identity
    with diode_lut.config.patch(tables=()):
        assert diode_lut.select(MM, hardware=H200).tier == "model"
        assert InductorSnapshot().identity != strict


def test_models_are_of_use_everywhere(shipped_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A user's model for other hardware causes no warning."""
    warn_of_useless((str(shipped_model),), (A100,))
    assert caplog.messages == []


def test_explain_command(shipped_model: Path) -> None:
    """The command exits with 0 if the model answers, and shows the expected gains."""
    result = call("explain", "mm", 1024, 1024, 1024, "--layout", "nt", "--hardware", "nvidia-h200.mlp")
    assert result.exit_code == 0
    assert "answers, with confidence 0.990" in result.stdout
    assert "(1.649 times as fast as aten, expected)" in result.stdout


def test_explain_command_asks_a_model_file(shipped: Path, tmp_path: Path) -> None:
    """``--table`` takes a model for any hardware as well; a damaged one is an error."""
    path = tmp_path / "x.safetensors"
    write_model(model(), path)
    arguments = ("explain", "mm", 1024, 1024, 1024, "--layout", "nt", "--hardware", "x", "--table", path)
    assert f"model: {path} answers" in call(*arguments).stdout
    path.write_bytes(b"nothing")
    result = call(*arguments)
    assert (result.exit_code, "not a safetensors file" in result.stderr) == (1, True)
