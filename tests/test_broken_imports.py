"""Where torch or Triton is installed, but cannot be imported, commands say so in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import Forks

ROOT = Path(__file__).parent.parent
FAULTS = ['OSError("no libcudart")', 'ImportError("undefined\\nsymbol")', 'RuntimeError("numpy does not fit")']


def run(broken: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(broken), str(ROOT), os.environ["PYTHONPATH"]])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=broken, env=environment, capture_output=True, text=True, check=False)


def run_after_torch(forks: Forks, broken: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same for what imports torch, which is not broken."""
    path = os.pathsep.join([str(broken), str(ROOT), os.environ["PYTHONPATH"]])
    return forks.run(*arguments, cwd=broken, PYTHONPATH=path)


def break_module(name: str, fault: str, directory: Path) -> None:
    (directory / name).mkdir(parents=True)
    (directory / name / "__init__.py").write_text(f"raise {fault}\n")


def test_a_broken_torch_is_one_line(tmp_path: Path) -> None:
    """What needs torch names the fault, whatever it is; diode_lut itself and what needs no torch work."""
    broken = [tmp_path / str(number) for number, _ in enumerate(FAULTS)]
    for fault, directory in zip(FAULTS, broken, strict=True):
        break_module("torch", fault, directory)
    explained = [(directory, "explain mm 8 8 8") for directory in broken]
    others = [(broken[0], line) for line in ("collect --random 1 -o x.msgpack", "distill d.msgpack -o x.safetensors")]
    for directory, line in (*explained, *others):
        result = run(directory, "-m", "diode_lut", *line.split())
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
        assert "cannot be imported" in result.stderr
    doctor = run(broken[0], "-m", "diode_lut", "doctor")
    assert (doctor.returncode, doctor.stderr) == (1, "")
    assert "wrong  torch: cannot be imported" in doctor.stdout
    assert run(broken[0], "-c", "import diode_lut").returncode == 0
    assert run(broken[0], "-m", "diode_lut", "tables").returncode == 0


@pytest.mark.parametrize(
    ("fault", "lines"),
    [
        pytest.param('OSError("no libcudart")', ["doctor"], marks=pytest.mark.slow),
        # collect goes on: Inductor does without Triton
        pytest.param('ImportError("undefined\\nsymbol")', ["check"], marks=pytest.mark.slow),
        ('RuntimeError("numpy does not fit")', ["check", "collect"]),
        ('AttributeError("no language")', ["doctor"]),
    ],
)
def test_a_broken_triton_is_one_line(fault: str, lines: list[str], after_torch: Forks, tmp_path: Path) -> None:
    """``collect`` and ``check --compile`` blame Triton, not themselves; for ``doctor`` it is a finding among others."""
    break_module("triton", fault, tmp_path)
    problem = {"op": "bmm", "B": 2, "M": 8, "N": 8, "K": 8, "dtype": "float32", "layout": "nn"}
    (tmp_path / "p.json").write_text(json.dumps([problem]))
    arguments = {
        "check": ("--compile", str(ROOT / "tables" / "nvidia-h200.json")),
        "collect": ("--problems", "p.json", "--out", "x.msgpack"),
        "doctor": (),
    }
    for line in lines:
        result = run_after_torch(after_torch, tmp_path, "-m", "diode_lut", line, *arguments[line])
        if line == "doctor":
            assert (result.returncode, result.stderr) == (1, "")
            assert "wrong  triton: cannot be imported" in result.stdout
            assert "answers" in result.stdout
        else:
            assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
            assert "cannot be imported" in result.stderr
            assert "install" in result.stderr


def hide(directory: Path, *names: str) -> None:
    """Makes these packages missing in processes that have the directory on their path."""
    (directory / "sitecustomize.py").write_text(
        f"""
import sys

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {names} else found(name, package)
sys.meta_path.insert(0, Hidden)
"""
    )


def test_adopt_names_all_that_is_missing(tmp_path: Path) -> None:
    """One message has every package that is needed or useful, and the command that installs them."""
    hide(tmp_path, "torch", "triton", "vl_convert")
    result = run(tmp_path, "-m", "diode_lut", "adopt", "--budget", "1")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "adopt needs torch and triton; without vl_convert there is no report page" in result.stderr
    assert f"pip install '{ROOT}[torch,report]'" in result.stderr


def test_adopt_needs_no_matplotlib(after_torch: Forks, tmp_path: Path) -> None:
    """What draws no picture, as on a machine without the extra ``report``, does not import it."""
    hide(tmp_path, "matplotlib")
    modules = "diode_lut.contribute.adopt, diode_lut.evaluate, diode_lut.distill"
    result = run_after_torch(after_torch, tmp_path, "-c", f"import {modules}")
    assert result.returncode == 0, result.stderr


def test_a_bare_clone_says_what_to_install(tmp_path: Path) -> None:
    """Without the packages that every command needs, there is one line and no traceback."""
    hide(tmp_path, "click")
    result = run(tmp_path, "-m", "diode_lut", "tables")
    assert (result.returncode, result.stderr) == (1, f"error: click is not installed: pip install {ROOT}\n")


def test_a_command_says_what_to_install(tmp_path: Path) -> None:
    """A package that is only needed once a command runs is named in the same way."""
    hide(tmp_path, "msgspec")
    result = run(tmp_path, "-m", "diode_lut", "run", "--", sys.executable, "-c", "")
    assert (result.returncode, result.stderr) == (1, f"error: msgspec is not installed: pip install {ROOT}\n")
