import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from diode_lut.cli import main
from diode_lut.dataset import DatasetWriter, Record, Timing, read_dataset
from diode_lut.hardware import Hardware
from diode_lut.measure.problems import random_problems
from diode_lut.measure.tasks import find_setup
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN

TOO_LARGE = {"op": "mm", "B": 1, "M": 2**31 - 4, "N": 4, "K": 2**31 - 4, "dtype": "float32", "layout": "nn"}


def collect(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["collect", "--device", "cpu", *map(str, arguments)])


def problem_file(directory: Path, document: Any) -> Path:
    path = directory / "problems.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--out'"),
        (["--out", "x"], "give either --problems or --random"),
        (["--out", "x", "--problems", __file__, "--random", "3"], "give either --problems or --random"),
        (["--out", "x", "--problems", __file__, "--log-normal"], "--log-normal goes with --random only"),
        (["--out", "x", "--problems", __file__, "--op", "mm"], "--op goes with --random only"),
        (["--out", "x", "--problems", "missing.json"], "--problems: missing.json: no such file, and no shipped set"),
        (["--out", "x", "--random", "0"], "0 is not in the range x>=1"),
        (["--out", "x", "--random", "1", "--op", "conv"], "'conv' is not one of"),
        (["--out", "x", "--random", "1", "--search-space", "all"], "'all' is not one of"),
        (["--out", "x", "--random", "1", "--method", "guess"], "'guess' is not one of"),
        (["--out", "x", "--random", "1", "--budget", "0"], "'0' is not a time above zero"),
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], message: str) -> None:
    """Options that are missing, contradict each other or have impossible values are named, and nothing is measured."""
    result = collect(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_wrong_problem_file_exits_1(tmp_path: Path) -> None:
    """A file with an impossible problem is refused in one line with file, index and field."""
    path = problem_file(tmp_path, [{**TOO_LARGE, "M": -1}])
    result = collect("--problems", path, "--out", tmp_path / "timings.msgpack")
    assert result.exit_code == 1
    assert result.stderr == f"error: {path}: [0].m: -1 is not an integer from 1 to 2147483647\n"
    assert not (tmp_path / "timings.msgpack").exists()


def test_sweep_on_a_cpu_exits_2(tmp_path: Path) -> None:
    """A sweep times CUDA kernels; that it cannot be had on a CPU is said before there is a file."""
    path = tmp_path / "timings.msgpack"
    result = collect("--problems", problem_file(tmp_path, [TOO_LARGE]), "--out", path, "--method", "sweep")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cpu: method sweep times Triton kernels, which need CUDA")
    assert not path.exists()


def test_dataset_of_other_hardware_exits_1(tmp_path: Path) -> None:
    """Timings of this machine are not mixed with those of another."""
    path = tmp_path / "timings.msgpack"
    with DatasetWriter(
        path, find_setup("cpu", None, "default").header._replace(hardware=Hardware("NVIDIA H200", "sm_90", 132))
    ):
        pass
    result = collect("--problems", problem_file(tmp_path, [TOO_LARGE]), "--out", path)
    assert result.exit_code == 1
    assert f"error: {path}: measured on NVIDIA H200" in result.stderr


def test_nothing_measured_exits_1(tmp_path: Path) -> None:
    """If every problem had to be skipped, the reasons are told and the command fails."""
    result = collect("--problems", problem_file(tmp_path, [TOO_LARGE]), "--out", tmp_path / "timings.msgpack")
    assert result.exit_code == 1
    assert "skipped mm 2147483644x4x2147483644 float32 nn align 16: no operands of this size: " in result.stderr
    assert "0 problems measured, 0 already there, 1 skipped" in result.stdout
    assert "error: none of the problems could be measured" in result.stderr


def test_random_problems_are_collected_and_resumed(tmp_path: Path) -> None:
    """The options draw the problems, and the same command again finds them all measured."""
    drawing = {"log_normal": True, "ops": ("baddbmm",), "dtypes": ("float32",), "layouts": ("nt",)}
    sizes = ((seed, random_problems(1, seed=seed, **drawing)[0].sizes) for seed in range(1000))
    seed = next(seed for seed, each in sizes if min(each) > 1 and math.prod(each) < 2**20)
    path = tmp_path / "timings.msgpack"
    options = f"--random 1 --log-normal --seed {seed} --op baddbmm --dtype float32 --layout nt".split()
    first, second = collect(*options, "--out", path), collect(*options, "--out", path)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert [record.problem for record in read_dataset(path)] == random_problems(1, seed=seed, **drawing)
    assert "1 problem measured, 0 already there, 0 skipped; 1 config tried, 0 of them failed" in first.stdout
    assert "0 problems measured, 1 already there, 0 skipped" in second.stdout


def test_what_was_lost_is_measured_again(tmp_path: Path) -> None:
    """A damaged record is named, its problem measured again, the exit code 1, and the others are as they were."""
    path = tmp_path / "timings.msgpack"
    problems = [Problem.of("bmm", m, 32, 32, b=2, dtype="float32", layout="nn") for m in (16, 32)]
    records = [Record(problem, (Timing(ATEN, 1234.5),)) for problem in problems]
    with DatasetWriter(path, find_setup("cpu", None, "default").header) as writer:
        for record in records:
            writer.append(record)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    document = [problem.to_json() for problem in problems]
    result = collect("--problems", problem_file(tmp_path, document), "--out", path)
    assert result.exit_code == 1
    assert "1 problem measured, 1 already there, 0 skipped" in result.stdout
    assert f"{path}: damaged places, whose records are lost: 1" in result.stderr
    assert path.read_bytes().startswith(data[:-1])
    found = list(read_dataset(path))
    assert found[0] == records[0]
    assert [record.problem for record in found] == problems
