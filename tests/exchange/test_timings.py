"""Timings of other tools become records; T4 takes them, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.dataset import DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.dataset.record import REASONS, STAGES
from diode_lut.domain.errors import ExchangeError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.exchange import read, write_timings
from diode_lut.exchange.content import Facts, Skipped, Timings
from diode_lut.kernels.config import ATEN, Config
from tests.exchange.drawing import H200, configs, packed

HEADER = Header(H200, torch="2.13.0", benchmarker="tests", measured_on="2026-11-21")
MM = Problem.of("mm", 256, 300, 512, dtype="bfloat16", layout="nn")
A = Config("triton_mm", (64, 32, 16, 8, 3, 4))


def taken(name: str, path: Path, **facts: Any) -> tuple[Timings, Skipped]:
    content, skipped = read(name, path, Facts(**{"hardware": H200, **facts}))
    assert isinstance(content, Timings)
    return content, skipped


_timings = st.builds(Timing, configs("aten", "triton_mm"), st.floats(1, 1e9), st.none()) | st.builds(
    Timing, configs("aten", "triton_bmm", "decompose_k"), st.none(), st.sampled_from(REASONS)
)
_records = st.builds(Record, packed(), st.lists(_timings, min_size=1, max_size=3).map(tuple), st.sampled_from(STAGES))


@settings(max_examples=60)
@given(st.lists(_records, max_size=4))
def test_t4_round_trips(tmp_path: Path, records: list[Record]) -> None:
    """Every timing survives, with its stage, its reason and the header; times to the last few bits."""
    dataset = tmp_path / "d"
    dataset.unlink(missing_ok=True)
    with DatasetWriter(dataset, HEADER) as writer:
        for record in records:
            writer.append(record)
    path = tmp_path / "t4.json"
    path.write_bytes(write_timings("t4", read_dataset(dataset)))
    content, skipped = taken("t4", path, hardware=None)
    assert (content.header, skipped) == (HEADER, {})
    written = [(record.problem, record.stage, timing) for record in records for timing in record.timings]
    back = [(record.problem, record.stage, timing) for record in content.records for timing in record.timings]
    assert [(problem, stage, timing.config, timing.reason) for problem, stage, timing in back] == [
        (problem, stage, timing.config, timing.reason) for problem, stage, timing in written
    ]
    assert [timing.ns for *_, timing in back] == [
        timing.ns if timing.ns is None else pytest.approx(timing.ns) for *_, timing in written
    ]


def test_what_other_tuners_write_as_t4(tmp_path: Path) -> None:
    """Kernel Tuner's own words for failures are known; a configuration without our problem's fields is skipped."""
    configuration = {**MM._asdict(), **A.to_json()}

    def result(invalidity: str, value: Any) -> dict[str, Any]:
        measurements = [{"name": "time", "value": value, "unit": "ms"}]
        return {"configuration": configuration, "invalidity": invalidity, "measurements": measurements}

    results = [
        result("correct", 0.5),
        result("compile", "CompilationFailedConfig"),
        result("runtime", "RuntimeFailedConfig"),
        result("correct", "none"),
        {"configuration": {"block_size_x": 32}, "invalidity": "correct"},
    ]
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": results}), encoding="utf-8")
    content, skipped = taken("t4", path)
    timings = [record.timings[0] for record in content.records]
    assert [(timing.ns, timing.reason) for timing in timings] == [
        (500_000, None),
        (None, "compile"),
        (None, "launch"),
        (None, "invalid_time"),
    ]
    assert list(skipped) == ["configurations that do not say op, dtype, layout, align, b, m, n, k, template"]
    with pytest.raises(ExchangeError, match="give --hardware"):
        taken("t4", path, hardware=None)


TRITON = {"type": "triton", "BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_stages": 3, "num_warps": 4}


def log(path: Path, *entries: Any) -> Path:
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def test_the_log_of_matmuls(tmp_path: Path) -> None:
    """M, K and N come in this order; a config that is there twice counts with its best time; infinity is a failure."""
    rows = [
        {"type": "cublas", "time": 0.25},
        {**TRITON, "time": 0.75},
        {**TRITON, "time": 0.5},
        {**TRITON, "BLOCK_M": 128, "time": float("inf")},
        None,
    ]
    entries = ({"invoke": "(256, 512, 300)"}, {"(256, 512, 300)": rows, "kernel_type": "mm"})
    content, skipped = taken("inductor-mm-log", log(tmp_path / "log", *entries), dtype="bfloat16")
    slow = Config("triton_mm", (128, 32, 16, 8, 3, 4))
    timings = (Timing(ATEN, 250_000), Timing(A, 500_000), Timing(slow, None, "invalid_time"))
    assert content.records == [Record(MM, timings)]
    assert skipped == {"kernels that the log does not describe": 1}


def test_what_the_log_does_not_say_must_be_given(tmp_path: Path) -> None:
    """The type always; the op, which 2.11 leaves out; and batched matmuls have lost their K."""
    gemm = {"(256, 512, 300)": [{"type": "cublas", "time": 0.25}]}
    path = log(tmp_path / "log", gemm, {**gemm, "kernel_type": "bmm"})
    with pytest.raises(ExchangeError, match="give --dtype"):
        taken("inductor-mm-log", path)
    content, skipped = taken("inductor-mm-log", path, dtype="bfloat16")
    assert not content.records
    assert sorted(skipped) == [
        "an op that the log does not say (give --op)",
        "bmm, of which the log does not say K",
    ]
    content, _ = taken("inductor-mm-log", path, dtype="bfloat16", op="mm")
    assert content.records == [Record(MM, (Timing(ATEN, 250_000),))]


def test_inductors_cache_gives_the_faster_of_the_librarys_two_ways(tmp_path: Path) -> None:
    """For addmm and bias_addmm there is one config, which has the better of the two times."""
    bias, a, b = (32, 1, 0), (64, 16, 16, 1, 0), (16, 32, 32, 1, 0)
    operands = repr([("cuda", "torch.float16", *numbers) for numbers in (bias, a, b)])
    times = {"bias_addmm-alpha=1, beta=1-b": 0.5, "addmm-alpha=1, beta=1-a": 0.75}
    system = {"device": {"name": "NVIDIA H200"}, "version": {"triton": "3.6.0", "cuda": "13.0"}}
    document = {"system": system, "cache": {"addmm": {operands: {"highest": times}}}}
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "name").write_text(json.dumps(document), encoding="utf-8")
    content, skipped = taken("inductor-cache", tmp_path)
    problem = Problem.of("addmm", 64, 32, 16, dtype="float16", layout="nn")
    assert (content.records, skipped) == ([Record(problem, (Timing(ATEN, 500_000),))], {})


def test_inductors_cache_gives_all_tunables_of_a_kernel(tmp_path: Path) -> None:
    """Those of AMD GPUs are among the arguments of Triton's compiler, in the head of the kernel's source."""
    operands = repr(
        [("cuda", "torch.bfloat16", *numbers) for numbers in ((256, 512, 512, 1, 0), (512, 300, 300, 1, 0))]
    )
    system = {"device": {"name": "NVIDIA H200"}, "version": {"triton": "3.6.0", "cuda": "13.0"}}
    document = {"system": system, "cache": {"mm": {operands: {"highest": {"triton_mm-ckey": 0.5}}}}}
    blocks = "{'BLOCK_M': 64, 'BLOCK_N': 32, 'BLOCK_K': 16, 'GROUP_M': 8, 'BLOCK': 1}"
    meta = "{'matrix_instr_nonkdim': 32, 'waves_per_eu': 2, 'kpack': 2}"
    head = f"num_stages=3,\nnum_warps=4,\ntriton_meta={meta},\ninductor_meta={{'config_args': {blocks}}},\n"
    for name, text in (("cache/x", json.dumps(document)), ("ke/ckey.py", f"{head}\ndef triton_mm():\n BLOCK_M = 1")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text, encoding="utf-8")
    content, skipped = taken("inductor-cache", tmp_path)
    config = Config("triton_mm", (*A.params, 1, 32, 2, 2))
    assert (content.records, skipped) == ([Record(MM, (Timing(config, 500_000),))], {})


@pytest.mark.parametrize("name", ["t4", "inductor-mm-log"])
@pytest.mark.parametrize("document", [{"results": 1}, [{"(1, 2)": [{"type": "cublas", "time": 1}]}], "x"])
def test_another_document_is_an_error(tmp_path: Path, name: str, document: Any) -> None:
    """The message names the file."""
    path = tmp_path / "x"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ExchangeError, match="x: not "):
        taken(name, path, dtype="float16", op="mm")


def test_inductors_cache_of_a_cpu(tmp_path: Path) -> None:
    """Its system says nothing of the device; the C++ template and the library have their times."""
    cpu = Hardware("Some CPU", "cpu-avx2", 4)
    sizes = ((4, 64, 128, 8192, 128, 1, 0), (4, 128, 96, 12288, 96, 1, 0))
    operands = str([("cpu", "torch.float32", *numbers) for numbers in sizes])
    choices = {"bmm-cd5p": 0.044, "CppMicroGemmFP32Vec-cloa": 0.0966}
    document = {"system": {"hash": "44"}, "cache": {"bmm": {operands: {"highest": choices}}}}
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "44").write_text(json.dumps(document))
    content, skipped = taken("inductor-cache", tmp_path, hardware=cpu)
    (record,) = content.records
    assert str(record.problem) == "bmm 4x64x96x128 float32 nn align 16"
    assert {str(timing.config): timing.ns for timing in record.timings} == {"aten": 44000, "cpp_gemm": 96600}
    assert (content.header.hardware, skipped) == (cpu, {})


def test_inductors_cache_of_frozen_linear_layers(tmp_path: Path) -> None:
    """On a CPU they have an op of their own, are an mm with the weight transposed, and other ops are counted."""
    cpu = Hardware("Some CPU", "cpu-avx2", 4)
    keys = [(8, 256, 256, 1, 0), (1459233, 1, 1, 0, 0), (384, 256, 256, 1, 0)]
    operands = str([("cpu", "torch.float32", *numbers) for numbers in keys])
    choices = {"CppMicroGemmFP32Vec-ch6": 0.035, "_mkl_linear-B=None-batch_size=8-ckf": 0.0325}
    times = {"packed_linear": {operands: {"highest": choices}}, "linear_unary": {operands: {"highest": choices}}}
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "44").write_text(json.dumps({"system": {"hash": "44"}, "cache": times}))
    content, skipped = taken("inductor-cache", tmp_path, hardware=cpu)
    (record,) = content.records
    assert str(record.problem) == "mm 8x384x256 float32 nt align 16"
    assert {str(timing.config): timing.ns for timing in record.timings} == {"aten": 32500, "cpp_gemm": 35000}
    assert skipped == {"op linear_unary": 1}


def test_tunableops_results(tmp_path: Path) -> None:
    """What BLAS sees column-major is row-major here: a linear layer, TN there, is nt. The library is aten."""
    lines = [
        "Validator,PT_VERSION,2.9.1",
        "Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-",
        "GemmTunableOp_BFloat16_TN,tn_8192_2_4096_ld_4096_4096_8192,Gemm_Rocblas_621284994,0.0198381",
        "GemmAndBiasTunableOp_Half_NN,nn_96_64_128,Default,0.01",
        "GemmStridedBatchedTunableOp_float_NT,nt_96_64_128_B_4_ld_96_64_96,Gemm_Hipblaslt_1,0.5",
        "GemmTunableOp_Half_TN,tn_8_8_9_ld_12_9_8,Default,0.5",
        "GemmTunableOp_Half_TN,tn_8_8_8_ld_8_8_8",
        "ScaledGemmTunableOp_Float8_TN,tn_8_8_8_ld_8_8_8_rw_0_bias_None,Default,0.5",
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    content, skipped = taken("tunableop", tmp_path / "t.csv")
    assert [(str(record.problem), *(timing.ns for timing in record.timings)) for record in content.records] == [
        ("mm 2x8192x4096 bfloat16 nt align 16", pytest.approx(19838.1)),
        ("addmm 64x96x128 float16 nn align 16", 10000),
        ("bmm 4x64x96x128 float32 tn align 16", 500000),
        ("mm 8x8x9 float16 nt align 2", 500000),
    ]
    with pytest.raises(ExchangeError, match=r"is of .gfx942.*, such as MI300X, MI325X: give --hardware"):
        read("tunableop", tmp_path / "t.csv", Facts())
    assert content.header.torch == "2.9.1"
    assert skipped == {"GEMMs without a time": 1, "operation ScaledGemmTunableOp_Float8": 1}
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(ExchangeError, match="no line begins like GemmTunableOp"):
        taken("tunableop", tmp_path / "x.csv")
