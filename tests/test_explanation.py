"""What explain shows besides the decision: the rows that come next, and the model's ranking."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from diode_lut.api import explanation_of
from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.decide.decide import Sources, Tier, decide
from diode_lut.decide.sources import ModelSource, TableSource, Threshold
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table, read_table
from diode_lut.templates.config import ATEN, DEFAULT, Config
from tests.commands import call
from tests.model.small import H200, MM, model

FAST = Config("triton_mm", (128, 128, 64, 8, 4, 8))


def row(m: tuple[int, int] | None, n: tuple[int, int] | None = (1024, 1024), config: Config = ATEN) -> Entry:
    return Entry("mm", "bfloat16", "nt", 16, None, m, n, (1024, 1024), (Candidate(config),))


def user(table: Table) -> Tier:
    return Tier("user", (TableSource(table),))


def lines(*tiers: Tier) -> list[str]:
    """The lines after the row that answers and its only config."""
    return str(explanation_of(Sources(H200, tiers), MM)).splitlines()[3:]


def test_other_rows_come_in_the_order_in_which_they_would_answer() -> None:
    """Less specific rows of the same table come first, with the problems that they cover; then later tables' rows."""
    mine = Table(H200, [row(None), row((1024, 1024)), row((1, 1024), config=FAST)])
    others = Table(H200, [row((1024, 1100))])
    name, more = "table for NVIDIA H200", "as many problems as the row that answers"
    assert lines(user(mine), Tier("device", (TableSource(others),))) == [
        f"  runner-up: {name}: triton_mm 128x128x64 g8 s4 w8; covers 1,024 times {more}",
        f"  then: {name}: aten; covers 2.1e+09 times {more}",
        f"  then: {name}: aten; device: its table is asked later",
    ]


def test_rows_that_contradict_each_other_are_named_as_such() -> None:
    """Rows that are equally specific are shown as contradicting each other."""
    table = Table(H200, [row((1024, 1025)), row((1024, 1024), (1024, 1025))])
    (line,) = lines(user(table))
    assert "contradicts it" in line


def test_the_only_row_has_no_runner_up() -> None:
    """Rows that do not cover the problem are not runners-up."""
    assert lines(user(Table(H200, [row((1024, 1024)), row((1, 8))]))) == [
        "  runner-up: none, for no other row covers it"
    ]


def test_gains_are_over_what_the_op_gets_otherwise() -> None:
    """Gains of joined matmuls are over the default, whichever template computes them."""
    joined = Problem.of("joined_mm", 2, 768, 256, dtype="bfloat16", layout="nt", variant="three")
    for config in ("triton_few_rows 2x256 s3 w4", "triton_joined_mm 16x64x64 g8 s4 w4"):
        candidate = Candidate(Config.parse(config), 1500)
        entry = row((1, 4), (768, 768))._replace(op="joined_mm", k=(256, 256), candidates=(candidate,))
        table = Table(H200, [entry])
        text = str(explanation_of(Sources(H200, (user(table),)), joined))
        assert f"{config} (1.500 times as fast as default)" in text


def test_matmuls_that_stay_apart_are_asked_about_one_by_one() -> None:
    """The explanation of joined matmuls says so, for a row with the default and without a row."""
    joined = Problem.of("joined_mm", 2, 768, 256, dtype="bfloat16", layout="nt", variant="three")
    apart = Candidate(DEFAULT, 1000)
    entry = row((1, 4), (768, 768))._replace(op="joined_mm", k=(256, 256), candidates=(apart,))
    for rows, expected in (
        ([entry], "    default (each matmul is asked about on its own)"),
        ([], "  abstain: each matmul is asked about on its own"),
    ):
        text = str(explanation_of(Sources(H200, (user(Table(H200, rows)),)), joined))
        assert expected in text.splitlines()


def test_a_source_beside_the_models_needs_no_confidence() -> None:
    """Whatever source would answer after the tables is named, with a confidence only if it has one."""
    assert lines(user(Table(H200, [row(None)])), Tier("model", (TableSource(Table(H200, [row((1, 2048))])),)))[-2:] == [
        "  model: table for NVIDIA H200 would answer",
        "    aten",
    ]


def test_rows_are_named_by_their_lines(table_file: Callable[..., Path]) -> None:
    """The runner-up is named by its file and line."""
    aten = {"template": "aten"}
    path = table_file("mine.json", {"op": "mm", "m": [1024, 1024], "configs": [aten]}, {"op": "mm", "configs": [aten]})
    numbers = [number for number, text in enumerate(path.read_text().splitlines(), 1) if text.startswith('{"op"')]
    (line,) = lines(user(read_table(path)))
    assert line.startswith(f"  runner-up: {path}:{numbers[1]}: aten; ")


@pytest.mark.parametrize(
    ("confidence", "text"),
    [(0.96, "would answer, with confidence 0.960"), (0.89, "confidence 0.890 is below 0.9, and it is expected to be")],
)
def test_the_model_is_asked_where_a_table_answers(confidence: float, text: str) -> None:
    """The model's ranking is shown, above the threshold and below; the decision is the table's."""
    models = (ModelSource(model(0.04, confidence), H200),)
    tiers = (user(Table(H200, [row((1024, 1024))])), Tier("model", models))
    _, said, *ranking = lines(*tiers)
    assert text in said
    assert ranking[-1] == f"    the first is within 5 % of the best with confidence {confidence:.3f}"
    assert explanation_of(Sources(H200, tiers), MM).decision == decide(Sources(H200, tiers), MM).decision


def test_why_there_is_no_model() -> None:
    """If no model is asked, the reasons are shown."""
    assert lines(user(Table(H200, [row((1024, 1024))])), Tier("model", (), ("no model is for it",)))[1:] == [
        "  model: no model is for it"
    ]


def test_without_a_table_the_explanation_is_the_decision() -> None:
    """Without a table's answer, the explanation is the decision's alone, which has the models' answers."""
    selector = Sources(H200, (Tier("model", (ModelSource(model(confidence=0.96), H200),)),))
    assert str(explanation_of(selector, MM)) == decide(selector, MM).decision.explain()


@pytest.mark.parametrize(
    ("configs", "min_gain", "taken"),
    [
        ([Candidate(FAST, 1060), Candidate(ATEN, 1000)], 0.05, FAST),
        ([Candidate(FAST, 1040), Candidate(ATEN, 1000)], 0.05, ATEN),
        ([Candidate(FAST, 1040)], 0.05, ATEN),
        ([Candidate(FAST.padded(8), 1400), Candidate(ATEN.padded(8), 1390)], 0.5, ATEN.padded(8)),
        ([Candidate(FAST)], 0.05, FAST),
        ([Candidate(ATEN.padded(8), 1010)], 0.05, ATEN.padded(8)),
    ],
    ids=["gains enough", "gains little", "without aten", "padded", "not measured", "needs no kernel"],
)
def test_what_gains_too_little_is_not_compiled(configs: list[Candidate], min_gain: float, taken: Config) -> None:
    """Below ``min_gain`` the library's config is taken, and the line of the row that answers says so."""
    entry = Entry("mm", "bfloat16", "nt", 16, None, (1024, 1024), (1024, 1024), (1024, 1024), tuple(configs))
    selector = Sources(H200, [user(Table(H200, [entry]))])
    decision = decide(selector, MM, Threshold(min_gain=min_gain)).decision
    assert decision.configs[0] == taken
    assert decision.steps[-1].endswith(f"min_gain, so {taken} is taken") == (taken != configs[0].config)


def test_min_gain_is_for_models_too() -> None:
    """Where a model expects less, aten is taken."""
    selector = Sources(H200, [Tier("model", (ModelSource(model(0.1), H200),))])
    assert decide(selector, MM, Threshold(min_gain=0.2)).decision.configs == (ATEN,)
    assert decide(selector, MM, Threshold(min_gain=0.1)).decision.configs != (ATEN,)


def test_measured_times_are_shown_beside_the_gains(table_file: Callable[..., Path], tmp_path: Path) -> None:
    """Times come from a dataset that is named, or from the timings that tune keeps beside the answering table."""
    path = table_file("mine.json", {"op": "mm", "configs": [{**FAST.to_json(), "gain_permille": 1500}]})
    hardware = read_table(path).hardware
    path.with_suffix(".timings").mkdir()
    kept = path.with_suffix(".timings") / "t.msgpack"
    other = Config("triton_mm", (64, 64, 64, 8, 4, 8))
    with DatasetWriter(kept, Header(hardware)) as writer:
        writer.append(Record(MM, (Timing(ATEN, 15000), Timing(FAST, 10000), Timing(other, 9000))))
    words = ("explain", "mm", MM.m, MM.n, MM.k, "--layout", MM.layout, "--table", path)
    found = f"    measured: aten 15.00 us, {FAST} 10.00 us, and the fastest of 3, {other} 9.00 us"
    by_default = call(*words, "--hardware", "H200")
    assert found in by_default.output.splitlines()
    moved = kept.rename(tmp_path / "t.msgpack")
    assert "  measured: " not in call(*words, "--hardware", "H200").output
    assert call(*words, "--hardware", "H200", "--dataset", moved).output == by_default.output
    assert orjson.loads(call(*words, "--hardware", "H200", "--dataset", moved, "--format", "json").output)["times"] == [
        {"config": each.to_json(), "ns": ns} for each, ns in ((ATEN, 15000.0), (other, 9000.0), (FAST, 10000.0))
    ]
    (tmp_path / "problems.json").write_bytes(orjson.dumps([MM.to_json()]))
    many = ("explain", "--problems", tmp_path / "problems.json", "--table", path, "--hardware", "H200")
    assert call(*many, "--dataset", moved).output == by_default.output
    described = ("--hardware", f"{hardware.name},{hardware.arch},{hardware.sm_count}")
    assert call(*words, *described, "--dataset", moved).output == by_default.output
    refused = call(*words, "--hardware", "A100", "--dataset", moved)
    assert refused.exit_code == 1
    assert f"{moved}: measured on {hardware}, but asked about" in refused.output
