"""Editing and reviewing a table of 10,000 rows: how long each command takes, beside the target (``make bench``)."""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bench_engine import RUNS, in_new_process, peak_memory, show, table

from diode_lut.errors import TableError
from diode_lut.problem import BATCHED
from diode_lut.table import Candidate, Entry, Table, read_table, to_bytes, write_table
from diode_lut.templates.config import ATEN, Config

ROWS = 10_000
GEMM = (128, 64, 32, 8, 4, 8)


def main() -> None:
    """Time each command on a table in which all is well, the fastest of some runs."""
    print(f"{'':58} {'measured':>13} {'target':>12}")
    with tempfile.TemporaryDirectory() as directory:
        good, other, indented = (Path(directory) / name for name in ("good.json", "other.json", "indented.json"))
        rows = [_launchable(row) for row in table(ROWS).entries]
        write_table(Table(table(1).hardware, rows), good)
        write_table(Table(table(1).hardware, rows[: ROWS // 2] + [_with_aten(row) for row in rows[ROWS // 2 :]]), other)
        indented.write_text(json.dumps(json.loads(good.read_bytes()), indent=2))
        bench_refusing(other.with_name("malicious.json"))
        bench("start-up", 0.15, "--version")
        bench("fmt --check", 1.5, "fmt", "--check", indented, expected=1)
        bench("check", 1.5, "check", good)
        bench("diff, 5,000 rows with another winner", 2, "diff", good, other, expected=1)
        bench("query", 0.5, "query", good, 'entries[?op==`"bmm"` && m[1] < `64`].configs[0]')
        bench("explain", 0.5, "explain", *_problem(rows[0]), "--hardware", "nvidia-h200", "--table", good)


def bench_refusing(path: Path) -> None:
    """A million rows, which are good, wrong or empty, in canonical form and on one line."""
    head, *_ = to_bytes(Table(table(1).hardware, ())).partition(b"]")
    good = b'{"op": "mm", "configs": [\n  {"template": "aten"}\n]}'
    rows = {"good rows": good, "rows of an unknown op": good.replace(b"mm", b"mx"), "empty rows": b"{}"}
    for form, between in (("", b",\n"), (", one line", b",")):
        for what, row in rows.items():
            path.write_bytes(head + between.join([row] * 1_000_000) + b"\n]\n}\n")
            seconds, growth = zip(*(in_new_process(__file__, str(path)) for _ in range(RUNS)), strict=True)
            show(f"refuse a million {what}{form}", min(seconds), "s", 2)
            show(f"refuse a million {what}{form}: growth of memory", max(growth), "MB", 300)


def refuse(path: Path) -> None:
    """What the new process does: prints seconds, and by how many MB its peak of memory grew."""
    before = peak_memory()
    started = time.perf_counter()
    with suppress(TableError):
        read_table(path)
    print(time.perf_counter() - started, peak_memory() - before)


def bench(what: str, target: float, *arguments: object, expected: int = 0) -> None:
    """A line of the report, for a command that exits with ``expected``."""
    show(f"{what}, {ROWS:,} rows", min(_seconds(arguments, expected) for _ in range(RUNS)), "s", target)


def _seconds(arguments: tuple[object, ...], expected: int) -> float:
    command = [sys.executable, "-m", "diode_lut", *map(str, arguments)]
    started = time.perf_counter()
    completed = subprocess.run(command, capture_output=True, check=False)
    seconds = time.perf_counter() - started
    assert completed.returncode == expected, completed.stderr.decode()
    return seconds


def _launchable(row: Entry) -> Entry:
    gemm = Config("triton_bmm" if row.op in BATCHED else "triton_mm", GEMM)
    return row._replace(candidates=(Candidate(gemm, 1063), Candidate(ATEN)))


def _problem(row: Entry) -> list[object]:
    """One that the row covers, as ``explain`` takes it."""
    sizes = [size[0] for size in (row.m, row.n, row.k) if size is not None]
    batch = ["--batch", row.b[0]] if row.b is not None and row.op in BATCHED else []
    return [row.op, *sizes, *batch, "--dtype", row.dtype, "--layout", row.layout, "--align", row.align]


def _with_aten(row: Entry) -> Entry:
    return row._replace(candidates=(Candidate(ATEN),))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        refuse(Path(sys.argv[1]))
    else:
        main()
