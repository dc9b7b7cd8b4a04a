"""One cold compile, in a process of its own: how long it takes, what is benchmarked, and what the tables answered."""

import time
from collections import Counter
from typing import Any

import torch
from modelbench.labels import Label
from modelbench.models import build
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import add_feedback_saver

from diode_lut.problem import NO_EPILOGUE
from diode_lut.receipts import Receipt, recorder
from diode_lut.templates.config import ATEN

COUNTED = ("benchmarking.", "select_algorithm", "pad_mm_bench", "coordesc_tuning_bench", "fxgraph_cache")
"""What Inductor's counters begin with that say how often it benchmarked, and that the cache was empty."""


def warm_up() -> None:
    """What no label can help: the start of Inductor's pool of compile workers."""
    AsyncCompile.wait_pool_ready()


def compile_once(model: str, label: Label, device: str, tiny: bool) -> dict[str, Any]:
    """Seconds of the first call of a compiled model, forward and, for training, backward; without making the model."""
    timed = _count_timed_choices()
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


def _count_timed_choices() -> Counter[str]:
    """Counts, from now on, the matmuls and convolutions that Inductor autotunes, and the kernels that it times."""
    timed: Counter[str] = Counter(ops=0, kernels=0)

    def count(timings: dict[Any, float], *_: object) -> None:
        timed.update(ops=1, kernels=len(timings))

    add_feedback_saver(count)
    return timed


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
