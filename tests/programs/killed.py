"""Kills processes that write, at random moments, and prints as JSON what was in their file each time.

Arguments: what they write (``file`` or ``dataset``), the file, how often they are killed.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from diode_lut.dataset import DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.files import write_atomically
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN

LINES = 5_000
HEADER = Header(Hardware("NVIDIA H200", "sm_90", 132))


def content(number: int) -> bytes:
    return b"%08d\n" % number * LINES


def write_files(path: Path, pipe: int) -> None:
    for number in count(number_in(path)[0] + 1):
        write_atomically(path, content(number))
        os.write(pipe, b".")


def number_in(path: Path) -> tuple[int, bool]:
    """Which content is in the file, and whether it is whole."""
    if not path.exists():
        return 0, True
    data = path.read_bytes()
    number = int(data[:8])
    return number, data == content(number)


def append_records(path: Path, pipe: int) -> None:
    with DatasetWriter(path, HEADER) as writer:
        for number in count(records_in(path)[0] + 1):
            writer.append(Record(Problem("mm", "float16", "nn", 16, 1, number, 1, 1), (Timing(ATEN, 1.0),) * 500))
            os.write(pipe, b".")


def records_in(path: Path) -> tuple[int, bool]:
    """How many records there are, and whether they are those that were written, in order."""
    if not path.exists() or not path.stat().st_size:
        return 0, True
    sizes = [record.problem.m for record in read_dataset(path)]
    return len(sizes), sizes == list(range(1, len(sizes) + 1))


MODES: dict[str, tuple[Callable[[Path, int], None], Callable[[Path], tuple[int, bool]]]] = {
    "file": (write_files, number_in),
    "dataset": (append_records, records_in),
}


def main(mode: str, path: Path, kills: int) -> None:
    """After each kill: how much was written for sure, how much there is, whether it is whole, and what lies beside."""
    write, read = MODES[mode]
    draw = random.Random(1)
    before = 0
    for _ in range(kills):
        written = before + kill_while(lambda pipe: write(path, pipe), draw.uniform(0, 0.02))
        found, whole = read(path)
        litter = len(list(path.parent.iterdir())) - path.exists()
        print(json.dumps([written, found, whole, litter]))
        before = found


def kill_while(write: Callable[[int], None], seconds: float) -> int:
    """How often the writer, in a process of its own, said that something was written before it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        write(writing)
    os.close(writing)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as said:
        return len(said.read())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
