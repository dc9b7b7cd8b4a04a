"""Inductor's caches on disk, across processes: an edited row is never answered from them, an unedited one is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diode_lut

PROGRAM = Path(__file__).parents[1] / "programs" / "compile_once.py"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROWS = {
    "cpu": ({"template": "aten"}, {"template": "cpp_gemm"}),
    "cuda": (
        {"template": "aten"},
        {
            "template": "triton_bmm",
            "block_m": 32,
            "block_n": 32,
            "block_k": 32,
            "group_m": 8,
            "num_stages": 2,
            "num_warps": 4,
        },
    ),
}


def hardware(**changes: Any) -> dict[str, Any]:
    found = diode_lut.get_detected_hardware()
    return {"name": found.name, "arch": found.arch, "sm_count": found.sm_count, **changes}


def run(device: str, directory: Path, **environment: str) -> dict[str, Any]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(directory / "cache"), **environment}
    environment["PYTHONPATH"] = os.pathsep.join([str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(PROGRAM), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["error"] < 1e-3
    return report


def from_cache(report: dict[str, Any]) -> bool:
    """Whether nothing was compiled: AOTAutograd's cache answered, or at least the one for graphs."""
    return report["aot"][0] == 1 or report["fx"][0] == 1


@pytest.mark.parametrize("device", DEVICES)
def test_edited_row_is_compiled_anew(device: str, tmp_path: Path, table_file: Callable[..., Path]) -> None:
    """A new process with a warm cache gets the new row's kernel after an edit, and its old kernel's cache before."""
    before, after = ROWS[device]
    table = table_file("own.json", {"op": "bmm", "configs": [before]}, hardware=hardware())
    other = table_file("other.json", {"op": "bmm", "configs": [before]}, hardware=hardware(arch="sm_10"))
    tables = os.pathsep.join(map(str, (table, other)))
    first = run(device, tmp_path, DIODE_LUT_TABLES=tables)
    assert (from_cache(first), first["hits"]) == (False, 1)
    assert from_cache(run(device, tmp_path, DIODE_LUT_TABLES=tables))

    table_file("other.json", {"op": "bmm", "configs": [after]}, hardware=hardware(arch="sm_10"))
    assert from_cache(run(device, tmp_path, DIODE_LUT_TABLES=tables))

    table_file("own.json", {"op": "bmm", "configs": [after]}, hardware=hardware())
    edited = run(device, tmp_path, DIODE_LUT_TABLES=tables)
    assert (from_cache(edited), edited["hits"]) == (False, 1)
    assert edited["kernels"] != first["kernels"]

    switched_off = run(device, tmp_path, DIODE_LUT_TABLES=tables, DIODE_LUT_POLICY="off")
    assert (from_cache(switched_off), switched_off["hits"]) == (False, 0)
