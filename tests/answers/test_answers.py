"""The shipped table's answers are those that were recorded when it was built, however it is written and looked up."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from diode_lut.dataset import read_dataset
from diode_lut.problem import Problem
from diode_lut.table import Table, read_table

HERE = Path(__file__).parent
TABLES = HERE.parent.parent / "tables"
RECORDED = HERE / "nvidia-h200.json"  # how many problems have a row, and a hash of the answers for each BLOCK

DRAWN = 100_000
BLOCK = 1_000


def measured() -> list[Problem]:
    """The problems that the table was built from."""
    records = read_dataset(TABLES / "datasets" / "nvidia-h200-models.msgpack.zst")
    return sorted({record.problem for record in records})


def drawn(measured: list[Problem]) -> Iterator[Problem]:
    """Problems near the measured ones: some sizes are those of another problem of the kind, some are changed a bit."""
    random = Random(7)
    kinds: dict[tuple[str, str, str, int], list[Problem]] = {}
    for problem in measured:
        kinds.setdefault((problem.op, problem.dtype, problem.layout, problem.align), []).append(problem)
    for _ in range(DRAWN):
        problem = random.choice(measured)
        others = kinds[problem.op, problem.dtype, problem.layout, problem.align]
        for name in "bmnk":
            size = getattr(random.choice(others) if random.random() < 0.2 else problem, name)
            if random.random() < 0.1 and (name != "b" or problem.op in ("bmm", "baddbmm")):
                size = max(1, int(size * random.uniform(0.7, 1.5)))
            problem = problem._replace(**{name: size})
        yield problem


def answer(table: Table, problem: Problem) -> list[dict[str, object]]:
    """The configs of the row that answers, as tables write them."""
    entry = table.lookup(problem)
    return [] if entry is None else [config.to_json() for config in entry.configs]


def summary() -> dict[str, object]:
    """What RECORDED holds, from the table as it is."""
    table = read_table(TABLES / "nvidia-h200.json")
    known = measured()
    problems = [*known, *drawn(known)]
    answers = [answer(table, problem) for problem in problems]
    lines = [json.dumps([problem.to_json(), given]) for problem, given in zip(problems, answers, strict=True)]
    blocks = ("\n".join(lines[start : start + BLOCK]).encode() for start in range(0, len(lines), BLOCK))
    digests = [hashlib.sha256(block).hexdigest()[:16] for block in blocks]
    return {"answered": sum(map(bool, answers)), "digests": digests}


@pytest.mark.slow
def test_answers_are_the_recorded_ones() -> None:
    """Of all 2,360 measured problems, and of 100,000 drawn near them."""
    assert summary() == json.loads(RECORDED.read_text(encoding="utf-8"))
