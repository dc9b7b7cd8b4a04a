"""The kernels for flex attention: what they may be, and what they take of a device."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import diode_lut
from diode_lut.hardware import Hardware, architecture
from diode_lut.problem import Problem
from diode_lut.templates.config import DEFAULT, Config, baseline
from diode_lut.templates.flex_attention import (
    TRITON_FLEX_ATTENTION,
    TRITON_FLEX_ATTENTION_BACKWARD,
    TRITON_FLEX_DECODING,
    Flex,
)
from diode_lut.templates.template import Heads
from tests.attention import Attention
from tests.fake_cuda import compile_triton, fake_cuda
from tests.sampled import sampled

SM_90 = architecture("sm_90")
FORWARD, BACKWARD, DECODING = TRITON_FLEX_ATTENTION, TRITON_FLEX_ATTENTION_BACKWARD, TRITON_FLEX_DECODING

CASES: dict[str, tuple[Flex, tuple[int, ...], Attention]] = {
    "forward": (FORWARD, (128, 64, 3, 8), Attention(k=128, v=64)),
    "small blocks": (FORWARD, (16, 32, 2, 4), Attention()),
    "float32": (FORWARD, (64, 32, 2, 4), Attention(dtype=torch.float32)),
    "backward": (BACKWARD, (32, 64, 64, 32, 2, 4), Attention()),
    "wide values": (FORWARD, (64, 16, 1, 16), Attention(k=16, v=128)),
    "wide values in float32": (FORWARD, (64, 16, 1, 8), Attention(k=16, v=128, dtype=torch.float32)),
    "decoding": (DECODING, (32, 3, 4), Attention(m=16, g=4, mask=None)),
    "many rows": (DECODING, (16, 1, 16), Attention(m=32, g=4, k=16, v=128, mask=None)),
    "many rows in float32": (DECODING, (16, 1, 8), Attention(m=32, g=4, mask=None, dtype=torch.float32)),
}


@pytest.mark.parametrize("case", sampled(CASES, "forward", "backward", "wide values in float32", "decoding"))
def test_shared_memory_suffices(case: str, table_file: Callable[..., Path], tmp_path: Path) -> None:
    """The kernel that Triton compiles for sm_90 takes no more shared memory than is reckoned with."""
    kernel, params, attention = CASES[case]
    config = Config(kernel.name, params)
    table = table_file("one.json", {"op": kernel.ops[0], "configs": [config.to_json()]})
    with fake_cuda(), diode_lut.config.patch(tables=(str(table),), tiers=("user",)):
        source, *_ = attention.lowered(backward=kernel is BACKWARD).triton_templates
    heads = Heads.of(attention.k, attention.v, attention.m * attention.g)
    reckoned = kernel.shared_memory(params, heads, attention.dtype.itemsize, SM_90)
    assert f"num_stages={config.tunables['num_stages']}" in source
    assert compile_triton(source, tmp_path).metadata.shared <= reckoned


@pytest.mark.parametrize(
    ("op", "sizes", "count"),
    [
        ("flex_attention", {"m": 4096, "n": 4096, "k": 128}, 60),
        ("flex_attention", {"m": 16, "n": 16, "k": 64}, 8),
        ("flex_attention_backward", {"m": 4096, "n": 4096, "k": 128}, 72),
        ("flex_decoding", {"m": 1, "n": 8192, "k": 128}, 65),
    ],
)
def test_sweep_tries_some_dozens(op: str, sizes: dict[str, int], count: int) -> None:
    """Each config of a sweep has allowed values, and blocks that are in proportion to the lengths."""
    problem = Problem.of(op, dtype="bfloat16", layout="nt", variant="causal", h=8, **sizes)  # type: ignore[arg-type]
    (template,) = (each for each in (FORWARD, BACKWARD, DECODING) if op in each.ops)
    configs = [
        Config(template.name, tuple(params))
        for params in template.search(problem, Hardware("NVIDIA H200", "sm_90", 132))
    ]
    assert len(set(configs)) == len(configs) == count
    assert all(Config.from_json(json.loads(json.dumps(config.to_json()))) == config for config in configs)


def test_results_that_do_not_fit() -> None:
    """A kernel whose loop fits in memory is refused if its results do not: such a kernel would end the compile."""
    heads = Heads.of(16, 128, 400)
    (complaint,) = DECODING.faults((128, 3, 16), heads, 2, SM_90)
    assert "need 262144 bytes of shared memory (sm_90 has 232448)" in complaint.reason
    assert not list(DECODING.faults((128, 3, 16), heads._replace(rows=256), 2, SM_90))


def test_blocks_that_do_not_go_together() -> None:
    """Gradients of keys are computed in whole steps of queries, and those of queries in whole steps of keys."""
    heads = Heads.of(64, 64, 512)
    reasons = [each.field for each in BACKWARD.faults((64, 32, 16, 32, 1, 8), heads, 2, SM_90)]
    assert reasons == ["block_n1", "block_m2"]


def test_limits_of_the_device_count() -> None:
    """A device with less shared memory than its architecture's largest allows less."""
    heads: Any = Heads.of(128, 128, 512)
    assert not list(FORWARD.faults((128, 64, 3, 8), heads, 2, SM_90))
    (fault,) = FORWARD.faults((128, 64, 3, 8), heads, 2, SM_90._replace(shared_memory=101376))
    assert fault.reason == "heads of 128 and 128 elements need 131200 bytes of shared memory (sm_90 has 101376)"


@pytest.mark.parametrize(
    ("kernel", "k", "params"),
    [
        (FORWARD, 64, (128, 128, 3, 4)),
        (FORWARD, 128, (128, 64, 3, 8)),
        (FORWARD, 192, (128, 128, 1, 8)),
        (FORWARD, 256, (64, 32, 3, 4)),
        (BACKWARD, 128, (64, 128, 128, 64, 3, 8)),
        (BACKWARD, 256, (64, 64, 64, 64, 2, 4)),
        (DECODING, 256, (64, 1, 2)),
    ],
)
def test_what_inductor_takes_can_run(kernel: Flex, k: int, params: tuple[int, ...]) -> None:
    """Nothing is found wrong with the configs that Inductor has for an H200, whose kernels run there."""
    assert not list(kernel.faults(params, Heads.of(k, k, 16), 2, SM_90))


def test_baseline_of_attention_is_the_default() -> None:
    """What a config gains is over Inductor's own config."""
    assert {op: baseline(op) for op in ("mm", "flex_decoding")} == {"mm": Config("aten"), "flex_decoding": DEFAULT}
