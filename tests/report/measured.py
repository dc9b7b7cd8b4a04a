"""A small table, and timings for it."""

from pathlib import Path

from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

H200 = Hardware("NVIDIA H200", "sm_90", 132)
A, B = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 64))
ROWS = (
    {
        "op": "mm",
        "dtype": "float16",
        "layout": "nn",
        "m": [64, 256],
        "n": [64, 256],
        "k": [1, 512],
        "problems": 2,
        "configs": [{**A.to_json(), "gain_permille": 1300}, {"template": "aten"}],
    },
    {
        "op": "addmm",
        "dtype": "bfloat16",
        "layout": "nt",
        "align": 16,
        "m": [1024, 1024],
        "n": [4096, 4096],
        "k": [1024, 1024],
        "configs": [B.to_json()],
    },
    {
        "op": "mm",
        "layout": "nn",
        "configs": [{"template": "aten"}],
        "note": "</script><img src=x onerror=document.title='hacked'><b>bold</b>",
    },
)
"""A row for ranges, an exact row, and a row for any dtype and size."""

DEFAULT = Config("default")
FLEX, DECODING = map(Config.parse, ("triton_flex_attention 64x32 s2 w4", "triton_flex_decoding 32 s2 w2"))
CAUSAL = {"op": "flex_attention", "dtype": "bfloat16", "layout": "nt", "align": 16, "variant": "causal"}
OTHER_ROWS = (
    {**CAUSAL, "b": [1, 2], "h": [32, 32], "g": [4, 4], "k": [64, 64], "v": [64, 64], "configs": [FLEX.to_json()]},
    {**CAUSAL, "h": [8, 8], "g": [1, 1], "m": [1024, 4096], "configs": [{"template": "default"}]},
    {"op": "flex_decoding", "configs": [DECODING.to_json()]},
    {"op": "scaled_mm", "variant": "row-bfloat16-fast", "m": [1, 64], "configs": [{"template": "aten"}]},
    {"configs": [{"template": "aten"}], "note": "any GEMM"},
)
"""Rows for attention, of two numbers of heads, for scaled_mm, and for any GEMM."""


SUM = {"op": "reduction", "variant": "inner", "x": [4097, 16384], "r": [257, 512]}
SUM_CONFIG, FLAT_CONFIG = map(Config.parse, ("looped_reduction x1r256 w1", "pointwise x1024 w4"))
KERNEL_ROWS = (
    {**SUM, "configs": [SUM_CONFIG.to_json()]},
    {"op": "pointwise", "variant": "flat", "x": [1, 1 << 20], "loads": [1, 2], "configs": [FLAT_CONFIG.to_json()]},
    {"op": "pointwise", "variant": "tiled-x", "x": [64, 64], "y": [1024, 2048], "configs": [FLAT_CONFIG.to_json()]},
    {"configs": [{"template": "aten"}], "note": "any GEMM"},
)
"""Rows for generated kernels, and for any GEMM."""


def _attention(op: str, m: int, k: int, variant: str) -> Problem:
    return Problem.of(op, m, 4096, k, dtype="bfloat16", layout="nt", h=32, g=4, variant=variant)


OTHER_PROBLEMS = (
    (_attention("flex_attention", 4096, 64, "causal"), {FLEX: 80_000.0, DEFAULT: 100_000.0}),
    (_attention("flex_decoding", 1, 128, "full"), {DECODING: 50.0, DEFAULT: 100.0}),
    (
        Problem.of("scaled_mm", 32, 512, 512, dtype="float8_e4m3fn", layout="nt", variant="row-bfloat16-fast"),
        {ATEN: 100.0},
    ),
)
"""Problems of these ops, with times."""


def write_other_dataset(path: Path) -> Path:
    """Write OTHER_PROBLEMS as a dataset of the H200."""
    with DatasetWriter(path, Header(H200)) as writer:
        for problem, times in OTHER_PROBLEMS:
            writer.append(Record(problem, tuple(Timing(config, ns) for config, ns in times.items())))
    return path


PROBLEMS = (
    (Problem("mm", "float16", "nn", 16, 1, 64, 64, 64), 100.0, 110.0, 130.0),
    (Problem("mm", "float16", "nn", 16, 1, 256, 256, 512), 110.0, 100.0, 121.0),
    (Problem("mm", "float16", "nn", 16, 1, 2048, 64, 64), 100.0, 110.0, 100.0),
    (Problem("bmm", "float16", "nn", 16, 8, 64, 64, 64), 100.0, 100.0, 100.0),
    (Problem("addmm", "bfloat16", "nt", 16, 1, 1024, 4096, 1024), 200.0, 100.0, 150.0),
)
"""Problems, each with the times of A, B and aten in nanoseconds."""


def write_dataset(path: Path, hardware: Hardware) -> Path:
    """Write PROBLEMS as a dataset of the hardware."""
    with DatasetWriter(path, Header(hardware)) as writer:
        for problem, *times in PROBLEMS:
            timings = tuple(map(Timing, (A, B, ATEN), times))
            writer.append(Record(problem, timings))
    return path
