"""Decisions over the sizes of a problem that may change."""

from functools import partial

import pytest

from diode_lut.decide.decide import MAX_SAMPLES, Axis, Sources, Tier, decide
from diode_lut.decide.sources import ModelSource, TableSource
from diode_lut.table import Candidate, Entry, Table
from diode_lut.templates.config import ATEN, Config
from tests.model.small import H200, MM, SMALL, model
from tests.steps import lines_run

SOURCES = Sources(H200, [Tier("model", (ModelSource(model(confidence=0.99), H200),))])
LOW, HIGH = 3, 8000


@pytest.mark.parametrize("fields", ["m", "mn", "mnk"])
def test_the_number_of_combinations_is_bounded(fields: str) -> None:
    """However many sizes change, sources are asked at few combinations, the smallest and the largest among them."""
    axes = tuple(Axis((name,), LOW, HIGH) for name in fields)
    samples = decide(SOURCES, MM, axes=axes).samples(MM, padding=False)
    assert len(fields) < len(samples) <= MAX_SAMPLES
    assert {(LOW,) * len(axes), (HIGH,) * len(axes)} <= {sample.sizes for sample in samples}


def test_sizes_for_which_a_row_names_the_library() -> None:
    """A model that expects a gain there does not widen the part of a kernel to sizes for which a row names aten."""
    rows = [
        Entry("mm", None, None, None, None, sizes, None, None, (candidate,))
        for sizes, candidate in (((1, 63), Candidate(SMALL, 1200)), ((64, 8192), Candidate(ATEN)))
    ]
    tiers = [Tier("user", (TableSource(Table(H200, rows)),)), Tier("model", (ModelSource(model(), H200),))]
    pieces = decide(Sources(H200, tiers), MM, axes=(Axis(("m",), 1, 8192),)).pieces(3, library=True)
    assert [(piece.high, piece.config) for piece in pieces] == [(63, SMALL), (None, ATEN)]


def test_sizes_beside_a_kernel_that_cannot_run() -> None:
    """Where the fastest kernel was timed with a constant M, another one's time is not estimated from its gain."""
    few = Config.make("triton_few_rows", {"block_n": 1, "block_k": 2048, "num_stages": 3, "num_warps": 4})
    rows = [
        Entry("mm", None, "nt", None, None, sizes, None, None, (candidate,))
        for sizes, candidate in (
            ((1, 1), Candidate(few, 1500)),
            ((4, 4), Candidate(SMALL, 1050)),
            ((16, 8192), Candidate(ATEN)),
        )
    ]
    sources = Sources(H200, [Tier("user", (TableSource(Table(H200, rows)),))])
    answers = decide(sources, MM._replace(layout="nt"), axes=(Axis(("m",), 1, 8192),), padding=False)
    assert (answers.pieces(3, library=True), answers.decision.configs[0]) == ((), ATEN)


def test_a_model_that_abstains_does_not_overrule_the_model_that_answers() -> None:
    """A config that the answering model finds slower than aten is so, even if an unsure model expects a gain."""
    unsure, sure = model(0.04, confidence=0.5), model(-0.2)
    tiers = [Tier("model", (ModelSource(unsure, H200), ModelSource(sure, H200)))]
    decision, times = Sources(H200, tiers).times(MM, padding=False)
    assert decision.configs[0] == ATEN
    assert SMALL in decision.configs
    assert times[SMALL] > 1.1


def test_a_row_whose_config_gains_nothing() -> None:
    """A gain of 0, which a row may have, is a config that is never taken where another one serves."""
    row = Entry("mm", None, None, None, None, (1, 8192), None, None, (Candidate(SMALL, 0), Candidate(ATEN, 1000)))
    sources = Sources(H200, [Tier("user", (TableSource(Table(H200, [row])),))])
    decision = decide(sources, MM, axes=(Axis(("m",), 1, 8192),), padding=False).decision
    assert decision.configs == (ATEN,)


def test_the_number_of_rows_does_not_matter() -> None:
    """Deciding for a range of M takes the same steps whatever number of rows is for other N and K."""
    candidates = (Candidate(SMALL, 1200), Candidate(ATEN))
    steps = set()
    for families in (20, 500):
        rows = [
            Entry("mm", "bfloat16", "nt", 16, None, m, (n, n), (1024, 1024), candidates)
            for n in range(1024, 1024 + families)
            for m in ((1, 15), (16, 16), (17, 4096))
        ]
        sources, axis = Sources(H200, [Tier("user", (TableSource(Table(H200, rows)),))]), Axis(("m",), 1, 8192)
        assert decide(sources, MM, axes=(axis,)).decision.configs
        for n in (1025, 1030):
            answers = decide(sources, MM._replace(n=n), axes=(axis,))
            whole = lines_run(partial(answers.with_epilogue, MM.epilogue))
            steps.add((n, whole, lines_run(partial(answers.pieces, 3, library=True))))
    assert len(steps) == 2
