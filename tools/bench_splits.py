"""Measure into how many parts a reduction should be split: Inductor's number, and others.

``python tools/bench_splits.py --out results.jsonl --seconds 200`` compiles each program of PROGRAMS with Inductor's
split and with each of PARTS, and times all of them in one process: in CUDA graphs, in turns, with a cold L2 cache.
``--read results.jsonl`` prints, for each program and size, the best number of parts, and with ``--pack DATASET
--hardware TABLE --date YYYY-MM-DD`` it writes a dataset, of which ``build`` makes rows.

It uses all GPUs, ends in time, and needs PyTorch 2.11.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from modelbench.records import Record, append, read
from torch import Tensor

PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
INNER = [(x, r) for x in (1, 2, 4, 8, 16, 32, 64, 128, 256) for r in (12288, 28672, 65536, 151936, 524288, 2097152)]
OUTER = [(x, r) for x in (16, 64, 256, 768, 2048, 4096, 8192) for r in (128, 512, 2048, 8192, 32768, 131072, 524288)]
LARGEST = 1 << 28
ROUNDS = 30

Program = Callable[[Tensor], Any]


def total(rows: Tensor) -> Tensor:
    """Sum each row."""
    return rows.sum(-1)


def softmax(rows: Tensor) -> Tensor:
    """Two reductions, and a row is written."""
    return torch.softmax(rows.float(), -1).bfloat16()


def norm(rows: Tensor) -> Tensor:
    """Welford's reduction, and a row is written."""
    return torch.nn.functional.layer_norm(rows, rows.shape[-1:])


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic quantization to float8."""
    scale = rows.abs().amax(-1, keepdim=True).float() / 448
    return (rows.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def column_sums(columns: Tensor) -> Tensor:
    """The gradient of a bias."""
    return columns.sum(0)


def column_moments(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a norm's weight and bias."""
    return (columns * columns.float()).sum(0), columns.float().sum(0)


PROGRAMS: dict[str, tuple[Program, list[tuple[int, int]]]] = {
    "total": (total, INNER),
    "softmax": (softmax, INNER),
    "norm": (norm, INNER),
    "quantize": (quantize, INNER),
    "column-sums": (column_sums, OUTER),
    "column-moments": (column_moments, OUTER),
}


def tasks() -> list[tuple[str, int, int]]:
    """Programs and sizes, in an order that spreads them over the processes."""
    found = [(name, x, r) for name, (_, sizes) in PROGRAMS.items() for x, r in sizes if x * r <= LARGEST]
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    """Start the processes, or be one, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--workers", type=int, default=16, help="processes for each GPU")
    parser.add_argument("--pack", type=Path, metavar="DATASET")
    parser.add_argument("--hardware", type=Path, help="a table for the device, with --pack")
    parser.add_argument("--date", help="when it was measured, with --pack")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        records = [*read([arguments.read])]
        summarize(records)
        if arguments.pack is not None:
            pack(records, arguments)
        return
    if arguments.share is not None:
        number, of = map(int, arguments.share.split("/"))
        ends = time.monotonic() + arguments.seconds
        for task in tasks()[number::of]:
            if time.monotonic() < ends:
                try:
                    record = time_program(*task)
                except Exception as error:  # noqa: BLE001 - the next program may run
                    record = {"program": task, "failed": repr(error)[:300]}
                append(arguments.out, record)
        return
    ends = time.monotonic() + arguments.seconds + 15
    gpus = torch.cuda.device_count()
    print(torch.cuda.get_device_name(), gpus, len(tasks()), flush=True)
    children = []
    for number in range(arguments.workers * gpus):
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": str(number % gpus),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        share = f"{number}/{arguments.workers * gpus}"
        children.append(subprocess.Popen([sys.executable, *sys.argv, "--share", share], env=environment))
    while any(child.poll() is None for child in children) and time.monotonic() < ends:
        time.sleep(0.2)
    for child in children:
        child.kill()
    summarize([*read([arguments.out])])


def time_program(name: str, x: int, r: int) -> Record:
    """Microseconds with Inductor's split and with each other, and the error of each against float64."""
    from modelbench.timing import alone, captured
    from torch._inductor.choices import InductorChoices

    import diode_lut  # noqa: F401 - rows decide the configs
    from diode_lut.measure.timing import Bench

    program, sizes = PROGRAMS[name]
    rows = torch.randn((x, r) if sizes is INNER else (r, x), device="cuda", dtype=torch.bfloat16)
    usual = InductorChoices.reduction_split_factor
    record: Record = {"program": name, "x": x, "r": r, "us": {}, "errors": {}}
    graphs = {}
    exact = _first(program(rows.double()) if name != "quantize" else program(rows))
    for parts in (None, *(parts for parts in PARTS if parts * 32 <= r)):
        asked: list[int] = []

        def split(device: Any, r_hint: int, x_hint: int, inner: Any = None, *, parts: Any = parts, **more: Any) -> int:
            inner = more.get("inner_reduction", inner)
            found = usual(device, r_hint, x_hint, inner)
            asked.append(found)  # noqa: B023
            return found if parts is None or (r_hint, x_hint) != (r, x) else parts

        torch._dynamo.reset()
        InductorChoices.reduction_split_factor = staticmethod(split)  # type: ignore[method-assign,assignment]
        try:
            with torch._inductor.utils.fresh_cache():
                compiled = torch.compile(program, dynamic=False)
                compiled(rows)
                graphs[parts], results = captured(lambda: compiled(rows), None)  # noqa: B023
        finally:
            InductorChoices.reduction_split_factor = staticmethod(usual)  # type: ignore[method-assign]
        graphs[parts].replay()
        torch.cuda.synchronize()
        error = (_first(results).double() - exact.double()).norm() / exact.double().norm()
        record["errors"][str(parts)] = round(float(error), 7)
        if parts is None:
            record["usual"] = asked[0] if asked else None
    with alone(Path(tempfile.gettempdir()) / f"splits-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"):
        rounds = Bench().rounds([graph.replay for graph in graphs.values()], ROUNDS)
    for parts, column in zip(graphs, rounds.T.tolist(), strict=True):
        record["us"][str(parts)] = round(median(column) / 1000, 2)
    return record


def _first(results: Any) -> Tensor:
    found = results[0] if isinstance(results, tuple) else results
    assert isinstance(found, Tensor)
    return found


def pack(records: list[Record], arguments: argparse.Namespace) -> None:
    """Write the times as a dataset. Each program is a record of its problem."""
    from diode_lut.dataset import DatasetWriter, Header, Timing
    from diode_lut.dataset import Record as Measured
    from diode_lut.problem import SPLIT, Problem
    from diode_lut.table import read_hardware
    from diode_lut.templates.config import DEFAULT, Config

    software = {"torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0"}
    header = Header(
        read_hardware(arguments.hardware),
        **software,
        benchmarker="tools/bench_splits.py, CUDA graphs, cold L2 cache",
        measured_on=arguments.date,
    )
    with DatasetWriter(arguments.pack, header) as writer:
        for record in sorted(records, key=lambda each: (each["program"], each["x"], each["r"])):
            variant = "inner" if PROGRAMS[record["program"]][1] is INNER else "outer"
            timings = [
                Timing.of(DEFAULT if parts == "None" else Config.make("in_parts", {"parts": int(parts)}), us * 1000)
                for parts, us in record["us"].items()
            ]
            problem = Problem.generated(SPLIT, variant, x=record["x"], r=record["r"])
            writer.append(Measured(problem, tuple(timings)))


def summarize(records: list[Record]) -> None:
    """Print times over Inductor's split, by program and size."""
    done = [record for record in records if "us" in record]
    for record in sorted(done, key=lambda record: (record["program"], record["x"], record["r"])):
        us = record["us"]
        least = min(us, key=us.__getitem__)
        others = " ".join(f"{parts}:{time / us['None']:.2f}" for parts, time in us.items() if parts != "None")
        about = f"{record['program']:14} {record['x']:5} {record['r']:8} {us['None']:8.1f} us"
        print(f"{about}, Inductor's {record['usual']}, best {least}, {others}")
    for name in PROGRAMS:
        found = [min(record["us"].values()) / record["us"]["None"] for record in done if record["program"] == name]
        if found:
            print(f"{name}: best over Inductor's {exp(fmean(map(log, found))):.3f}, {len(found)} sizes")
    for record in records:
        if "failed" in record:
            print(record)


if __name__ == "__main__":
    main()
