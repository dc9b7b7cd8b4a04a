"""Tables, rows and problems for hypothesis to draw, and small tables in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from diode_lut.problem import ALIGNS, DTYPES, LAYOUTS, MAX_SIZE, OPS, TEMPLATES, Config, Hardware, Problem
from diode_lut.table import Candidate, Entry, Range, Table
from diode_lut.table.entry import BATCHED


@dataclass(repr=False)
class Strategies:
    """What tests draw: entries and problems with small sizes, so that they meet, and tables with any sizes."""

    entries: SearchStrategy[Entry]
    tables: SearchStrategy[Table]
    problems: SearchStrategy[Problem]


def _ranges(highest: int) -> SearchStrategy[Range | None]:
    sizes = st.integers(1, highest)
    pairs = st.tuples(sizes, sizes).map(lambda pair: (min(pair), max(pair)))
    return st.none() | sizes.map(lambda size: (size, size)) | pairs


def _configs() -> SearchStrategy[Config]:
    def with_params(template: str) -> SearchStrategy[Config]:
        params = st.tuples(*(st.sampled_from(parameter.values) for parameter in TEMPLATES[template]))
        return params.map(lambda values: Config(template, values))

    return st.sampled_from(sorted(TEMPLATES)).flatmap(with_params)


def _entries(highest: int) -> SearchStrategy[Entry]:
    candidates = st.lists(
        st.builds(Candidate, _configs(), st.none() | st.integers(0, MAX_SIZE)),
        min_size=1,
        max_size=3,
        unique_by=lambda candidate: candidate.config,
    ).map(tuple)
    kinds = [st.none() | st.sampled_from(domain) for domain in (OPS, DTYPES[:2], LAYOUTS[:2], ALIGNS)]
    sizes = [_ranges(highest)] * 4
    return st.builds(Entry, *kinds, *sizes, candidates, st.none() | st.integers(1, MAX_SIZE), st.none() | _texts())


def _texts() -> SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _hardware() -> SearchStrategy[Hardware]:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    return st.builds(Hardware, names, names, st.integers(1, MAX_SIZE), st.lists(_texts(), max_size=2).map(tuple))


def _tables() -> SearchStrategy[Table]:
    provenance = st.fixed_dictionaries(
        {}, optional={"torch": _texts(), "driver": _texts(), "datasets": st.lists(_texts(), max_size=2)}
    )
    return st.builds(Table, _hardware(), st.lists(_entries(MAX_SIZE), max_size=6), provenance)


def _problems(highest: int) -> SearchStrategy[Problem]:
    sizes = st.integers(1, highest)
    kinds = (st.sampled_from(domain) for domain in (OPS, DTYPES[:2], LAYOUTS[:2], ALIGNS))
    problems = st.builds(Problem, *kinds, sizes, sizes, sizes, sizes)
    return problems.map(lambda problem: problem if problem.op in BATCHED else problem._replace(b=1))


@pytest.fixture(scope="session")
def draw_from() -> Strategies:
    return Strategies(_entries(8), _tables(), _problems(9))


GOOD = """{
"$schema": "../schemas/table.v1.schema.json",
"schema_version": 1,
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
