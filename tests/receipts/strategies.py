"""Receipts that hypothesis draws."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from diode_lut.hardware import Hardware
from diode_lut.problem import ALIGNS, BATCHED, DOMAINS, EPILOGUES, NO_EPILOGUE, VARIANTS, Problem
from diode_lut.receipts import (
    Device,
    GeneratedKernel,
    Hit,
    Left,
    Miss,
    Receipt,
    Skip,
    SourceRecord,
    Versions,
)
from diode_lut.settings import TIERS
from tests.strategies import kinds

counts = st.integers(1, 3)
sizes = st.integers(1, 2)
names = st.sampled_from(["a", "b", "ü ✓"])
tiers = st.sampled_from(TIERS)
problems = st.builds(
    lambda kind, align, epilogue, b, m, n, k: Problem(
        *kind[:3],
        align,
        b if kind[0] in BATCHED else 1,
        m,
        n,
        k,
        epilogue if epilogue in DOMAINS[kind[0]].epilogues else NO_EPILOGUE,
        kind[3],
    ),
    kinds(),
    *map(st.sampled_from, (ALIGNS, tuple(EPILOGUES))),
    *[sizes] * 4,
)
ranges = st.just("") | names
hits = st.builds(Hit, problems, tiers, names, names, st.lists(names, min_size=1, max_size=2).map(tuple), ranges)
skips = st.builds(Skip, problems, tiers, names, names, names, names)
left = st.builds(Left, problems, names)
kernels = st.builds(Problem.generated, st.just("pointwise"), st.sampled_from(VARIANTS["pointwise"]), x=sizes, y=sizes)
kernels |= st.builds(Problem.generated, st.just("reduction"), st.sampled_from(VARIANTS["reduction"]), x=sizes, r=sizes)
generated = st.builds(GeneratedKernel, kernels, tiers, names, names, names, st.just(""), ranges) | st.builds(
    GeneratedKernel, kernels, *map(st.just, ("", "", "", "")), names
)
sources = st.builds(SourceRecord, tiers, names, names, st.integers(0, 2))


def _sets(values: SearchStrategy[object]) -> SearchStrategy[dict[object, None]]:
    return st.lists(values, max_size=3).map(dict.fromkeys)


def _counters(values: SearchStrategy[object]) -> SearchStrategy[Counter[object]]:
    return st.dictionaries(values, counts, max_size=3).map(Counter)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """A device with a few answers, misses with and without what a model expects, and problems without a choice."""
    misses = draw(_counters(st.builds(Miss, problems, ranges)))
    expected = {miss.problem: draw(st.integers(1, 2000)) for miss in misses if draw(st.booleans())}
    parts = draw(_sets(sources)), draw(_sets(names)), draw(_counters(hits)), misses, expected, draw(_counters(skips))
    more = (draw(_counters(each)) for each in (left, left, left, generated))
    return Device(*parts, *more, draw(st.integers(0, 3)))


hardware = st.builds(Hardware, st.just("GPU"), st.sampled_from(["sm_90", "cpu-avx2"]), st.integers(1, 2), st.just(()))
versions = st.builds(Versions, names, names, st.just("") | names, st.just("") | names)
receipts = st.builds(
    Receipt, counts, _sets(versions), st.integers(0, 9), st.dictionaries(hardware, devices(), max_size=2)
)
