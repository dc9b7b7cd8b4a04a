"""A process for one cold compile, or for the times of one model: ``python -m modelbench.worker TASK RESULT``.

Starting up, which takes longer than many a compile, overlaps with other processes. What is measured does not: it waits
for a lock.
"""

import fcntl
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from modelbench.labels import Label
from modelbench.models import build
from modelbench.timing import Compiled, time_model
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import add_feedback_saver

from diode_lut.problem import NO_EPILOGUE
from diode_lut.receipts import Receipt, recorder
from diode_lut.templates.config import ATEN

COUNTED = ("benchmarking.", "select_algorithm", "pad_mm_bench", "coordesc_tuning_bench", "fxgraph_cache")
"""Beginnings of the names of Inductor's counters of benchmarks and of misses of its cache."""


def warm_up() -> None:
    """Start Inductor's pool of compile workers, which takes as long with any label."""
    AsyncCompile.wait_pool_ready()


def compile_once(model: str, label: Label, device: str, tiny: bool) -> dict[str, Any]:
    """Seconds of the first call of a compiled model, forward and, for training, backward; without making the model."""
    timed = Counter(ops=0, kernels=0)  # matmuls and convolutions that Inductor autotunes, and kernels that it times
    add_feedback_saver(lambda timings, *_: timed.update(ops=1, kernels=len(timings)))
    workload = build(model, device, tiny)
    synchronize(device)
    with label.in_force():
        started = time.perf_counter()
        workload.step(label.compile(workload.module))
        synchronize(device)
        seconds = time.perf_counter() - started
    counted = {name: count for name, count in counters["inductor"].items() if name.startswith(COUNTED)}
    return {
        "seconds": round(seconds, 3),
        "timed": dict(timed),
        "counters": counted,
        "receipt": summary(recorder.own_receipt()),
    }


def synchronize(device: str) -> None:
    """Wait until the device has done all work."""
    if device == "cuda":
        torch.cuda.synchronize()


def summary(receipt: Receipt) -> dict[str, Any]:
    """Calls by the tier that answered and by the kernel; of calls about epilogues, what was fused by class."""
    tiers: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    epilogues: dict[str, Counter[str]] = {}
    devices = receipt.devices.values()
    for hit, calls in (item for device in devices for item in device.hits.items()):
        library = hit.configs == (str(ATEN),)
        if hit.problem.epilogue == NO_EPILOGUE:
            tiers[hit.tier] += calls
            kernels["library" if library else "template"] += calls
        else:
            outcome = "not fused" if library else "fused"
            epilogues.setdefault(hit.problem.epilogue, Counter())[outcome] += calls
    return {
        "tiers": dict(tiers),
        "kernels": dict(kernels),
        "epilogues": {name: dict(counts) for name, counts in sorted(epilogues.items())},
        "misses": sum(device.misses.total() for device in devices),
        "skipped": sum(device.skipped.total() for device in devices),
    }


def main() -> None:
    """Do the task, a JSON object, and write the result, another one."""
    task = json.loads(sys.argv[1])
    name, device, tiny = task["model"], task["device"], task["tiny"]
    build(name, "cpu", tiny=True)  # imports what the model needs
    if task["warm"]:
        warm_up()
    if device == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    with Path(task["lock"]).open("w") as file:

        def lock(*, exclusive: bool = True) -> None:
            """Wait until it is this process's turn; ``timeout`` seconds later, SIGALRM ends it."""
            signal.alarm(0)
            fcntl.flock(file.fileno(), fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            signal.alarm(task["timeout"])

        lock(exclusive=task["exclusive"])
        if task["kind"] == "compile":
            found = compile_once(name, Label.from_json(task["label"]), device, tiny)
        else:
            compiles = [
                Compiled(Label.from_json(each["label"]), each["repetition"], Path(each["caches"]))
                for each in task["compiles"]
            ]
            found = time_model(name, compiles, device, tiny, lock)
    about = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"
    Path(sys.argv[2]).write_text(json.dumps({**found, "device_name": about, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
