"""What a process tells ``compare`` about its steps."""

import json
import sys
from pathlib import Path

from tests.commands import started

PROGRAM = """
import multiprocessing, os, diode_lut

def steps(count):
    for _ in range(count):
        diode_lut.step()

if __name__ == "__main__":
    steps(3)
    child = multiprocessing.get_context("spawn").Process(target=steps, args=(5,))
    child.start()
    child.join()
    if os.fork() == 0:
        steps(7)
        raise SystemExit
    os.wait()
"""


def test_steps_are_timed_in_each_process(tmp_path: Path) -> None:
    """There is a time between two marks, also where multiprocessing has started the process; forks write nothing."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "probe").mkdir()
    with started(sys.executable, "program.py", cwd=tmp_path, _DIODE_LUT_PROBE=str(tmp_path / "probe")) as process:
        assert process.communicate() == ("", "")
    written = [json.loads(path.read_text())["steps_s"] for path in (tmp_path / "probe").iterdir()]
    assert sorted(map(len, written)) == [2, 4]
    assert all(time >= 0 for steps in written for time in steps)


def test_steps_cost_nothing_elsewhere(tmp_path: Path) -> None:
    """Without ``compare``, a step writes nothing and keeps nothing."""
    program = "import diode_lut, diode_lut.probe as probe; diode_lut.step(); print(probe._marks)"
    with started(sys.executable, "-c", program, cwd=tmp_path) as process:
        assert process.communicate() == ("[]\n", "")
    assert list(tmp_path.iterdir()) == []
