"""Write the times of joined matmuls as a dataset, of which ``build`` makes rows.

``python tools/pack_joined.py RESULTS --out tables/datasets/joined/nvidia-h100.msgpack.zst --hardware
tables/nvidia-h100.json --date YYYY-MM-DD`` reads results of ``tools/bench_joined.py``. The config ``default`` has the
time of the best kernels apart, for ``swiglu`` with a kernel for the activation. The two best configs of each problem
were timed in the last rounds. Times of the others are from the first rounds, scaled by the ratio of these two.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.problem import JOINED, Problem
from diode_lut.table import read_hardware
from diode_lut.templates.config import DEFAULT, Config

KERNELS = {"three": ("joined", "apart best"), "two": ("joined", "apart best"), "swiglu": ("gated", "apart best, silu")}
"""By variant: the name of its kernels in the results, and the time apart."""

BLOCKS = re.compile(r"\d+x\d+x\d+ g\d+ s\d+ w\d+")


def records(result: dict[str, Any]) -> Iterator[Record]:
    """The times of each variant that was measured in a task."""
    m, columns, k, _ = result["sizes"]
    for variant, (name, apart) in KERNELS.items():
        if len(columns) != (3 if variant == "three" else 2) or name not in result["us"]:
            continue
        first = result["quick"][name]
        last = {result["config"][key]: result["us"][key] for key in (name, f"{name} 2") if key in result["us"]}
        scale = fmean(us / first[config] for config, us in last.items())
        times = {config: us * scale for config, us in first.items()} | last
        problem = Problem.of(JOINED[0], m, sum(columns), k, dtype="bfloat16", layout="nt", variant=variant)
        timings = [Timing.of(DEFAULT, round(result["us"][apart] * 1000))]
        for config, us in times.items():
            if BLOCKS.fullmatch(config):
                timings.append(Timing.of(Config.parse(f"triton_joined_mm {config}"), round(us * 1000)))
        yield Record(problem, tuple(timings), "final")


def main() -> None:
    """Read the results, write the dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hardware", type=Path, required=True, help="a table for the device")
    parser.add_argument("--date", required=True, help="when it was measured")
    arguments = parser.parse_args()
    header = Header(
        read_hardware(arguments.hardware),
        torch="2.11.0+cu130",
        triton="3.6.0",
        cuda="13.0",
        benchmarker="tools/bench_joined.py, CUDA graphs, weights out of the L2 cache",
        measured_on=arguments.date,
    )
    results = map(json.loads, arguments.results.read_text(encoding="utf-8").splitlines())
    found = [record for each in results if each.get("kind") == "siblings" for record in records(each)]
    with DatasetWriter(arguments.out, header) as writer:
        for record in sorted(found, key=lambda each: each.problem):
            writer.append(record)


if __name__ == "__main__":
    main()
