"""The hook on flex attention, on a CUDA device that is not there: which blocks Inductor's kernels have."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.exc import LoweringException

import diode_lut
from diode_lut.hook.handler import DiodeChoices
from tests.attention import Attention, causal_reversed, soft_cap, window
from tests.fake_cuda import H200, Lowered, compile_triton
from tests.sampled import sampled

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]

FORWARD = {"template": "triton_flex_attention", "block_m": 64, "block_n": 32, "num_stages": 2, "num_warps": 8}
BACKWARD = {
    "template": "triton_flex_attention_backward",
    "block_m1": 32,
    "block_n1": 64,
    "block_m2": 128,
    "block_n2": 16,
    "num_stages": 2,
    "num_warps": 8,
}
DECODING = {"template": "triton_flex_decoding", "block_n": 32, "num_stages": 2, "num_warps": 4}
DEFAULT = {"template": "default"}
WITH_ROW = [64, 32, 2, 8]
WITHOUT = [128, 128, 3, 4]  # blocks of queries and keys, stages and warps of the row, and Inductor's on an H200


def tunables(lowered: Lowered, *names: str) -> list[int]:
    """The named blocks, the stages and the warps of the only template."""
    (kernel,) = lowered.triton_templates
    values = dict(re.findall(r"(BLOCK_\w+) : tl\.constexpr = (\d+)", kernel))
    values |= dict(re.findall(r"(num_stages|num_warps)=(\d+)", kernel))
    return [int(values[name]) for name in (*names, "num_stages", "num_warps")]


def forward(attention: Attention, **options: Any) -> list[int]:
    """What the kernel of a forward pass has."""
    return tunables(attention.lowered(**options), "BLOCK_M", "BLOCK_N")


def row(config: dict[str, Any] = FORWARD, **key: Any) -> dict[str, Any]:
    return {"op": "flex_attention", "configs": [config], **key}


@pytest.mark.parametrize("max_autotune", [False, True], ids=["default", "max-autotune"])
def test_row_becomes_the_kernel(rows: Rows, tmp_path: Path, max_autotune: bool) -> None:
    """A row's config is the kernel in either mode, without a benchmark, and Triton compiles it for sm_90."""
    rows(row(variant="causal"))
    with inductor_config.patch(max_autotune=max_autotune):
        lowered = Attention().lowered()
    assert tunables(lowered, "BLOCK_M", "BLOCK_N") == WITH_ROW
    (kernel,) = lowered.triton_templates
    assert compile_triton(kernel, tmp_path).metadata.shared <= H200.shared_memory_per_block_optin


def test_backward_and_decoding(rows: Rows) -> None:
    """Gradients and few queries are ops of their own."""
    rows(row(), row(BACKWARD, op="flex_attention_backward"), row(DECODING, op="flex_decoding"))
    gradients = Attention().lowered(backward=True)
    assert tunables(gradients, "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2") == [32, 64, 128, 16, 2, 8]
    few = Attention(m=2, g=2, mask=None)
    assert tunables(few.lowered(), "BLOCK_N") == [32, 2, 4]
    assert forward(few, FORCE_USE_FLEX_ATTENTION=True) == WITH_ROW


@pytest.mark.parametrize(
    ("attention", "variant"),
    [
        (Attention(), "causal"),
        pytest.param(Attention(mask=causal_reversed), "causal", marks=pytest.mark.slow),
        pytest.param(Attention(mask=window), "computed", marks=pytest.mark.slow),
        (Attention(mask=None), "full"),
        (Attention(documents=True), "captured"),
        pytest.param(Attention(score=soft_cap), "causal-score-computed", marks=pytest.mark.slow),
        (Attention(mask=None, bias=True), "full-score-captured"),
    ],
)
def test_variant_is_read_off_the_graphs(rows: Rows, attention: Attention, variant: str) -> None:
    """The class of the mask and of what modifies scores follows from their graphs and from what they capture."""
    rows(row(variant=variant))
    assert forward(attention) == WITH_ROW


@pytest.mark.slow
def test_key_says_all_sizes(rows: Rows) -> None:
    """A row for exactly one problem answers for it, and for none that differs in one size."""
    attention = Attention(b=2, h=8, g=4, m=256, n=384, k=64, v=128)
    sizes = {"b": 2, "h": 8, "g": 4, "m": 256, "n": 384, "k": 64, "v": 128}
    kind = {"dtype": "bfloat16", "layout": "nt", "align": 16, "variant": "causal"}
    rows(row(**kind, **{name: [size, size] for name, size in sizes.items()}))
    assert forward(attention) == WITH_ROW
    for other in ({"b": 1}, {"h": 4}, {"g": 2}, {"m": 128}, {"n": 256}, {"v": 64}, {"dtype": torch.float16}):
        assert forward(attention._replace(**other)) != WITH_ROW


@pytest.mark.parametrize(
    "attention",
    [Attention(dynamic=True), Attention(dtype=torch.float64)],
    ids=["a size that may change", "a type that tables do not have"],
)
def test_left_to_inductor(rows: Rows, attention: Attention) -> None:
    """Where tables have no such problem, Inductor decides. It is counted if only its sizes are the reason."""
    rows(row())
    with diode_lut.config.patch(strict=True), diode_lut.profile_predictions() as counts:
        assert forward(attention) != WITH_ROW
    assert (counts.total_predictions, counts.no_choice) == (0, attention.dynamic)


@pytest.mark.parametrize(
    "options",
    sampled(
        [{"BLOCK_M": 32, "BLOCK_N": 64}, {"num_warps": 2}, {"fwd_num_stages": 1}, {"USE_TMA": True}],
        {"fwd_num_stages": 1},
    ),
)
def test_kernel_options_win(rows: Rows, options: dict[str, Any]) -> None:
    """The user's choices stay; Inductor makes the others, as without a table, and they are counted."""
    rows()
    without = forward(Attention(), **options)
    rows(row())
    with diode_lut.config.patch(strict=True), diode_lut.profile_predictions() as counts:
        assert forward(Attention(), **options) == without != WITH_ROW
    assert (counts.total_predictions, counts.no_choice) == (0, 1)


@pytest.mark.parametrize("options", [{"bwd_BLOCK_M1": 32}, {"PRESCALE_QK": True}, {"BACKEND": "TRITON"}])
def test_other_options_leave_the_choice(rows: Rows, options: dict[str, Any]) -> None:
    """Options of the other direction, and those that go with any config, leave it to the table."""
    rows(row())
    assert forward(Attention(), **options) == WITH_ROW


@pytest.mark.parametrize(
    ("config", "attention", "reason"),
    [
        ({**FORWARD, "block_m": 128}, Attention(block=64), "a block of 128 queries does not divide the mask's, of 64"),
        ({**FORWARD, "block_n": 128}, Attention(block=64), "a block of 128 keys does not divide the mask's, of 64"),
        ({**FORWARD, "block_n": 128, "num_stages": 4}, Attention(k=256, v=256), "bytes of shared memory"),
        ({**FORWARD, "block_m": 128, "num_warps": 1}, Attention(k=128, v=128), "512 registers a thread (allowed: 509)"),
        (BACKWARD, Attention(), "triton_flex_attention_backward is not for flex_attention"),
    ],
)
def test_refused(
    rows: Rows, config: dict[str, Any], attention: Attention, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A config that cannot run is passed over with a warning, and the next one is taken."""
    rows({"op": "flex_attention", "configs": [config, {**FORWARD, "block_m": 32, "num_warps": 4}]})
    with caplog.at_level(logging.WARNING, "diode_lut"):
        assert forward(attention) == [32, 32, 2, 4]
    assert reason in caplog.text


def test_nothing_can_run(rows: Rows) -> None:
    """Where no config of the row can run, Inductor decides."""
    rows(row(BACKWARD))
    assert forward(Attention()) == WITHOUT


def test_blocks_of_gradients_must_divide_each_other(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Triton would not compile such a kernel."""
    rows(row({**BACKWARD, "block_m1": 128}, op="flex_attention_backward"))
    with caplog.at_level(logging.WARNING, "diode_lut"):
        assert Attention().lowered(backward=True).triton_templates
    assert "64 is no multiple of block_m1, which is 128" in caplog.text


def test_default_is_inductors_own(rows: Rows) -> None:
    """A row that says default gives Inductor's config of its default mode, without a benchmark under max-autotune."""
    rows(row(DEFAULT))
    with inductor_config.patch(max_autotune=True):
        assert forward(Attention()) == WITHOUT
    assert forward(Attention()) == WITHOUT


def test_min_gain_makes_it_the_default(rows: Rows) -> None:
    """A config that gains less than the setting asks for is left for Inductor's own."""
    rows(row({**FORWARD, "gain_permille": 1010}))
    with diode_lut.config.patch(min_gain=0.02):
        assert forward(Attention()) == WITHOUT
    assert forward(Attention()) == WITH_ROW


def test_strict_raises(rows: Rows) -> None:
    """Under the setting strict, attention without a match is an error."""
    rows(row(variant="full"))
    with (
        diode_lut.config.patch(strict=True),
        pytest.raises(LoweringException, match="MissError: flex_attention causal"),
    ):
        Attention().lowered()


def test_policy_off(rows: Rows) -> None:
    """With the policy off, Inductor decides."""
    rows(row())
    with diode_lut.config.patch(policy="off"):
        assert forward(Attention()) == WITHOUT


@pytest.mark.parametrize("variant", ["causal", "full"], ids=["row", "no match"])
def test_default_that_does_not_divide(rows: Rows, variant: str) -> None:
    """Where the blocks of the default do not divide the mask's, it is not the only config that Inductor gets."""
    rows(row(DEFAULT, variant=variant))
    offered: list[Any] = []

    class Watching(DiodeChoices):
        def get_flex_attention_fwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
            offered[:] = super().get_flex_attention_fwd_configs(*arguments, **named)
            return [each for each in offered if each.block_m == each.block_n == 64][:1]

    watching = torch._inductor.virtualized.V.set_choices_handler(Watching())
    with watching, diode_lut.config.patch(fallback_to_autotune=False), inductor_config.patch(max_autotune=True):
        assert forward(Attention(block=64))
    assert len(offered) > 1


@pytest.mark.slow
def test_several_under_max_autotune(rows: Rows) -> None:
    """With top_k, or to verify, Inductor gets several configs to benchmark, but only where it autotunes."""
    rows({"op": "flex_attention", "configs": [FORWARD, {**FORWARD, "block_m": 128}]})
    offered: list[list[Any]] = []

    class Watching(DiodeChoices):
        def get_flex_attention_fwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
            offered.append(super().get_flex_attention_fwd_configs(*arguments, **named))
            return offered[-1][:1]

    with torch._inductor.virtualized.V.set_choices_handler(Watching()):
        for settings, autotune in (({"top_k": 2}, True), ({"top_k": 2}, False), ({"policy": "verify"}, True)):
            with diode_lut.config.patch(**settings), inductor_config.patch(max_autotune=autotune):
                Attention().lowered()
    blocks = [[each.block_m for each in configs] for configs in offered]
    assert blocks == [[64, 128], [64], [64, 128]]
