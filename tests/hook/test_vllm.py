"""A small model that vLLM's own Python code compiles, without a server; skipped where vLLM is not installed."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from diode_lut.hardware import detect_hardware
from tests.forks import ROOT, environment
from tests.interpreter.process import require_interpreter
from tests.programs.pad import ATEN, TILES

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")

CPP = {"template": "cpp_gemm", "gain_permille": 1500}
SMALL, LARGE = ({**TILES, "template": "triton_bmm", "block_m": block, "gain_permille": 1500} for block in (16, 32))

H200 = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132, "aliases": []}

WAYS = {
    "one file": {},
    "a file for each graph": {"VLLM_USE_MEGA_AOT_ARTIFACT": "0"},
    "without AOT": {"VLLM_USE_AOT_COMPILE": "0"},
    "compile_fx": {"VLLM_USE_AOT_COMPILE": "0", "VLLM_USE_STANDALONE_COMPILE": "0"},
}
"""The ways in which vLLM compiles and keeps graphs, the first of which is the default."""


class Server:
    """Processes on one device that compile with vLLM, in one directory for its cache."""

    def __init__(self, device: str, directory: Path, **variables: str) -> None:
        self._device, self._directory, self._variables = device, directory, variables
        self._hardware = H200 if device == "cuda" else {**detect_hardware("cpu")._asdict(), "aliases": []}

    def table(self, name: str, *rows: tuple[int, int, dict[str, Any]]) -> Path:
        """A table with these rows: the smallest and the largest M, and the config."""
        entries = [{"op": "bmm", "m": [low, high], "configs": [config]} for low, high, config in rows]
        path = self._directory / name
        header = {"schema_version": 2, "hardware": self._hardware, "provenance": {}}
        path.write_text(json.dumps({**header, "entries": entries}), encoding="utf-8")
        return path

    def serve(self, table: Path, ranges: str = "[[], [63]]") -> dict[str, Any]:
        """What tests/programs/serve_with_vllm.py finds out, and what the hook ``said``."""
        program = ROOT / "tests" / "programs" / "serve_with_vllm.py"
        command = [sys.executable, program, self._device, self._directory, table, ranges]
        done = subprocess.run(command, env=environment() | self._variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if "diode_lut" in line]
        return {**json.loads(done.stdout.splitlines()[-1]), "said": said}


@pytest.mark.parametrize("ranges", ["[[], [63]]", "[[], []]", "[[16], []]"], ids=["two ranges", "one", "and a size"])
def test_each_number_of_tokens_runs_its_kernel(ranges: str, tmp_path: Path) -> None:
    """For one range or several, each number of tokens runs the Triton kernel of its row, or the library."""
    require_interpreter()
    server = Server("cuda", tmp_path)
    found = server.serve(server.table("table.json", (1, 9, SMALL), (10, 63, LARGE), (64, 8192, ATEN)), ranges)
    assert found["armed"]
    assert found["error"] < 1e-5
    assert found["ran"] == {"16": [[32, 32], 0], "100": [[], 2], "5": [[16, 16], 0], "1": [[16, 16], 0]}


@pytest.mark.parametrize("way", WAYS)
def test_vllms_cache_has_the_kernels_of_the_tables(way: str, tmp_path: Path) -> None:
    """A process with the same tables loads all graphs from vLLM's cache, one with other tables none."""
    server = Server("cpu", tmp_path, **WAYS[way])
    one = server.table("one.json", (1, 63, CPP), (64, 8192, ATEN))
    other = server.table("other.json", (1, 63, ATEN), (64, 8192, CPP))
    first, second, third = (server.serve(table) for table in (one, one, other))
    assert [found["compiles"] for found in (first, second, third)] == [4, 0, 4]
    assert max(found["error"] for found in (first, second, third)) < 1e-5
    for found, small, large in ((first, 1, 2), (second, 1, 2), (third, 2, 1)):  # one of the two is the library's anyway
        assert found["ran"] == {"16": [[], small], "100": [[], large], "5": [[], small], "1": [[], small]}


def test_nothing_is_said_where_no_row_matches(tmp_path: Path) -> None:
    """The library runs as without diode_lut, and nothing is printed."""
    server = Server("cpu", tmp_path)
    found = server.serve(server.table("none.json", (100_000, 100_000, CPP)))
    assert (found["armed"], found["said"], found["compiles"]) == (True, [], 4)
    assert {calls for _, calls in found["ran"].values()} == {2}
