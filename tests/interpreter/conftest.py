"""Processes that have the interpreter's device."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forks import INDUCTOR, ROOT, Forks, first_compile, forks_after
from tests.interpreter.process import require_interpreter
from tests.sampled import chosen

DEVICE = f"""
from tests.interpreter.device import interpreter_cuda
with interpreter_cuda():
{textwrap.indent(INDUCTOR + first_compile("cuda:0"), "    ")}
"""


@pytest.fixture(scope="session")
def with_device() -> Iterator[Forks]:
    """Programs in processes of their own, in which the interpreter's device and Inductor are loaded."""
    require_interpreter()
    with forks_after(DEVICE) as forks:
        yield forks


def found_by(forks: Forks, program: str, *arguments: Path | str) -> dict[str, Any]:
    """What one of tests/programs prints, as JSON, in a process of its own."""
    done = forks.run(str(ROOT / "tests" / "programs" / program), *map(str, arguments))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def found_for(request: pytest.FixtureRequest, program: str, parameter: str = "case") -> dict[str, Any]:
    """Run a program of tests/programs on the cases that this module's tests need, and return its findings."""
    directory = request.getfixturevalue("tmp_path_factory").mktemp(program.removesuffix(".py"))
    return found_by(request.getfixturevalue("with_device"), program, directory, *chosen(request, parameter))
