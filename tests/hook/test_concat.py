"""Matmuls whose results are concatenated, on a CUDA device that is not there."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.select_algorithm import TritonTemplate

from diode_lut.hook import epilogues
from tests.fake_cuda import Input, Lowered, lower
from tests.hook.test_fusion import reasons
from tests.hook.test_hook import ATEN, MM, blocks, triton

pytestmark = pytest.mark.usefixtures("h200")

Rows = Callable[..., None]
BMM = triton("triton_bmm", 64, 64, 32)


def joined(*widths: int, dim: int = 1) -> Lowered:
    """As many matmuls of one input, of these widths, behind each other."""

    def function(x: Any, *weights: Any) -> Any:
        return torch.cat([x @ weight for weight in weights], dim)

    return lower(function, Input((256, 64)), *(Input((64, width)) for width in widths))


def parts(lowered: Lowered) -> list[str]:
    """The strides and the offset of each part of a larger tensor that is written."""
    return re.findall(r"= reinterpret_tensor\(buf\d+, \(.*?\), (\(.*?\), \d+)\)  # alias", lowered.code)


@pytest.mark.parametrize("op_mode", ["default", "max_autotune"])
def test_kernels_write_into_the_whole(op_mode: str, rows: Rows) -> None:
    """Each kernel is the row's, writes its part, and nothing is copied."""
    rows({"configs": [MM]})
    with torch._inductor.config.patch(max_autotune=op_mode == "max_autotune"):
        lowered = joined(64, 128, 64)
    assert [blocks(source) for source in lowered.triton_templates] == [blocks_of(MM)] * len(lowered.triton_templates)
    assert len(lowered.triton_kernels) == len(lowered.triton_templates)
    assert parts(lowered) == ["(256, 1), 0", "(256, 1), 64", "(256, 1), 192"]
    assert not lowered.extern


def blocks_of(config: dict[str, Any]) -> list[int]:
    return [config[name] for name in ("block_m", "block_n", "block_k", "group_m")]


@pytest.mark.parametrize(
    ("widths", "kernels"), [((56, 72), 2), ((60, 64), 0), ((60, 4), 1), ((60, 68), 1), ((1, 127), 1)], ids=str
)
def test_parts_that_do_not_begin_at_16_bytes(widths: tuple[int, ...], kernels: int, rows: Rows) -> None:
    """They are the library's, which writes into the whole as well."""
    rows({"configs": [MM]})
    lowered = joined(*widths)
    assert (len(lowered.triton_templates), len(lowered.extern)) == (kernels, 2 - kernels)
    assert len(parts(lowered)) == 2
    assert len(lowered.triton_kernels) == kernels


def test_each_kernel_is_made_once(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its result lies in the whole makes no other kernel of it."""
    rows({"configs": [MM]})
    made = []
    make = TritonTemplate.generate

    def count(template: TritonTemplate, *arguments: Any, **named: Any) -> Any:
        made.append(template.name)
        return make(template, *arguments, **named)

    monkeypatch.setattr(TritonTemplate, "generate", count)
    assert len(joined(64, 128, 72).triton_templates) == len(made) == 3


def test_a_whole_of_more_elements_than_32_bits_index(rows: Rows) -> None:
    """The kernel of a part would need wider indices than it has, so the library writes the part."""
    rows({"configs": [MM]})
    several = [
        lower(lambda x, w, y: torch.cat([x @ w, y], 1), Input((65_536, 64)), Input((64, 64)), Input((65_536, columns)))
        for columns in (32_640, 32_768)
    ]
    assert [(len(each.triton_templates), len(each.extern)) for each in several] == [(1, 0), (0, 1)]


def test_rows_behind_each_other(rows: Rows) -> None:
    """Along the first dimension, parts have no gaps."""
    rows({"configs": [MM]})
    lowered = joined(64, 64, dim=0)
    assert parts(lowered) == ["(64, 1), 0", "(64, 1), 16384"]
    assert not lowered.extern
    assert len(lowered.triton_kernels) == len(lowered.triton_templates)


def test_batches(rows: Rows) -> None:
    """Heads that are batched matmuls are written beside each other."""
    rows({"op": "bmm", "configs": [BMM]})
    lowered = lower(lambda a, b: torch.cat([torch.bmm(a, b), torch.bmm(b, a)], -1), *[Input((4, 64, 64))] * 2)
    assert parts(lowered) == ["(8192, 128, 1), 0", "(8192, 128, 1), 64"]
    assert not lowered.extern
    assert len(lowered.triton_kernels) == len(lowered.triton_templates)


def test_a_result_that_is_used_besides(rows: Rows) -> None:
    """What reads the result elsewhere reads it where it was written."""
    rows({"configs": [MM]})

    def function(x: Any, w: Any) -> Any:
        product = x @ w
        return torch.cat([product, x], 1), product.relu()

    lowered = lower(function, Input((256, 64)), Input((64, 64)))
    assert len(lowered.triton_templates) == 1
    assert parts(lowered)[0] == "(128, 1), 0"


@pytest.mark.parametrize(
    "view", [lambda y: y.transpose(1, 2), lambda y: y.view(-1), lambda y: y.select(0, 1), lambda y: y.split(32, 1)[1]]
)
def test_a_view_that_is_returned_besides(view: Callable[[Any], Any], rows: Rows) -> None:
    """It does not share memory with the concatenation, which the caller may change."""
    rows({"op": "bmm", "configs": [BMM]})

    def function(a: Any, b: Any) -> Any:
        product = torch.bmm(a, b)
        return torch.cat([product, torch.bmm(b, a)], 1), view(product)

    lowered = lower(function, *[Input((4, 64, 64))] * 2)
    written = re.findall(r"(buf\d+) = reinterpret_tensor\(.*# alias", lowered.code)
    templates = re.findall(r"triton_tem_\w+\.run\(\w+, \w+, (\w+)", lowered.code)
    assert [name in written for name in templates] == [False, True]


def test_a_result_that_is_copied_after_all(rows: Rows) -> None:
    """Where the concatenation is computed together with what reads it, the kernel writes rows without gaps."""
    rows({"configs": [MM]})

    def function(x: Any, w: Any, y: Any) -> Any:
        return torch.cat([x @ w, y * 2], 1).relu()

    lowered = lower(function, Input((256, 64)), Input((64, 2047)), Input((256, 64)))
    assert not parts(lowered)
    assert len(lowered.triton_templates) == 1
    assert "empty_strided_cuda((256, 2047), (2047, 1)" in lowered.code


def test_receipts_say_that_nothing_follows(rows: Rows) -> None:
    """A concatenation is no epilogue, whoever writes its parts."""

    def function(x: Any, w: Any) -> Any:
        return torch.cat([x @ w, x], 1)

    for config in (MM, ATEN):
        rows({"configs": [config]})
        assert reasons(function, Input((256, 64)), Input((64, 64))) == {("none", epilogues.NOTHING): 1}


def test_without_rows_the_code_is_that_without_the_hook(rows: Rows) -> None:
    """A library's result is written as Inductor does it."""
    rows({"configs": [ATEN]})
    lowered = joined(64, 64)
    rows()
    assert lowered.code == joined(64, 64).code


def test_a_size_that_may_change(rows: Rows) -> None:
    """A matmul with a dynamic size is computed by the row's kernel, and then copied."""
    rows({"configs": [MM]})
    inputs = Input((256, 64), dynamic=[0], most=512), Input((64, 64))
    lowered = lower(lambda x, w: torch.cat([x @ w, x @ w], 1), *inputs)
    assert lowered.triton_templates


def test_a_failure_leaves_it_to_the_library(
    rows: Rows, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If there is an error where a kernel gets its place, the library computes the part, and the error is logged."""
    rows({"configs": [MM]})

    def fail(*_: Any) -> bool:
        raise RuntimeError("a test")

    monkeypatch.setattr(epilogues, "is_written_in_rows", fail)
    with caplog.at_level(logging.WARNING, "diode_lut"):
        assert joined(64, 64).extern == ["mm", "mm"]
    assert "a test" in caplog.text
