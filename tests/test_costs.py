"""Costs in traces of GPU kernels that no kernel's choice removes."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from diode_lut.probe import CALL, TRITON_GEMM, replaced_libraries  # noqa: E402
from diode_lut.programs.costs import (  # noqa: E402
    BETWEEN_NODES_US,
    GPU_TIME,
    MOST,
    TRACED_TIME,
    Cost,
    costs_in,
    largest,
)
from diode_lut.programs.times import read_traces  # noqa: E402

Kernel = tuple[str, list[list[int]], str, str, float]  # op, sizes of inputs, type, kernel, microseconds

HALF, FLOAT = "c10::BFloat16", "float"


def trace(directory: Path, *kernels: Kernel, outside: float = 0.0, idle: float = 0.0, compiled: float = 0.0) -> Path:
    """Return the trace of two calls of a graph, each before other kernels, nothing, and compiling, in microseconds."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, ts: float, dur: float, number: int, **args: Any) -> None:
        place = {"ph": "X", "pid": 1, "tid": 1 if cat != "kernel" else 7, "ts": ts, "dur": dur}
        events.append({**place, "cat": cat, "name": name, "args": {"External id": number, **args}})

    at = 0.0
    for call in range(2):
        number = 100 * call + 1
        add("user_annotation", f"{CALL} 0", at, sum(us for *_, us in kernels), number)
        for op, sizes, dtype, kernel, us in kernels:
            number += 1
            add("cpu_op", op, at, us, number, **{"Input Dims": sizes, "Input type": [dtype] * len(sizes)})
            add("kernel", kernel, at, us, number)
            at += us
        if outside:
            add("cpu_op", "aten::add", at, outside, 100 * call + 90)
            add("kernel", "elementwise", at, outside, 100 * call + 90)
        at += outside + idle
        if compiled and not call:
            add("cpu_op", "_compile.compile_inner (dynamo_timed)", at, compiled, 100 * call + 91)
            at += compiled
    path = directory / "1.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def found(path: Path, **report: Any) -> dict[str, tuple[str, int]]:
    """The shares of the costs in percent, by name."""
    return {cost.name: (cost.of, round(100 * cost.share)) for cost in costs_in(read_traces([path]), [report])}


def attention(dtype: str) -> tuple[Kernel, ...]:
    """Attention of 24 heads over 40 tokens of 16 values, by two matmuls and a softmax, and a projection."""
    return (
        ("aten::bmm", [[24, 40, 16], [24, 16, 40]], dtype, "gemmSN", 20.0),
        ("triton_per_fused__safe_softmax_0", [[24, 40, 40]], dtype, "triton_per_fused__safe_softmax_0", 10.0),
        ("aten::bmm", [[24, 40, 40], [24, 40, 16]], dtype, "gemmSN", 20.0),
        ("aten::mm", [[40, 384], [384, 384]], HALF, "nvjet", 50.0),
    )


def test_attention_in_float32_is_a_cost(tmp_path: Path) -> None:
    """Two batched matmuls and a softmax are attention; its share has all their kernels, and tells the type."""
    name = "attention by matmuls and a softmax in float32, not by a fused kernel"
    assert found(trace(tmp_path, *attention(FLOAT))) == {name: (GPU_TIME, 50)}
    assert found(trace(tmp_path, *attention(HALF))) == {name.replace(" in float32", ""): (GPU_TIME, 50)}
    first, softmax, (_, sizes, _, _, us), last = attention(FLOAT)
    converting = (f"{TRITON_GEMM} 40 16 40", [*sizes, [24, 40, 16]], HALF, "triton_tem_fused_bmm_1", us)
    assert found(trace(tmp_path, first, softmax, converting, last)) == {name: (GPU_TIME, 50)}


def test_batched_matmuls_without_a_softmax_are_no_attention(tmp_path: Path) -> None:
    """Nor are those of which neither reads what the other computes."""
    one, softmax, other, last = attention(HALF)
    loss = ("triton_per_fused__log_softmax_0", *softmax[1:3], "triton_per_fused__log_softmax_0", 10.0)
    assert found(trace(tmp_path, one, other, last)) == {}
    assert found(trace(tmp_path, one, loss, other, last)) == {}
    assert found(trace(tmp_path, one, softmax, ("aten::bmm", [[24, 40, 41], [24, 41, 16]], *other[2:]), last)) == {}


@pytest.mark.parametrize(
    ("kernel", "share"),
    [
        ("cutlass_80_simt_sgemm_128x64_8x5_tn_align1", 80),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8", 80),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", 0),
        ("cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4", 0),
    ],
)
def test_float32_without_tensor_cores_is_a_cost(kernel: str, share: int, tmp_path: Path) -> None:
    """The library's kernels tell whether they use TF32."""
    path = trace(
        tmp_path,
        ("aten::addmm", [[64], [32, 128], [128, 64]], FLOAT, kernel, 80.0),
        ("aten::mm", [[32, 128], [128, 64]], HALF, "nvjet", 20.0),
    )
    assert found(path) == ({"float32 matmuls without TF32": (GPU_TIME, share)} if share else {})


def test_eager_kernels_are_a_cost_of_graph_breaks(tmp_path: Path) -> None:
    """Kernels outside compiled graphs count where Dynamo has broken graphs, whose reason is told; else nobody asked."""
    path = trace(tmp_path, *attention(HALF)[-1:], outside=50.0)
    (cost,) = costs_in(read_traces([path]), [{"graph_breaks": {"print is not traced\nDetails": 2}}])
    assert str(cost) == (
        "kernels outside compiled graphs: 50% of GPU time; 2 graph breaks, such as: print is not traced; "
        "torch.compile(..., fullgraph=True) finds them"
    )
    assert found(path) == {}


def test_compiling_between_calls_is_a_cost(tmp_path: Path) -> None:
    """So is the time in which the GPU waits, of which compiling is no part, with CUDA graphs too."""
    path = trace(tmp_path, *attention(HALF)[-1:], idle=50.0, compiled=100.0)
    # calls of 50 us each, and 150 us between them
    assert found(path) == {"compiling again": (TRACED_TIME, 40), "the GPU waits for the CPU": (TRACED_TIME, 20)}
    document = json.loads(path.read_text())
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
    path.write_text(json.dumps({"traceEvents": [*document["traceEvents"], launch]}))
    assert found(path) == {"compiling again": (TRACED_TIME, 40), "the GPU waits for the CPU": (TRACED_TIME, 20)}
    *_, cost = costs_in(read_traces([path]), [{}])
    assert cost.remedy.startswith("between CUDA graphs")


def test_short_gaps_between_kernels_of_a_cuda_graph_are_no_cost(tmp_path: Path) -> None:
    """Without CUDA graphs they are: a launch that comes too late."""
    path = trace(tmp_path, *attention(HALF)[-1:], idle=BETWEEN_NODES_US - 1)
    assert [*found(path)] == ["the GPU waits for the CPU"]
    document = json.loads(path.read_text())
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
    path.write_text(json.dumps({"traceEvents": [*document["traceEvents"], launch]}))
    assert found(path) == {}


def test_a_recompile_is_in_a_real_trace(tmp_path: Path) -> None:
    """Dynamo's compile of another size, between two calls, is in the profiler's trace by the name looked for."""
    torch._dynamo.reset()
    compiled = torch.compile(torch.sin, backend="eager", dynamic=False)
    compiled(torch.ones(3))
    path = tmp_path / "1.trace.json"
    with torch.profiler.profile(acc_events=True) as profile:
        for size in (3, 4, 3):
            with torch.profiler.record_function(f"{CALL} {size}"):
                compiled(torch.ones(size))
    profile.export_chrome_trace(str(path))
    (cost,) = costs_in(read_traces([path]), [])
    assert (cost.name, cost.of) == ("compiling again", TRACED_TIME)
    assert cost.remedy.startswith("1 time: sizes or values change")
    assert 0 < cost.share < 1


def test_attention_without_cudnn_is_a_cost_of_the_path_to_libraries(tmp_path: Path) -> None:
    """Flash attention is a cost only where LD_LIBRARY_PATH has replaced CUDA's libraries."""
    flash = ("aten::_scaled_dot_product_flash_attention", [[2, 4, 8, 16]], HALF, "flash_fwd_kernel", 30.0)
    path = trace(tmp_path, flash, attention(HALF)[-1])
    assert found(path) == {}
    path = trace(tmp_path, flash, attention(HALF)[-1])
    assert found(path, libraries=["/usr/local/cuda/lib64/libcudnn.so.9"]) == {"attention without cuDNN": (GPU_TIME, 38)}


def test_libraries_from_the_path_are_told(tmp_path: Path) -> None:
    """A library counts if it lies in a directory of LD_LIBRARY_PATH, also by a link, but not in a package."""
    own, package = tmp_path / "cuda-13", tmp_path / "site-packages"
    own.mkdir()
    package.mkdir()
    (tmp_path / "cuda").symlink_to(own)
    names = (own / "libcudnn.so.9", own / "libcuda.so.1", package / "libcudnn.so.9", tmp_path / "libcublas.so.13")
    maps = "".join(f"7f00-7f01 r--p 00000000 08:01 42    {name}\n" for name in names)
    assert replaced_libraries(f"{tmp_path / 'cuda'}:{package}", maps * 2) == [str(own / "libcudnn.so.9")]
    assert replaced_libraries("", maps) == []


def test_the_largest_costs_of_most_runs_are_named() -> None:
    """A cost has the median share of the runs that have it, if most have it."""
    runs = [
        [Cost(name, 1e3 * share, share, GPU_TIME, "") for name, share in costs.items()]
        for costs in (
            {"a": 0.3, "b": 0.2, "c": 0.1, "d": 0.4},
            {"a": 0.5, "b": 0.1, "c": 0.1, "e": 0.9},
            {"a": 0.4, "b": 0.3, "c": 0.1, "d": 0.4},
        )
    ]
    assert [(cost.name, cost.share) for cost in largest(runs)] == [("a", 0.4), ("d", 0.4), ("b", 0.2)]
    assert len(largest(runs)) == MOST
    assert largest([]) == []
