"""Compiles and runs one product in a process of its own, and prints what the caches and the tables did, as JSON.

``python compile_once.py DEVICE``; the table comes from DIODE_LUT_TABLES, the cache from TORCHINDUCTOR_CACHE_DIR.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

import diode_lut


def main(device: str) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(4, 64, 128, device=device), torch.randn(4, 128, 96, device=device)
    compiled = torch.compile(torch.bmm)
    compiled(a, b)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        result = compiled(a, b)
    report: dict[str, Any] = {
        "error": (result - a @ b).abs().max().item(),
        "kernels": sorted({event.name for event in trace.events()}),
        "fx": [counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss")],
        "aot": [counters["aot_autograd"][f"autograd_cache_{what}"] for what in ("hit", "miss")],
        "hits": diode_lut.get_prediction_stats()["hits"]["user"],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
