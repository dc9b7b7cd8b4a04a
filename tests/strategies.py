"""What hypothesis draws: rows, tables and problems."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import ALIGNS, BATCHED, DTYPES, LAYOUTS, MAX_SIZE, OPS, Problem
from diode_lut.kernels.config import Config
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.table import Candidate, Entry, Range, Table


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
        params = st.tuples(*(st.sampled_from(parameter.values) for parameter in TEMPLATES[template].parameters))
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


STRATEGIES = Strategies(_entries(8), _tables(), _problems(9))
