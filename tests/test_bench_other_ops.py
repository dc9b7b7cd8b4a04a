"""The benchmark of ops that tables do not know: small problems, on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench_other_ops import markdown, measure, problems_of
from modelbench.other_ops import KERNEL, OPS
from modelbench.searching import searching
from modelbench.ways import measure_missing, read
from torch._inductor import config as inductor_config
from torch._inductor.template_heuristics.registry import get_template_heuristic

TINY = list(problems_of(list(OPS), tiny=True))


def line(op: str, about: str, ms: dict[str, float], **fields: Any) -> dict[str, Any]:
    """What is measured of one problem, by default with results that are right."""
    right = dict.fromkeys(ms, 0.002)
    return {"case": f"{op}: {about}", "op": op, "today": ["library"], "ms": ms, "difference": right, **fields}


@pytest.mark.slow
def test_each_op_is_computed_in_all_ways(tmp_path: Path) -> None:
    """Each op has a time, kernels and a small difference for each way but Triton's; a second run finds all done."""
    measure(TINY, out := tmp_path / "other.jsonl", 1000, "cpu", "known")
    lines = read(out)
    assert [each["case"] for each in lines] == [problem.name for problem in TINY]
    assert [set(each["ms"]) for each in lines] == [set(OPS[problem.op].ways_on("cpu")) for problem in TINY]
    assert all(value < 0.01 for each in lines for value in each["difference"].values())
    assert all(each["today"] for each in lines)
    measure(TINY, out, 1000, "cpu", "known")
    assert read(out) == lines


def test_no_budget_is_no_problem(tmp_path: Path) -> None:
    """Without time left no problem is begun."""
    measure(TINY, out := tmp_path / "other.jsonl", 0, "cpu", "known")
    assert read(out) == []


def test_ops_take_turns() -> None:
    """Each op has its first problem before any has its second; all problems of all ops have a turn."""
    problems = list(problems_of(list(OPS)))
    assert [problem.op for problem in problems[: len(OPS)]] == list(OPS)
    assert len({problem.name for problem in problems}) == sum(len(op.cases) for op in OPS.values())


@pytest.mark.parametrize(
    ("uid", "op"), [("triton::mm", "mm"), ("triton::bmm", "bmm"), ("triton::mm_plus_mm", "mm_plus_mm")]
)
def test_known_kernels_are_searched(uid: str, op: str) -> None:
    """Within ``known`` Inductor searches the configs of tables exhaustively, and afterwards its own."""
    heuristic = get_template_heuristic(uid, "cuda", op)
    own = heuristic.exhaustive_configs
    with searching("known"):
        assert inductor_config.max_autotune_gemm_search_space == "EXHAUSTIVE"
        assert 100 < len(heuristic.exhaustive_configs) < 200
    assert heuristic.exhaustive_configs is own
    with searching("default"):
        assert (inductor_config.max_autotune_gemm_search_space, heuristic.exhaustive_configs) == ("DEFAULT", own)


def test_integers_have_blocks_of_as_many_bytes() -> None:
    """The configs for int8 have twice the BLOCK_K of those for types of two bytes."""
    with searching("known"):
        mm, integers = (get_template_heuristic("triton::mm", "cuda", op).exhaustive_configs for op in ("mm", "int_mm"))
    assert [each.block_k for each in integers] == [2 * each.block_k for each in mm]


def test_a_problem_that_fails_has_its_error(tmp_path: Path) -> None:
    """A failure is one line, and the next case is measured."""

    def fail_first(name: str) -> dict[str, Any]:
        if name == "first":
            raise RuntimeError("no\nmemory")
        return {"ms": {}}

    measure_missing(out := tmp_path / "other.jsonl", ["first", "second"], fail_first, "cpu", 1000, 1000)
    assert read(out) == [{"case": "first", "error": "RuntimeError: no"}, {"case": "second", "ms": {}}]


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    """What was written whole is read."""
    (out := tmp_path / "other.jsonl").write_text('{"case": "first"}\n{"case": "sec', encoding="utf-8")
    assert read(out) == [{"case": "first"}]


def test_gains_are_over_the_fastest_of_today() -> None:
    """A gain is today's fastest way over the fastest that is right, and 1 where that is today's."""
    lines = [
        line("int_mm", "faster", {"library": 0.3, KERNEL: 0.2}, config="64x64x64 g8 s3 w4"),
        line("int_mm", "wrong", {"library": 0.3, KERNEL: 0.1}, difference={"library": 0, KERNEL: 0.5}, config=""),
        line("int_mm", "slower", {"library": 0.1, KERNEL: 0.2}, config=""),
        {"case": "int_mm: large", "error": "OutOfMemoryError: 1 GB"},
    ]
    text = markdown(lines).splitlines()
    assert text[2] == "| int_mm | 3 | 1.145 | 1.500 | 1 | 0.866 |"
    assert text[-4] == "| int_mm: faster | 0.3000 | library | 0.2000 | triton | 1.500 | 64x64x64 g8 s3 w4 |"
    assert text[-3] == "| int_mm: wrong | 0.3000 | library | 0.3000 | library | 1.000 |  |"
    assert text[-2] == "| int_mm: slower | 0.1000 | library | 0.1000 | library | 1.000 |  |"
    assert text[-1] == "| int_mm: large | OutOfMemoryError: 1 GB | | | | | |"
