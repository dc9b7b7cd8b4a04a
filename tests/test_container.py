"""A server in the equivalent of the container of examples/Dockerfile."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
CACHE = "/cache"

CONTAINED = """
set -e
mount -o remount,bind,ro /
mount --bind "$2" "$2"
mount -o remount,bind,ro "$2"
mount -t tmpfs -o mode=1777 tmpfs "$1"
cd "$2"
shift 2
unshare --user --map-user=65534 --map-group=65534 env --ignore-environment "$@"
"""
"""Run a command in a directory that cannot be written, beside an empty one that can, with no variables but its own."""


PROGRAM = """
import atexit, os, runpy, sys
assert os.getuid() == 65534 and "HOME" not in os.environ and not os.access(".", os.W_OK)
receipt = os.environ.get("DIODE_LUT_RECEIPT")
if receipt:  # the directory is gone afterwards; functions that are registered first are called last
    atexit.register(lambda: print(open(receipt).read()))
runpy.run_path(sys.argv[1], run_name="__main__")
print("imported" if "diode_lut" in sys.modules else "not imported")
"""


def contained(tmp_path: Path, variables: list[str], command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run it in such a directory; ``CACHE`` in variables is the one that can be written."""
    inner = "mount -o remount,bind,ro / && unshare --user --map-user=65534 --map-group=65534 true"
    if not shutil.which("unshare") or subprocess.run(["unshare", "--mount", "sh", "-c", inner], check=False).returncode:
        pytest.skip("no process here can have file systems and users of its own")
    cache, directory = tmp_path / "cache", tmp_path / "app"
    cache.mkdir()
    directory.mkdir()
    words = [
        f"PATH={os.environ['PATH']}",
        f"PYTHONPATH={ROOT}",
        *(each.replace(CACHE, str(cache)) for each in variables),
    ]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", CONTAINED, "sh", str(cache), str(directory), *words, *command],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("receipt", [True, False])
def test_the_dockerfile_serves_with_and_without_a_receipt(receipt: bool, tmp_path: Path) -> None:
    """With its variables, a user without a home runs the example where only the cache can be written."""
    lines = (ROOT / "examples" / "Dockerfile").read_text().splitlines()
    variables = [line.removeprefix("ENV ") for line in lines if line.startswith("ENV ")]
    variables += [f"DIODE_LUT_RECEIPT={CACHE}/receipt.json"] if receipt else []
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "examples" / "recommender.py")]
    result = contained(tmp_path, variables, command)
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr
    times, _, after = result.stdout.partition("imported\n")
    assert times.startswith("step time: ")
    if receipt:
        assert json.loads(after)["devices"]
    else:
        assert after == ""


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("compare", 2, "diode-lut-compare.html: Read-only file system: name another page with --output"),
        (
            "tune",
            1,
            ".config/diode_lut/interrupted: Read-only file system: set XDG_CONFIG_HOME to a directory of yours",
        ),
    ],
)
def test_where_nothing_can_be_written_nothing_runs(name: str, code: int, error: str, tmp_path: Path) -> None:
    """Commands that keep something say so before they run the program, and what names another place."""
    home = [f"HOME={tmp_path / 'app'}", f"TMPDIR={CACHE}"]
    result = contained(tmp_path, home, [sys.executable, "-m", "diode_lut", name, "--", "touch", "ran"])
    assert result.returncode == code
    assert result.stderr.rstrip().endswith(error)
