"""How often commands open the files that they read."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from diode_lut.cli import COMMANDS, main
from diode_lut.cli.arguments import FILE, TABLE
from diode_lut.dataset import Header, Record, Timing, write_stream
from diode_lut.formats.content import exact_table
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import write_table
from diode_lut.templates.config import ATEN, Config

ROOT = Path(__file__).parent.parent
H200 = Hardware("NVIDIA H200", "sm_90", 132)
PROBLEM = Problem.of("mm", 256, 512, 96, dtype="float16", layout="nn")
FAST = Config.parse("triton_mm 64x64x32 g8 s3 w4")
MODEL = "nvidia-h200.mlp.safetensors"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three tables, a dataset, a model, a file of problems and a receipt."""
    for name, config in {"a.json": ATEN, "b.json": FAST, "c.json": ATEN}.items():
        write_table(exact_table(H200, {PROBLEM: [config]}), tmp_path / name)
    record = Record(PROBLEM, (Timing(ATEN, 2000.0), Timing(FAST, 1000.0)), "final")
    write_stream(tmp_path / "d.msgpack", Header(H200, benchmarker="a test"), [record])
    (tmp_path / MODEL).write_bytes((ROOT / "tables" / MODEL).read_bytes())
    (tmp_path / "p.json").write_text(json.dumps([{"op": "mm", "M": 64, "N": 64, "K": 64, "dtype": "float16"}]))
    hardware = {"name": H200.name, "arch": H200.arch, "sm_count": H200.sm_count}
    asked = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16, "m": 256, "n": 512, "k": 96, "calls": 1}
    device = {"hardware": hardware, "misses": [asked]}
    (tmp_path / "r.json").write_text(json.dumps({"schema_version": 1, "processes": 1, "devices": [device]}))
    return tmp_path


def require_once(directory: Path, commands: list[str], python: str | Path = sys.executable) -> None:
    """A command opens a table or a model once, and a dataset twice: for its header, and for its records."""
    line = [python, "-m", "tests.programs.count_opens", str(directory), *commands]
    completed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    opened = json.loads(completed.stderr.splitlines()[-1])
    assert opened.keys() == {*commands}
    for command, counts in opened.items():
        assert counts, f"{command}: {completed.stderr}"
        for name, count in counts.items():
            assert count == (2 if name == "d.msgpack" and not command.startswith("show") else 1), (command, name)


WITH_TORCH = [
    "collect --device cpu --problems p.json --table a.json --out new.msgpack",
    "distill d.msgpack -o new.safetensors",
    "verify a.json --device cpu",
]
"""``collect`` and ``verify`` read all files, then say that the table is for another device."""
READING = [
    "build d.msgpack -o new.json --previous a.json",
    f"build d.msgpack -o new.json --prune-with {MODEL}",
    "check --compile a.json",
    "check --contribution a.json",
    "check a.json",
    f"check {MODEL}",
    "diff a.json b.json --dataset d.msgpack --format markdown",
    "diff a.json b.json",
    f"evaluate --model {MODEL} --all d.msgpack",
    "evaluate a.json d.msgpack --format json",
    "explain mm 256 512 96 --hardware NVIDIA_H200 --table a.json",
    f"explain mm 256 512 96 --hardware NVIDIA_H200 --table {MODEL}",
    "export inductor-table a.json -o new.json",
    "export timings d.msgpack --problems p.json -o new.json",
    "export timings d.msgpack -o new.json",
    "fmt a.json",
    "import inductor-table a.json -o new.json --hardware NVIDIA_H200,sm_90,132",
    "merge a.json b.json c.json -o new.json",
    "pack d.msgpack -o new.msgpack.zst",
    "query a.json hardware",
    "receipt r.json",
    "report a.json d.msgpack --beside b.json --receipt r.json -o new.html",
    "report a.json d.msgpack -o new.html",
    "set a.json mm --m 99 --config aten --note why",
    "show a.json",
    "show d.msgpack",
    f"show {MODEL}",
    "unset a.json mm --m 256 --n 512 --k 96 --dtype float16 --layout nn --align 16",
]


def test_files_are_read_once(directory: Path) -> None:
    """Of all commands that need no torch."""
    require_once(directory, READING)


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_files_are_read_once_with_torch(directory: Path, python: Path) -> None:
    """Of all commands that measure or train."""
    require_once(directory, WITH_TORCH, python)


def test_every_command_is_tried() -> None:
    """No command with an argument or option for a file to read is left out, but ``adopt``, which reads as collect."""
    tried = {command.split()[0] for command in (*READING, *WITH_TORCH)}
    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in COMMANDS}
    reading = {
        name
        for name, command in commands.items()
        if command and any(each.type in (TABLE, FILE) for each in command.params)
    }
    assert reading == tried | {"adopt"}
