"""The demo's module, compiled and run in a process of its own.

``python tools/demo_module.py DEVICE MODE`` prints a Report as JSON. The environment says which tables there are
(DIODE_LUT_TABLES) and where Inductor keeps its caches (TORCHINDUCTOR_CACHE_DIR).
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config

import diode_lut


class Sizes(NamedTuple):
    """Sizes of the module: two linear layers, ``rows x outer -> rows x inner -> rows x outer``, and a bmm."""

    rows: int
    outer: int
    inner: int
    b: int
    m: int
    n: int
    k: int


SIZES = {"cpu": Sizes(8, 256, 384, 8, 64, 64, 64), "cuda": Sizes(1376, 216, 80, 48, 128, 128, 64)}
DTYPES = {"cpu": "float32", "cuda": "float16"}


@dataclass
class Report:
    """One way of compiling: seconds of the first call, microseconds of a later one, and what happened meanwhile.

    ``spread`` is the interquartile range of the later calls' times over their median, on a CPU.
    ``benchmarks`` counts the GEMMs that Inductor benchmarked. ``error`` and ``eager_error`` are relative, in the
    Frobenius norm, against the same module in float64, for the worse of its results. ``stats`` are those of
    ``get_prediction_stats``.
    """

    compile_seconds: float
    run_us: float
    spread: float
    benchmarks: int
    error: float
    eager_error: float
    stats: dict[str, Any]


def problems(device: str) -> list[dict[str, Any]]:
    """The module's three GEMMs, as in a problem file."""
    rows, outer, inner, b, m, n, k = SIZES[device]
    last = "addmm" if _has_bias(device) else "mm"
    linear = {"dtype": DTYPES[device], "layout": "nt", "B": 1, "M": rows}
    return [
        {"op": "mm", **linear, "N": inner, "K": outer},
        {"op": last, **linear, "N": outer, "K": inner},
        {"op": "bmm", "dtype": DTYPES[device], "layout": "nn", "B": b, "M": m, "N": n, "K": k},
    ]


def _has_bias(device: str) -> bool:
    """Inductor's C++ template, the CPU's candidate beside the library, adds a bias separately: that is ``mm`` again."""
    return device == "cuda"


class Module(torch.nn.Module):
    """Two linear layers with GELU between them, and a bmm beside them."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.up = torch.nn.Linear(SIZES[device].outer, SIZES[device].inner, bias=False)
        self.down = torch.nn.Linear(SIZES[device].inner, SIZES[device].outer, bias=_has_bias(device))

    def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both results."""
        return self.down(torch.nn.functional.gelu(self.up(x))), torch.bmm(a, b)


def compile_and_run(device: str, mode: str) -> Report:
    """Compile the module in ``mode`` (``default`` or ``max-autotune``), call it, and see what happened."""
    torch.manual_seed(0)
    dtype = getattr(torch, DTYPES[device])
    rows, outer, _, b, m, n, k = SIZES[device]
    module = Module(device).to(device, dtype).eval()
    inputs = [torch.randn(shape, device=device, dtype=dtype) for shape in ((rows, outer), (b, m, k), (b, k, n))]
    torch.compile(lambda x: x + 1)(inputs[0])  # what Inductor does once in a process is not what is compared here
    counters.clear()
    options = {
        "max_autotune": mode == "max-autotune",
        "freezing": device == "cpu",
        "autotune_num_choices_displayed": 0,
        "max_autotune_report_choices_stats": False,
    }
    with torch.no_grad(), inductor_config.patch(options):
        compiled = torch.compile(module)
        started = time.perf_counter()
        result = compiled(*inputs)
        if device == "cuda":
            torch.cuda.synchronize()
        compile_seconds = time.perf_counter() - started
        run_us, spread = _microseconds(lambda: compiled(*inputs), device)
        eager = module(*inputs)
        reference = module.double()(*(tensor.double() for tensor in inputs))
    return Report(
        compile_seconds,
        run_us,
        spread,
        counters["inductor"]["select_algorithm_autotune"],
        _error(result, reference),
        _error(eager, reference),
        diode_lut.get_prediction_stats(),
    )


def _microseconds(call: Callable[[], object], device: str) -> tuple[float, float]:
    """The median time of a call, and its spread; on a GPU the least time of its kernels, without launching them."""
    if device == "cuda":
        from triton.testing import do_bench_cudagraph

        return float(do_bench_cudagraph(call, return_mode="min")) * 1e3, 0.0
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    timer.timeit(100)  # warms it up
    measured = timer.blocked_autorange(min_run_time=2)
    return measured.median * 1e6, measured.iqr / measured.median


def _error(results: Sequence[torch.Tensor], references: Sequence[torch.Tensor]) -> float:
    """The larger of the two errors; NaN if either is."""
    errors = [
        (result.double() - right).norm() / right.norm() for result, right in zip(results, references, strict=True)
    ]
    return float(torch.stack(errors).max())


if __name__ == "__main__":
    print(json.dumps(asdict(compile_and_run(*sys.argv[1:3]))))
