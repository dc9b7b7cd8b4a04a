"""Our kernels stand for Inductor's: they need the same shared memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import diode_lut
from diode_lut.compile_check import Trial, compile_trial
from diode_lut.measure.gemm import make_operands
from diode_lut.measure.kernels import Kernel, lowering
from diode_lut.problem import Problem
from diode_lut.templates.config import Config
from diode_lut.templates.template import Heads
from diode_lut.templates.triton_gemm import TRITON_GROUPED_MM
from tests.attention import Attention
from tests.fake_cuda import Input, compile_triton, fake_cuda, lower

CASES = [
    ("mm", "bfloat16", "nt", 4096, "triton_mm 64x128x64 g8 s3 w4"),
    ("mm", "float16", "tn", 4096, "triton_mm 128x128x32 g8 s4 w8"),
    ("mm", "float16", "nn", 4098, "triton_mm 64x64x32 g8 s5 w4"),
    ("mm", "tf32", "nn", 4096, "triton_mm 32x64x64 g8 s2 w4"),
    ("mm", "float32", "nt", 4096, "triton_mm 32x32x16 g8 s3 w2"),
    ("bmm", "bfloat16", "nn", 4096, "triton_bmm 64x32x128 g8 s2 w8"),
    ("mm", "bfloat16", "nt", 4096, "triton_mm_persistent_tma 128x64x64 g8 s3 w4"),
    ("mm", "float16", "tn", 4096, "triton_mm_persistent_tma 64x128x32 g8 s4 w8"),
    ("scaled_mm", "float8_e4m3fn", "nt", 4096, "triton_mm 64x128x128 g8 s3 w4"),
    ("scaled_mm", "float8_e5m2", "nt", 4096, "triton_mm 32x64x128 g8 s2 w4"),
]


@pytest.mark.parametrize(("op", "dtype", "layout", "size", "text"), CASES, ids=lambda value: str(value))
def test_shared_memory_is_that_of_inductors_kernel(
    op: str, dtype: str, layout: str, size: int, text: str, tmp_path: Path
) -> None:
    """For each template, layout and type, what Triton makes of both takes as much shared memory."""
    problem, config = (
        Problem.of(
            op,
            size,
            size,
            size,
            dtype=dtype,
            layout=layout,
            b=2 if op == "bmm" else 1,
            variant="tensor-bfloat16" if op == "scaled_mm" else "",
        ),
        Config.parse(text),
    )
    with fake_cuda(), lowering(torch.device("cuda", 0)) as inductor:
        kernel = inductor.for_problem(problem, config, make_operands(problem, "meta"))
    assert isinstance(kernel, Kernel)
    source = Path(kernel.caller.bmreq.module_path).read_text(encoding="utf-8")
    theirs = compile_triton(source, tmp_path).metadata.shared
    assert compile_trial(Trial("sm_90", config, dtype, layout, problem.align)) == theirs


ATTENTIONS = [
    pytest.param(Attention(k=128, v=128), "triton_flex_attention 64x64 s2 w4", marks=pytest.mark.slow),
    (Attention(k=192, v=128, dtype=torch.float16), "triton_flex_attention 128x64 s2 w8"),
    pytest.param(Attention(dtype=torch.float32), "triton_flex_attention 32x32 s2 w4", marks=pytest.mark.slow),
    (Attention(), "triton_flex_attention_backward 32x64 64x32 s2 w4"),
    (Attention(m=1, k=128, v=128, mask=None), "triton_flex_decoding 64 s3 w2"),
    pytest.param(Attention(m=16, g=4, mask=None), "triton_flex_decoding 128 s4 w4", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("attention", "text"), ATTENTIONS, ids=lambda value: value if type(value) is str else "")
def test_shared_memory_of_attention_is_that_of_inductors_kernel(
    attention: Attention, text: str, table_file: Callable[..., Path], tmp_path: Path
) -> None:
    """For each op, Inductor's kernel and ours take as much shared memory on sm_90."""
    config = Config.parse(text)
    (op,) = config.kernel.ops
    table = str(table_file("mine.json", {"op": op, "configs": [config.to_json()]}))
    with fake_cuda(), diode_lut.config.patch(tables=(table,), tiers=("user",)):
        (source,) = attention.lowered(backward=op == "flex_attention_backward").triton_templates
    theirs = compile_triton(source, tmp_path).metadata.shared
    dtype = str(attention.dtype).removeprefix("torch.")
    heads = Heads.of(attention.k, attention.v, attention.m * attention.g)
    assert compile_trial(Trial("sm_90", config, dtype, "nt", 16, heads)) == theirs


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("text", ["16x256x128 s4 w4", "64x128x64 s3 w4", "128x128x128 s3 w8"])
def test_shared_memory_of_grouped_matmuls_is_that_of_inductors_kernel(
    text: str, layout: str, table_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Inductor's kernel and ours take as much shared memory on sm_90, and as much as our rules say, at most."""
    config = Config.parse(f"triton_grouped_mm {text}")
    table = str(table_file("mine.json", {"op": "grouped_mm", "configs": [config.to_json()]}))
    weight = Input((4, 512, 256), stride=(512 * 256, 256, 1) if layout == "nn" else (512 * 256, 1, 512))
    with fake_cuda(), diode_lut.config.patch(tables=(table,), tiers=("user",)):
        lowered = lower(lambda *each: torch._grouped_mm(*each), Input((64, 512)), weight, Input((4,), torch.int32))
    (source,) = lowered.triton_templates
    theirs = compile_triton(source, tmp_path).metadata.shared
    assert compile_trial(Trial("sm_90", config, "bfloat16", layout, 16)) == theirs
    assert theirs <= TRITON_GROUPED_MM.shared_memory(config.params, 2) < theirs + 128
