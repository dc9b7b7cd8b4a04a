"""How often commands open the files that they read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diode_lut.dataset import Header, Record, Timing
from diode_lut.dataset.writer import write_stream
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.exchange.content import exact_table
from diode_lut.kernels.config import ATEN, Config
from diode_lut.table import write_table

ROOT = Path(__file__).parent.parent
H200 = Hardware("NVIDIA H200", "sm_90", 132)
PROBLEM = Problem.of("mm", 256, 512, 96, dtype="float16", layout="nn")
FAST = Config.parse("triton_mm 64x64x32 g8 s3 w4")
MODEL = "nvidia-h200.mlp.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three tables, a dataset and a model."""
    for name, config in {"a.json": ATEN, "b.json": FAST, "c.json": ATEN}.items():
        write_table(exact_table(H200, {PROBLEM: [config]}), tmp_path / name)
    record = Record(PROBLEM, (Timing(ATEN, 2000.0), Timing(FAST, 1000.0)), "final")
    write_stream(tmp_path / "d.msgpack", Header(H200, benchmarker="a test"), [record])
    (tmp_path / MODEL).write_bytes((ROOT / "tables" / MODEL).read_bytes())
    return tmp_path


def opens(directory: Path, command: str) -> dict[str, int]:
    """How often the command opened each file that was there before."""
    before = {path.name for path in directory.iterdir()}
    arguments = [
        str(directory / word) if word in before or word.startswith("new.") else word for word in command.split()
    ]
    line = [sys.executable, "-m", "tests.programs.count_opens", str(directory), *arguments]
    completed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    counts = json.loads(completed.stderr.splitlines()[-1])
    assert counts, completed.stderr
    return {name: count for name, count in counts.items() if name in before}


@pytest.mark.parametrize(
    "command",
    [
        "build d.msgpack -o new.json --previous a.json",
        f"build d.msgpack -o new.json --prune-with {MODEL}",
        "check a.json",
        f"check {MODEL}",
        "query a.json hardware",
        "diff a.json b.json",
        "diff a.json b.json --dataset d.msgpack --format markdown",
        "evaluate a.json d.msgpack --json new.json",
        f"evaluate --model {MODEL} --all d.msgpack",
        "explain mm 256 512 96 --hardware NVIDIA_H200 --table a.json",
        f"explain mm 256 512 96 --hardware NVIDIA_H200 --table {MODEL}",
        "export inductor-table a.json -o new.json",
        "export t4 d.msgpack -o new.json",
        "import inductor-table a.json -o new.json --hardware NVIDIA_H200,sm_90,132",
        "merge a.json b.json c.json -o new.json",
        "pack d.msgpack -o new.msgpack.zst",
        "report a.json d.msgpack -o new.html",
        "show a.json",
        f"show {MODEL}",
    ],
)
def test_files_are_read_once(directory: Path, command: str) -> None:
    """A command opens a table or a model once, and a dataset twice: for its header, and for its records."""
    for name, count in opens(directory, command).items():
        assert count == (2 if name == "d.msgpack" else 1), name
