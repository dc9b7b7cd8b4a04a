"""Compiles and runs one GEMM several times, and prints each time whether a cache answered, as JSON.

``python compile_often.py DEVICE STEPS``: each of STEPS, a JSON list, has the settings of diode_lut, and whether
``autograd_cache`` is on: then AOTAutograd's cache is in question, which is asked before the one for graphs, else that.
With ``m`` the GEMM has a dynamic M that is first this.
TORCHINDUCTOR_CACHE_DIR says where they are. A table's file is read once; all else is as in a new process each time.
"""

import json
import sys
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch.profiler import ProfilerActivity, profile

import diode_lut


def step(device: str, settings: dict[str, Any], autograd_cache: bool, m: int | None = None) -> dict[str, Any]:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    a, b = torch.randn(4, m or 64, 128, device=device), torch.randn(4, 128, 96, device=device)
    if m:
        torch._dynamo.mark_dynamic(a, 1, min=2, max=8192)
    compiled = torch.compile(torch.bmm)
    patched = functorch_config.patch(enable_autograd_cache=autograd_cache)
    with diode_lut.config.patch(**settings), patched:
        compiled(a, b)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        result = compiled(a, b)
    name = "autograd_cache_hit" if autograd_cache else "fxgraph_cache_hit"
    return {
        "error": (result - a @ b).abs().max().item(),
        "library": any(event.name == "aten::bmm" for event in trace.events()),
        "cached": any(values[name] for values in counters.values()),
    }


def main(device: str, steps: str) -> None:
    print(json.dumps([step(device, **each) for each in json.loads(steps)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
