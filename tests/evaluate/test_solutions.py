"""torch-diode's max-autotune solutions as the baseline of evaluate."""

import json
from pathlib import Path
from typing import Any

import pytest

from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.distill.synthetic import H200

NAMES = ("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps")
FAST, SLOW, GONE = ((64, 64, 32, 8, 3, 4), (128, 64, 32, 8, 3, 4), (32, 32, 32, 8, 3, 4))
MM, OTHER = (Problem.of("mm", m, 64, 64, dtype="float16", layout="nn") for m in (64, 128))


def row(values: tuple[int, ...], **fields: int) -> dict[str, Any]:
    return {"name": "triton_mm", "grid": 1, "EVEN_K": False, **dict(zip(NAMES, values, strict=True)), **fields}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table that answers aten, and timings of two problems."""
    monkeypatch.chdir(tmp_path)
    times = {Config("triton_mm", FAST): 100.0, Config("triton_mm", SLOW): 150.0, ATEN: 200.0}
    with DatasetWriter(tmp_path / "d.msgpack", Header(H200)) as writer:
        for problem in (MM, OTHER):
            writer.append(Record(problem, tuple(Timing(*each) for each in times.items())))
    table = {"schema_version": 2, "hardware": H200._asdict(), "entries": [{"configs": [{"template": "aten"}]}]}
    (tmp_path / "t.json").write_text(json.dumps(table))
    return tmp_path


@pytest.mark.parametrize(
    ("solution", "gains"),
    [
        ({"config": [row(SLOW), row(FAST), row(GONE)]}, 0.5),
        ({"mm": {"config": [row(SLOW)]}}, 0.75),
        ({"name": "x", "configs": [row(SLOW, M=64, N=64, K=64), row(FAST, M=128, N=64, K=64)]}, (0.75 * 0.5) ** 0.5),
    ],
    ids=["for all", "by op", "by size"],
)
def test_gains_are_against_the_fastest_kernel_of_the_solution(solution: Any, gains: float, files: Path) -> None:
    """That is what max-autotune with these kernels would choose; those that were not measured do not count."""
    (files / "s.json").write_text(json.dumps(solution))
    result = call("evaluate", "t.json", "d.msgpack", "--against", "s.json", "--format", "json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert (figures["against"], figures["all"]["gain"]) == ("s.json", pytest.approx(gains, abs=1e-3))


@pytest.mark.parametrize(
    ("solution", "words"),
    [
        ("[]", "s.json: expected a max-autotune solution of torch-diode"),
        ("{", "s.json:1: not JSON"),
        ('{"config": []}', "no config in it is one that tables know: it is empty"),
        ('{"config": [{"block_m": 64}]}', "no config in it is one that tables know: "),
        (json.dumps({"config": [row(GONE)]}), "'s.json' was measured on none of the problems"),
    ],
)
def test_other_files_are_errors(solution: str, words: str, files: Path) -> None:
    """The message says what is wrong with the file."""
    (files / "s.json").write_text(solution)
    result = call("evaluate", "t.json", "d.msgpack", "--against", "s.json")
    assert (result.exit_code, words in result.stderr) == (1, True), result.output
