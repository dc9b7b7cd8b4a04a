"""Where torch or Triton is installed, but cannot be imported, commands say so in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAULTS = ['OSError("no libcudart")', 'ImportError("undefined\\nsymbol")', 'RuntimeError("numpy does not fit")']


def run(broken: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(broken), str(ROOT), os.environ["PYTHONPATH"]])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=broken, env=environment, capture_output=True, text=True, check=False)


def break_module(name: str, fault: str, directory: Path) -> None:
    (directory / name).mkdir()
    (directory / name / "__init__.py").write_text(f"raise {fault}\n")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_torch_is_one_line(fault: str, tmp_path: Path) -> None:
    """What needs torch names the fault; diode_lut itself and what needs no torch work."""
    break_module("torch", fault, tmp_path)
    for line in ("explain mm 8 8 8", "collect --random 1 --out x.msgpack", "distill d.msgpack -o x.safetensors"):
        result = run(tmp_path, "-m", "diode_lut", *line.split())
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
        assert "cannot be imported" in result.stderr
    doctor = run(tmp_path, "-m", "diode_lut", "doctor")
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert "wrong  torch: cannot be imported" in doctor.stdout
    assert run(tmp_path, "-c", "import diode_lut").returncode == 0
    assert run(tmp_path, "-m", "diode_lut", "tables").returncode == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_doctor_finds_a_broken_triton(fault: str, tmp_path: Path) -> None:
    """It is one finding among the others."""
    break_module("triton", fault, tmp_path)
    doctor = run(tmp_path, "-m", "diode_lut", "doctor")
    assert (doctor.returncode, "Traceback" in doctor.stderr) == (1, False)
    assert "wrong  triton: cannot be imported" in doctor.stdout
    assert "answers" in doctor.stdout


@pytest.mark.parametrize("fault", [*FAULTS[1:], 'AttributeError("no language")'])
def test_what_needs_triton_says_so_in_one_line(fault: str, tmp_path: Path) -> None:
    """``collect`` and ``check --compile`` blame Triton, not themselves and not a table; so does ``doctor``."""
    (tmp_path / "triton.py").write_text(f"raise {fault}\n")
    problem = {"op": "bmm", "B": 2, "M": 8, "N": 8, "K": 8, "dtype": "float32", "layout": "nn"}
    (tmp_path / "p.json").write_text(json.dumps([problem]))
    table = ROOT / "tables" / "nvidia-h200.json"
    lines = [["check", "--compile", str(table)]]
    if "ImportError" not in fault:  # with that, Inductor does without Triton
        lines.append(["collect", "--problems", "p.json", "--out", "x.msgpack"])
    for line in lines:
        result = run(tmp_path, "-m", "diode_lut", *line)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
        assert "cannot be imported" in result.stderr
        assert "install" in result.stderr
    doctor = run(tmp_path, "-m", "diode_lut", "doctor")
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert "wrong  triton: cannot be imported" in doctor.stdout
