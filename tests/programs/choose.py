"""Compiles and runs a GEMM on the CPU with a chooser, and prints whether a cache answered, and whose kernel ran.

``python choose.py MODE TEMPLATE [DIGEST]``: Inductor compiles in this mode, and the chooser answers with this template.
TORCHINDUCTOR_CACHE_DIR says where Inductor's caches are.
"""

import sys

import torch
from torch._dynamo.utils import counters
from torch._inductor import compile_fx

import diode_lut


def main(mode: str, template: str, digest: str | None = None) -> None:
    compile_fx.fx_compile_mode = compile_fx.FxCompileMode[mode]
    torch.manual_seed(0)
    a, b = torch.randn(4, 64, 128), torch.randn(4, 128, 96)
    config = diode_lut.Config(template)
    with diode_lut.register_chooser(lambda problem, hardware: config, name="rule", digest=digest):
        result = torch.compile(torch.bmm)(a, b)
    torch.testing.assert_close(result, a @ b)
    cached = any(values["autograd_cache_hit"] or values["fxgraph_cache_hit"] for values in counters.values())
    hits = diode_lut.get_prediction_stats()["hits"]["chooser"]
    print("cached" if cached else "compiled", hits)


if __name__ == "__main__":
    main(*sys.argv[1:])
