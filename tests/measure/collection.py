"""What tests of collecting share."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diode_lut.dataset import Timing, read_dataset
from diode_lut.measure.collector import collect
from diode_lut.measure.tasks import Outcome
from diode_lut.problem import Problem

ROOT = Path(__file__).parent.parent.parent


class Collection:
    """A collection in a directory, with a dataset and the marks that the measurers for tests leave."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "timings.msgpack"
        self.marks = directory / "marks"
        self.marks.mkdir()

    def run(self, problems: list[Problem], **options: Any) -> Iterator[Outcome]:
        """The outcomes of all passes."""
        return outcomes(problems, self.path, search_space=str(self.marks), **options)

    def module(self, problems: list[Problem], *arguments: str | Path) -> list[str]:
        """The ``collect`` command with the measurers for tests: a module, and its arguments."""
        file = problem_file(self.path.with_name("problems.json"), problems)
        files = ("--problems", file, "--out", self.path, "--search-space", self.marks)
        return ["tests.programs.collect_for_tests", *map(str, (*files, *arguments))]

    def command(self, problems: list[Problem], *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
        """The same in a process group of its own."""
        return started(*self.module(problems, *arguments), **options)

    def timings(self, stage: str = "autotune") -> dict[Problem, tuple[Timing, ...]]:
        """What the file holds at a stage, every problem once."""
        records = [record for record in read_dataset(self.path) if record.stage == stage]
        assert len({record.problem for record in records}) == len(records)
        return {record.problem: record.timings for record in records}

    def begun(self, stage: str = "autotune") -> Counter[str]:
        """How often each problem was begun."""
        return Counter(mark.name.rsplit(" ", 1)[0] for mark in self.marks.glob(f"{stage} *"))


def outcomes(problems: list[Problem], path: Path, **options: Any) -> Iterator[Outcome]:
    """What ``collect`` yields in all its passes."""
    for each in collect(problems, path, **options):
        yield from each.outcomes


def started(module: str, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """A program of this repository, run in a process group of its own."""
    line = [sys.executable, "-m", module, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, text=True, cwd=ROOT, start_new_session=True, **pipes, **options)


def problem_file(path: Path, problems: list[Problem]) -> Path:
    """A problem file that is read as just these problems."""
    path.write_text(json.dumps([each.to_json() for each in problems]))
    return path
