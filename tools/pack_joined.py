"""Write the times of joined matmuls, and of few rows, as a dataset, of which ``build`` makes rows.

``python tools/pack_joined.py RESULTS... --out tables/datasets/joined/nvidia-h100.msgpack.zst --hardware
tables/nvidia-h100.json --date YYYY-MM-DD`` reads results of ``tools/bench_joined.py`` and ``tools/bench_few_rows.py``,
and datasets of such results. Of a problem in several files, the last file's times count. The config ``default`` has the
time of the best kernels apart, for ``swiglu`` with a kernel for the activation. The best configs of each problem were
timed in the last rounds. Times of the others are from the first rounds, scaled by the ratio of these.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from diode_lut.dataset import DatasetWriter, Header, Record, Timing, is_dataset, read_dataset
from diode_lut.errors import ProblemError
from diode_lut.problem import JOINED, Problem
from diode_lut.table import read_hardware
from diode_lut.templates.config import Config

KERNELS = {"three": ("joined", "apart best"), "two": ("joined", "apart best"), "swiglu": ("gated", "apart best, silu")}
"""By variant: the name of its kernels in the results, and the time apart."""


def records(result: dict[str, Any]) -> Iterator[Record]:
    """The times of each variant that was measured in a task of ``bench_joined``, or of its kind, of another task."""
    if "us" not in result:
        return
    if "task" in result and isinstance(result["task"], list):
        m, columns, k, kind, layout = result["task"]
        single = len(columns) == 1
        first = result["quick"][f"apart {columns[0]}" if single else "joined"]
        last = {"default" if name == "apart" else name: us for name, us in result["us"].items()}
        op, variant = (kind, "") if single else (JOINED[0], kind)
        problem = Problem.of(op, m, sum(columns), k, dtype="bfloat16", layout=layout, variant=variant)
        yield Record(problem, tuple(timings(last, first)), "final")
        return
    if result["kind"] == "few":
        m, n, k = result["sizes"]
        first, last = {}, {}
        for group, template in (("library", "aten"), ("mm", "triton_mm"), ("deep", "triton_mm")):
            first |= {f"{template} {config}".strip(): us for config, us in result["quick"].get(group, {}).items()}
            last[f"{template} {result['config'][group]}".replace(" library", "").strip()] = result["us"][group]
        problem = Problem.of("mm", m, n, k, dtype="bfloat16", layout="nt")
        yield Record(problem, tuple(timings(last, first)), "final")
        return
    if result["kind"] != "siblings":
        return
    m, columns, k, _ = result["sizes"]
    for variant, (name, apart) in KERNELS.items():
        if len(columns) != (3 if variant == "three" else 2) or name not in result["us"]:
            continue
        first = {f"triton_joined_mm {config}": us for config, us in result["quick"][name].items()}
        last = {
            f"triton_joined_mm {result['config'][key]}": result["us"][key]
            for key in (name, f"{name} 2")
            if key in result["us"]
        }
        problem = Problem.of(JOINED[0], m, sum(columns), k, dtype="bfloat16", layout="nt", variant=variant)
        yield Record(problem, tuple(timings({**last, "default": result["us"][apart]}, first)), "final")


def timings(last: dict[str, float], first: dict[str, float]) -> Iterator[Timing]:
    """The time of each config in the last rounds, or from the first."""
    scale = fmean(last[config] / us for config, us in first.items() if config in last)
    for config, us in ({config: us * scale for config, us in first.items()} | last).items():
        with suppress(ProblemError):  # such as a library's kernel
            yield Timing.of(Config.parse(config), round(us * 1000))


def main() -> None:
    """Read the results, write the dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hardware", type=Path, required=True, help="a table for the device")
    parser.add_argument("--date", required=True, help="when it was measured")
    arguments = parser.parse_args()
    header = Header(
        read_hardware(arguments.hardware),
        torch="2.11.0+cu130",
        triton="3.6.0",
        cuda="13.0",
        benchmarker="tools/bench_joined.py, tools/bench_few_rows.py, CUDA graphs, weights out of the L2 cache",
        measured_on=arguments.date,
    )
    found: dict[Problem, Record] = {}
    for path in arguments.results:
        if is_dataset(path.read_bytes()):
            found |= {record.problem: record for record in read_dataset(path)}
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            found |= {record.problem: record for record in records(json.loads(line))}
    with DatasetWriter(arguments.out, header) as writer:
        for _, record in sorted(found.items()):
            writer.append(record)


if __name__ == "__main__":
    main()
