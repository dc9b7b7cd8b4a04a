"""The findings of doctor."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

import diode_lut
from diode_lut.doctor import speed
from diode_lut.hook import quack
from diode_lut.model.weights import write_model
from tests.commands import call
from tests.fake_cuda import fake_cuda
from tests.model.small import model

ROOT = Path(__file__).parent.parent
ROW = {"configs": [{"template": "aten"}]}
BAD = {"configs": [{"template": "nothing"}]}
HEADINGS = ("this process:", "a program with this environment:")

Write = Callable[..., Path]


@pytest.fixture
def cpu_table(table_file: Write, monkeypatch: pytest.MonkeyPatch, no_tables: None) -> Write:
    """Writes tables for this machine's CPU; the machine has no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    found = diode_lut.get_detected_hardware()
    hardware = {"name": found.name, "arch": found.arch, "sm_count": found.sm_count}
    return lambda name, *rows: table_file(name, *rows, hardware=hardware)


def findings(tables: list[Path | str]) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and the findings by state."""
    with diode_lut.config.patch(tables=tables):
        result = call("doctor")
    found: dict[str, list[str]] = {"ok": [], "note": [], "wrong": [], "to": []}
    for line in result.output.splitlines():
        if line in HEADINGS:
            continue
        state, text = line.split(maxsplit=1)
        found[state].append(text)
    return result.exit_code, found


def test_all_is_well(cpu_table: Write) -> None:
    """With a table for this machine nothing is wrong; versions, hook, caches, device and table are listed."""
    path = cpu_table("mine.json", ROW)
    code, found = findings([path])
    assert (code, found["wrong"], found["to"]) == (0, [], [])
    assert f"torch: {torch.__version__}" in found["ok"]
    assert "hook: is installed, and first in line" in found["ok"]
    assert "caches: the keys of Inductor's caches change with the answers, and only then" in found["ok"]
    assert f"device: {diode_lut.get_detected_hardware()}" in found["ok"]
    assert f"answers: user: {path}, 1 row for {diode_lut.get_detected_hardware().name}" in found["ok"]


def test_findings_as_json(cpu_table: Write) -> None:
    """``--format json`` has the findings and the exit code of the text."""
    path = str(cpu_table("mine.json", ROW).with_name("no.json"))
    code, found = findings([path])
    with diode_lut.config.patch(tables=[path]):
        result = call("doctor", "--format", "json")
    listed = json.loads(result.stdout)
    assert result.exit_code == code == 1
    assert [f"{each['topic']}: {each['text']}" for each in listed if each["state"] == "wrong"] == found["wrong"]
    assert [f"do: {each['remedy']}" for each in listed if each["remedy"]] == found["to"]
    assert {each["subject"] for each in listed} == {"this process", "a program with this environment"}


def test_no_table_for_this_machine(cpu_table: Write) -> None:
    """Without a table for this machine, doctor says why each tier is empty, and how to make a table."""
    code, found = findings([])
    (text,) = found["wrong"]
    assert code == 1
    assert text.startswith(
        "answers: no table and no model is for this machine: user: no table of the user's own; "
        "device: no shipped table is"
    )
    (remedy,) = found["to"]
    assert remedy.startswith("do: build a table of your program's GEMMs: python -m diode_lut tune -- PROGRAM; or")


def test_tables_of_no_use(cpu_table: Write, table_file: Write) -> None:
    """The user's tables that are missing, for other hardware or with bad rows are wrong, with a remedy each."""
    partly, other = cpu_table("partly.json", ROW, BAD), table_file("h200.json", ROW)
    code, found = findings([partly, "missing.json", other])
    assert code == 1
    assert [text.partition(", and no table")[0] for text in found["wrong"]] == [
        f"tables: {partly}: 1 of its rows cannot be used",
        "tables: missing.json: no such file",
        f"tables: {other} is for NVIDIA H200 (sm_90, 132 SMs), which this machine does not have: PyTorch sees no GPU",
    ]
    assert found["to"][:2] == [f"do: python -m diode_lut check {partly}", "do: correct DIODE_LUT_TABLES"]


@pytest.mark.parametrize("name", ["h200.json", "h200.mlp.safetensors"])
def test_a_damaged_shipped_file(cpu_table: Write, shipped: Path, name: str) -> None:
    """A shipped file that is cut off is wrong, with a remedy, even if other tables answer."""
    (shipped / name).write_bytes((ROOT / "tables" / f"nvidia-{name}").read_bytes()[:-1000])
    mine = cpu_table("mine.json", ROW)
    code, found = findings([mine])
    (text,) = found["wrong"]
    assert (code, text.startswith(f"tables: {shipped / name}:")) == (1, True)
    assert found["to"] == ["do: install diode_lut again to restore it, or remove it"]


def test_a_bad_model_of_ones_own(cpu_table: Write, tmp_path: Path) -> None:
    """A damaged model of the user's is wrong; the remedy is a command that says what is wrong with it."""
    path = tmp_path / "mine.mlp.safetensors"
    write_model(model(), path)
    good = path.read_bytes()
    path.write_bytes(good[:-4])
    code, found = findings([cpu_table("mine.json", ROW), path])
    (text,) = found["wrong"]
    assert (code, found["to"]) == (1, [f"do: python -m diode_lut check {path}"])
    assert call("check", path).stdout == text.removeprefix("tables: ") + "\n"
    path.write_bytes(good)
    assert call("check", path).output == "1 file, 0 faults\n"
    assert findings([cpu_table("mine.json", ROW), path])[1]["wrong"] == []


def test_a_model_without_its_libraries(cpu_table: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a model's libraries cannot be imported, the remedy is to install them."""
    path = tmp_path / "mine.mlp.safetensors"
    write_model(model(), path)
    monkeypatch.delitem(sys.modules, "diode_lut.model.weights")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    code, found = findings([cpu_table("mine.json", ROW), path])
    assert (code, len(found["wrong"])) == (1, 1)
    assert found["to"] == ["do: pip install --force-reinstall numpy safetensors"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are others on Windows")
def test_a_shipped_table_that_others_can_write(cpu_table: Write, shipped: Path) -> None:
    """A shipped table that others can write is left out, which is wrong, with a remedy."""
    shipped.chmod(0o755)
    path = cpu_table(f"{shipped.name}/cpu.json", ROW)
    path.chmod(0o666)
    code, found = findings([cpu_table("mine.json", ROW)])
    assert (code, found["wrong"]) == (1, [f"tables: left out: {path} can be written by others (chmod go-w)"])
    assert found["to"] == ["do: correct its owner and permissions, or name it in DIODE_LUT_TABLES"]


def test_quack_without_its_libraries(cpu_table: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """QuACK without CUTLASS's library for kernels is wrong. Without QuACK, nothing is said."""
    path = cpu_table("mine.json", ROW)
    assert not any(text.startswith("quack") for texts in findings([path])[1].values() for text in texts)
    monkeypatch.setattr(quack, "versions", lambda: ("0.6.5", "4.8.1", "0.1.15"))
    code, found = findings([path])
    assert (code, found["wrong"]) == (1, ["quack: its kernels need libcute_dsl_runtime.so"])
    assert found["to"] == ["do: pip install 'quack-kernels[cu13]'"]


def test_settings_and_where_they_come_from(cpu_table: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that differs from its default is a note; a variable that has no effect is wrong."""
    monkeypatch.setenv("DIODE_LUT_TOP_K", "3")
    monkeypatch.setenv("DIODE_LUT_POLICY", "fast")
    monkeypatch.setenv("DIODE_LUT_TABEL", "mine.json")
    monkeypatch.setenv("DIODE_LUT_RECEIPT", "nosuch/receipt.json")
    code, found = findings([cpu_table("mine.json", ROW)])
    assert code == 1
    assert "settings: top_k=3, set by DIODE_LUT_TOP_K (default: 1)" in found["note"]
    misspelt, refused, unwritable = found["wrong"]
    assert unwritable == f"settings: DIODE_LUT_RECEIPT={Path.cwd()}/nosuch/receipt.json: No such file or directory"
    assert misspelt == "settings: DIODE_LUT_TABEL: there is no such setting (did you mean DIODE_LUT_TABLES?)"
    assert refused == "settings: DIODE_LUT_POLICY: 'fast' is not allowed (allowed: pick, verify, off)"


def test_costs_of_speed_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 without TF32, and attention kernels that are switched off, are notes where there is a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        assert [*speed()] == []
        matmul.fp32_precision = "ieee"
        torch.backends.cuda.enable_flash_sdp(False)
        found = [*speed()]
    finally:
        matmul.fp32_precision = before
        torch.backends.cuda.enable_flash_sdp(True)
    assert [(finding.topic, finding.state) for finding in found] == [("speed", "note")] * 2
    assert "torch.set_float32_matmul_precision" in found[0].text
    assert "enable_flash_sdp(False)" in found[1].text
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [*speed()] == []


def test_another_handler_in_our_place(cpu_table: Write) -> None:
    """A choices handler that another library set after the hook is named."""
    ours = V.choices
    V.set_choices_handler(InductorChoices())
    try:
        code, found = findings([cpu_table("mine.json", ROW)])
    finally:
        V.set_choices_handler(ours)
    assert (code, found["wrong"]) == (1, ["hook: this thread gets choices from InductorChoices"])


def test_hook_switched_off(cpu_table: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook is wrong if DIODE_LUT_AUTOREGISTER=0 switches it off."""
    monkeypatch.setenv("DIODE_LUT_AUTOREGISTER", "0")
    code, found = findings([cpu_table("mine.json", ROW)])
    assert (code, found["wrong"]) == (1, ["hook: is switched off by DIODE_LUT_AUTOREGISTER"])


def test_on_an_h200() -> None:
    """On an H200 the shipped table and model answer; that nothing answers for its CPU is not wrong."""
    with fake_cuda():
        code, found = findings([])
    assert code == 0
    assert "device: NVIDIA H200 (sm_90, 132 SMs)" in found["ok"]
    assert any(text.startswith("answers: device: tables/nvidia-h200.json, ") for text in found["ok"])
    assert "answers: model: tables/nvidia-h200.mlp.safetensors, a model" in found["ok"]


def test_another_devices_model() -> None:
    """A user's model for another device is ok; the finding names the hardware that it was trained for."""
    code, found = findings(["nvidia-h200.mlp"])
    assert code == 0
    (answers,) = (text for text in found["ok"] if text.startswith("answers: model: "))
    assert answers.endswith(", a model, trained for NVIDIA H200 (sm_90, 132 SMs)")


def test_without_torch(tmp_path: Path) -> None:
    """Without torch, doctor says so and what works without it, and exits with 1."""
    program = "import sys; sys.modules['torch'] = None; from diode_lut.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    _, wrong, remedy, *_ = done.stdout.splitlines()
    assert wrong.startswith("wrong  torch: cannot be imported (")
    assert "tables can be read, checked, edited and built without" in remedy


def test_process_and_environment_are_apart(cpu_table: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has set is said of it; the variables are said of a program that is started with them."""
    monkeypatch.setenv("DIODE_LUT_TOP_K", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with diode_lut.config.patch(tables=(cpu_table("mine.json", ROW),), top_k=1):
        here, there = call("doctor").output.split(HEADINGS[1])
    assert here.startswith(HEADINGS[0])
    assert "note   settings: top_k=1, set in this process" in here
    assert "note   settings: top_k=3, set by DIODE_LUT_TOP_K (default: 1)" in there
    assert "ok     import: a program is served as soon as it imports diode_lut" in there
    assert "note   threads: OMP_NUM_THREADS=1" in there


@pytest.mark.parametrize(
    ("value", "installed", "line"),
    [
        ("0", True, "ok     import: a program is served as soon as it imports diode_lut, under `run`"),
        ("off", True, "ok     import: a program is served as soon as it imports diode_lut, under `run`"),
        ("1", True, "ok     import: DIODE_LUT=1: programs of this Python are served without an import"),
        ("1", False, "wrong  import: DIODE_LUT=1 has no effect, because this Python has no diode_lut.pth"),
    ],
)
def test_the_variable_that_arms_programs(
    value: str, installed: bool, line: str, cpu_table: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an effect only where the installation has put its file, and doctor knows whether it has."""
    monkeypatch.setenv("DIODE_LUT", value)
    others = [each for each in sys.path if not Path(each, "diode_lut.pth").exists()]
    monkeypatch.setattr(sys, "path", [*others, str(tmp_path)])
    if installed:
        (tmp_path / "diode_lut.pth").touch()
    with diode_lut.config.patch(tables=(cpu_table("mine.json", ROW),)):
        result = call("doctor")
    assert line in result.output
    assert result.exit_code == (0 if line.startswith("ok") else 1)


def test_a_function_is_checked(cpu_table: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the user's is listed among what answers; one that fails is wrong, with the reason."""
    (tmp_path / "doctored_rules.py").write_text("def rule(*_):\n    return None\ndef bad(_):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with diode_lut.config.patch(tables=(cpu_table("mine.json", ROW),)):
        good, bad = (call("doctor", "--chooser", f"doctored_rules:{name}") for name in ("rule", "bad"))
    assert "ok     answers: chooser: doctored_rules:rule, a chooser" in good.output
    assert (good.exit_code, bad.exit_code) == (0, 1)
    assert "wrong  answers: chooser doctored_rules:bad: raised TypeError" in bad.output


def test_tables_for_other_devices_are_one_note(cpu_table: Write, table_file: Write) -> None:
    """Tables that nobody named, for devices that are not here, are listed in one note."""
    for name in ("one", "two"):
        table_file(f"tables/{name}.json", ROW)
    _, found = findings([])
    hardware = "NVIDIA H200 (sm_90, 132 SMs)"
    expected = f"tables: for devices that this machine does not have: {hardware}: one.json, two.json"
    assert [each for each in found["note"] if hardware in each] == [expected]
