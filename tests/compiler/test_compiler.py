"""The compiler that remembers, which Inductor uses in tests."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = Path(__file__).with_name("g++")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def compiled(directory: Path, name: str, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Compiling this text into a library ``name.so``."""
    source = directory / f"{name}.cpp"
    source.write_text(text)
    command = [COMPILER, str(source), "-shared", "-fPIC", *options, "-o", str(directory / f"{name}.so")]
    environment = {**os.environ, "KEPT_LIBRARIES": str(directory / "kept"), "KEPT_HEADERS": str(directory / "headers")}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def test_the_same_code_is_compiled_once(tmp_path: Path) -> None:
    """A file of the same text gets the library that is kept; other text, or other options, are compiled."""
    (tmp_path / "kept").mkdir()
    text = 'extern "C" int answer() { return N; }'
    cases = {
        "first": (text, "-DN=1"),
        "again": (text, "-DN=1"),
        "option": (text, "-DN=2"),
        "text": (text + "//", "-DN=1"),
    }
    for name, (code, option) in cases.items():
        done = compiled(tmp_path, name, code, option)
        assert (done.returncode, done.stderr) == (0, "")
    assert [answer(tmp_path / f"{name}.so") for name in cases] == [1, 1, 2, 1]
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_what_does_not_compile_fails_each_time(tmp_path: Path) -> None:
    """Nothing is kept of it, and the compiler says why."""
    (tmp_path / "kept").mkdir()
    for _ in range(2):
        done = compiled(tmp_path, "wrong", "int answer(")
        assert done.returncode == 1
        assert "error: " in done.stderr
    assert list((tmp_path / "kept").iterdir()) == []


def test_the_header_of_kernels_is_read_until_the_third(tmp_path: Path) -> None:
    """From then on, kernels with the same options have what was precompiled, and those with others read it."""
    (tmp_path / "kept").mkdir()
    header = tmp_path / "torch" / "csrc" / "inductor" / "cpp_prefix.h"
    header.parent.mkdir(parents=True)
    text = '#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C" int answer() { return TENS + N; }'
    found = []
    for number, option in enumerate(["-DN=1"] * 4 + ["-DN=2"], start=1):
        header.write_text(f"#ifndef TENS\n#define TENS {10 * number}\n#endif\n")
        name = f"kernel{number}"
        done = compiled(tmp_path, name, f"{text} // {number}", option, f"-I{tmp_path}", "-lm")
        assert (done.returncode, done.stderr) == (0, "")
        found.append(answer(tmp_path / f"{name}.so"))
    assert found == [11, 21, 31, 31, 52]
