"""What is known of this package's own code."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import diode_lut
from diode_lut import process as own_code

ROOT = Path(diode_lut.__file__).parent.parent
PRINT_DIGEST = "from diode_lut.process import code_digest; print(code_digest())"


def test_code_that_changes_after_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade is noticed, whatever it does to the code's files; what Python adds when it runs the code is none."""
    copy = tmp_path / "diode_lut"
    shutil.copytree(Path(diode_lut.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(own_code, "_CODE", str(copy))
    monkeypatch.setattr(own_code, "_imported", None)
    module, cached = copy / "table" / "index.py", copy / "table" / "__pycache__" / "index.cpython-311.pyc"

    def rewrite() -> None:
        time = module.stat().st_mtime_ns
        (copy / "new").write_bytes(module.read_bytes())
        (copy / "new").replace(module)
        os.utime(module, ns=(time, time))

    for upgrade in (lambda: module.write_text("# better\n"), rewrite, module.unlink, lambda: module.write_text("")):
        own_code.remember_code()
        cached.parent.mkdir(exist_ok=True)
        cached.write_bytes(os.urandom(8))
        assert own_code.is_code_as_imported()
        upgrade()
        assert not own_code.is_code_as_imported()


def test_import_remembers_the_code() -> None:
    """What the code was like when ``import diode_lut`` began to load it is known from then on."""
    program = "import diode_lut; from diode_lut import process; assert process._imported"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_digest_of_the_code(tmp_path: Path) -> None:
    """A copy has the same digest, before and after it has run; one of which a single module differs has another."""
    copy = tmp_path / "diode_lut"
    shutil.copytree(Path(diode_lut.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def digest() -> str:
        command = [sys.executable, "-c", PRINT_DIGEST]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    assert digest() == digest() == own_code.code_digest()
    with (copy / "hook" / "callers.py").open("a", encoding="utf-8") as module:
        module.write("# better\n")
    assert digest() != own_code.code_digest()
