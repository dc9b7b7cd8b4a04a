"""``tune``: what a program missed is measured and built into a table, and the program runs again."""

import os
import shlex
import shutil
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from diode_lut.errors import ProgramError
from diode_lut.files import append, open_to_append
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.programs.tune import Order, _kept_receipt, tune
from diode_lut.receipts import NO_ANSWER, Device, GeneratedKernel, Hit, Receipt, receipt_bytes
from diode_lut.table import read_table
from tests.commands import run, running
from tests.forks import ROOT

ASK = str(ROOT / "tests" / "programs" / "ask.py")
PROGRAM = """
import sys, torch

print("runs", file=open("runs", "a"))
torch.compile(torch.bmm)(torch.randn(2, 8, 16), torch.randn(2, 16, 8))
sys.exit(3 if len(open("runs").readlines()) == 2 else 0)
"""
"""Its second run ends with another exit code."""

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="measures")


def config(directory: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(directory / "config")}


@pytest.mark.slow
@needs_torch
def test_an_interrupted_tune_goes_on(tmp_path: Path, python: Path) -> None:
    """Interrupted while it measures, ``tune`` measures what is left, builds, and runs the program once more."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ("--", str(python), "program.py")
    with running("tune", *command, cwd=tmp_path, **config(tmp_path)) as process:
        tables = tmp_path / "config" / "diode_lut" / "tables"
        while process.poll() is None and not list(tables.glob("*.timings/*")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert err.endswith("stopped: run the same command again to go on\n")
    assert err.count("run the same command again") == 1

    done = run("tune", *command, cwd=tmp_path, **config(tmp_path))
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert "diode-lut: continues with the misses of the interrupted run" in done.stderr
    assert "diode-lut: answered: 0 of 1 question before, 1 of 1 question now\n" in done.stderr
    compare = shlex.join(("python", "-m", "diode_lut", "compare", *command))
    assert done.stderr.endswith(
        f"diode-lut: to measure what the program gains or loses, and which rows lose: {compare}\n"
    )
    assert (tmp_path / "runs").read_text() == "runs\n" * 2
    (table,) = tables.glob("*.json")
    assert len(read_table(table).entries) == 1
    assert not list((tmp_path / "config" / "diode_lut" / "interrupted").iterdir())


def test_a_command_that_is_being_tuned_is_not_tuned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second ``tune`` is refused, names the first, and leaves it what it keeps for being interrupted."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    order = Order((sys.executable, "-c", ""), dict(os.environ), None, 1, None, "", "")
    kept = _kept_receipt(order)
    kept.parent.mkdir(parents=True)
    with open_to_append(kept) as file:
        append(file, b"misses")
        with pytest.raises(ProgramError, match=f"{kept} is being written by process {os.getpid()}: wait for it"):
            tune(order, print)
    assert kept.read_bytes() == b"misses"


def test_without_a_home_there_is_no_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has no home directory is told what to set, before anything runs."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(ProgramError, match="no home directory for tables: set HOME, or XDG_CONFIG_HOME"):
        tune(Order(("nothing",), {}, None, 1, None, "", ""), print)


def goes_on(device: Device, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Go on after a run on an H200 with these questions, and return what ``tune`` says. It ends well."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory))
    order = Order(("python", "x.py"), {}, None, 1, None, "", "diode-lut tune -- python x.py")
    kept = _kept_receipt(order)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(receipt_bytes(Receipt(1, devices={Hardware("NVIDIA H200", "sm_90", 132): device})))
    lines: list[str] = []
    assert tune(order, lines.append) == 0
    assert not kept.exists()
    return lines[1:]


def test_answers_of_a_model_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was missed, the GEMMs that a model answered are counted, with the command that measures them."""
    device = Device()
    for m, epilogue in ((8, "none"), (8, "light"), (16, "none")):
        problem = Problem.of("mm", m, 8, 8, dtype="float16", layout="nn", epilogue=epilogue)
        device.hits[Hit(problem, "model", "x", "", ("aten",))] = 1
    command = "DIODE_LUT_TIERS=user:device:same_arch:chooser diode-lut tune -- python x.py"
    assert goes_on(device, tmp_path, monkeypatch) == [
        "nothing to measure: no GEMM was missed",
        f"2 GEMMs got a model's answer, and may gain from a measured one: {command}",
    ]


def test_misses_that_cannot_be_measured_are_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated kernel of which nothing was recorded leaves nothing to do, as if nothing had been missed."""
    device, problem = Device(), Problem.generated("pointwise", "flat", x=4096)
    device.generated[GeneratedKernel(problem, "", "", "", "", NO_ANSWER)] = 1
    said = "nothing to measure on NVIDIA H200 (sm_90, 132 SMs): no missed kernel could be recorded"
    assert goes_on(device, tmp_path, monkeypatch) == [said]


@pytest.mark.parametrize(("exists", "named"), [(False, "other.json"), (True, "mine.json:other.json")])
def test_a_table_that_is_not_built_yet_is_not_asked(
    exists: bool, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The program's environment names the table before others, but not while it is missing, which would be a fault."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    table = tmp_path / "mine.json"
    if exists:
        table.write_text("{}")
    program = "import os; print(os.environ['DIODE_LUT_TABLES'])"
    environment = {**os.environ, "DIODE_LUT_TABLES": "other.json"}
    assert tune(Order((sys.executable, "-c", program), environment, table, 1, None, "", ""), print) == 0
    assert named.replace("mine.json", str(table)) in capfd.readouterr().out.splitlines()


def test_a_home_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be kept, nothing runs, and the variable that names another place is told."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    with pytest.raises(ProgramError, match="interrupted: Not a directory: set XDG_CONFIG_HOME to a directory of yours"):
        tune(Order(("nothing",), {}, None, 1, None, "", ""), print)


@needs_torch
def test_a_device_that_is_not_here_is_said(tmp_path: Path) -> None:
    """What was missed on a GPU that PyTorch does not have is not measured; the exit code is that of ``collect``."""
    variables = config(tmp_path) | {"CUDA_VISIBLE_DEVICES": ""}
    done = run("tune", "--", sys.executable, ASK, "ask", cwd=tmp_path, **variables)
    assert done.returncode == 2, done.stderr
    assert "error: cuda: torch has no such device" in done.stderr
    end = "diode-lut: no table for A GPU (sm_10, 1 SMs), for the reasons above: tune again when they are gone\n"
    assert done.stderr.endswith(end)


@needs_torch
def test_a_program_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    """After ``--stop-after``, the program is interrupted, and ``tune`` goes on; that is no failure of the program."""
    program = "import time; print('begins', flush=True); time.sleep(100)"
    done = run("tune", "--stop-after", "1", "--", sys.executable, "-c", program, cwd=tmp_path, **config(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "begins\n"
    assert done.stderr.endswith("Inductor asked for no GEMM (only what torch.compile compiles is asked for)\n")


@needs_torch
@pytest.mark.parametrize(
    ("program", "options", "variables", "code", "line"),
    [
        ("exit=0", (), {}, 0, "diode-lut: nothing to measure: Inductor asked for no GEMM"),
        ("no-choice", (), {}, 0, "nothing to measure: Inductor has no choice of kernels for addmm 8x64x64 float32 nt"),
        ("exit=3", (), {}, 3, "diode-lut: the program failed, with exit code 3: nothing is measured"),
        ("exit=0", ("--table", "bad.json"), {}, 2, "bad.json: exists, and is not a table but a file of another kind"),
        ("exit=0", ("--table", "nosuch/x.json"), {}, 2, "error: nosuch: no such directory to write to"),
        ("exit=0", (), {"DIODE_LUT_POLICY": "off"}, 2, "error: DIODE_LUT_POLICY=off: no table answers; unset it"),
        (
            "exit=0",
            (),
            {"DIODE_LUT_TIERS": "model"},
            2,
            "error: DIODE_LUT_TIERS=model: the tables of user do not answer",
        ),
        ("ask", ("--table", "h200.json"), {}, 1, "h200.json: is for NVIDIA H200 (sm_90, 132 SMs), but all misses are"),
    ],
)
def test_what_cannot_be_tuned_is_said(
    program: str, options: tuple[str, ...], variables: dict[str, str], code: int, line: str, tmp_path: Path
) -> None:
    """Where there is nothing to measure, one line says why, and nothing is left behind."""
    shutil.copy(ROOT / "tables" / "nvidia-h200.json", tmp_path / "h200.json")
    (tmp_path / "bad.json").write_text("{")
    done = run("tune", *options, "--", sys.executable, ASK, program, cwd=tmp_path, **config(tmp_path), **variables)
    assert done.returncode == code, done.stderr
    assert line in done.stderr
    assert done.stderr.count("\n") == 1 + done.stderr.startswith(
        "diode-lut: runs the program, measures its misses for up to "
    )
    assert not [path for path in (tmp_path / "config").rglob("*") if path.is_file()]
