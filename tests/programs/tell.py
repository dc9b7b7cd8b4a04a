"""Compiles GEMMs with their gradients on the CPU, and prints as JSON the statistics, and whether a cache answered.

TORCHINDUCTOR_CACHE_DIR says where Inductor's caches are, DIODE_LUT_TABLES which tables there are.
"""

import json

import torch
from torch._dynamo.utils import counters

import diode_lut


def gemms(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(torch.bmm(a, b), b.transpose(1, 2))


a, b = torch.randn(4, 64, 128), torch.randn(4, 128, 96, requires_grad=True)
torch.compile(gemms)(a, b).sum().backward()
cached = any(values["autograd_cache_hit"] or values["fxgraph_cache_hit"] for values in counters.values())
print(json.dumps({"cached": cached, "statistics": diode_lut.get_prediction_stats()}))
