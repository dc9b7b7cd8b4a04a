"""Rows that are left to a model."""

import hashlib
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.build import BuildResult, Pruning, build, needless
from diode_lut.build.measurements import measurements_of
from diode_lut.dataset import DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.hardware import Hardware
from diode_lut.model.weights import write_model
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table, read_table
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.model.small import BATCHED, H200, LARGE, MM, SMALL, model
from tests.strategies import STRATEGIES, share

A100 = Hardware("NVIDIA A100", "sm_80", 108)
NEAR, FAR = MM, MM._replace(m=8192)


def dataset(path: Path) -> Path:
    """A problem where LARGE is fastest, and one where aten is."""
    with DatasetWriter(path, Header(H200)) as writer:
        writer.append(Record(NEAR, (Timing(LARGE, 100.0), Timing(SMALL, 104.0), Timing(ATEN, 200.0))))
        writer.append(Record(FAR, (Timing(LARGE, 200.0), Timing(SMALL, 210.0), Timing(ATEN, 100.0))))
    return path


def built(path: Path, choices: dict[Problem, Config | None], **options: object) -> BuildResult:
    pruning = Pruning(choices.get, "a model")
    return build([read_dataset(dataset(path / "x.msgpack"))], prune_with=pruning, **options)  # type: ignore[arg-type]


def rows(result: BuildResult) -> dict[Problem, Config | None]:
    found = {problem: result.table.lookup(problem) for problem in (NEAR, FAR)}
    return {problem: entry.configs[0] if entry else None for problem, entry in found.items()}


def test_what_the_model_answers_as_well_is_left_to_it(tmp_path: Path) -> None:
    """A row goes if the model's choice is within epsilon of the best; others, and their problems, stay."""
    result = built(tmp_path, {NEAR: LARGE, FAR: LARGE})
    assert rows(result) == {NEAR: None, FAR: ATEN}
    assert [(row.m, row.problems) for row in result.pruned] == [((1024, 1024), 1)]
    assert result.regrets == [0]


def test_worse_unknown_and_unsure_choices_prune_nothing(tmp_path: Path) -> None:
    """A choice beyond epsilon, one that was not timed, or none, leaves the row."""
    for number, choice in enumerate((SMALL, Config("triton_mm", (16, 16, 16, 8, 3, 4)), None)):
        (tmp_path / str(number)).mkdir()
        assert built(tmp_path / str(number), {NEAR: choice}).pruned == []


def test_epsilon_is_that_of_the_build(tmp_path: Path) -> None:
    """With a wider epsilon, a slower choice of the model is good enough."""
    assert len(built(tmp_path, {NEAR: SMALL}, epsilon=0.05).pruned) == 1


def test_a_problem_that_a_kept_row_covers_does_not_go_to_the_model(tmp_path: Path) -> None:
    """Without its own row it would be answered by the wider one, so it keeps its own."""
    wide = Entry("mm", None, None, None, None, None, None, None, (Candidate(ATEN),), note="by hand")
    assert built(tmp_path, {NEAR: LARGE}, previous=Table(H200, [wide])).pruned == []


def of_one_kind(entry: Entry) -> Entry:
    """The entry, for problems of NEAR's kind where it is not for any."""
    op, dtype, layout, align = NEAR[:4]
    found = entry._replace(
        op=entry.op and op, dtype=entry.dtype and dtype, layout=entry.layout and layout, align=entry.align and align
    )
    return found._replace(variant=None, loads=None, **dict.fromkeys("hgvxyr"))


def with_sizes_of(problem: Problem) -> Problem:
    return NEAR._replace(m=problem.m, n=problem.n, k=problem.k)


@settings(max_examples=share(50))
@given(
    rows=st.lists(STRATEGIES.entries.map(of_one_kind), max_size=20, unique_by=lambda row: row.key),
    problems=st.lists(STRATEGIES.problems.map(with_sizes_of), min_size=1, max_size=20),
)
def test_rows_go_by_a_scan_of_all_the_others(rows: list[Entry], problems: list[Problem]) -> None:
    """Wildcards, ranges and exact rows: a row goes if no other of them covers a problem that it answers for."""
    table = Table(H200, rows)
    measurements = measurements_of(Record(problem, (Timing(ATEN, 1.0),)) for problem in problems)
    answered = defaultdict(list)
    for number, problem in enumerate(measurements.problems):
        if entry := table.lookup(problem):
            answered[entry].append(number)
    kept = [row for row in rows if row not in answered]
    alone = [
        row
        for row, numbers in answered.items()
        if all(table.covering(measurements.problems[number]) == [row] for number in numbers)
    ]
    assert needless(answered, kept, measurements, lambda _: ATEN, 0.02, 0.01) == alone


def test_command(tmp_path: Path) -> None:
    """The command reads the model, says how many rows it saves, and the table says which model that was."""
    weights, out = tmp_path / "x.safetensors", tmp_path / "x.json"
    write_model(model(candidates=(LARGE, BATCHED, ATEN)), weights)
    result = call("build", dataset(tmp_path / "x.msgpack"), "-o", out, "--prune-with", weights)
    assert result.exit_code == 0, result.stderr
    assert "  rows left to the model: 1, of 1 problem" in result.stdout
    table = read_table(out)
    assert [entry.configs[0] for entry in table.entries] == [ATEN]
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert table.provenance["pruned_with"] == f"sha256:{digest}, with confidence 0.9 or a gain of 0.05"


def test_command_without_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no model can be read, that is an error, and no table is written."""
    weights, out = tmp_path / "x.safetensors", tmp_path / "x.json"
    write_model(model(candidates=(LARGE, BATCHED, ATEN)), weights)
    monkeypatch.delitem(sys.modules, "diode_lut.model.weights")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    result = call("build", dataset(tmp_path / "x.msgpack"), "-o", out, "--prune-with", weights)
    assert (result.exit_code, out.exists()) == (1, False)
    assert f"error: {weights}: NumPy or safetensors, which models need, cannot be imported: " in result.stderr


def test_a_model_for_another_device_is_refused(tmp_path: Path) -> None:
    """It would not answer where the table does: an error says which device is whose, and nothing is written."""
    weights, source, out = tmp_path / "a100.safetensors", dataset(tmp_path / "x.msgpack"), tmp_path / "x.json"
    write_model(model(hardware=A100), weights)
    result = call("build", source, "-o", out, "--prune-with", weights)
    assert (result.exit_code, out.exists()) == (1, False)
    assert result.stderr == f"error: {source}: measured on {H200}, but {weights} is for {A100}\n"
