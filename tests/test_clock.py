"""A system whose clock is wrong."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diode_lut.dataset import DatasetWriter
from tests.dataset.test_stream import HEADER, RECORDS

ROOT = Path(__file__).parent.parent
COMPILER = shutil.which("cc") or shutil.which("g++")

pytestmark = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no compiler to break a clock with")


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("clock") / "broken_clock.so"
    source = Path(__file__).parent / "programs" / "broken_clock.c"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-xc", "-o", library, source, "-ldl"], check=True)
    return library


def run(clock: Path, seconds: int, *arguments: object) -> str:
    environment = {**os.environ, "LD_PRELOAD": str(clock), "SECONDS": str(seconds)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("seconds", "says"), [(0, ""), (4_000_000_000, "2096-10-02")])
def test_a_plainly_wrong_date_is_left_out(clock: Path, seconds: int, says: str) -> None:
    """A dataset does not say that it was measured in 1970; another date cannot be told from a true one."""
    code = "import time; from diode_lut.measure.tasks import today; print(int(time.time()), today())"
    assert run(clock, seconds, "-c", code) == f"{seconds} {says}\n"


def test_what_is_built_does_not_depend_on_the_clock(clock: Path, tmp_path: Path) -> None:
    """The same datasets give the same table in 1970 and in 2096, and it replaces a newer file."""
    with DatasetWriter(tmp_path / "d", HEADER) as writer:
        for record in RECORDS:
            writer.append(record)
    tables = []
    for seconds in (0, 4_000_000_000):
        run(clock, seconds, "-m", "diode_lut", "build", tmp_path / "d", "-o", tmp_path / "t.json")
        tables.append((tmp_path / "t.json").read_bytes())
    assert tables[0] == tables[1]
    assert b"2026-11-21" in tables[0]
