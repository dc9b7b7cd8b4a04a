"""The benchmark of a language model with a dynamic number of tokens: a tiny one, on a CPU."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench_dynamic import compile_all
from modelbench.dynamic import TINY_TOKENS, WAYS, measure_layers

from diode_lut.domain.problem import Problem

ROOT = Path(__file__).parent.parent


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_layers_are_compiled_once_and_for_each_size(tmp_path: Path) -> None:
    """All ways give right results; those with a dynamic size take one compile, the others one for each size."""
    measure_layers(out := tmp_path / "decode.jsonl", 1000, device="cpu", tiny=True)
    lines = lines_in(out)
    compiles = {line["way"]: line["compiles"] for line in lines if "compiles" in line}
    assert compiles == {way.name: 1 if way.dynamic else len(TINY_TOKENS) for way in WAYS}
    timed = lines[len(WAYS) :]
    assert {(line["way"], line["tokens"]) for line in timed} == {(way.name, n) for way in WAYS for n in TINY_TOKENS}
    assert all(line["error"] < 0.02 for line in timed)
    assert all(0.99 < line["tokens"] / line["ms"] * 1000 / line["tokens_per_s"] < 1.01 for line in timed)


def test_no_time_is_no_compile(tmp_path: Path) -> None:
    """Without time left nothing is compiled, and the lines say so."""
    measure_layers(out := tmp_path / "decode.jsonl", 0, device="cpu", tiny=True)
    assert [(line["sizes"], line["compiles"]) for line in lines_in(out)] == [(0, 0)] * len(WAYS)


def test_a_family_that_does_not_compile_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where there is no such device, the error is printed, and no family is timed."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tools"), os.environ["PYTHONPATH"]]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    family = Problem.of("mm", 64, 64, 64, dtype="bfloat16", layout="nn")
    options = argparse.Namespace(processes=1, sizes=(8,))
    assert compile_all([family], options, until=1e7) == []
    assert capsys.readouterr().out.startswith(f"{family}: ")
