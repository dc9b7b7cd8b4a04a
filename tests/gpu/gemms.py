"""GEMMs on the GPU: made, compiled, and compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from diode_lut.dataset import Record, read_dataset
from diode_lut.problem import Problem

ATEN = {"template": "aten"}


def triton(template: str, m: int, n: int, k: int, group: int = 8, stages: int = 3, warps: int = 4) -> dict[str, Any]:
    blocks = {"block_m": m, "block_n": n, "block_k": k}
    return {"template": template, **blocks, "group_m": group, "num_stages": stages, "num_warps": warps}


MM = triton("triton_mm", 64, 128, 32)
BMM = triton("triton_bmm", 32, 64, 64, stages=2)
TMA = triton("triton_mm_persistent_tma", 128, 64, 64)


def benchmarks() -> int:
    """How many matmuls Inductor benchmarked since the test began."""
    return int(counters["inductor"]["select_algorithm_autotune"])


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative error in the Frobenius norm; NaN never passes a comparison with it."""
    return float(((result.double() - reference).norm() / reference.norm()).detach())


TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-5}


def check(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, tolerance: float | None = None) -> str:
    """Compile, run, compare with float64, and return the generated code."""
    result, codes = run_and_get_code(torch.compile(function), *inputs)
    reference = function(*(tensor.double() for tensor in inputs))
    assert error(result, reference) < (tolerance or TOLERANCE[result.dtype])
    return "\n".join(codes)


def assert_blocks(code: str, config: dict[str, Any]) -> None:
    for name in ("block_m", "block_n", "block_k", "group_m"):
        assert f"{name.upper()} : tl.constexpr = {config[name]}\n" in code
    assert "extern_kernels" not in code.partition("async_compile.wait")[2]


def collected(problems: Sequence[Problem], path: Path) -> dict[str, list[Record]]:
    """The records of a collection into ``path`` by stage. It measures all problems and finds no result wrong."""
    from diode_lut.measure.collector import collect

    for shard in collect(problems, path, device="cuda"):
        for outcome in shard.outcomes:
            assert outcome.record is not None, outcome.reason
    records: dict[str, list[Record]] = {"sweep": [], "final": []}
    for record in read_dataset(path):
        assert not [timing for timing in record.timings if timing.reason == "wrong_result"]
        records[record.stage].append(record)
    assert {record.problem for record in records["final"]} == set(problems)
    return records
