"""What explain says beyond the decision: the rows that come next, and the models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from diode_lut.kernels.config import ATEN, Config
from diode_lut.selection.explanation import explain
from diode_lut.selection.selector import Selector, Tier
from diode_lut.selection.sources import ModelSource, TableSource
from diode_lut.table import Candidate, Entry, Table, read_table
from tests.model.small import H200, MM, model

FAST = Config("triton_mm", (128, 128, 64, 8, 4, 8))


def row(m: tuple[int, int] | None, n: tuple[int, int] | None = (1024, 1024), config: Config = ATEN) -> Entry:
    return Entry("mm", "bfloat16", "nt", 16, None, m, n, (1024, 1024), (Candidate(config),))


def user(table: Table) -> Tier:
    return Tier("user", (TableSource(table),))


def lines(*tiers: Tier) -> list[str]:
    """What is said after the row that answers and its only config."""
    return str(explain(Selector(H200, tiers), MM)).splitlines()[3:]


def test_other_rows_come_in_the_order_in_which_they_would_answer() -> None:
    """Of the same table those that cover more, with how many that is; then those of tables that are asked later."""
    mine = Table(H200, [row(None), row((1024, 1024)), row((1, 1024), config=FAST)])
    others = Table(H200, [row((1024, 1100))])
    name, more = "table for NVIDIA H200", "as many problems as the row that answers"
    assert lines(user(mine), Tier("device", (TableSource(others),))) == [
        f"  runner-up: {name}: triton_mm 128x128x64 g8 s4 w8; covers 1,024 times {more}",
        f"  then: {name}: aten; covers 2.1e+09 times {more}",
        f"  then: {name}: aten; device: its table is asked later",
    ]


def test_rows_that_contradict_each_other_are_named_as_such() -> None:
    """Neither covers fewer problems."""
    table = Table(H200, [row((1024, 1025)), row((1024, 1024), (1024, 1025))])
    (line,) = lines(user(table))
    assert "contradicts it" in line


def test_the_only_row_has_no_runner_up() -> None:
    """Rows that do not cover the problem are not meant."""
    assert lines(user(Table(H200, [row((1024, 1024)), row((1, 8))]))) == [
        "  runner-up: none, for no other row covers it"
    ]


def test_rows_are_named_by_their_lines(table_file: Callable[..., Path]) -> None:
    """The runner-up can be found in its file."""
    aten = {"template": "aten"}
    path = table_file("mine.json", {"op": "mm", "m": [1024, 1024], "configs": [aten]}, {"op": "mm", "configs": [aten]})
    numbers = [number for number, text in enumerate(path.read_text().splitlines(), 1) if text.startswith('{"op"')]
    (line,) = lines(user(read_table(path)))
    assert line.startswith(f"  runner-up: {path}:{numbers[1]}: aten; ")


@pytest.mark.parametrize(
    ("confidence", "text"),
    [(0.96, "would answer, with confidence 0.960"), (0.94, "confidence 0.940 is below 0.95, and it is expected to be")],
)
def test_the_model_is_asked_where_a_table_answers(confidence: float, text: str) -> None:
    """Whether or not it is sure enough, what it expects is shown; the decision stays the table's."""
    models = (ModelSource(model(0.1, confidence), H200),)
    tiers = (user(Table(H200, [row((1024, 1024))])), Tier("model", models))
    _, said, *ranking = lines(*tiers)
    assert text in said
    assert ranking[-1] == f"    the first is within 5 % of the best with confidence {confidence:.3f}"
    assert explain(Selector(H200, tiers), MM).decision == Selector(H200, tiers).select(MM)


def test_why_there_is_no_model() -> None:
    """The reasons for which none is asked are shown, too."""
    assert lines(user(Table(H200, [row((1024, 1024))])), Tier("model", (), ("no model is for it",)))[1:] == [
        "  model: no model is for it"
    ]


def test_without_a_table_it_is_the_decision_alone() -> None:
    """Then the models have been asked already."""
    selector = Selector(H200, (Tier("model", (ModelSource(model(confidence=0.96), H200),)),))
    assert str(explain(selector, MM)) == selector.select(MM).explain()
