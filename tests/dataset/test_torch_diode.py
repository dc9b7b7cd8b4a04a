"""Datasets of torch-diode."""

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgpack
import pytest

from diode_lut.dataset import Dataset, Record, Timing, read_dataset, torch_diode
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import Config

H200 = Hardware("NVIDIA H200", "sm_90", 132)
CONFIG = {
    "ACC_TYPE": "tl.float32",
    "ALLOW_TF32": False,
    "EVEN_K": False,
    "USE_FAST_ACCUM": False,
    "block_k": 32,
    "block_m": 128,
    "block_n": 64,
    "grid": 1,
    "group_m": 8,
    "name": "mm_config",
    "num_stages": 3,
    "num_warps": 4,
    "version": 1,
}
OURS = Config("triton_mm", (128, 64, 32, 8, 3, 4))
WRITERS: list[Callable[[Any], bytes]] = [lambda document: json.dumps(document, indent=2).encode(), msgpack.packb]
both_formats = pytest.mark.parametrize("write", WRITERS, ids=["json", "msgpack"])


def key(m: Any = 64, n: Any = 128, k: Any = 256, dtype: str = "float16", **changes: Any) -> str:
    shape = {"version": 1, "B": 1, "M": m, "M_dtype": dtype, "N": n, "K": k, "K_dtype": dtype, "out_dtype": dtype}
    return json.dumps({**shape, "out_size": [1, m, n], "out_stride": [1, n, 1], **changes})


def timed(time: Any, **changes: Any) -> dict[str, Any]:
    return {"config": {**CONFIG, **changes}, "time": time, "version": 1}


def document(solutions: dict[str, list[Any]], op: str = "mm", name: str = "NVIDIA H200") -> dict[str, Any]:
    solution = {key: {"timed_configs": configs, "version": 1} for key, configs in solutions.items()}
    return {"hardware": {name: {"operation": {op: {"solution": solution, "version": 1}}, "version": 1}}, "version": 1}


def opened(tmp_path: Path, content: bytes, hardware: Hardware | None = H200, layout: str = "nn") -> Dataset:
    (tmp_path / "d").write_bytes(content)
    return read_dataset(tmp_path / "d", hardware=hardware, layout=layout)


@both_formats
def test_milliseconds_become_nanoseconds(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    """A solution becomes a record with our problem, our config and nanoseconds; the header has the hardware given."""
    dataset = opened(tmp_path, write(document({key(): [timed(0.25)], key(m=3): [timed(1.5), timed(2, block_m=16)]})))
    assert dataset.header.hardware == H200
    assert list(dataset) == [
        Record(Problem("mm", "float16", "nn", 16, 1, 64, 128, 256), (Timing(OURS, 250_000.0),)),
        Record(
            Problem("mm", "float16", "nn", 16, 1, 3, 128, 256),
            (Timing(OURS, 1_500_000.0), Timing(Config("triton_mm", (16, 64, 32, 8, 3, 4)), 2_000_000.0)),
        ),
    ]
    assert not dataset.skipped


@both_formats
@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 0, 0.0, -1.5, 1e-9, 1e7, None, "fast", True])
def test_a_time_that_is_none_is_a_failure(tmp_path: Path, write: Callable[[Any], bytes], time: Any) -> None:
    """NaN, infinite, zero, negative, impossible and non-numeric times are failures, not winners."""
    (record,) = opened(tmp_path, write(document({key(): [timed(time)]})))
    assert record.timings == (Timing(OURS, None, "invalid_time"),)


def test_an_integer_too_large_for_a_float_is_a_failure(tmp_path: Path) -> None:
    """JSON allows integers of any length; one that no float can hold is a failure and no crash."""
    (record,) = opened(tmp_path, WRITERS[0](document({key(): [timed(10**400)]})))
    assert record.timings == (Timing(OURS, None, "invalid_time"),)


def test_the_batch_counts_for_the_alignment(tmp_path: Path) -> None:
    """In a batch of single rows, each of 9 elements, the second matrix does not start on a boundary of 16 bytes."""
    each = document({key(m=1, n=8, k=9, B=batch): [timed(1)] for batch in (1, 2)}, op="bmm")
    assert [record.problem.align for record in opened(tmp_path, WRITERS[0](each))] == [16, 2]


@both_formats
def test_identity_ignores_the_name(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    """Configs that differ in name, grid or what is derived from the problem are one, also as JSON in a string."""
    configs = [timed(1, name="a"), timed(2, name="b", grid=7, EVEN_K=True), timed(3)]
    configs[2]["config"] = json.dumps(configs[2]["config"])
    (record,) = opened(tmp_path, write(document({key(): configs})))
    assert [timing.config for timing in record.timings] == [OURS] * 3


@pytest.mark.parametrize(
    ("layout", "m", "k", "dtype", "align"),
    [
        ("nn", 5, 256, "float16", 16),
        ("tn", 5, 256, "float16", 2),
        ("nt", 5, 4, "float32", 16),
        ("nn", 5, 4, "float16", 2),
    ],
)
def test_the_layout_is_an_option(tmp_path: Path, layout: str, m: int, k: int, dtype: str, align: int) -> None:
    """All problems get the layout given, and the alignment that packed matrices of that layout have."""
    (record,) = opened(tmp_path, WRITERS[0](document({key(m=m, k=k, dtype=dtype): [timed(1)]})), layout=layout)
    assert record.problem == Problem("mm", dtype, layout, align, 1, m, 128, k)


def test_ops_choose_the_template(tmp_path: Path) -> None:
    """Batched matmuls were timed with the batched Triton template, others with the plain one."""
    templates = {}
    for op in ("mm", "addmm", "bmm", "baddbmm"):
        (record,) = opened(tmp_path, WRITERS[1](document({key(): [timed(1)]}, op=op)))
        templates[record.problem.op] = record.timings[0].config.template
    assert templates == {"mm": "triton_mm", "addmm": "triton_mm", "bmm": "triton_bmm", "baddbmm": "triton_bmm"}


def test_tf32_is_another_dtype(tmp_path: Path) -> None:
    """float32 timings of configs that allow TF32 belong to another problem than those of configs that do not."""
    content = document(
        {key(dtype="float32"): [timed(1), timed(2, ALLOW_TF32=True)], key(): [timed(3, ALLOW_TF32=True)]}
    )
    found = [(r.problem.dtype, [t.ns for t in r.timings]) for r in opened(tmp_path, WRITERS[0](content))]
    assert found == [("float32", [1e6]), ("tf32", [2e6]), ("float16", [3e6])]


@both_formats
def test_what_cannot_be_represented_is_counted(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    """Problems and configs that we have no words for are left out and counted by reason, timing by timing."""
    impossible: list[dict[str, Any]] = [{"block_m": 96}, {"num_stages": 0}, {"num_warps": [4]}]
    solutions = {
        key(): [timed(1), timed(1, ACC_TYPE="tl.float16"), 5, *(timed(1, **each) for each in impossible)],
        key(dtype="int8"): [timed(1), timed(2)],
        key(out_dtype="float32"): [timed(1)],
        key(m="s0"): [timed(1)],
        "not JSON": [timed(1)],
    }
    dataset = opened(tmp_path, write(document(solutions)))
    (record,) = list(dataset)
    assert record.timings == (Timing(OURS, 1e6),)
    counts = sorted((reason.split(" is not")[0], count) for reason, count in dataset.skipped.items())
    assert counts == [
        ("ACC_TYPE 'tl.float16'", 1),
        ("a problem that", 1),
        ("a timed config that", 1),
        ("block_m: 96", 1),
        ("dtype: 'int8'", 2),
        ("dtype: a mix of 'float16' and 'float32'", 1),
        ("m: 's0'", 1),
        ("num_stages: 0", 1),
        ("num_warps: [4]", 1),
    ]


@both_formats
def test_other_hardware_in_the_file_is_counted(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    """Only the hardware asked for is read, under any of its names; the rest of the file is counted by name."""
    content = document({key(): [timed(1)]})
    content["hardware"].update(document({key(m=7): [timed(2), timed(3)]}, name="NVIDIA H100")["hardware"])
    content["hardware"].update(document({key(m=9): [timed(4)]}, name="gfx942:sramecc+")["hardware"])
    dataset = opened(tmp_path, write(content), H200._replace(aliases=("gfx942:sramecc+",)))
    assert [record.problem.m for record in dataset] == [64, 9]
    assert dataset.skipped == {"hardware 'NVIDIA H100'": 2}


@both_formats
def test_hardware_must_be_said(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    """Without hardware that is known, or with hardware that the file does not name, the error says what it holds."""
    content = write(document({key(): [timed(1)]}, name="ACME X1"))
    with pytest.raises(DatasetError, match="--hardware 'ACME X1,sm_90,132'"):
        opened(tmp_path, content, None)
    content = write(document({key(): [timed(1)]}))
    with pytest.raises(DatasetError, match="no timings of NVIDIA L4: it holds 'NVIDIA H200'"):
        list(opened(tmp_path, content, Hardware("NVIDIA L4", "sm_89", 58)))


def test_what_the_file_calls_things_can_be_printed(tmp_path: Path) -> None:
    """Characters that JSON can spell and no terminal should show, such as half a surrogate pair, are escaped."""
    content = document({key(m="\ud800"): [timed(1)], key(out_dtype="\ud800"): [timed(1)]}, name="\u202e")
    for name, has in (("\u202e", True), ("NVIDIA H200", False)):
        dataset = opened(tmp_path, json.dumps(content).encode(), Hardware(name, "sm_90", 132))
        with nullcontext() if has else pytest.raises(DatasetError, match=r"it holds '\\u202e'"):
            assert list(dataset) == []
        assert dataset.skipped.total() == 2
        assert all(reason.isprintable() for reason in dataset.skipped)
    with pytest.raises(DatasetError, match=r"--hardware '\\u202e,sm_90,132'"):
        opened(tmp_path, json.dumps(content).encode(), None)


@both_formats
@pytest.mark.parametrize(
    "content",
    [
        {},
        {"hardware": {}},
        {"hardware": 5},
        {"hardware": {"NVIDIA H200": []}},
        {"hardware": {"NVIDIA H200": {"operation": {"mm": {"solution": {key(): {}}}}}}},
        {"hardware": {"NVIDIA H200": {"operation": {"mm": {"solution": {key(): {"timed_configs": 3}}}}}}},
        {"models": ["a", "b"]},
    ],
)
def test_other_documents_are_refused(tmp_path: Path, write: Callable[[Any], bytes], content: Any) -> None:
    """A document without torch-diode's structure is an error that names the file."""
    with pytest.raises(DatasetError, match=str(tmp_path / "d")):
        list(opened(tmp_path, write(content)))


@both_formats
def test_a_truncated_file_is_refused(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    """A document that ends too early, or goes on after its end, is an error, wherever it was cut."""
    content = write(document({key(): [timed(1)], key(m=3): [timed(2)]}))
    for damaged in (*(content[:size] for size in range(1, len(content), 7)), content + content):
        with pytest.raises(DatasetError, match=str(tmp_path / "d")):
            list(opened(tmp_path, damaged))


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    """JSON nested deeper than Python can parse is an error like any other damage."""
    with pytest.raises(DatasetError, match="damaged"):
        opened(tmp_path, b'{"version": ' + b"[" * 200_000)


@both_formats
def test_timings_of_a_problem_have_a_size(
    tmp_path: Path, write: Callable[[Any], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only as many bytes are decoded at once as a limit allows: they may become a hundred times as many in memory."""
    dataset = opened(tmp_path, write(document({key(): [timed(1)] * 4, key(m=3): [timed(1)]})))
    assert len(list(dataset)) == 2
    monkeypatch.setattr(torch_diode, "MAX_SOLUTION_BYTES", 512)
    with pytest.raises(DatasetError, match="a solution of more than 0 MiB"):
        list(dataset)
