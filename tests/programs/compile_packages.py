"""Compiles one function with Dynamo's cache of packages, by other settings each time, and says who answered, as JSON.

``python compile_packages.py TABLE``: TABLE answers for this CPU. Each time is as in a new process, but for the
caches on disk in TORCHINDUCTOR_CACHE_DIR.
"""

from __future__ import annotations

import json
import sys

import torch
from torch._dynamo.precompile_context import PrecompileContext
from torch._dynamo.utils import counters

import diode_lut


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


def compiled(policy: str, *, save: bool) -> str:
    torch._dynamo.reset()
    counters.clear()
    PrecompileContext.clear()
    a, b = torch.randn(4, 64, 128), torch.randn(4, 128, 96)
    with diode_lut.config.patch(policy=policy), diode_lut.profile_predictions() as counts:
        torch.compile(product)(a, b)
        if save:
            PrecompileContext.save_to_dynamo_cache()
    if counters["dynamo_cache"]["dynamo_cache_hit"]:
        return "package"
    return "asked" if counts.total_predictions else "not asked"


def main(table: str) -> None:
    torch._dynamo.config.caching_precompile = True
    diode_lut.config.tables = (table,)
    print(json.dumps([compiled("pick", save=True), compiled("pick", save=False), compiled("off", save=True)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
