"""The benchmark of a language model with a dynamic number of tokens: a tiny one, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from modelbench.dynamic import TINY_TOKENS, WAYS, measure_layers


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
