"""A user's function that the hook asks: what it answers becomes the kernel, and Inductor's caches follow its digest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import diode_lut
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import Config
from tests.fake_cuda import Input, lower
from tests.forks import Forks

PROGRAM = Path(__file__).parents[1] / "programs" / "choose.py"
OPERANDS = Input((512, 64)), Input((64, 256))
FITS = Config.parse("triton_mm 64x64x64 g8 s3 w4")
TOO_LARGE = Config.parse("triton_mm 128x256x128 g8 s5 w8")  # takes more shared memory than the device has


@pytest.fixture(autouse=True)
def only_choosers() -> Iterator[None]:
    with diode_lut.config.patch(tables=(), tiers=("chooser",)):
        yield


@pytest.mark.usefixtures("h200")
def test_answer_becomes_the_kernel() -> None:
    """The chooser's config is the one kernel in the generated code, in place of the library's."""
    assert lower(torch.mm, *OPERANDS).extern == ["mm"]
    asked = []

    def rule(problem: Problem, hardware: Hardware) -> Config:
        asked.append((problem, hardware.name))
        return FITS

    with diode_lut.register_chooser(rule, name="rule", digest="1"), diode_lut.profile_predictions() as counts:
        lowered = lower(torch.mm, *OPERANDS)
    (kernel,) = lowered.triton_templates
    assert "BLOCK_M : tl.constexpr = 64" in kernel
    assert asked == [(Problem.of("mm", 512, 256, 64, dtype="bfloat16", layout="nn"), "NVIDIA H200")]
    assert counts.hits["chooser"] == 1


@pytest.mark.usefixtures("h200")
def test_epilogues_are_asked_about() -> None:
    """A chooser is asked about the GEMM and about each class of epilogue, as a table is."""

    def rule(problem: Problem, _hardware: Hardware) -> Config:
        return Config("aten") if problem.epilogue == "none" else FITS

    with diode_lut.register_chooser(rule, name="rule", digest="1"):
        assert lower(torch.mm, *OPERANDS).extern == ["mm"]
        (kernel,) = lower(lambda a, b: torch.relu(a @ b), *OPERANDS).triton_templates
    assert "BLOCK_M : tl.constexpr = 64" in kernel


def fail(*_: Any) -> Config:
    raise ValueError("no idea")


ANSWERS: dict[str, tuple[Callable[..., Any], list[str], str]] = {
    "next config": (lambda *_: [TOO_LARGE, FITS], [], "it takes more shared memory than the device has"),
    "for another op": (lambda *_: Config.parse("triton_bmm 64x64x64 g8 s3 w4"), ["mm"], "is not for mm on this device"),
    "for another device": (lambda *_: Config("cpp_gemm"), ["mm"], "is not for mm on this device"),
    "an error": (fail, ["mm"], "raised ValueError: no idea"),
    "nonsense": (lambda *_: 5, ["mm"], "returned 5, not a Config"),
}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_are_guarded(answer: str, caplog: pytest.LogCaptureFixture) -> None:
    """A config that cannot run gives way to the next one, and then to Inductor, with one warning."""
    function, extern, message = ANSWERS[answer]
    with diode_lut.register_chooser(function, name="rule", digest="1"):
        assert lower(torch.mm, *OPERANDS).extern == extern
        assert lower(torch.mm, *OPERANDS).extern == extern
    (warning,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert message in warning
    assert "rule" in warning


@pytest.mark.slow
def test_caches_follow_the_digest(after_inductor: Forks, tmp_path: Path) -> None:
    """A new process gets compiled code from the caches if name and digest are the same; without a digest, never."""

    def run(*arguments: str) -> str:
        done = after_inductor.run(str(PROGRAM), "NORMAL", *arguments, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run("cpp_gemm", "1") == "compiled 1"
    assert run("cpp_gemm", "1").startswith("cached")
    assert run("aten", "2") == "compiled 1"
    assert run("aten", "2").startswith("cached")
    assert run("cpp_gemm", "1").startswith("cached")
    assert [run("aten"), run("aten")] == ["compiled 1", "compiled 1"]


def test_graphs_are_compiled_in_this_process(after_inductor: Forks, tmp_path: Path) -> None:
    """Where Inductor would compile in another process, which has no chooser, it compiles in this one."""
    arguments = (str(PROGRAM), "SUBPROCESS", "cpp_gemm", "1")
    done = after_inductor.run(*arguments, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "compiled 1"
