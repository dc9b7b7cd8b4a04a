"""The benchmark of a language model with a dynamic number of tokens: a tiny one, on a CPU."""

import argparse
import json
import os
import random
from math import log
from pathlib import Path
from typing import Any

import pytest
from bench_dynamic import compile_all, main
from modelbench.dynamic import TINY_TOKENS, WAYS, interval_of_median, measure_layers

from diode_lut.problem import Problem

ROOT = Path(__file__).parent.parent


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_time_is_no_compile(tmp_path: Path) -> None:
    """Without time left nothing is compiled, and the lines say so."""
    measure_layers(out := tmp_path / "decode.jsonl", 0, device="cpu", tiny=True)
    assert [(line["sizes"], line["compiles"]) for line in lines_in(out)] == [(0, 0)] * len(WAYS)


@pytest.mark.parametrize(("count", "place"), [(6, 0), (10, 1), (100, 39)])
def test_the_interval_of_a_median(count: int, place: int) -> None:
    """It ends at the values that tables of the sign test for 95 % name."""
    values = [float(value) for value in range(count)]
    random.Random(0).shuffle(values)
    assert interval_of_median(values) == (place, count - 1 - place)


def test_how_often_the_interval_has_the_median() -> None:
    """Of samples of a skewed distribution, 95 % or more have the true median in their interval."""
    draw = random.Random(0)
    samples = [[draw.expovariate(1.0) for _ in range(30)] for _ in range(2000)]
    intervals = map(interval_of_median, samples)
    assert 0.95 < sum(low <= log(2) <= high for low, high in intervals) / len(samples) < 0.97


@pytest.mark.parametrize("size", ["1", "5000"])
def test_a_size_that_no_dispatch_has(
    size: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A size beyond the kernels' range, or one that PyTorch compiles separately, is refused before anything runs."""
    monkeypatch.setattr("sys.argv", ["bench_dynamic.py", "--dispatch", "--sizes", size])
    with pytest.raises(SystemExit):
        main()
    assert "--dispatch takes --sizes from 2 to 4096" in capsys.readouterr().err


@pytest.mark.slow
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
