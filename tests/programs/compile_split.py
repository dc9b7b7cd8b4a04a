"""Compiles a product with its gradient in ways that change settings meanwhile, and counts library calls, as JSON.

``python compile_split.py DEVICE TABLE``: TABLE answers with the device's own kernel. Each way is as in a new process,
but for the caches on disk in TORCHINDUCTOR_CACHE_DIR.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.profiler import ProfilerActivity, profile

import diode_lut


class TurnOff(CustomGraphPass):
    """Runs between the key of a cache and the choice of kernels, as another thread may."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        diode_lut.config.policy = "off"

    def uuid(self) -> str:
        return "turn off"


def way(device: str, forward: dict[str, Any], backward: dict[str, Any], **options: Any) -> int:
    torch._dynamo.reset()
    torch.manual_seed(0)
    a = torch.randn(4, 64, 128, device=device, requires_grad=True)
    b = torch.randn(4, 128, 96, device=device, requires_grad=True)
    compiled = torch.compile(lambda a, b: torch.bmm(a, b).relu())
    with inductor_config.patch(options), functorch_config.patch(enable_autograd_cache=True):
        with diode_lut.config.patch(**forward):
            result = compiled(a, b)
        with diode_lut.config.patch(**backward):
            result.sum().backward()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        compiled(a, b).sum().backward()
    return sum(event.name == "aten::bmm" for event in trace.events())


def main(device: str, table: str) -> None:
    on, off = {"tables": [table], "policy": "pick"}, {"tables": [table], "policy": "off"}
    print(
        json.dumps(
            {
                "on": way(device, on, on, fx_graph_cache=False, force_disable_caches=True),
                "off": way(device, off, off, fx_graph_cache=False, force_disable_caches=True),
                "off, then on": way(device, off, on),
                "on, cached": way(device, on, on),
                "on, turned off within": way(device, on, on, post_grad_custom_post_pass=TurnOff()),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
