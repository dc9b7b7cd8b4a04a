"""The show command: tables and models as text."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from diode_lut.problem import OPS
from tests.commands import call

MM = {
    "template": "triton_mm",
    "block_m": 64,
    "block_n": 128,
    "block_k": 32,
    "group_m": 8,
    "num_stages": 3,
    "num_warps": 4,
}


def test_shows_rows_and_kernels(table_file: Callable[..., Path]) -> None:
    """A row is its key, then a line for each kernel, then what is known about it; invalid rows are named."""
    path = table_file(
        "t.json",
        {"op": "mm", "m": [1, 8], "configs": [{**MM, "gain_permille": 1063}, {"template": "aten"}], "note": "why"},
        {"op": "mn", "configs": []},
        {"configs": [{"template": "aten"}], "problems": 7},
        provenance={"torch": "2.11.0", "datasets": ["a", "b"]},
    )
    result = call("show", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "NVIDIA H200 (sm_90, 132 SMs)",
        "also called h200-141gb",
        "torch: 2.11.0",
        "datasets: a, b",
        "mm m 1-8",
        "  triton_mm 64x128x32 g8 s3 w4 (1.063)",
        "  aten",
        "  note: why",
        "everything",
        "  aten",
        "  measured problems: 7",
        'invalid: entries[1].op: "mn" is not allowed (allowed: ' + ", ".join(OPS) + ")",
    ]


def test_shows_the_header_of_a_model(tmp_path: Path) -> None:
    """Metadata come first, then the tensors."""
    path = tmp_path / "x.safetensors"
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, "__metadata__": {"b": "2", "a": "1"}}
    )
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(12))
    assert call("show", path).stdout == "a: 1\nb: 2\nw F32 [3]\n"


def test_shows_the_document_of_a_model_by_field() -> None:
    """Candidates have a line each, so that a diff shows which are new, and regressions only a digest."""
    lines = call("show", "nvidia-h100.mlp").stdout.splitlines()
    assert sum(line.startswith('candidates: {"template":') for line in lines) > 100
    (kernels,) = [line for line in lines if line.startswith("kernels: ")]
    assert re.fullmatch(r'kernels: "8 regressions, sha256:[0-9a-f]{64}"', kernels)


def test_another_file_is_an_error(tmp_path: Path) -> None:
    """What is neither is said to be neither, however it begins."""
    path = tmp_path / "x"
    for data in (b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x08" + bytes(7) + b'{"w": 1}'):
        path.write_bytes(data)
        result = call("show", path)
        assert (result.exit_code, "neither a table, a model nor a dataset" in result.stderr) == (1, True)
