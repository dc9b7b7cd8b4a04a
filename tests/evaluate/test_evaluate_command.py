"""The command evaluate."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from diode_lut.dataset import DatasetWriter, Header, Record, Timing
from diode_lut.hardware import Hardware
from diode_lut.model import Split
from diode_lut.model.weights import write_model
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.model import small

H200 = Hardware("NVIDIA H200", "sm_90", 132)
A, B = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 64))
ROWS = (
    {"op": "mm", "dtype": "float16", "m": [1, 2], "configs": [A.to_json(), {"template": "aten"}]},
    {
        "op": "mm",
        "dtype": "float16",
        "layout": "nn",
        "align": 16,
        "m": [3, 3],
        "n": [8, 8],
        "k": [8, 8],
        "configs": [B.to_json()],
    },
)

pytestmark = pytest.mark.usefixtures("no_tables")
evaluate = partial(call, "evaluate")


@pytest.fixture
def table(table_file: Callable[..., Path]) -> Path:
    """A table with a row for a range and an exact row."""
    return table_file("t.json", *ROWS)


def dataset(path: Path, hardware: Hardware = H200, problems: int = 4) -> Path:
    """Write a dataset for m from 1: A takes 100 ns, B 110 ns, aten 121 ns."""
    with DatasetWriter(path, Header(hardware)) as writer:
        for m in range(1, problems + 1):
            timings = (Timing(A, 100.0), Timing(B, 110.0), Timing(ATEN, 121.0))
            writer.append(Record(Problem("mm", "float16", "nn", 16, 1, m, 8, 8), timings))
    return path


def lines(text: str) -> dict[str, list[str]]:
    """The cells of the printed table, by the name of their row."""
    return {cells[0]: cells[1:] for line in text.splitlines() if (cells := line.split())}


def test_prints_the_figures(tmp_path: Path, table: Path) -> None:
    """The command prints the figures of all problems and of each group, then the worst problems."""
    result = evaluate(table, dataset(tmp_path / "d"))
    assert (result.exit_code, result.stderr) == (0, "")
    rows = lines(result.stdout)
    assert rows["all"] == ["4", "75.0%", "1.127", "1.210", "7.41%", "21.00%", "50.0%", "50.0%", "0", "0", "0"]
    assert rows["mm"] == rows["float16"] == rows["all"]
    assert rows["range"] == ["2", "100.0%", "1.210", "1.210", "0.00%", "0.00%", "100.0%", "100.0%", "0", "0", "0"]
    assert rows["exact"][:4] == ["1", "100.0%", "1.100", "1.210"]
    assert rows["miss"][:4] == ["1", "0.0%", "1.000", "1.210"]
    assert rows["21.00%"] == f"on mm 4x8x8 float16 nn align 16: aten (miss), best {A}".split()


def test_breaks_no_line_in_a_pipe(tmp_path: Path, table: Path) -> None:
    """What the figures mean is one line, however long it is."""
    (legend,) = (line for line in evaluate(table, dataset(tmp_path / "d")).stdout.splitlines() if "gain: " in line)
    assert legend.endswith("A miss counts as aten.")


def test_reads_compact_datasets_and_several(tmp_path: Path, table: Path) -> None:
    """Several datasets are combined, packed ones as well."""
    call("pack", dataset(tmp_path / "d", problems=5), "-o", tmp_path / "c")
    assert lines(evaluate(table, tmp_path / "c", dataset(tmp_path / "e")).stdout)["all"][0] == "5"


def test_prints_json(tmp_path: Path, table: Path) -> None:
    """The JSON has all figures, and the digests of the table and datasets."""
    document = json.loads(evaluate(table, dataset(tmp_path / "d"), "--format", "json").stdout)
    assert document["hardware"] == "NVIDIA H200 (sm_90, 132 SMs)"
    assert (document["rows"], document["against"], document["unsolved"]) == (2, "aten", 0)
    assert document["table"].startswith("sha256:")
    assert [each[:7] for each in document["datasets"]] == ["sha256:"]
    assert document["all"]["coverage"] == 0.75
    assert document["by"]["source"]["exact"]["gain"] == 1.1
    assert document["worst"][0]["regret"] == 0.21


def test_against_another_config(tmp_path: Path, table: Path) -> None:
    """--against takes a config as explain writes it; one that was not measured is an error."""
    result = evaluate(table, dataset(tmp_path / "d"), "--against", str(B))
    assert lines(result.stdout)["range"][2] == "1.100"
    assert evaluate(table, tmp_path / "d", "--against", "triton_mm 16x16x16 g1 s1 w1").exit_code == 1


def test_a_choice_of_a_model_that_failed_is_counted(tmp_path: Path) -> None:
    """A choice with wrong results in the final stage is counted as failed, even if it has a time in the sweep."""
    write_model(small.model(), tmp_path / "m.safetensors")
    with DatasetWriter(tmp_path / "d", Header(H200)) as writer:
        writer.append(Record(small.MM, (Timing(small.SMALL, 50.0), Timing(ATEN, 100.0)), "sweep"))
        writer.append(Record(small.MM, (Timing(small.SMALL, None, "wrong_result"), Timing(ATEN, 99.0)), "final"))
    result = evaluate("--all", "--model", tmp_path / "m.safetensors", tmp_path / "d")
    assert lines(result.stdout)["all"][-3:] == ["0", "1", "0"], "slower, failed, not measured"


def test_a_model_is_not_evaluated_on_its_training_problems(tmp_path: Path) -> None:
    """If no problem was held out, that is an error, which names the option to use all problems."""
    model = tmp_path / "m.safetensors"
    write_model(small.model(split=Split(0, 0.0)), model)
    result = evaluate("--model", model, dataset(tmp_path / "d"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the model may have been trained on all of these problems: --all includes them" in result.stderr
    assert evaluate("--all", "--model", model, tmp_path / "d").exit_code == 0
    assert "no usable timing" in evaluate("--model", model, dataset(tmp_path / "e", problems=0)).stderr


def test_another_gpu_is_refused(tmp_path: Path, table: Path) -> None:
    """A dataset of hardware that the table never answers for is an error that names both."""
    result = evaluate(table, dataset(tmp_path / "d", Hardware("NVIDIA H100 PCIe", "sm_90", 114)))
    assert (result.exit_code, result.stdout) == (1, "")
    assert all(word in result.stderr for word in ("NVIDIA H100", "NVIDIA H200", str(tmp_path / "d"), str(table)))


def test_what_a_table_is_worth_on_a_device_like_its_own(tmp_path: Path, table: Path) -> None:
    """A table may answer for a device with the same architecture and SMs: that is evaluated, and said."""
    like = Hardware("NVIDIA H100 80GB HBM3", H200.arch, H200.sm_count)
    own = evaluate(table, dataset(tmp_path / "own.msgpack"))
    evaluated = evaluate(table, dataset(tmp_path / "like.msgpack", like))
    assert (evaluated.exit_code, evaluated.stdout) == (0, own.stdout)
    assert evaluated.stderr == f"note: {table} is for {H200}; measured on {like}\n"


def test_what_cannot_be_read_is_2(tmp_path: Path, table: Path) -> None:
    """A missing table or dataset is an error of one line, with exit code 2."""
    for files in ((tmp_path / "gone", dataset(tmp_path / "d")), (table, tmp_path / "gone")):
        result = evaluate(*files)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A function in the working directory that answers with A for m up to 2, and raises an error for m = 4."""
    (tmp_path / "evaluated_rules.py").write_text(
        "from diode_lut import Config\n"
        "def rule(problem, hardware):\n"
        "    assert problem.m != 4 and hardware.arch == 'sm_90'\n"
        f"    return Config.parse('{A}') if problem.m <= 2 else None\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return "evaluated_rules:rule"


def test_function(rule: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A function is evaluated like a table, on the hardware of the datasets; an error is a miss, with a warning."""
    arguments = ("--chooser", rule, dataset(tmp_path / "d.msgpack"))
    evaluated = evaluate(*arguments)
    assert evaluated.exit_code == 0
    found = lines(evaluated.stdout)
    assert found["all"][:3] == ["4", "50.0%", "1.100"]
    assert found["chooser"][:3] == ["2", "100.0%", "1.210"]
    assert f"chooser {rule}: raised AssertionError" in caplog.text
    document = json.loads(evaluate(*arguments, "--format", "json").stdout)
    assert (document["chooser"], document["hardware"]) == (rule, str(H200))


def test_function_needs_datasets_of_one_device(rule: str, tmp_path: Path) -> None:
    """A function gets one hardware, so all datasets must be of the same device."""
    other = Hardware("NVIDIA H100", "sm_90", 114)
    files = dataset(tmp_path / "d.msgpack"), dataset(tmp_path / "other.msgpack", other)
    evaluated = evaluate("--chooser", rule, *files)
    assert evaluated.exit_code == 1
    assert evaluated.stderr.strip() == f"error: {files[1]}: measured on {other}, but {files[0]} on {H200}"


def test_function_excludes_a_model(rule: str, tmp_path: Path) -> None:
    """What is evaluated is one thing."""
    evaluated = evaluate("--chooser", rule, "--model", tmp_path / "m.safetensors", dataset(tmp_path / "d.msgpack"))
    assert evaluated.exit_code == 2
    assert "--model and --chooser exclude each other" in evaluated.stderr
