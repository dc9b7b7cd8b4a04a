"""All steps on this machine's device: measure, build a table, check it, and compile a module with it.

Run it with ``make demo``; it uses the first CUDA GPU, or the CPU where there is none. It fails if the table does not
answer for each GEMM, if a benchmark runs all the same, or if a result is wrong. In the end it says what was gained, or
that there is nothing to gain on this machine, or that this machine is too busy to tell.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from demo_module import Report, problems

from diode_lut.dataset import read_dataset

WAYS = (("default", False), ("default", True), ("max-autotune", False))  # modes of torch.compile, and tables
TOO_NOISY = "too noisy to decide"  # what ``build`` says where other programs disturb the measurements

NONE_MEASURED, TRIES = "none of the problems could be measured", 3
"""What ``collect`` says if it leaves out all GEMMs, which ends the demo. It leaves out those whose times differ too
much, and measures them if it runs again."""

SMALL_GAIN, LARGE_SPREAD = 0.02, 0.1  # a gain of at most the first is none; beyond the second, times tell little
TOLERANCE = 10  # largest error of a result over eager's. Inductor's own GELU in float32 has three times that


def main() -> None:
    """Run the demo in a temporary directory, or in one that is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write problems, timings and table here")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="diode-lut-demo-", ignore_cleanup_errors=True) as temporary:
        faults = demo(options.keep or Path(temporary), Path(temporary))
    print(f"\n{time.perf_counter() - started:.0f} seconds in all")
    if faults:
        sys.exit("\n".join(f"FAILED: {fault}" for fault in faults))


def demo(directory: Path, caches: Path) -> list[str]:
    """Run all steps, and return the failures."""
    directory.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked, timings, table = (directory / name for name in ("problems.json", "timings.msgpack", "table.json"))
    asked.write_text(json.dumps(problems(device), indent=1), encoding="utf-8")
    timings.unlink(missing_ok=True)
    table.unlink(missing_ok=True)

    print(f"Three GEMMs on {device}: every kernel that Inductor has for them is timed.")
    for _ in range(TRIES):
        refused = command(
            "collect", "--problems", asked, "--out", timings, "--device", device, may_refuse=NONE_MEASURED
        )
        missing = len(problems(device)) - (0 if refused else len({record.problem for record in read_dataset(timings)}))
        if refused or not missing:
            break
    if missing:
        remedy = "while nothing else runs, or with OMP_NUM_THREADS=1" if device == "cpu" else "while nothing else runs"
        print(f"\nNo gain can be shown here: other programs disturb this machine. Run it again {remedy}.")
        return []
    print("\nThe winners become a table.")
    refusal = command("build", timings, "-o", table, may_refuse=TOO_NOISY)
    if refusal:
        print(f"\nNo gain can be shown here: {refusal}")
        return []
    command("check", table)
    print(table.read_text(encoding="utf-8"))
    print("A module with these GEMMs, compiled in new processes with cold caches:\n")
    reports = {way: compile_in_new_process(device, *way, table, caches) for way in WAYS}
    print_comparison(reports)
    print(verdict(reports["default", False], reports["default", True]))
    return [*faults(reports, len(problems(device)))]


def command(*arguments: str | Path, may_refuse: str = "") -> str:
    """Run a command of diode_lut as a user would; exit if it fails, unless with an error that says ``may_refuse``.

    That error is returned.
    """
    words = ["-m", "diode_lut", *map(str, arguments)]
    print(f"$ python {shlex.join(words)}", flush=True)
    completed = subprocess.run([sys.executable, *words], stderr=subprocess.PIPE if may_refuse else None, check=False)
    error = (completed.stderr or b"").decode().strip()
    print(error, file=sys.stderr, end="\n" if error else "")
    if completed.returncode and not (may_refuse and may_refuse in error):
        sys.exit(f"FAILED: exit code {completed.returncode}")
    return error if completed.returncode else ""


def compile_in_new_process(device: str, mode: str, with_table: bool, table: Path, caches: Path) -> Report:
    """Compile the module in ``mode``, with or without the table, where no cache can help."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DIODE_LUT_")}
    environment.pop("TRITON_CACHE_DIR", None)  # Inductor keeps Triton's cache in its own
    environment["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=caches)
    environment["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # saves three trials of the C++ compiler in each process
    environment["PYTHONWARNINGS"] = "ignore"
    environment |= {"DIODE_LUT_TABLES": str(table)} if with_table else {"DIODE_LUT_POLICY": "off"}
    program = [sys.executable, str(Path(__file__).with_name("demo_module.py")), device, mode]
    completed = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if completed.returncode:
        sys.exit(f"FAILED: the module does not compile or run ({mode}, {name_of(with_table)})")
    return Report(**json.loads(completed.stdout.splitlines()[-1]))


def print_comparison(reports: dict[tuple[str, bool], Report]) -> None:
    """One line for each way, then what the table answered."""
    print(f"{'mode':14}{'table':9}{'compile':>10}{'benchmarks':>12}{'a call':>12}{'error':>10}{'eager':>10}")
    for (mode, with_table), report in reports.items():
        print(
            f"{mode:14}{name_of(with_table):9}{report.compile_seconds:>8.2f} s{report.benchmarks:>12}"
            f"{report.run_us:>9.1f} us{report.error:>10.1e}{report.eager_error:>10.1e}"
        )
    stats = reports["default", True].stats
    hits = ", ".join(f"{count} from {tier} tables" for tier, count in stats["hits"].items() if count)
    print(
        f"\nThe table was asked {stats['total_predictions']} times: {hits or 'no hits'}, {stats['fallbacks']} misses."
    )


def verdict(without: Report, tuned: Report) -> str:
    """What the table gains in default mode, in a sentence; a gain within the spread of the times is none."""
    gain, spread = without.run_us / tuned.run_us, max(without.spread, tuned.spread)
    figures = f"{gain:.2f} times as fast with the table, and half of the times differ by up to {spread:.1%}"
    if spread > LARGE_SPREAD:
        return f"Other programs disturb this machine too much to tell what is gained: a call is {figures}."
    if abs(gain - 1) <= max(spread, SMALL_GAIN):
        return f"There is no gain on this machine: a call is {figures}."
    if gain < 1:
        return f"The table makes this module slower on this machine: a call is {figures}."
    return f"The table gains: a call is {figures}."


def name_of(with_table: bool) -> str:
    """How the report calls compiling with or without the table."""
    return "with" if with_table else "without"


def faults(reports: dict[tuple[str, bool], Report], gemms: int) -> Iterator[str]:
    """What is not as it should be."""
    for (mode, with_table), report in reports.items():
        if not report.error <= TOLERANCE * report.eager_error:  # NaN is wrong, too
            yield f"{mode}, {name_of(with_table)} the table: error {report.error:.1e}, eager {report.eager_error:.1e}"
    stats, tuned = reports["default", True].stats, reports["default", True]
    if stats["hits"]["user"] != gemms or stats["fallbacks"]:
        yield f"the table answered for {stats['hits']['user']} GEMMs, not for {gemms}"
    if tuned.benchmarks:
        yield f"{tuned.benchmarks} GEMMs were benchmarked although the table covers them"
    if not reports["max-autotune", False].benchmarks:
        yield "max-autotune benchmarked nothing: Inductor has no choice on this device, or is not counted rightly"


if __name__ == "__main__":
    main()
