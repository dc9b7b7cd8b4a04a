"""The command: merging, summing up, and what it refuses."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from diode_lut.errors import CollectError, ReceiptError
from diode_lut.hardware import Hardware, roofline_ns
from diode_lut.measure.problems import read_problems
from diode_lut.problem import Problem
from diode_lut.receipts import (
    NO_ANSWER,
    ONLY_THE_LIBRARY,
    Device,
    GeneratedKernel,
    Hit,
    Left,
    Miss,
    Receipt,
    Skip,
    SourceRecord,
    Versions,
    receipt_bytes,
)
from diode_lut.receipts.summary import losses
from tests.commands import call

H200 = Hardware("NVIDIA H200", "sm_90", 132)
CPU = Hardware("A CPU", "cpu-avx2", 8)
LARGE = Problem("mm", "bfloat16", "nt", 16, 1, 8192, 8192, 8192)
SMALL = Problem("mm", "bfloat16", "nt", 16, 1, 512, 512, 512)
BMM = Problem("bmm", "float32", "nn", 16, 4, 64, 96, 128)
GPU_PART = Device(
    {SourceRecord("device", "/tables/nvidia-h200.json", "ab" * 32, 813): None},
    {"user: no table of the user's own": None},
    Counter({Hit(SMALL, "device", "ab" * 32, "mm bfloat16", ("aten",)): 3, Hit(BMM, "model", "cd", "", ("aten",)): 1}),
    Counter({Miss(SMALL): 1, Miss(LARGE): 3}),
    {SMALL: 1500},
    Counter({Skip(SMALL, "device", "ab" * 32, "mm bfloat16", "triton_mm 16x16x16 g8 s1 w1", "too small"): 2}),
)
CPU_PART = Device(misses=Counter({Miss(BMM): 1}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The receipt of one process with two devices."""
    receipt = Receipt(1, {Versions("0.1.0", "3.11.7", "2.13.0", ""): None}, 2_500_000, {H200: GPU_PART, CPU: CPU_PART})
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(receipt))
    return path


def test_report_for_people(file: Path) -> None:
    """It says who answered how much on each device, which files could, what was missed, and what could not run."""
    result = call("receipt", file)
    assert result.exit_code == 0
    assert (
        result.output
        == """\
1 process, 2.5 ms spent on selecting
diode_lut 0.1.0, python 3.11.7, torch 2.13.0

A CPU (cpu-avx2, 8 threads)
  1 call, 0.0% answered, 1 left to Inductor
  missed, with the time lost if each call ran once (by a model; ~: for a gain of 1.10):
  ~      0.71 us     1 call  bmm 4x64x96x128 float32 nn align 16

NVIDIA H200 (sm_90, 132 SMs)
  device: /tables/nvidia-h200.json, 813 rows, sha256 abababababab
  user: no table of the user's own
  8 calls, 50.0% answered (device 3, model 1), 4 left to Inductor
  missed, with the time lost if each call ran once (by a model; ~: for a gain of 1.10):
  ~    302.90 us    3 calls  mm 8192x8192x8192 bfloat16 nt align 16
         0.11 us     1 call  mm 512x512x512 bfloat16 nt align 16
  configs that could not run:
      2 calls  triton_mm 16x16x16 g8 s1 w1 of mm bfloat16: too small
"""
    )


def test_figures_for_programs(file: Path) -> None:
    """The same as JSON, with all misses, the most time lost first."""
    report = json.loads(call("receipt", file, "--format", "json").output)
    assert [(device["hardware"]["arch"], device["calls"], device["answered"]) for device in report["devices"]] == [
        ("cpu-avx2", 1, 0),
        ("sm_90", 8, 4),
    ]
    assert [(miss["M"], miss["calls"], miss["estimate"]) for miss in report["missed"]] == [
        (8192, 3, "typical"),
        (64, 1, "typical"),
        (512, 1, "model"),
    ]


def test_epilogues_are_counted(tmp_path: Path) -> None:
    """The report says for each class of epilogues how many were fused, for people and for programs."""
    light, heavy = (SMALL._replace(epilogue=name) for name in ("light", "heavy"))
    kernel = "triton_mm 64x64x32 g8 s3 w4"
    hits = {Hit(light, "device", "ab", "r", (kernel,)): 2, Hit(heavy, "device", "ab", "r", ("aten",)): 1}
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(Receipt(devices={H200: Device(hits=Counter(hits))})))
    text = call("receipt", path).output
    assert "light epilogues: 2 fused into the matmul, 0 left to a kernel of their own" in text
    assert "heavy epilogues: 0 fused into the matmul, 1 left to a kernel of their own" in text
    (device,) = json.loads(call("receipt", path, "--format", "json").output)["devices"]
    assert device["epilogues"] == {"light": {"fused": 2, "apart": 0}, "heavy": {"fused": 0, "apart": 1}}


def test_what_is_not_fused_is_summed_up(tmp_path: Path) -> None:
    """The report says how often nothing was fused for which reason, the most frequent one first."""
    left = {Left(SMALL, "no bound"): 2, Left(LARGE, ONLY_THE_LIBRARY): 3}
    unfused = {Left(SMALL, "none follows"): 2, Left(LARGE, "it reduces"): 2, Left(SMALL, "it reduces"): 1}
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(Receipt(devices={H200: Device(no_choice=Counter(left), unfused=Counter(unfused))})))
    lines = call("receipt", path).output.splitlines()
    assert [line for line in lines if "nothing fused" in line] == [
        "  nothing fused after 3 matmuls: it reduces",
        "  nothing fused after 2 matmuls: none follows",
    ]
    (device,) = json.loads(call("receipt", path, "--format", "json").output)["devices"]
    assert device["unfused"] == {"it reduces": 3, "none follows": 2}
    assert (device["no_choice"], device["why_no_choice"]) == (5, {ONLY_THE_LIBRARY: 3, "no bound": 2})


def test_what_is_not_joined_is_summed_up(tmp_path: Path) -> None:
    """The report says how many groups of matmuls were not joined, and why; those of few rows can be measured."""
    few, many = (Problem.of("joined_mm", m, 768, 256, dtype="bfloat16", layout="nt", variant="two") for m in (16, 4096))
    left = Counter({Left(few, NO_ANSWER): 2, Left(many, NO_ANSWER): 1})
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(Receipt(devices={H200: Device(apart=left)})))
    lines = call("receipt", path).output.splitlines()
    assert f"  3 groups of matmuls with the same input not joined: {NO_ANSWER}" in lines
    (device,) = json.loads(call("receipt", path, "--format", "json").output)["devices"]
    assert device["not_joined"] == {NO_ANSWER: 3}
    assert read_problems(path) == [few]


def test_generated_kernels_are_summed_up(tmp_path: Path) -> None:
    """The report says how many generated kernels which tier decided, and why others were not."""
    row = GeneratedKernel(Problem.generated("pointwise", "flat", x=64), "user", "ab", "r", "pointwise 64 w1", "")
    left = row._replace(tier="", digest="", row="", config="", reason="a size may change")
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(Receipt(devices={H200: Device(generated=Counter({row: 3, left: 2}))})))
    lines = call("receipt", path).output.splitlines()
    assert lines[-2:] == [
        "  5 generated kernels, 3 decided (user 3), 2 left to Inductor",
        "    2 left to Inductor: a size may change",
    ]
    (device,) = json.loads(call("receipt", path, "--format", "json").output)["devices"]
    assert device["generated"] == {"decided": {"user": 3}, "left": {"a size may change": 2}}


def test_many_become_one(file: Path, tmp_path: Path) -> None:
    """Counts add up in the merged file, which is a receipt like any other."""
    merged = tmp_path / "merged.json"
    assert call("receipt", file, file, "-o", merged).exit_code == 0
    output = call("receipt", merged).output
    assert output.startswith("2 processes, 5.0 ms")
    assert "16 calls, 50.0% answered (device 6, model 2), 8 left to Inductor" in output


def test_nothing_asked(tmp_path: Path) -> None:
    """A receipt without questions says what that may mean."""
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(Receipt(1)))
    assert (
        "nothing was asked: no GEMM was compiled, and none came with a graph from Inductor's caches"
        in call("receipt", path).output
    )


def test_many_misses_are_summed_up(tmp_path: Path) -> None:
    """Of many misses the report shows the most expensive ones, and counts the others."""
    path = tmp_path / "receipt.json"
    misses = Counter({Miss(SMALL._replace(m=m)): 1 for m in range(1, 15)})
    path.write_bytes(receipt_bytes(Receipt(1, devices={H200: Device(misses=misses)})))
    assert "and 4 more problems; `collect --problems` takes them all" in call("receipt", path).output


def test_ranges_of_sizes_that_may_change(tmp_path: Path) -> None:
    """The report lists kernels and misses with the sizes that they are for, for people and for programs."""
    path = tmp_path / "receipt.json"
    hit, miss = Hit(SMALL, "device", "ab", "r", ("aten",), "m from 64 to 8192"), Miss(LARGE, "m from 8193")
    path.write_bytes(receipt_bytes(Receipt(devices={H200: Device(hits=Counter([hit]), misses=Counter([miss]))})))
    text = call("receipt", path).output
    assert f"  kernels for sizes that may change:\n       1 call  {SMALL}, m from 64 to 8192: aten\n" in text
    assert f"  {LARGE}, m from 8193\n" in text
    (missed,) = json.loads(call("receipt", path, "--format", "json").output)["missed"]
    assert missed["over"] == "m from 8193"


def test_expected_loss_is_the_roofline_less_the_gain() -> None:
    """A GEMM is as slow as its arithmetic or its matrices; a tenth is typically saved, none if aten is the best."""
    assert roofline_ns(LARGE, H200) == pytest.approx(2 * 8192**3 / 989e3, rel=0.01)
    for op, dtype, variant in (("int_mm", "int8", ""), ("scaled_mm", "float8_e4m3fn", "tensor-bfloat16")):
        bytewise = LARGE._replace(op=op, dtype=dtype, variant=variant)
        assert roofline_ns(bytewise, H200) == pytest.approx(8192**3 / 989e3, rel=0.01)
    thin = LARGE._replace(m=1)
    assert roofline_ns(thin, H200) == pytest.approx(2 * (8192 + 8192**2 + 8192) / 4.8e3, rel=0.02)
    device = Device(misses=Counter({Miss(LARGE): 2, Miss(thin): 1}), expected_permille={thin: 900})
    large, none = losses(Receipt(1, devices={H200: device}))
    assert large.nanoseconds == pytest.approx(2 * roofline_ns(LARGE, H200) / 11)
    assert (none.problem, none.nanoseconds) == (thin, 0)


def test_loss_without_known_peaks(tmp_path: Path) -> None:
    """Where the peaks of a device are not known, nothing is said about time, and the most arithmetic comes first."""
    gpu = Hardware("A GPU", "sm_80", 108)
    receipt = Receipt(1, devices={gpu: Device(misses=Counter({Miss(SMALL): 1, Miss(LARGE): 1}))})
    assert [(loss.problem, loss.nanoseconds) for loss in losses(receipt)] == [(LARGE, None), (SMALL, None)]
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(receipt))
    assert f"  ~    not known     1 call  {LARGE}\n" in call("receipt", path).output
    assert [miss["lost_ns"] for miss in json.loads(call("receipt", path, "--format", "json").output)["missed"]] == [
        None
    ] * 2


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text[:100], "not JSON: "),
        (lambda text: "", "not JSON: "),
        (lambda text: '["a"]', ": expected `object`, got `array`"),
        (lambda text: '{"schema_version": 1, "hardware": {}, "entries": []}', "a table, not a receipt"),
        (lambda text: '{"schema_version": 1}', ": object missing required field `processes`"),
        (
            lambda text: text.replace('n": 1', 'n": 2', 1),
            "schema_version: expected 1, found 2 (written by a newer diode_lut",
        ),
        (lambda text: text.replace('"M":8192', '"M":0'), "devices[1].misses[1].M: expected `int` >= 1"),
        (
            lambda text: text.replace('"op":"bmm"', '"op":"conv"', 1),
            "devices[0].misses[0]: op: 'conv' is not one of mm, ",
        ),
    ],
)
def test_what_is_no_receipt_is_refused(file: Path, edit: Any, message: str) -> None:
    """One line names the file, the place and what is allowed; nothing is written."""
    good = file.with_name("good.json")
    good.write_bytes(file.read_bytes())
    file.write_text(edit(file.read_text()))
    result = call("receipt", good, file, "-o", file.with_name("merged.json"))
    assert result.exit_code == 1
    assert result.output.startswith(f"error: {file}")
    assert message in result.output
    assert result.output.count("\n") == 1
    assert not file.with_name("merged.json").exists()


def test_missing_file_is_unreadable(tmp_path: Path) -> None:
    """It is an error of its own, with exit code 2."""
    result = call("receipt", tmp_path / "missing.json")
    assert result.exit_code == 2
    assert "missing.json" in result.output


def test_misses_are_problems_to_collect(file: Path) -> None:
    """Of a receipt, ``collect`` takes what was missed on its own hardware, the most time lost first."""
    assert read_problems(file, lambda: H200._replace(name="another H200")) == [LARGE, SMALL]
    assert read_problems(file, lambda: CPU) == [BMM]
    assert read_problems(file) == [LARGE, BMM, SMALL]
    with pytest.raises(CollectError, match=r"no miss on A100 .* \(the receipt is of: A CPU .*, NVIDIA H200 .*\)$"):
        read_problems(file, lambda: Hardware("A100", "sm_80", 108))


def test_a_broken_receipt_is_no_problem_file(file: Path) -> None:
    """``collect`` says so as ``receipt`` does."""
    file.write_text(file.read_text().replace('"calls":3', '"calls":"3"'))
    with pytest.raises(ReceiptError, match=r"hits\[.\].calls: expected `int`, got `str`"):
        read_problems(file)
