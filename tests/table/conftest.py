"""Small tables in files, and what hypothesis draws."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.strategies import STRATEGIES, Strategies


@pytest.fixture(scope="session")
def draw_from() -> Strategies:
    return STRATEGIES


GOOD = """{
"$schema": "../schemas/table.v2.schema.json",
"schema_version": 2,
"hardware": {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132, "aliases": []},
"provenance": {"torch": "2.11.0", "datasets": ["sha256:00"], "diode_lut": "0.1.0"},
"entries": [
{"op": "addmm", "dtype": "bfloat16", "layout": "nt", "align": 16, "m": [513, 1024], "n": [3073, 4096], "k": [769, 1024], "problems": 9, "configs": [
  {"template": "triton_mm", "block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_stages": 4, "num_warps": 8, "gain_permille": 1063},
  {"template": "aten"}
]},
{"op": "bmm", "dtype": "float16", "configs": [
  {"template": "aten"}
], "note": "von Hand: für jedes bmm, das oben fehlt"}
]
}
"""  # noqa: E501 (a table in canonical form has long lines)


@pytest.fixture(scope="session")
def good() -> str:
    """A table in canonical form."""
    return GOOD


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Writes a table file and says where it is."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "table.json"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
