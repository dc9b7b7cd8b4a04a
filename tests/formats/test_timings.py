"""One's own timings and those of other tools become records."""

import csv
import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from diode_lut.dataset import DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.dataset.dataset import REASONS, STAGES
from diode_lut.errors import ExchangeError
from diode_lut.formats import read, write_timings
from diode_lut.formats.content import Facts, Skipped, Timings
from diode_lut.hardware import Hardware, known_gpu
from diode_lut.problem import Problem
from diode_lut.table import read_table
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.formats.drawing import H200, TEMPLATES_OF, configs, packed
from tests.strategies import share

HEADER = Header(H200, torch="2.13.0", benchmarker="tests", measured_on="2026-11-21")
MM = Problem.of("mm", 256, 300, 512, dtype="bfloat16", layout="nn")
A = Config("triton_mm", (64, 32, 16, 8, 3, 4))


def taken(name: str, path: Path, **facts: Any) -> tuple[Timings, Skipped]:
    content, skipped = read(name, path, Facts(**{"hardware": H200, **facts}))
    assert isinstance(content, Timings)
    return content, skipped


def _records_of(problem: Problem) -> SearchStrategy[Record]:
    drawn = configs(*TEMPLATES_OF[problem.op])
    succeeded = st.builds(Timing, drawn, st.floats(1, 1e9), st.none())
    timing = succeeded | st.builds(Timing, drawn, st.none(), st.sampled_from(REASONS))
    timings = st.lists(timing, min_size=1, max_size=3).map(tuple)
    return st.builds(Record, st.just(problem), timings, st.sampled_from(STAGES))


_records = packed().flatmap(_records_of)


@pytest.mark.parametrize("name", ["t.csv", "t.json"])
@settings(max_examples=share(60))
@given(records=st.lists(_records, min_size=1, max_size=4))
def test_ones_own_timings_round_trip(tmp_path: Path, name: str, records: list[Record]) -> None:
    """Every timing survives CSV and JSON, with its stage, its reason and the header."""
    dataset = tmp_path / "d"
    dataset.unlink(missing_ok=True)
    with DatasetWriter(dataset, HEADER) as writer:
        for record in records:
            writer.append(record)
    path = tmp_path / name
    path.write_bytes(write_timings("timings", read_dataset(dataset), path))
    content, skipped = taken("timings", path, hardware=None)

    def flat(records: Iterable[Record]) -> list[tuple[Problem, str, Timing]]:
        return [(record.problem, record.stage, timing) for record in records for timing in record.timings]

    assert (content.header, flat(content.records), skipped) == (HEADER, flat(records), {})


ROW = {
    "op": "mm",
    "dtype": "bf16",
    "layout": "nn",
    "m": "256",
    "n": "300",
    "k": "512",
    "config": str(A),
    "time_us": "3",
}


def csv_file(path: Path, *rows: dict[str, str]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def row_of(**cells: str) -> dict[str, str]:
    """ROW with other cells; those that are empty are left out."""
    return {name: value for name, value in {**ROW, **cells}.items() if value}


@pytest.mark.parametrize(
    ("cells", "problem", "timing"),
    [
        ({}, MM, Timing(A, 3000)),
        ({"time_us": "", "time_s": "3e-6"}, MM, Timing(A, pytest.approx(3000))),
        ({"time_us": "", "time": "0.003", "unit": "ms"}, MM, Timing(A, pytest.approx(3000))),
        ({"time_us": "", "time": "3", "unit": "\u00b5s"}, MM, Timing(A, 3000)),
        ({"time_us": "", "reason": "shared_memory"}, MM, Timing(A, None, "shared_memory")),
        ({"time_us": "0"}, MM, Timing(A, None, "invalid_time")),
        (
            {
                "config": "",
                "Template": "triton_mm",
                **{name.upper(): f"{value}.0" for name, value in A.tunables.items()},
            },
            MM,
            Timing(A, 3000),
        ),
        ({"config": "", "template": "aten"}, MM, Timing(ATEN, 3000)),
        (
            {"layout": "", "strides_a": "512x1", "strides_b": "[1, 512]"},
            MM._replace(layout="nt", align=16),
            Timing(A, 3000),
        ),
        ({"layout": "", "strides_a": "513 1", "strides_b": "304x1"}, MM._replace(align=2), Timing(A, 3000)),
        (
            {
                "op": "baddbmm",
                "b": "4",
                "config": "triton_bmm 16x16x16 g8 s1 w1",
                "layout": "",
                "strides_a": "131072x512x1",
                "strides_b": "153600x300x1",
            },
            MM._replace(op="baddbmm", b=4, align=2),
            Timing(Config("triton_bmm", (16, 16, 16, 8, 1, 1)), 3000),
        ),
        (
            {
                "op": "scaled_mm",
                "dtype": "e4m3",
                "variant": "row-bf16-fast",
                "config": "aten",
                "n": "304",
                "layout": "",
                "strides_a": "512x1",
                "strides_b": "1x512",
            },
            Problem.of("scaled_mm", 256, 304, 512, dtype="float8_e4m3fn", layout="nt", variant="row-bfloat16-fast"),
            Timing(ATEN, 3000),
        ),
        ({"epilogue": "light", "align": "2"}, MM._replace(epilogue="light", align=2), Timing(A, 3000)),
    ],
)
def test_what_a_row_may_say(tmp_path: Path, cells: dict[str, str], problem: Problem, timing: Timing) -> None:
    """Types, units, strides and tunables have a column each, in any order and case. An impossible time is told."""
    content, skipped = taken("timings", csv_file(tmp_path / "t.csv", row_of(**cells)))
    said = "a time that is not from 1 ns to 1000 s: its config counts as failed"
    told = {said: 1} if timing.reason == "invalid_time" else {}
    assert (list(content.records), skipped) == ([Record(problem, (timing,))], told)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"time_us": "", "time": "3"}, "time: has no unit (name the column time_ns, time_us, time_ms, time_s, or add"),
        ({"time_us": "", "time": "3", "unit": "sec"}, "unit: 'sec' is not one of ns, us, ms, s (name the column "),
        ({"time_us": ""}, "no time (give one: time_ns, time_us, "),
        ({"time_ms": "3"}, "time_us and time_ms (give one: "),
        ({"reason": "launch"}, "time_us and reason (give one: "),
        ({"time_us": "", "reason": "slow"}, "reason: 'slow' is not one of compile, shared_memory, "),
        ({"time_us": "3,5"}, "time_us: '3,5' is not a number"),
        ({"op": ""}, "no op (add the column, or give --op)"),
        ({"m": ""}, "no m (add the column)"),
        ({"m": "12x"}, "m: '12x' is not a size"),
        ({"layout": ""}, "no layout (add the column, or strides_a and strides_b, or give --layout)"),
        ({"strides_a": "512x1", "strides_b": "1x512"}, "the strides are those of layout nt and align 16"),
        ({"strides_a": "512x1"}, "strides_b: '' are not 2 strides in elements, such as 4096x1"),
        ({"config": "triton_mm 64x64"}, "'triton_mm 64x64' is not a config (expected: "),
        ({"config": ""}, "no config (add the column, or template and the columns of its tunables)"),
        ({"config": "triton_bmm 64x64x64 g8 s3 w4"}, "triton_bmm does not compute mm (only bmm, baddbmm)"),
        ({"block_m": "64"}, "config and columns of tunables: remove one of them"),
        ({"stage": "first"}, "stage: 'first' is not one of autotune, sweep, final"),
        ({"date": "21.11.2026"}, "date: '21.11.2026' does not begin with a date like 2026-11-21"),
        ({"repetitions": "many"}, "repetitions: 'many' is not a size"),
        ({"torch": "2.14.0"}, "torch is '2.14.0', but '2.13.0' in the first row (a dataset is of one device and "),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_wrong_row_is_named(tmp_path: Path, kind: str, cells: dict[str, str], message: str) -> None:
    """The error has the file, the number of the row as spreadsheets count it, and what to do."""
    rows = row_of(torch="2.13.0"), row_of(**{"torch": "2.13.0", **cells})
    path = csv_file(tmp_path / "t.csv", *rows)
    if kind == "json":
        path.write_text(json.dumps(rows))
    with pytest.raises(ExchangeError) as error:
        list(taken("timings", path)[0].records)
    assert str(error.value).startswith(f"{path}: row {3 if kind == 'csv' else 2}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", ": no timings: there is no row after the names of columns"),
        (b"op,m\n", ": no timings: there is no row after the names of columns"),
        (b"op,m\nmm\n", ": row 2: 1 cells, but 2 columns (quote a cell that has commas in it)"),
        (b"op,OP\nmm,mm\n", ": row 1: 2 columns are called op (leave one)"),
        (
            b"op,m\n\xff,8\n",
            ": row 2: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte (expected CSV",
        ),
        (b'op,m\n"mm,8\n', ": row 2: unexpected end of data (expected CSV in UTF-8)"),
        (b'op,m\n"' + b"x" * (2 << 20), ": row 2: field larger than field limit (131072) (expected CSV in UTF-8)"),
        (b"{}", ": expected timings, a list of objects; found an object"),
        (b"[7]", ": row 1: not an object (expected timings, a list of objects)"),
        (b'[{"op": {}}]', ": row 1: op: is neither a text nor a number"),
        (b"device,arch,sm_count\nX1,SM90,4\n", ": 'SM90' is no architecture, such as sm_90, gfx942 or cpu-avx2"),
        (
            b"device\nX1\n",
            ": is of 'X1': give --hardware, as a GPU's or table's name or 'X1,ARCH,SMS', such as 'NVIDIA",
        ),
    ],
)
def test_another_file_is_no_timings(tmp_path: Path, text: bytes, message: str) -> None:
    """One line says what is expected, whatever the file is."""
    path = tmp_path / "t"
    path.write_bytes(text)
    with pytest.raises(ExchangeError) as error:
        list(taken("timings", path, hardware=H200 if b"device" not in text else None)[0].records)
    assert str(error.value).startswith(f"{path}{message}")


def test_what_is_the_same_for_all_rows_is_in_the_header(tmp_path: Path) -> None:
    """An empty cell means what the first row says; the earliest day and the fewest repetitions count."""
    about = {"device": "H200", "torch": "2.13.0", "benchmarker": "rocprof", "measured_by": "ACME"}
    rows = [
        row_of(**about, date="2026-11-22T10:00", repetitions="50", tflops="7"),
        row_of(config="aten", date="2026-11-21", repetitions="20", tflops="8"),
        row_of(time_us="4"),
    ]
    content, skipped = taken("timings", csv_file(tmp_path / "t.csv", *rows), hardware=None)
    assert content.header == Header(
        known_gpu("H200"), "2.13.0", "", "", "", "rocprof, at least 20 repetitions", "2026-11-21", "ACME"
    )
    assert list(content.records) == [Record(MM, (Timing(A, 3000), Timing(ATEN, 3000))), Record(MM, (Timing(A, 4000),))]
    assert skipped == {"column 'tflops', which is not read": 1}


def test_the_command_line_adds_what_no_column_says(tmp_path: Path) -> None:
    """``--op``, ``--dtype`` and ``--layout`` are for rows that do not say it; ``--dtype tf32`` is of float32."""
    rows = row_of(op="", dtype="float32", layout=""), row_of(op="addmm", dtype="", layout="tn")
    content, _ = taken("timings", csv_file(tmp_path / "t.csv", *rows), op="mm", dtype="tf32", layout="nt")
    assert [str(record.problem) for record in content.records] == [
        "mm 256x300x512 tf32 nt align 16",
        "addmm 256x300x512 tf32 tn align 16",
    ]
    with pytest.raises(ExchangeError, match="measured on 'NVIDIA H100', but --hardware is NVIDIA H200"):
        taken("timings", csv_file(tmp_path / "t.csv", row_of(device="NVIDIA H100")))


def test_a_long_file_is_read_row_by_row(tmp_path: Path) -> None:
    """Memory does not grow with the number of rows: only the current record is there."""

    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.csv"
        text = "\n".join(f"mm,bf16,nn,{1 + number},8,8,aten,3" for number in range(rows))
        path.write_text(f"op,dtype,layout,m,n,k,config,time_us\n{text}\n")
        del text
        content, _ = taken("timings", path)
        tracemalloc.start()
        try:
            assert sum(1 for _ in content.records) == rows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few = peak(2000)
    assert peak(4000) < 1.2 * few


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


PRINTED_ON_A_CPU = """\
AUTOTUNE bmm(4x64x128, 4x128x96)
strides: [8192, 128, 1], [12288, 96, 1]
dtypes: torch.float32, torch.float32
  cpp_CppMicroGemmFP32Vec_0 0.0422 ms 100.0%
  bmm 30.0132 ms 0.1%
SingleProcess AUTOTUNE benchmarking takes 9.9285 seconds and 0.0001 seconds precompiling for 2 choices
AUTOTUNE packed_linear(8x256, 1982689x1, 384x256)
strides: [256, 1], [1, 0], [256, 1]
dtypes: torch.float32, torch.float32, torch.float32
  _mkl_linear 12.8626 ms 100.0%
  cpp_CppMicroGemmFP32Vec_1 18.1960 ms 70.7%
SingleProcess AUTOTUNE benchmarking takes 9.0985 seconds and 0.0001 seconds precompiling for 2 choices
"""
CPU = Hardware("Some CPU", "cpu-avx2", 4)


def printed(path: Path, text: str, **facts: Any) -> tuple[list[Record], Skipped]:
    path.write_text(text, encoding="utf-8")
    content, skipped = taken("autotune-log", path, **facts)
    return list(content.records), skipped


def test_what_inductor_prints_on_a_cpu(tmp_path: Path) -> None:
    """The C++ template and the library have their times; a frozen linear layer is an mm with the weight transposed."""
    records, skipped = printed(tmp_path / "log", PRINTED_ON_A_CPU, hardware=CPU)
    assert {str(record.problem): [(str(config), ns) for config, ns, _ in record.timings] for record in records} == {
        "bmm 4x64x96x128 float32 nn align 16": [("cpp_gemm", pytest.approx(42200)), ("aten", pytest.approx(30013200))],
        "mm 8x384x256 float32 nt align 16": [("aten", pytest.approx(12862600)), ("cpp_gemm", pytest.approx(18196000))],
    }
    assert skipped == {}


PRINTED = """\
AUTOTUNE mm(256x512, 512x304)
strides: [512, 1], [304, 1]
dtypes: torch.bfloat16, torch.bfloat16
  mm 0.5000 ms 100.0%
  triton_mm_1 inf ms 0.0% BLOCK_K=16, BLOCK_M=64, BLOCK_N=32, GROUP_M=8, num_stages=3, num_warps=4
"""
NOT_WHOLE = "blocks that are cut, or mixed with another's (let each process write its own log)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("".join(line * 2 for line in PRINTED.splitlines(keepends=True)), NOT_WHOLE),
        (PRINTED.replace("strides", "Epoch 1\nstrides"), NOT_WHOLE),
        (PRINTED.replace("0.5000 ms", "0.5000 ms 100.0%\n  mm 0.2500 ms"), NOT_WHOLE),
        (PRINTED.replace("100.0%", "100.0%\n  mm 0.9000 ms 20.0%"), NOT_WHOLE),
        (PRINTED.replace("100.0%", "90.0%"), NOT_WHOLE),
        (PRINTED.partition("  mm")[0], NOT_WHOLE),
        (PRINTED.partition("  mm")[0] + PRINTED, NOT_WHOLE),
        (PRINTED.replace("[512, 1]", "[s77, 1]"), "sizes that are only hints"),
        (PRINTED.replace("mm(256x512, 512x304)", "mm(256x512)"), "mm of 1 inputs"),
        (PRINTED.replace("AUTOTUNE mm", "AUTOTUNE convolution"), "op convolution"),
        (PRINTED.replace("AUTOTUNE mm", "AUTOTUNE scaled_mm"), "scaled_mm, of which the log does not say the scales"),
        (PRINTED.replace("bfloat16, torch.b", "bfloat16, torch."), "a mix of bfloat16 and float16"),
    ],
)
def test_printed_blocks_that_cannot_be_used_are_counted(tmp_path: Path, text: str, reason: str) -> None:
    """A block in which other lines stand may have those of another process."""
    records, skipped = printed(tmp_path / "log", text)
    assert (records, [*skipped]) == ([], [reason])


def test_a_printed_failure_is_one(tmp_path: Path) -> None:
    """A choice that took forever is a failed timing; other lines of the log, in any encoding, do not matter."""
    (tmp_path / "log").write_bytes(b"\xff 7.5 ms 3%\r" + PRINTED.encode() + b"x" * (3 << 20))
    content, skipped = taken("autotune-log", tmp_path / "log")
    problem = Problem.of("mm", 256, 304, 512, dtype="bfloat16", layout="nn")
    assert list(content.records) == [Record(problem, (Timing(ATEN, 500_000), Timing(A, None, "invalid_time")))]
    assert skipped == {}
    with pytest.raises(ExchangeError, match="no line is like AUTOTUNE mm"):
        printed(tmp_path / "log", "Epoch 1\n")


def test_tunableops_results(tmp_path: Path) -> None:
    """What BLAS sees column-major is row-major here: a linear layer, TN there, is nt. The library is aten."""
    lines = [
        "Validator,PT_VERSION,2.9.1",
        "Validator,ROCM_VERSION,6.4.1",
        "Validator,HIPBLASLT_VERSION,1000-abc",
        "Validator,ROCBLAS_VERSION,5.2",
        "Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-",
        "GemmTunableOp_BFloat16_TN,tn_8192_2_4096_ld_4096_4096_8192,Gemm_Rocblas_621284994,0.0198381",
        "GemmAndBiasTunableOp_Half_NN,nn_96_64_128,Default,0.01",
        "GemmStridedBatchedTunableOp_float_NT,nt_96_64_128_B_4_ld_96_64_96,Gemm_Hipblaslt_1,0.5",
        "GemmTunableOp_Half_TN,tn_8_8_9_ld_12_9_8,Default,0.5",
        "GemmTunableOp_Half_TN,tn_8_8_8_ld_8_8_8",
        "ScaledGemmTunableOp_Float8_TN,tn_8_8_8_ld_8_8_8_rw_0_bias_None,Default,0.5",
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    content, skipped = taken("tunableop", tmp_path / "t.csv", hardware=known_gpu("MI300X"))
    assert [(str(record.problem), *(timing.ns for timing in record.timings)) for record in content.records] == [
        ("mm 2x8192x4096 bfloat16 nt align 16", pytest.approx(19838.1)),
        ("addmm 64x96x128 float16 nn align 16", 10000),
        ("bmm 4x64x96x128 float32 tn align 16", 500000),
        ("mm 8x8x9 float16 nt align 2", 500000),
    ]
    with pytest.raises(ExchangeError, match=r"is of .gfx942.*, such as MI300X, MI308X, MI325X: give --hardware"):
        read("tunableop", tmp_path / "t.csv", Facts())
    libraries = "TunableOp, HIPBLASLT_VERSION 1000-abc, ROCBLAS_VERSION 5.2"
    assert content.header == Header(known_gpu("MI300X"), "2.9.1", cuda="6.4.1", benchmarker=libraries)
    assert skipped == {"GEMMs without a time": 1, "operation ScaledGemmTunableOp_Float8": 1}
    (tmp_path / "x.csv").write_text("a,b\n")
    with pytest.raises(ExchangeError, match="no line begins like GemmTunableOp"):
        taken("tunableop", tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["PT_VERSION,2.9.1", "PT_VERSION,2.10.0"],
            ": line 2: PT_VERSION is '2.10.0', but '2.9.1' before: import the ",
        ),
        (["HIPBLASLT_VERSION,1", "HIPBLASLT_VERSION,2"], ": line 2: HIPBLASLT_VERSION is '2', but '1' before: "),
        (
            ["GCN_ARCH_NAME,gfx942:sramecc+:xnack-"],
            ": measured on a GPU of gfx942, not on NVIDIA H200 (sm_90, 132 SMs)",
        ),
        (["ROCM_VERSION,6.0.0"], ": measured on a GPU of gfx, not on NVIDIA H200 (sm_90, 132 SMs): correct --hardware"),
    ],
)
def test_tunableops_validators(tmp_path: Path, lines: list[str], message: str) -> None:
    """Results of other software, or of another GPU, are not taken for those of this one."""
    path = tmp_path / "t.csv"
    path.write_text("".join(f"Validator,{line}\n" for line in lines))
    with pytest.raises(ExchangeError) as error:
        taken("tunableop", path)
    assert str(error.value).startswith(f"{path}{message}")


def test_results_of_other_libraries_are_marked(tmp_path: Path) -> None:
    """Versions of libraries stay with the timings: pack refuses two of them, and a table names both."""
    datasets = []
    for version in ("1000", "1001"):
        path = tmp_path / f"{version}.csv"
        lines = f"Validator,CUBLAS_VERSION,{version}\nGemmTunableOp_Half_TN,tn_8_8_{version}0,Default,0.5\n"
        path.write_text(f"Validator,PT_VERSION,2.11.0\n{lines}")
        dataset = tmp_path / f"{version}.msgpack"
        call("import", "tunableop", path, "-o", dataset, "--hardware", "H200")
        datasets.append(dataset)
    refused = call("pack", *datasets, "-o", tmp_path / "both.msgpack.zst")
    assert (refused.exit_code, "benchmarker 'TunableOp, CUBLAS_VERSION 1001', but" in refused.stderr) == (1, True)
    assert call("build", *datasets, "-o", tmp_path / "t.json").exit_code == 0
    provenance = read_table(tmp_path / "t.json").provenance
    assert provenance["benchmarker"] == "TunableOp, CUBLAS_VERSION 1000, TunableOp, CUBLAS_VERSION 1001"
    assert provenance["torch"] == "2.11.0"
