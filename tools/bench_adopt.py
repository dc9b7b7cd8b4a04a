"""What ``adopt`` makes of a device, and what ``verify`` tells apart: ``python tools/bench_adopt.py --budget 6``.

It adopts this device, times the new table's answers again, and verifies tables: the new one, the same with 30 % of
its rows swapped at random, and those that are shipped. It prints each exit code and wall time.
"""

import argparse
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from diode_lut.table import Table, read_table, write_table

ROOT = Path(__file__).parent.parent
STEPS = ("adopt", "fresh", "verify")


def main() -> None:
    """Run the steps asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="6", help="minutes for adopt")
    parser.add_argument("--problems", default="models")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("/tmp/adopted"))
    parser.add_argument("--steps", default=",".join(STEPS))
    options = parser.parse_args()
    device, out = ["--device", options.device], options.out
    steps = options.steps.split(",")
    if "adopt" in steps:
        run("adopt", "--budget", options.budget, "--problems", options.problems, "-o", str(out), *device)
    (path,) = (out / "contribution" / "tables").glob("*.json")
    if "fresh" in steps:
        again = out / "again.msgpack"
        (measured,) = (path.parent / "datasets").glob("*.zst")
        files = ["--problems", str(measured), "--table", str(path), "--out", str(again)]
        run("collect", *files, "--budget", "1.5", *device)
        run("evaluate", str(path), str(again))
    if "verify" in steps:
        swapped = out / "swapped.json"
        write_table(swap(read_table(path), 0.3), swapped)
        for table in (path, swapped, *sorted((ROOT / "tables").glob("*.json"))):
            run("verify", str(table), "-o", str(out / "drifted.json"), *device)


def run(*arguments: str) -> None:
    """Run a command, with its exit code and wall time after its output."""
    begin = time.monotonic()
    completed = subprocess.run([sys.executable, "-m", "diode_lut", *arguments], check=False)
    seconds = time.monotonic() - begin
    print(f"== diode-lut {' '.join(arguments)}: exit code {completed.returncode}, {seconds:.1f} s\n", flush=True)


def swap(table: Table, share: float, seed: int = 0) -> Table:
    """The table, in which a share of the rows have the configs, with their gains, of other rows of the same kind."""
    source = random.Random(seed)
    rows = list(table.entries)
    kinds: defaultdict[object, list[int]] = defaultdict(list)
    for number in source.sample(range(len(rows)), round(share * len(rows))):
        kinds[rows[number].kind].append(number)
    for numbers in kinds.values():
        for number, other in zip(numbers, source.sample(numbers, len(numbers)), strict=True):
            rows[number] = table.entries[number]._replace(candidates=table.entries[other].candidates)
    return Table(table.hardware, rows, table.provenance)


if __name__ == "__main__":
    main()
