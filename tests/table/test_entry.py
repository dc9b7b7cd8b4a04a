"""What an entry covers, and how specific it is."""

from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.problem import ALIGNS, ATTENTION, BATCHED, DOMAINS, EPILOGUES, GENERATED, MAX_SIZE, OP_SIZES, Problem
from diode_lut.table import Candidate, Entry
from diode_lut.templates.config import ATEN, Config

ANY = Entry(None, None, None, None, None, None, None, None, (Candidate(ATEN),))
EXACT = Entry("mm", "float16", "nn", 16, None, (4, 4), (5, 5), (6, 6), (Candidate(ATEN),), epilogue="none")


def test_an_entry_covers_the_borders_of_its_ranges_and_nothing_beyond() -> None:
    """A range holds both of its ends."""
    entry = EXACT._replace(m=(3, 5))
    covered = [m for m in range(1, 9) if entry.covers(Problem("mm", "float16", "nn", 16, 1, m, 5, 6))]
    assert covered == [3, 4, 5]


@pytest.mark.parametrize("other", [{"op": "addmm"}, {"dtype": "tf32"}, {"layout": "nt"}, {"align": 2}, {"k": 7}])
def test_each_field_of_the_key_counts(other: dict[str, Any]) -> None:
    """A problem that differs in one field of the key is not covered, and is covered once that field is left out."""
    problem = Problem("mm", "float16", "nn", 16, 1, 4, 5, 6)._replace(**other)
    assert not EXACT.covers(problem)
    assert EXACT._replace(**dict.fromkeys(other)).covers(problem)


@given(data=st.data())
def test_volume_counts_the_problems_that_are_covered(data: st.DataObject, draw_from: Any) -> None:
    """The volume is the number of possible problems that the entry covers, wherever these can be counted."""
    entry = data.draw(draw_from.entries.filter(lambda entry: None not in (entry.m, entry.n, entry.k)))
    entry = entry._replace(b=entry.b or (1, 1), n_align=None)
    if entry.op in ATTENTION:
        entry = entry._replace(h=entry.h or (1, 1), g=entry.g or (1, 1), v=entry.v or (1, 1))
    if entry.op in GENERATED:
        entry = entry._replace(**{name: getattr(entry, name) or (1, 1) for name in OP_SIZES[entry.op]})
    _, *ranges = (each or (1, 1) for each in entry.sizes)
    m, n, k, *more = (low for low, _ in ranges)
    count = sum(
        entry.covers(Problem(op, dtype, layout, align, b, m, n, k, epilogue, variant, *more))
        for op, domain in DOMAINS.items()
        for align, dtype, layout, epilogue, variant in product((16,) if op in GENERATED else ALIGNS, *domain)
        for b in (range(1, 9) if op in BATCHED else (1,))
    )
    assert entry.volume == count * prod(high - low + 1 for low, high in ranges)


def test_a_size_that_is_left_out_counts_all_sizes() -> None:
    """Leaving out a size makes an entry less specific than any range does."""
    assert EXACT.volume == 1
    assert EXACT._replace(k=None).volume == MAX_SIZE
    assert EXACT._replace(op="bmm").volume == MAX_SIZE


def test_an_epilogue_that_is_left_out_counts_all_classes() -> None:
    """A row without an epilogue is for every class, and is exact nevertheless."""
    assert EXACT._replace(epilogue=None).volume == len(EPILOGUES)
    assert EXACT._replace(epilogue=None).is_exact
    assert EXACT.is_exact
    assert not EXACT._replace(m=(4, 5)).is_exact


def test_to_json_leaves_out_what_is_none() -> None:
    """The JSON form has the fields in canonical order, without those that say nothing."""
    entry = ANY._replace(
        op="mm", m=(1, 2), problems=3, note="x", candidates=(Candidate(Config("decompose_k", (4,)), 1200),)
    )
    assert list(entry.to_json().items()) == [
        ("op", "mm"),
        ("m", (1, 2)),
        ("problems", 3),
        ("configs", [{"template": "decompose_k", "k_split": 4, "gain_permille": 1200}]),
        ("note", "x"),
    ]
    assert entry.configs == (Config("decompose_k", (4,)),)
