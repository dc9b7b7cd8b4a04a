"""The data of the page."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from diode_lut import report as page
from diode_lut.dataset import read_dataset
from diode_lut.decide.catalog import find_path, open_model
from diode_lut.decide.sources import ModelSource, TableSource
from diode_lut.evaluate import Evaluation, evaluate
from diode_lut.model.ranking import Model
from diode_lut.problem import GENERATED, Problem
from diode_lut.report import AskedProblem, Side, as_data
from diode_lut.table import Table, decode_entry, read_table
from diode_lut.templates.config import TEMPLATES
from tests.report.measured import H200, OTHER_ROWS


@pytest.fixture
def opened(table: Path) -> Table:
    return read_table(table)


@pytest.fixture
def evaluation(opened: Table, dataset: Path) -> Evaluation:
    return evaluate(TableSource(opened), read_dataset(dataset))


def by_op(data: dict[str, Any]) -> dict[str, Any]:
    """The rows by op; the only row without a dtype has the key ``open``."""
    return {"open" if row["note"] else row["key"].split()[0]: row for row in data["rows"]}


def test_rows_are_as_the_table_has_them(opened: Table) -> None:
    """Without timings, gains are the table's, and aten's is 1; rows are sorted, least specific first."""
    data = as_data(Side(opened, link="tables/mine.json"))
    assert [row["key"].split()[0] for row in data["rows"]] == ["mm", "mm", "addmm"]
    rows = by_op(data)
    assert (rows["mm"]["gain"], rows["open"]["gain"], rows["addmm"]["gain"]) == (1.3, 1.0, None)
    assert {row["regret"] for row in rows.values()} == {None}
    assert (rows["mm"]["m"], rows["open"]["m"], rows["mm"]["measured"]) == ((64, 256), None, 2)
    lines = opened.path.read_text().splitlines() if opened.path else []
    assert all('{"op":' in lines[row["line"] - 1] for row in data["rows"])
    assert '"addmm"' in lines[rows["addmm"]["line"] - 1]
    assert (data["problems"], data["links"], data["tables"]) == ([], ["tables/mine.json"], ["mine.json"])
    json.dumps(data)


def test_open_rows_are_in_all_panels_that_they_cover(opened: Table, evaluation: Evaluation) -> None:
    """The row for mm nn of any dtype is in the panel of mm float16 nn, and has no panel of its own."""
    data = as_data(Side(opened, evaluation))
    assert [" ".join(kind.values()) for kind in data["kinds"]] == [
        "mm float16 nn",
        "addmm bfloat16 nt",
        "bmm float16 nn",
    ]
    assert {name: row["kinds"] for name, row in by_op(data).items()} == {"open": [0], "mm": [0], "addmm": [1]}


def test_rows_have_what_was_measured(opened: Table, evaluation: Evaluation) -> None:
    """With timings, a row's gain and regret are means over the problems that it answers."""
    rows = by_op(as_data(Side(opened, evaluation)))
    assert rows["mm"]["gain"] == pytest.approx(math.sqrt(1.3 * 1.1), abs=1e-6)
    assert rows["mm"]["regret"] == pytest.approx(math.sqrt(1.1) - 1, abs=1e-6)
    assert (rows["mm"]["worst"], rows["open"]["worst"], rows["addmm"]["gain"]) == (0.1, 0.0, 1.5)


def test_problems_know_their_row(opened: Table, evaluation: Evaluation) -> None:
    """A problem has the index of the row that answers it; a miss has None, and counts as aten."""
    data = as_data(Side(opened, evaluation))
    answers = {problem["name"]: problem for problem in data["problems"]}
    assert len(answers) == 5
    miss = answers["bmm 8x64x64x64 float16 nn align 16"]
    assert (miss["row"], miss["choice"], miss["gain"], miss["kinds"]) == (None, "aten", 1.0, [2])
    large = answers["mm 256x256x512 float16 nn align 16"]
    assert data["rows"][large["row"]]["m"] == (64, 256)
    assert (large["gain"], large["best_gain"], large["regret"]) == (1.1, 1.21, 0.1)
    assert data["rows"][answers["mm 2048x64x64 float16 nn align 16"]["row"]]["m"] is None


def test_default_is_what_gains_of_attention_are_over() -> None:
    """A row that says default gains as much as one that says aten."""
    table = Table(H200, map(decode_entry, OTHER_ROWS))
    gains = {row["template"]: row["gain"] for row in as_data(Side(table))["rows"]}
    assert (gains["default"], gains["aten"]) == (1.0, 1.0)


def test_gains_of_generated_kernels_are_over_the_first_config_of_inductor() -> None:
    """The page names this as their baseline, as the heading of gains does."""
    row = {"op": "reduction", "variant": "inner", "configs": [{"template": "default"}]}
    ops = as_data(Side(Table(H200, [decode_entry(row)])))["ops"]
    assert {ops[op]["usual"] for op in GENERATED} == {"Inductor's first config"}
    assert ops["mm"]["usual"] == "aten"


def test_each_template_has_a_colour() -> None:
    """The style sheet has one for each template, in the light and in the dark scheme."""
    style = (Path(page.__file__).parent / "assets" / "style.css").read_text(encoding="utf-8")
    assert [style.count(f"--template-{number}: ") for number in range(len(TEMPLATES) + 1)] == [2] * len(TEMPLATES) + [0]


@pytest.mark.slow
def test_a_model_beside_a_table(opened: Table, dataset: Path, shipped_model: Model) -> None:
    """A model has no rows; its choices on the problems are there, and so are its answers to what was asked."""
    answered = evaluate(ModelSource(shipped_model, shipped_model.hardware), read_dataset(dataset))
    asked = [AskedProblem(Problem.of("mm", 4096, 4096, 64, dtype="float16", layout="nn"), 3, "")]
    data = as_data(Side(opened), beside=Side(shipped_model, answered), asked=asked)
    assert {row["table"] for row in data["rows"]} == {0}
    assert {(problem["table"], problem["row"]) for problem in data["problems"]} == {(1, None)}
    (one,) = data["asked"]
    assert (one["calls"], one["answer"], one["now"][0]) == (3, "", "aten")
    json.dumps(data)


@pytest.fixture
def shipped_model() -> Model:
    return open_model(find_path("nvidia-h200.mlp"))
