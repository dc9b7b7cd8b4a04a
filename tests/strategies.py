"""What hypothesis draws, and how much of it: rows, tables and problems."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ALIGNS,
    ATTENTION,
    BATCHED,
    DOMAINS,
    DTYPES,
    EPILOGUES,
    GEMMS,
    GENERATED,
    LAYOUTS,
    MAX_SIZE,
    NO_VARIANT,
    OF_KERNELS,
    OP_SIZES,
    OPS,
    VARIANTS,
    Problem,
)
from diode_lut.table import Candidate, Entry, Range, Table
from diode_lut.templates.config import TEMPLATES, Config


def share(examples: int) -> int:
    """Return how many examples to draw: all in ``make test-all``, a quarter in ``make test``."""
    return examples * settings.default.max_examples // 100


@dataclass(repr=False)
class Strategies:
    """What tests draw: entries and problems with small sizes, so that they meet, and tables with any sizes."""

    entries: SearchStrategy[Entry]
    tables: SearchStrategy[Table]
    problems: SearchStrategy[Problem]


Kind = tuple[str, str, str, str]  # op, dtype, layout and variant of a problem


def kinds(
    ops: Sequence[str] = OPS, dtypes: Sequence[str] = DTYPES, layouts: Sequence[str] = LAYOUTS
) -> SearchStrategy[Kind]:
    """Those that go together, of some ops, dtypes and layouts. An op that has none of the dtypes is left out."""

    @cache
    def of(op: str) -> SearchStrategy[Kind]:
        domain = DOMAINS[op]
        types = st.sampled_from([dtype for dtype in domain.dtypes if dtype in dtypes])
        orders = st.sampled_from([layout for layout in domain.layouts if layout in layouts])
        return st.tuples(st.just(op), types, orders, st.sampled_from(domain.variants))

    return st.sampled_from([op for op in ops if set(DOMAINS[op].dtypes).intersection(dtypes)]).flatmap(of)


def _ranges(highest: int) -> SearchStrategy[Range | None]:
    sizes = st.integers(1, highest)
    pairs = st.tuples(sizes, sizes).map(lambda pair: (min(pair), max(pair)))
    return st.none() | sizes.map(lambda size: (size, size)) | pairs


def _configs() -> SearchStrategy[Config]:
    @cache
    def with_params(template: str) -> SearchStrategy[Config]:
        values = {each.name: st.sampled_from(each.values) for each in TEMPLATES[template].parameters}
        required = {each.name: values.pop(each.name) for each in TEMPLATES[template].required}
        return st.fixed_dictionaries(required, optional=values).map(lambda values: Config.make(template, values))

    return st.sampled_from(sorted(TEMPLATES)).flatmap(with_params)


def _entries(highest: int) -> SearchStrategy[Entry]:
    return _plain_entries(highest) | _attention(highest) | _generated(highest)


def _plain_entries(highest: int) -> SearchStrategy[Entry]:
    candidates = st.lists(
        st.builds(Candidate, _configs(), st.none() | st.integers(0, MAX_SIZE)),
        min_size=1,
        max_size=3,
        unique_by=lambda candidate: candidate.config,
    ).map(tuple)
    kinds = [st.none() | st.sampled_from(domain) for domain in (GEMMS, DTYPES[:2], LAYOUTS[:2], ALIGNS)]
    sizes = [_ranges(highest)] * 4
    problems, epilogues = st.none() | st.integers(1, MAX_SIZE), st.none() | st.sampled_from(list(EPILOGUES)[:2])
    rest = (problems, st.none() | _texts(), epilogues, *[st.none()] * 4, st.sampled_from([None, None, *ALIGNS]))
    rest = (*rest, *[st.none()] * len(OF_KERNELS))
    return st.builds(Entry, *kinds, *sizes, candidates, *rest).map(_with_possible_n_align)


def _with_possible_n_align(entry: Entry) -> Entry:
    """The row without its ``n_align``, unless some but not all N of a range of a dtype may have it."""
    low, high = entry.n or (1, MAX_SIZE)
    if entry.op is None or entry.dtype is None or low == high or (entry.n_align == 16 and high // 8 * 8 < low):
        return entry._replace(n_align=None)
    return entry


def _attention(highest: int) -> SearchStrategy[Entry]:
    """Rows for attention, whose op is always named."""

    def of(entry: Entry, op: str, variant: str | None, sizes: tuple[Range | None, ...]) -> Entry:
        layout = None if entry.layout is None else "nt"
        return entry._replace(
            op=op, layout=layout, epilogue=None, variant=variant, n_align=None, **dict(zip("hgv", sizes, strict=True))
        )

    variants = st.none() | st.sampled_from(VARIANTS[ATTENTION[0]][:2])
    return st.builds(
        of, _plain_entries(highest), st.sampled_from(ATTENTION[:2]), variants, st.tuples(*[_ranges(highest)] * 3)
    )


def _generated(highest: int) -> SearchStrategy[Entry]:
    """Rows for generated kernels, whose op is always named."""

    def of(op: str) -> SearchStrategy[Entry]:
        def made(entry: Entry, variant: str | None, sizes: tuple[Range | None, ...]) -> Entry:
            kind: dict[str, Any] = {**dict.fromkeys(Entry._fields[1:8]), "op": op, "epilogue": None, "variant": variant}
            return entry._replace(**kind, n_align=None, **dict(zip(OP_SIZES[op], sizes, strict=True)))

        variants = st.none() | st.sampled_from(VARIANTS[op][:2])
        sizes = st.tuples(*[_ranges(highest)] * len(OP_SIZES[op]))
        return st.builds(made, _plain_entries(highest), variants, sizes)

    return st.sampled_from(GENERATED).flatmap(of)


def _texts() -> SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _hardware() -> SearchStrategy[Hardware]:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    architectures = st.sampled_from(["sm_90", "gfx942", "cpu-avx512"])
    return st.builds(
        Hardware, names, architectures, st.integers(1, MAX_SIZE), st.lists(_texts(), max_size=2).map(tuple)
    )


def _tables() -> SearchStrategy[Table]:
    provenance = st.fixed_dictionaries(
        {}, optional={"torch": _texts(), "driver": _texts(), "datasets": st.lists(_texts(), max_size=2)}
    )
    return st.builds(Table, _hardware(), st.lists(_entries(MAX_SIZE), max_size=6), provenance)


def _problems(highest: int) -> SearchStrategy[Problem]:
    sizes = st.integers(1, highest)
    kinds = (st.sampled_from(domain) for domain in (GEMMS, DTYPES[:2], LAYOUTS[:2], ALIGNS))
    epilogues = st.sampled_from(list(EPILOGUES)[:3])
    problems = st.builds(Problem, *kinds, sizes, sizes, sizes, sizes, epilogues, st.just(NO_VARIANT), *[st.just(1)] * 7)
    generated = st.sampled_from([(op, variant) for op in GENERATED for variant in VARIANTS[op][:2]])
    return problems.map(lambda problem: problem if problem.op in BATCHED else problem._replace(b=1)) | st.builds(
        lambda kind, *sizes: Problem.generated(*kind, **dict(zip(OP_SIZES[kind[0]], sizes, strict=False))),
        generated,
        sizes,
        sizes,
        sizes,
    )


STRATEGIES = Strategies(_entries(8), _tables(), _problems(9))
