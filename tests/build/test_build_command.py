"""The build command: files in, a table out, and what it says."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import diode_lut
from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.dataset.dataset import MAX_NS, MIN_NS
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import read_table
from diode_lut.templates.config import ATEN, Config
from tests.commands import call

H200 = Hardware("NVIDIA H200", "sm_90", 132)
TRITON = Config("triton_mm", (128, 64, 32, 8, 3, 4))
SMALL = Config("triton_mm", (16, 64, 32, 8, 3, 4))
Write = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("no_tables")
build = partial(call, "build")


def dataset(path: Path, hardware: Hardware = H200) -> Path:
    """Three problems: one where Triton wins, one without aten and with a failure, one on which nothing succeeded."""
    with DatasetWriter(path, Header(hardware, "2.13.0")) as writer:
        for m, timings in enumerate(
            (
                (Timing(TRITON, 100.0), Timing(ATEN, 120.0)),
                (Timing(TRITON, 100.0), Timing(SMALL, None, "launch")),
                (Timing(TRITON, None, "shared_memory"),),
            ),
            1,
        ):
            writer.append(Record(Problem("mm", "float16", "nn", 16, 1, m, 8, 8), timings))
    return path


def torch_diode(path: Path, name: str = "NVIDIA H200") -> Path:
    """A torch-diode dataset with one problem that we can represent and one that we cannot."""
    config = dict(
        zip(("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps"), TRITON.params, strict=True)
    )
    solutions = {}
    for dtype in ("float16", "int4"):
        shape = dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), dtype) | {"B": 1, "M": 64, "N": 64, "K": 64}
        solutions[json.dumps(shape)] = {"timed_configs": [{"config": config, "time": 0.1}]}
    path.write_text(json.dumps({"hardware": {name: {"operation": {"mm": {"solution": solutions}}}}}))
    return path


def test_says_what_it_did(tmp_path: Path) -> None:
    """Problems, failures, rows of both kinds and regret are printed, and nothing on stderr."""
    output = tmp_path / "h200.json"
    result = build(dataset(tmp_path / "d"), "-o", output)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "5 timings of 3 problems",
        "  failed, launch: 1",
        "  failed, shared_memory: 1",
        f"{output}: 1 row, 0 exact and 1 range",
        "  problems without a row, because nothing succeeded on them: 1",
        "  problems whose answer was not compared with aten, which was not measured: 1",
        "regret: 0.00% at worst, 0.00% on average",
    ]
    table = read_table(output)
    assert table.hardware == H200
    assert table.lookup(Problem("mm", "float16", "nn", 16, 1, 1, 8, 8)) == table.entries[0]


def test_reads_compact_datasets(tmp_path: Path) -> None:
    """A compact file builds the same rows as the file that it was made of, and says what the final stage outdid."""
    source = dataset(tmp_path / "d")
    with DatasetWriter(source, Header(H200, "2.13.0")) as writer:
        writer.append(Record(Problem("mm", "float16", "nn", 16, 1, 1, 8, 8), (Timing(ATEN, 90.0),), "final"))
    assert call("pack", source, "-o", tmp_path / "c").exit_code == 0
    result = build(tmp_path / "c", "-o", tmp_path / "c.json")
    assert "  outdone by the final stage: 2" in result.stdout.splitlines()
    build(source, "-o", tmp_path / "d.json")
    assert read_table(tmp_path / "c.json").entries == read_table(tmp_path / "d.json").entries


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """``python -m diode_lut.build`` builds, too, and exits as the command does."""
    command = [sys.executable, "-m", "diode_lut.build", dataset(tmp_path / "d"), "-o", tmp_path / "t.json"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.startswith(b"5 timings of 3 problems")
    command[3] = tmp_path / "missing"
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("error: ")


def test_the_table_is_rebuilt(tmp_path: Path) -> None:
    """The table that is written over is the previous one: its aliases and its rows with a note stay."""
    output = tmp_path / "t.json"
    build(dataset(tmp_path / "d", H200._replace(aliases=("big",))), "-o", output)
    document = json.loads(output.read_text())
    document["entries"].append({"op": "bmm", "configs": [{"template": "aten"}], "note": "mine"})
    output.write_text(json.dumps(document))
    result = build(dataset(tmp_path / "e"), "-o", output)
    assert f"{output}: 2 rows (before: 2), 0 exact and 1 range" in result.stdout.splitlines()
    assert "  rows with a note: 1, kept; they answer for 0 of the problems" in result.stdout.splitlines()
    assert read_table(output).hardware.aliases == ("big",)
    assert [entry.note for entry in read_table(output).entries] == [None, "mine"]


def test_a_previous_table_can_be_named(tmp_path: Path, table_file: Write) -> None:
    """--previous takes another table than the one that is written."""
    previous = table_file("old.json", {"op": "bmm", "configs": [{"template": "aten"}], "note": "mine"})
    build(dataset(tmp_path / "d"), "-o", tmp_path / "t.json", "--previous", previous)
    assert read_table(tmp_path / "t.json").entries[-1].note == "mine"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not JSON",
        '{"entries": []}',
        {"schema_version": 3},
        {"entries": [{"op": "mm", "configs": []}]},
        {"hardware": {"name": "NVIDIA H100", "arch": "sm_90", "sm_count": 132}},
    ],
)
def test_what_would_be_lost_is_not_written_over(tmp_path: Path, table_file: Write, content: Any) -> None:
    """A file that is no valid table, or a table for other hardware, is an error that names it, and stays as it is."""
    output = tmp_path / "t.json"
    if isinstance(content, str):
        output.write_text(content)
    else:
        table_file("t.json", **{"entries": [], **content})
    before = output.read_bytes()
    result = build(dataset(tmp_path / "d"), "-o", output)
    assert (result.exit_code, result.stdout) == (2 if content == "not JSON" else 1, "")
    assert result.stderr.startswith("error: ")
    assert str(output) in result.stderr
    assert output.read_bytes() == before


def test_another_gpu_mixed_in_is_refused(tmp_path: Path) -> None:
    """Datasets of two GPUs are an error with both, and nothing is written."""
    one, two = dataset(tmp_path / "one"), dataset(tmp_path / "two", Hardware("NVIDIA H100", "sm_90", 132))
    result = build(one, two, "-o", tmp_path / "t.json")
    assert (result.exit_code, (tmp_path / "t.json").exists()) == (1, False)
    assert all(word in result.stderr for word in ("NVIDIA H200", "NVIDIA H100", str(one), str(two)))


@pytest.mark.parametrize(
    ("content", "code"), [(None, 2), (b"", 1), (b"not msgpack", 1), (b"{}", 1), (b"\x82\xa1a", 1), (b"\xc1" * 99, 1)]
)
def test_bad_input_is_one_line(tmp_path: Path, content: bytes | None, code: int) -> None:
    """A missing, empty, foreign or truncated dataset is one line on stderr, exit code 2 or 1, and no table."""
    if content is not None:
        (tmp_path / "d").write_bytes(content)
    result = build(tmp_path / "d", "-o", tmp_path / "t.json")
    assert (result.exit_code, result.stdout, (tmp_path / "t.json").exists()) == (code, "", False)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options", [[], ["-o", "gone/t"], ["-o", "t", "--epsilon", "2"], ["-o", "t", "--layout", "xx"]]
)
def test_wrong_usage_is_2(tmp_path: Path, options: list[str]) -> None:
    """No output, no directory for it, an epsilon that is no fraction, or an unknown layout is wrong usage."""
    assert build(dataset(tmp_path / "d"), *options).exit_code == 2


def test_hardware_of_torch_diode_is_named(tmp_path: Path) -> None:
    """For torch-diode's files hardware comes from --hardware or the previous table; what is skipped is said."""
    source, output = torch_diode(tmp_path / "d.json"), tmp_path / "t.json"
    assert "--hardware" in build(torch_diode(tmp_path / "x.json", "ACME X1"), "-o", output).stderr
    result = build(source, "-o", output, "--hardware", "NVIDIA H200, sm_90, 132", "--layout", "nt")
    assert result.exit_code == 0
    assert "\n  skipped, dtype: 'int4' is not one of float16, bfloat16, float32, tf32, " in result.stdout
    assert read_table(output).hardware == H200
    assert read_table(output).entries[0].layout == "nt"
    assert build(source, "-o", output).exit_code == 0
    build(torch_diode(tmp_path / "e.json", "odd"), "-o", tmp_path / "u.json", "--hardware", "NVIDIA H200,sm_90,132,odd")
    assert read_table(tmp_path / "u.json").hardware == H200._replace(aliases=("odd",))


def test_hardware_of_a_table_is_named(tmp_path: Path, table_file: Write) -> None:
    """--hardware takes the name of a table or of its hardware."""
    with diode_lut.config.patch(tables=(str(table_file("nvidia-h200.json")),)):
        for name in ("nvidia-h200", "h200-141gb"):
            assert build(dataset(tmp_path / name), "-o", tmp_path / "t.json", "--hardware", name).exit_code == 0


@pytest.mark.parametrize("hardware", ["unknown", "NVIDIA H200,sm_90", "NVIDIA H200,sm_90,many", ",sm_90,132"])
def test_hardware_that_cannot_be_is_2(tmp_path: Path, hardware: str) -> None:
    """A name that no table has, or a description with a field missing, is wrong usage."""
    result = build(dataset(tmp_path / "d"), "-o", tmp_path / "t.json", "--hardware", hardware)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_epsilon_reaches_the_builder(tmp_path: Path) -> None:
    """A larger --epsilon allows one row for two problems with different winners."""
    with DatasetWriter(tmp_path / "d", Header(H200)) as writer:
        for m, times in enumerate(((100.0, 103.0), (103.0, 100.0)), 1):
            timings = tuple(map(Timing, (TRITON, SMALL), times))
            writer.append(Record(Problem("mm", "float16", "nn", 16, 1, m, 8, 8), timings))
    for epsilon, rows in (("0.02", 2), ("0.03", 1)):
        build(tmp_path / "d", "-o", tmp_path / epsilon, "--epsilon", epsilon)
        assert len(read_table(tmp_path / epsilon).entries) == rows


def test_the_longest_time_over_the_shortest_gives_a_table(tmp_path: Path) -> None:
    """A gain that no row can say is written as the largest one that can be, and the table is valid."""
    source, out = tmp_path / "d.msgpack", tmp_path / "t.json"
    with DatasetWriter(source, Header(H200)) as writer:
        problem = Problem.of("mm", 8, 8, 8, dtype="float16", layout="nn")
        writer.append(Record(problem, (Timing(ATEN, MAX_NS), Timing(TRITON, MIN_NS))))
    assert call("build", source, "-o", out).exit_code == 0
    assert read_table(out).entries[0].candidates[0].gain_permille == 2**31 - 1
    assert call("check", out).exit_code == 0
