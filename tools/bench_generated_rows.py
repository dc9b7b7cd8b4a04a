"""Compare programs whose generated kernels rows decide with the same programs decided by Inductor.

``python tools/bench_generated_rows.py --out results.jsonl`` compiles each program several times with and without the
setting ``generated``, GEMMs by the table in both, and times all compiles in one process: in CUDA graphs, in turns, with
a cold L2 cache. By default these are the programs that are kept away from what makes rows. ``--table PATH`` adds a
label for another table. ``--trace`` says which generated kernels are slower with tables. ``changed`` in a record has
the lines of code that differ from those of a label's first compile. ``--dynamic`` marks the batch as dynamic, compiles
with the whole batch, and also times a quarter of it with the same kernels. A program that is named several times is
compiled in as many processes, and the summary says how many codes there are. ``--read results.jsonl`` prints the
summary of results and runs nothing.

It uses all GPUs, or those of ``CUDA_VISIBLE_DEVICES``, and ends in time. All processes of a GPU compile side by side,
and what they time there, Inductor's benchmarks included, takes turns.
"""

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

WITH, WITHOUT, OTHER = "with", "without", "other"
ROUNDS = 40
TRACED = 8  # replays of a graph whose kernels are timed
CHANGED = 60  # lines of a difference between codes that are recorded

Record = dict[str, Any]


def main() -> None:
    """Start a process for each share of the programs, or be one, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--programs", help="comma-separated names of modelbench.corpus; by default those kept away")
    parser.add_argument("--compiles", type=int, default=2, help="of each label")
    parser.add_argument("--table", type=Path, help="another table, as a third label")
    parser.add_argument("--dynamic", action="store_true", help="the batch may change")
    parser.add_argument("--trace", action="store_true", help="times of the generated kernels in the graphs")
    parser.add_argument("--workers", type=int, default=5, help="processes for each GPU")
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read is not None:
        summarize([json.loads(line) for line in arguments.read.read_text().splitlines()])
        return
    from modelbench.corpus import KEPT_AWAY

    names = arguments.programs.split(",") if arguments.programs else list(KEPT_AWAY)
    if arguments.claims is not None:
        run_claimed(names, arguments)
        return
    started = time.monotonic()
    query = ["nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader"]
    gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = [gpu for gpu in gpus if visible == [""] or gpu.partition(",")[0] in visible]
    children, claims = [], tempfile.mkdtemp()
    for number in range(arguments.workers * len(gpus)):
        device = gpus[number % len(gpus)].partition(",")[0]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": device, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        children.append(subprocess.Popen([sys.executable, *sys.argv, "--claims", claims], env=environment))
    while any(child.poll() is None for child in children) and time.monotonic() < started + arguments.seconds + 20:
        time.sleep(0.2)
    for child in children:
        child.kill()
    print(gpus[0].partition(",")[2].strip(), f"{time.monotonic() - started:.0f} s")
    if not arguments.out.exists():
        sys.exit(f"no program was timed within {arguments.seconds:.0f} s")
    summarize([json.loads(line) for line in arguments.out.read_text().splitlines()])


def run_claimed(names: list[str], arguments: argparse.Namespace) -> None:
    """Time the programs that no other process has claimed, until the time is over, and append their records."""
    ends = time.monotonic() + arguments.seconds
    for number, name in enumerate(names):
        if time.monotonic() > ends:
            return
        try:
            (arguments.claims / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            record = time_program(name, arguments)
        except Exception as error:  # noqa: BLE001 - the next program may run
            record = {"program": name, "failed": repr(error)[:400]}
        with arguments.out.open("a") as file:
            file.write(f"{json.dumps(record)}\n")


class Turns:
    """Turns of processes on their GPU. ``waited`` counts the seconds for which this process waited for others."""

    def __init__(self) -> None:
        self.waited, self._mine = 0.0, False
        self._lock = Path(tempfile.gettempdir()) / f"generated-rows-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"

    @contextmanager
    def mine(self) -> Iterator[None]:
        """While no other process has its turn."""
        from modelbench.timing import alone

        asked = time.monotonic()
        with nullcontext() if self._mine else alone(self._lock):
            self.waited += time.monotonic() - asked
            inner, self._mine = self._mine, True
            try:
                yield
            finally:
                self._mine = inner


def time_program(name: str, arguments: argparse.Namespace) -> Record:
    """Microseconds of a step, errors against float64, seconds of compiling and benchmarks, by label and compile."""
    import torch
    from modelbench.corpus import build
    from modelbench.timing import Errors, captured

    import diode_lut
    from diode_lut.measure.timing import Bench

    settings: dict[str, Record] = {WITHOUT: {"generated": False}, WITH: {"generated": True}}
    if arguments.table is not None:
        settings[OTHER] = {"generated": True, "tables": [str(arguments.table)]}
    record: Record = {"program": name, "seconds": {}, "benchmarks": {}, "codes": {}, "us": {}}
    kept, graphs, turns = [], [], Turns()
    configs: dict[str, Record] = {}
    codes: dict[str, str] = {}
    fewer: list[tuple[str, Any]] = []
    for _ in range(arguments.compiles):
        for label, of_label in settings.items():
            torch._dynamo.reset()
            workload = build(name, "cuda")
            module = torch.compile(workload.module, dynamic=None if arguments.dynamic else False)
            if arguments.dynamic:
                _mark_batch(workload.inputs)
            started, waited = time.monotonic(), turns.waited
            with torch._inductor.utils.fresh_cache(), diode_lut.config.patch(**of_label), _seen(turns) as seen:
                workload.step(module)
                torch.cuda.synchronize()
                seconds = time.monotonic() - started - (turns.waited - waited)
                record["seconds"].setdefault(label, []).append(round(seconds, 1))
                benchmarks, code, configs[label] = seen()
                record["benchmarks"].setdefault(label, []).append(benchmarks)
                record["codes"].setdefault(label, []).append(hashlib.sha256(code.encode()).hexdigest()[:16])
                if code != (first := codes.setdefault(label, code)):
                    lines = [*difflib.unified_diff(first.splitlines(), code.splitlines(), n=0, lineterm="")]
                    record.setdefault("changed", {}).setdefault(label, []).append(lines[2:][:CHANGED])
                with turns.mine():
                    graphs.append((label, *captured(_step(workload, module), None)))
                if arguments.dynamic:
                    quarter = replace(workload, inputs=tuple(map(_quarter, workload.inputs)))
                    again = torch._dynamo.config.patch(error_on_recompile=True)
                    with suppress(torch._dynamo.exc.RecompileError), again:
                        fewer.append((label, captured(_step(quarter, module), None)[0]))
                    kept.append((quarter, module))
            kept.append((workload, module))
    with turns.mine():
        errors = Errors(build(name, "cuda"))
        for label, graph, results in graphs:
            graph.replay()
            torch.cuda.synchronize()
            errors.add(label, results)
        record["errors"] = errors.by_label
        rounds = Bench().rounds(
            [*(graph.replay for _, graph, _ in graphs), *(graph.replay for _, graph in fewer)], ROUNDS
        )
        if arguments.trace:
            latest = {label: graph for label, graph, _ in graphs}
            try:
                record["kernels"] = {label: _traced(graph, configs[label]) for label, graph in latest.items()}
            except Exception as error:  # noqa: BLE001 - the times are known
                record["untraced"] = repr(error)[:400]
    times = [round(median(column) / 1000, 2) for column in rounds.T.tolist()]
    for (label, *_), time_of_step in zip(graphs, times, strict=False):
        record["us"].setdefault(label, []).append(time_of_step)
    for (label, _), time_of_step in zip(fewer, times[len(graphs) :], strict=True):
        record.setdefault("quarter", {}).setdefault(label, []).append(time_of_step)
    return record


def _mark_batch(inputs: tuple[Any, ...]) -> None:
    """Let the first size of tensors change."""
    import torch

    for each in inputs:
        if isinstance(each, torch.Tensor):
            torch._dynamo.mark_dynamic(each, 0)


def _quarter(value: Any) -> Any:
    """A quarter of a batch, at least 2 of it."""
    import torch

    return value[: max(len(value) // 4, 2)].clone() if isinstance(value, torch.Tensor) else value


def _step(workload: Any, module: Any) -> Callable[[], Any]:
    return lambda: workload.step(module)


@contextmanager
def _seen(turns: Turns) -> Iterator[Callable[[], tuple[int, str, Record]]]:
    """Count the generated kernels that Inductor benchmarks, and find the code that it writes and their configs."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    benchmarked: list[Any] = []
    codes: list[str] = []
    usual = CachingAutotuner.benchmark_all_configs

    def benchmark(autotuner: Any, *args: Any, **kwargs: Any) -> Any:
        benchmarked.append(autotuner)
        with turns.mine():
            return usual(autotuner, *args, **kwargs)  # type: ignore[no-untyped-call]

    def save(code: str) -> None:
        codes.append(re.sub("# (kernel path|AOT ID): .*", "", code))

    def found() -> tuple[int, str, Record]:
        values = [value for module in PyCodeCache.modules for value in vars(module).values()]
        kernels = [each for each in values if isinstance(each, CachingAutotuner) and each.launchers]
        configs = {each.fn.__name__: [dict(each.size_hints or {}), str(each.launchers[0].config)] for each in kernels}
        return len(benchmarked), "".join(codes), configs

    with (
        patch.object(CachingAutotuner, "benchmark_all_configs", benchmark),
        patch.object(GraphLowering, "save_output_code", save),
    ):
        yield found


def _traced(graph: Any, configs: Record) -> Record:
    """Of each generated kernel in a graph: launches, microseconds of all, size hints and config; and of all others."""
    import torch
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        for _ in range(TRACED):
            graph.replay()
        torch.cuda.synchronize()
    events = [each for each in trace.events() if each.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    count = len(events) // TRACED
    kernels: dict[str, list[float]] = {}
    for place in range(count):
        name = events[place].name
        times = [each.time_range.elapsed_us() for each in events[place::count]]
        kernels.setdefault(name if name in configs else "others", []).append(median(times))
    return {name: [len(times), round(sum(times), 2), *configs.get(name, ())] for name, times in kernels.items()}


def summarize(records: list[Record]) -> None:
    """Print each program's times over those without rows, and the figures of all."""
    done = sorted((record for record in records if "us" in record), key=lambda record: _ratio(record, WITH))
    labels = [label for label in (WITH, OTHER) if any(label in record["us"] for record in done)]
    for record in done:
        without, *rest = (record["us"][label] for label in (WITHOUT, *labels))
        errors = record["errors"]
        print(
            f"{record['program']:34} {median(without):9.1f} us "
            + " ".join(f"{label} {_ratio(record, label):.4f}" for label in labels)
            + f"  two compiles {_apart(without):.3f}, {_apart(rest[0]):.3f}"
            + f"  error {fmean(errors[WITH]) / max(fmean(errors[WITHOUT]), 1e-30):.3f}"
            + f"  benchmarks {sum(record['benchmarks'][WITHOUT])}, {sum(record['benchmarks'][WITH])}"
            + (f"  a quarter of the batch {_ratio(record, WITH, 'quarter'):.4f}" if "quarter" in record else "")
        )
        for label in labels if "kernels" in record else ():
            _print_slower(record["kernels"], label)
    for label in labels:
        ratios = [_ratio(record, label) for record in done]
        print(f"{label}: geometric mean of {len(done)} {exp(fmean(map(log, ratios))):.4f}, greatest {max(ratios):.4f}")
    quarters = [_ratio(record, WITH, "quarter") for record in done if "quarter" in record]
    if quarters:
        mean = exp(fmean(map(log, quarters)))
        print(f"a quarter of the batch: geometric mean {mean:.4f}, greatest {max(quarters):.4f}")
    for label in (WITHOUT, *labels):
        last = sum(record["seconds"][label][-1] for record in done)
        benchmarks = sum(sum(record["benchmarks"][label]) for record in done)
        print(f"{label}: {benchmarks} benchmarks, last compiles {last:.0f} s")
    for name, times in Counter(record["program"] for record in done).items():
        if times > 1:
            again = [record for record in done if record["program"] == name]
            for label in (WITHOUT, *labels):
                codes = {code for record in again for code in record["codes"][label]}
                apart = _apart([time for record in again for time in record["us"][label]])
                print(f"{name} in {times} processes, {label}: {len(codes)} codes, times {apart:.3f} apart")
    for record in records:
        if "failed" in record:
            print(record["program"], record["failed"])


def _print_slower(kernels: Record, label: str) -> None:
    """Print the generated kernels of a graph that take longer than without tables, and the time of all."""
    named: dict[str, Record] = {
        of: {re.sub("^triton_[a-z]+_", "", name): about for name, about in kernels[of].items()}
        for of in (WITHOUT, label)
    }
    sums = [sum(about[1] for name, about in named[of].items() if name != "others") for of in (WITHOUT, label)]
    others = [named[of].get("others", [0, 0.0])[1] for of in (WITHOUT, label)]
    print(f"    {label}: generated {sums[0]:.1f} -> {sums[1]:.1f} us, others {others[0]:.1f} -> {others[1]:.1f}")
    for name, (calls, us, *about) in named[label].items():
        before = named[WITHOUT].get(name)
        if name != "others" and before and us > before[1] * 1.02 + 0.2:
            print(f"    {label}: {name[:70]} x {calls}: {before[1]:.1f} -> {us:.1f} us, {before[2:]} -> {about}")


def _ratio(record: Record, label: str, size: str = "us") -> float:
    times: dict[str, list[float]] = record[size]
    return median(times[label]) / median(times[WITHOUT])


def _apart(times: list[float]) -> float:
    return max(times) / min(times)


if __name__ == "__main__":
    main()
