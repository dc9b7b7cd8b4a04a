"""What the installed line ``diode_lut.pth`` adds to the start of Python: prints it beside the figure to reach.

Run with ``make bench``. Python starts with and without the file in random order, and the medians are compared.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench_engine import show

STARTS = 200
ROOT = Path(__file__).parent.parent
LINE = ROOT / "diode_lut" / "startup" / "diode_lut.pth"


def main() -> None:
    """Compare starts without the file, with it, and with it and the variable."""
    print(f"{'':58} {'measured':>13} {'target':>12}")
    with tempfile.TemporaryDirectory() as without, tempfile.TemporaryDirectory() as directory:
        Path(without, "path.pth").write_text(f"{ROOT}\n", encoding="utf-8")
        Path(directory, "path.pth").write_text(f"{ROOT}\n{LINE.read_text(encoding='utf-8')}", encoding="utf-8")
        ways = {"without": (without, "0"), "off": (directory, "0"), "on": (directory, "1")}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(STARTS):
            for name in random.sample(list(ways), len(ways)):
                times[name].append(start(*ways[name]))
    plain, off, on = (median(times[name]) * 1e3 for name in ways)
    show("start of Python, without diode_lut.pth", plain, "ms")
    show("diode_lut.pth adds, without the variable DIODE_LUT", off - plain, "ms", 1)
    show("diode_lut.pth adds, with DIODE_LUT=1", on - plain, "ms")


def start(directory: str, value: str) -> float:
    """The seconds that a process takes whose site directory this is."""
    program = f"import site; site.addsitedir({directory!r})"
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("DIODE_LUT", "PYTHON"))}
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=environment | {"DIODE_LUT": value})
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
