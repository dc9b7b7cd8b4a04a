"""Attention from datasets to a table, and what its answers are worth: gains are over Inductor's own config."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from diode_lut.build import build
from diode_lut.dataset import Dataset, DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.decide.sources import TableSource
from diode_lut.evaluate import as_columns, evaluate
from diode_lut.hardware import Hardware
from diode_lut.measure.problems import read_problems
from diode_lut.problem import Problem
from diode_lut.table import write_table
from diode_lut.templates.config import ATEN, DEFAULT, Config

H200 = Hardware("NVIDIA H200", "sm_90", 132)
FAST = Config.parse("triton_flex_attention 128x64 s3 w8")
SLOW = Config.parse("triton_flex_attention 64x64 s3 w4")
MOST = 65_535


def attention(length: int, heads: int = 16) -> Problem:
    return Problem.of(
        *("flex_attention", length, length, 64), dtype="bfloat16", layout="nt", variant="causal", b=2, h=heads, g=4
    )


def dataset(tmp_path: Path, *records: Record) -> Dataset:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.msgpack"
    with DatasetWriter(path, Header(H200, torch="2.13.0")) as writer:
        for record in records:
            writer.append(record)
    return read_dataset(path)


def record(problem: Problem, fast: float, default: float = 1000.0) -> Record:
    times = {DEFAULT: default, FAST: fast, SLOW: 980.0}
    return Record(problem, tuple(Timing(config, ns) for config, ns in times.items()), "final")


def test_rows_gain_over_the_default(tmp_path: Path) -> None:
    """Rows cover measured problems in all sizes, and say what they gain over the default; GEMMs may be beside them."""
    gemm = Problem.of("mm", 64, 64, 64, dtype="bfloat16", layout="nt")
    records = [
        *(record(attention(length), 900.0) for length in (1024, 1500)),
        record(attention(1024, heads=64), 1200.0),
        Record(gemm, (Timing(ATEN, 1000.0),), "final"),
    ]
    table = build([dataset(tmp_path, *records)]).table
    row = table.lookup(attention(1200))
    assert row is not None
    assert (row.m, row.n, row.h, row.g, row.v) == ((1024, 1500), (1024, 1500), (16, 16), (4, 4), (64, 64))
    assert (row.best.config, row.best.gain_permille) == (FAST, 1111)
    other = table.lookup(attention(1024, heads=64))
    assert other is not None
    assert [candidate.config for candidate in other.candidates] == [SLOW, DEFAULT]
    assert table.lookup(gemm) is not None


def test_more_heads_get_what_was_not_slower(tmp_path: Path) -> None:
    """Between measured lengths, as many heads or more get the best of the configs that were not slower at both."""
    lengths = record(attention(1024), 900.0), record(attention(4096), 800.0)
    (wide,) = (row for row in build([dataset(tmp_path, *lengths)]).table.entries if row.g is None)
    assert (wide.best.config, wide.n, wide.b, wide.h, wide.problems) == (FAST, (1024, 4096), (2, MOST), (16, MOST), 2)
    other = record(attention(4096, heads=64), 1001.0)
    table = build([dataset(tmp_path, *lengths, other, record(attention(8192), 900.0))]).table
    rows = [table.lookup(attention(*each)) for each in ((2000, 24), (4096, 16), (6000, 24), (9000, 24), (2000, 8))]
    assert [row and row.best.config for row in rows] == [SLOW, FAST, SLOW, None, None]


def test_fewer_heads_get_what_was_measured_with_few(tmp_path: Path) -> None:
    """From the length on at which few heads were measured, rows answer for as few, and for more of them before it."""
    records = [record(attention(length, heads), 900.0) for length, heads in ((1024, 16), (4096, 4), (8192, 16))]
    table = build([dataset(tmp_path, *records)]).table
    wide = sorted((row.n, row.h) for row in table.entries if row.g is None)
    assert wide == [((1024, 4095), (16, MOST)), ((4096, 8192), (4, MOST))]
    assert [table.lookup(attention(*each)) is None for each in ((2000, 8), (6000, 8), (4096, 4))] == [
        True,
        False,
        False,
    ]


def test_nothing_for_other_heads_where_something_was_slower(tmp_path: Path) -> None:
    """A config that was slower than the default at a length, or was not timed there, answers for no others."""
    default_only = Record(attention(4096), (Timing(DEFAULT, 1000.0), Timing(FAST, None, "compile")), "final")
    table = build([dataset(tmp_path, record(attention(1024), 900.0), default_only)]).table
    assert table.lookup(attention(2000)) is None


def test_decoding_with_other_numbers_of_queries(tmp_path: Path) -> None:
    """Of decoding, a row holds for the measured numbers of queries, whatever the number of keys."""
    few, more = Config.parse("triton_flex_decoding 64 s3 w4"), DEFAULT
    problems = [
        Problem.of("flex_decoding", m, n, 64, dtype="bfloat16", layout="nt", variant="full", b=b, h=32, g=4)
        for m, n, b in ((1, 1024, 8), (16, 1024, 1), (1, 8192, 8), (16, 8192, 1))
    ]
    records = [Record(each, (Timing(more, 1000.0), Timing(few, 500.0)), "final") for each in problems]
    (wide,) = (row for row in build([dataset(tmp_path, *records)]).table.entries if row.g is None)
    assert (wide.m, wide.n, wide.best.config) == ((1, 16), (1024, 8192), few)


def test_first_stage_counts_for_attention(tmp_path: Path) -> None:
    """What the final stage left out counts with its time in the first stage, which times the same kernel."""
    swept = [record(attention(length), 900.0)._replace(stage="sweep") for length in (1024, 4096)]
    final = [Record(each.problem, (Timing(DEFAULT, 2000.0), Timing(SLOW, 1990.0)), "final") for each in swept]
    rows = build([dataset(tmp_path, *swept, *final)]).table.entries
    assert {(row.best.config, row.best.gain_permille) for row in rows} == {(FAST, 1111)}


def test_answers_are_evaluated(tmp_path: Path) -> None:
    """A miss counts as the default, and gains are over it, also where the dataset has GEMMs."""
    measured = dataset(tmp_path, record(attention(1024), 800.0), record(attention(4096), 900.0))
    table = build([dataset(tmp_path, record(attention(1024), 800.0))]).table
    found = evaluate(TableSource(table), measured)
    assert {case.problem.m: (case.choice, case.gain) for case in found.cases} == {
        1024: (FAST, 1000 / 800),
        4096: (DEFAULT, 1.0),
    }


def test_gains_are_by_mask_and_score(tmp_path: Path) -> None:
    """Each op's variants have figures of their own, which GEMMs have not; the baseline of gains is named."""
    backward = attention(1024)._replace(op="flex_attention_backward")
    other = attention(1024)._replace(variant="full-score-computed")
    gemm = Record(Problem.of("mm", 64, 64, 64, dtype="bfloat16", layout="nt"), (Timing(ATEN, 1000.0),), "final")
    records = [
        record(attention(1024), 800.0),
        record(other, 500.0),
        Record(backward, (Timing(DEFAULT, 900.0),), "final"),
        gemm,
    ]
    source = TableSource(build([dataset(tmp_path, *records)]).table)
    found = evaluate(source, dataset(tmp_path, *records))
    gains = {name: summary.gain for name, summary in found.groups["variant"].items()}
    assert gains == {
        "flex_attention causal": pytest.approx(1.25),
        "flex_attention full-score-computed": pytest.approx(2),
        "flex_attention_backward causal": 1,
    }
    assert found.against == "aten or default"
    text = io.StringIO()
    Console(file=text, width=120).print(as_columns(found))
    lines = text.getvalue().splitlines()
    place = lines.index(next(line for line in lines if line.startswith("by variant")))
    assert [line.split()[:2] for line in lines[place + 1 : place + 6]] == [
        ["flex_attention"],
        ["causal", "1"],
        ["full-score-computed", "1"],
        ["flex_attention_backward"],
        ["causal", "1"],
    ]
    assert "A miss counts as aten or default." in text.getvalue().replace("\n", " ")
    assert evaluate(source, dataset(tmp_path, *records[:3])).against == "default"


def test_table_is_a_problem_file(tmp_path: Path) -> None:
    """Of a table's rows for attention the smallest and the largest problem are measured again."""
    table = build([dataset(tmp_path, *(record(attention(length), 900.0) for length in (1024, 1500)))]).table
    write_table(table, tmp_path / "mine.json")
    assert read_problems(tmp_path / "mine.json") == [attention(1024), attention(1500)]
