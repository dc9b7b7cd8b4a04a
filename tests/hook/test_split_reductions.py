"""Reductions that Inductor may split, on a CUDA device that is not there: into how many parts, by a row."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

import diode_lut
from diode_lut.receipts import recorder
from tests.fake_cuda import Input, lower
from tests.hook.test_hook import Rows

pytestmark = pytest.mark.usefixtures("h200")

Program = Callable[..., Any]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.float(), -1)


def columns(x: torch.Tensor) -> torch.Tensor:
    return x.float().sum(0)


def split(parts: int, **more: Any) -> dict[str, Any]:
    return {"op": "split_reduction", "configs": [{"template": "in_parts", "parts": parts}], **more}


def count(program: Program, *sizes: int, **more: Any) -> int:
    """The number of kernels."""
    return len(lower(program, Input(sizes, **more)).triton_kernels)


def test_row_decides_whether_a_reduction_is_split(rows: Rows) -> None:
    """Softmax of long rows is a single kernel with one part, and the receipt has both reductions."""
    assert count(softmax, 8, 32000) > 1
    rows(split(1, variant="inner", x=[1, 64], r=[8193, 32768]))
    with recorder.collecting() as collected:
        assert count(softmax, 8, 32000) == 1
    (device,) = collected.devices.values()
    answered = [each for each in device.generated if each.config]
    assert [(str(each.problem), each.config, each.tier) for each in answered] == [
        ("split_reduction inner x 8 r 32000", "in_parts p1", "user")
    ]


def test_row_names_the_parts(rows: Rows) -> None:
    """Columns are split into as many parts as the row says: the first kernel writes this many rows."""
    rows(split(32, variant="outer"))
    first, *_ = lower(columns, Input((4096, 256))).triton_kernels
    assert "'x': 8192" in first  # 32 parts of 256 columns


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(split(1, r=[8193, 16384]), id="other sizes"),
        pytest.param(split(1, variant="outer"), id="columns"),
        pytest.param({"op": "split_reduction", "configs": [{"template": "default"}]}, id="default"),
    ],
)
def test_other_rows_leave_it_to_inductor(row: dict[str, Any], rows: Rows) -> None:
    """A row for other reductions, or with Inductor's number, leaves the kernels as they were. No receipt tells."""
    usual = count(softmax, 8, 32000)
    rows(row)
    with recorder.collecting() as collected:
        assert count(softmax, 8, 32000) == usual
    assert not any(each.config for device in collected.devices.values() for each in device.generated)


@pytest.mark.parametrize("setting", ["deterministic", "max_autotune_pointwise"])
def test_inductors_settings_win(setting: str, rows: Rows) -> None:
    """With a setting that decides about these kernels, Inductor splits as ever."""
    with inductor_config.patch({setting: True}):
        usual = count(softmax, 8, 32000)
        rows(split(1))
        assert count(softmax, 8, 32000) == usual


def test_our_setting_turns_it_off(rows: Rows) -> None:
    """Without the setting ``generated``, Inductor splits as ever."""
    usual = count(softmax, 8, 32000)
    rows(split(1))
    with diode_lut.config.patch(generated=False):
        assert count(softmax, 8, 32000) == usual


def test_scans_are_inductors(rows: Rows) -> None:
    """Inductor asks the same about a cumulative sum, which rows know nothing of."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.float().cumsum(-1)

    usual = count(program, 1, 100_000)
    assert usual == 1
    rows(split(1))
    with recorder.collecting() as collected:
        assert count(program, 1, 100_000) == usual
    assert not any(each.config for device in collected.devices.values() for each in device.generated)


def test_sizes_that_may_change_are_inductors(rows: Rows) -> None:
    """A row holds for some sizes, and Inductor's question has only a hint."""
    usual = count(softmax, 8, 32000, dynamic=(0,))
    rows(split(1))
    assert count(softmax, 8, 32000, dynamic=(0,)) == usual


def test_parts_that_are_too_short_are_skipped(rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """A warning tells of a config that cannot be, and the next is taken."""
    caplog.set_level(logging.WARNING)
    rows({"op": "split_reduction", "configs": [split(parts)["configs"][0] for parts in (4096, 1)]})
    assert count(softmax, 8, 32000) == 1
    assert "32000 elements in 4096 parts (allowed: 32 in each)" in caplog.text
