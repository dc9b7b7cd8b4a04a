"""Feeds every reader files that are almost right, or not at all: prints what broke, and how long it took.

Only the errors that diode_lut raises on purpose may come out, soon, and in bounded memory. For example
``python tools/fuzz_readers.py --bytes 100_000_000 --seed 7 table``; ``--replay table:7:1234`` repeats one run.
"""

import argparse
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from itertools import count
from pathlib import Path
from types import FrameType

from mutations import mutated
from readers import Reader, readers

from diode_lut.errors import DiodeLutError

SECONDS = 20  # that a single file may take: a hundred times what it does on an idle machine
MEMORY = 4 << 30  # bytes of address space that the whole process may have


def main() -> int:
    """Fuzz the readers that were named, or all; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="READER", help="by default all")
    parser.add_argument("--bytes", type=int, default=10_000_000, help="to feed to each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="READER:SEED:RUN", help="one run, with its traceback; the file stays")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as directory:
        all_readers = readers(Path(directory))
        if options.replay:
            name, seed, run = options.replay.split(":")
            shutil.copy(write_input(Path(directory), name, all_readers[name], int(seed), int(run)), "fuzzed")
            all_readers[name].use(Path("fuzzed"))
            return 0
        names = options.names or list(all_readers)
        failed = [fuzz(Path(directory), name, all_readers[name], options.bytes, options.seed) for name in names]
        return int(any(failed))


def fuzz(directory: Path, name: str, reader: Reader, size: int, seed: int) -> list[str]:
    """What failed, as arguments of --replay; a line is printed for each, and one in the end."""
    failures, fed, slowest, refused = [], 0, 0.0, 0
    started = time.perf_counter()
    for run in count():
        if fed >= size:
            break
        path = write_input(directory, name, reader, seed, run)
        fed += path.stat().st_size
        began = time.perf_counter()
        try:
            with limited():
                reader.use(path)
        except DiodeLutError:
            refused += 1
        except Exception as error:  # noqa: BLE001 (unexpected errors are what this looks for)
            failures.append(f"{name}:{seed}:{run}")
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"  {failures[-1]}: {type(error).__name__}: {str(error)[:100]} ({place.filename}:{place.lineno})")
        slowest = max(slowest, time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:20} {run:>8} files {fed:>12,} bytes, {refused / run:4.0%} refused, {len(failures)} failed, "
        f"{time.perf_counter() - started:6.1f} s, slowest {slowest:.2f} s, peak {peak:.0f} MB",
        flush=True,
    )
    return failures


def write_input(directory: Path, name: str, reader: Reader, seed: int, run: int) -> Path:
    """The file of one run, always the same."""
    draw = random.Random(f"{name}:{seed}:{run}")
    path = directory / f"{name}.fuzzed"
    path.write_bytes(reader.wrap(mutated(draw, reader.seeds)))
    return path


class limited:  # noqa: N801 (used like a function)
    """Has what runs inside raise TimeoutError after this many seconds."""

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._late)
        signal.alarm(SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)

    @staticmethod
    def _late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
