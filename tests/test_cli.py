"""The command line: the group, its exit codes, and check, explain and tables."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

import diode_lut
from diode_lut.cli import COMMANDS
from diode_lut.cli.output import exit_code
from diode_lut.errors import CollectError, DatasetError, HardwareError, ProblemError, SettingError, TableError
from tests.commands import call

ROOT = Path(diode_lut.__file__).parent.parent
ATEN = {"template": "aten"}
ROW = {"op": "mm", "configs": [ATEN]}
FLEX = {"template": "triton_flex_attention", "block_m": 64, "block_n": 32, "num_stages": 2, "num_warps": 4}
TRITON = {
    "template": "triton_mm",
    "block_m": 128,
    "block_n": 128,
    "block_k": 64,
    "group_m": 8,
    "num_stages": 4,
    "num_warps": 8,
}

Write = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("no_tables")


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command does in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "diode_lut", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_command_is_there() -> None:
    """Each command in the list exists, goes by that name, and says in its help what it does."""
    for name, place in COMMANDS.items():
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), name
        assert command.name == name
        assert command.help, name
        silent = [param.name for param in command.params if isinstance(param, click.Option) and not param.help]
        assert silent == [], name


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    """The overview comes without importing what only some command needs."""
    code = (
        "import sys; from diode_lut.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'orjson', 'msgpack', 'jsonschema', 'rich', 'diode_lut.receipts.recorder'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout.endswith("loaded: []\n")
    for name in COMMANDS:
        assert f"  {name} " in completed.stdout


def test_version() -> None:
    """The version is the package's."""
    assert call("--version").output == f"diode_lut, version {diode_lut.__version__}\n"


def test_unknown_command() -> None:
    """A command that does not exist is wrong usage."""
    result = call("frobnicate")
    assert result.exit_code == 2
    assert "no such command: frobnicate" in result.stderr


def unreadable(error: DatasetError) -> DatasetError:
    error.__cause__ = FileNotFoundError()
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TableError("x"), 1),
        (DatasetError("x"), 1),
        (CollectError("x"), 1),
        (unreadable(DatasetError("x")), 2),
        (HardwareError("x"), 2),
        (ProblemError("x"), 2),
        (SettingError("x"), 2),
        (PermissionError("x"), 2),
    ],
    ids=repr,
)
def test_exit_codes(error: Any, code: int) -> None:
    """What is invalid exits with 1, what cannot be read or asked for with 2."""
    assert exit_code(error) == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk() -> None:
    """If standard output cannot be written, the message names it, as it names files."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "diode_lut", "tables"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (2, b"error: standard output: No space left on device\n")


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C a command exits as shells do, and not as if something was invalid, different or missed."""
    (tmp_path / "stops.py").write_text("import signal\ndef choose(*_): signal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = call("explain", "mm", 8, 8, 8, "--hardware", "h200", "--chooser", "stops:choose")
    assert (result.exit_code, result.output) == (130, "interrupted\n")


class TestCheck:
    """``check``."""

    def test_valid(self, table_file: Write) -> None:
        """Valid tables print nothing but a count."""
        result = call("check", table_file("a.json", ROW), table_file("b.json", ROW))
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "2 files, 0 faults\n")

    @pytest.mark.parametrize(
        ("entries", "where", "found"),
        [
            ([{"op": "mm", "configs": [{**TRITON, "block_m": 96}]}], "entries[0].configs[0].block_m", "96"),
            ([{"op": "mm", "m": [64, 32], "configs": [ATEN]}], "entries[0].m", "64"),
            ([{"op": "mn", "configs": [ATEN]}], "entries[0].op", "mn"),
            ([{"op": "mm", "shape": 1, "configs": [ATEN]}], "entries[0].shape", ""),
            ([{"op": "mm", "m": ["1", 2], "configs": [ATEN]}], "entries[0].m[0]", "1"),
            ([{"op": "mm", "m": [True, 2], "configs": [ATEN]}], "entries[0].m[0]", ""),
            ([{"op": "mm", "configs": []}], "entries[0].configs", ""),
            ([{"op": "mm", "configs": "aten"}], "entries[0].configs", ""),
            ([{"op": "mm"}], "entries[0]", "configs"),
            ([ROW, ROW], "entries[1]", ""),
            ([{"op": "bmm", "configs": [TRITON]}], "entries[0].configs[0]", "triton_mm"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_wrong_rows(self, table_file: Write, entries: list[Any], where: str, found: str) -> None:
        """A wrong row is one line that begins with file, line, column and JSON path, and says what was found."""
        path = table_file("mine.json", *entries)
        result = call("check", path)
        (line,) = (line for line in result.stdout.splitlines() if "canonical form" not in line)
        file, number, _, rest = line.removeprefix(f"{path.parent}/").split(":", 3)
        assert (result.exit_code, file) == (1, "mine.json")
        assert 1 < int(number) <= len(path.read_text().splitlines())
        assert where in rest
        assert found in rest

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"schema_version": 3}, "schema_version: expected 2, found 3"),
            ({"schema_version": "1"}, "schema_version"),
            ({"extra": 1}, "extra"),
            ({"hardware": {"name": "X", "arch": "sm_90"}}, "sm_count"),
            ({"hardware": {"name": "X", "arch": "sm_90", "sm_count": 0}}, "hardware.sm_count"),
            ({"provenance": {"author": "me"}}, "author"),
            ({"entries": {}}, "entries"),
        ],
        ids=str,
    )
    def test_wrong_heads(self, table_file: Write, fields: dict[str, Any], expected: str) -> None:
        """What is wrong with the head is named by its JSON path."""
        result = call("check", table_file("mine.json", ROW, **fields))
        assert result.exit_code == 1
        assert expected in result.stdout

    @pytest.mark.parametrize("content", [b"", b"  \n", b"{", b"[]", b"12", b"null", b"\xff\xfe{}", b"{}", b"[" * 5000])
    def test_not_a_table(self, tmp_path: Path, content: bytes) -> None:
        """Whatever else is in a file, it is a message, never a traceback."""
        path = tmp_path / "mine.json"
        path.write_bytes(content)
        result = call("check", path)
        assert result.exit_code == 1
        assert result.stdout.startswith(f"{path}:")

    def test_all_problems_of_all_files_at_once(self, table_file: Write) -> None:
        """One run shows everything, and the worst decides the exit code."""
        bad = table_file("bad.json", {"op": "mn", "dtype": "int3", "configs": [ATEN]}, {"op": "mm"})
        missing = bad.parent / "missing.json"
        result = call("check", bad, table_file("good.json", ROW), missing)
        assert result.exit_code == 2
        assert len(result.stdout.splitlines()) == 4
        assert f"{missing}: cannot be read" in result.stdout
        assert result.stderr == "3 files, 4 faults\n"

    def test_json(self, table_file: Write) -> None:
        """As JSON there is one list, with the parts of each message apart; it is empty if all is well."""
        path = table_file("mine.json", {"op": "mn", "configs": [ATEN]})
        (problem, *_) = json.loads(call("check", "--format", "json", path).stdout)
        assert problem.pop("reason").startswith('"mn" is not allowed')
        assert problem == {"severity": "error", "path": str(path), "line": 14, "column": 10, "where": "entries[0].op"}
        assert json.loads(call("check", "--format", "json", table_file("good.json", ROW)).stdout) == []

    def test_github(self, table_file: Write, tmp_path: Path) -> None:
        """For GitHub each problem is an annotation, in which nothing but the message's own text can be read."""
        path = table_file("50%,a:b.json", {"op": "100%\n", "configs": [ATEN]})
        first, second = call("check", "--format", "github", path, tmp_path / "gone.json").stdout.splitlines()
        assert first.startswith(f"::error file={tmp_path}/50%25%2Ca%3Ab.json,line=14,col=10::entries[0].op: ")
        assert '"100%25\\n" is not allowed' in first
        assert second == f"::error file={tmp_path}/gone.json::cannot be read: No such file or directory"

    def test_unreadable(self, tmp_path: Path) -> None:
        """Files that cannot be opened exit with 2."""
        assert call("check", tmp_path / "missing.json").exit_code == 2
        assert call("check", tmp_path).exit_code == 2

    def test_no_file(self) -> None:
        """Without a file there is nothing to check."""
        assert call("check").exit_code == 2


class TestExplain:
    """``explain``."""

    def test_a_size_that_may_change(self, table_file: Write) -> None:
        """With ``--dynamic`` it prints what each part of the range gets, and what one kernel for all would be."""
        rows = ({"m": [1, 63], "configs": [{**TRITON, "gain_permille": 1500}]}, {"m": [64, 512], "configs": [ATEN]})
        options = ("--hardware", "mine", "--table", table_file("mine.json", *rows))
        result = call("explain", "mm", 8, 64, 64, "--dynamic", "m=2:512", *options)
        _, small, large, one = result.stdout.splitlines()
        assert small.startswith("  m from 2 to 63: triton_mm 128x128x64 g8 s4 w8, as ")
        assert large.startswith("  m from 64 to 512: aten, as ")
        assert one.startswith("  where there can be one kernel only: m from 2 to 512: aten, as ")
        assert result.exit_code == 0

    def test_sizes_that_no_row_covers(self, table_file: Write) -> None:
        """Where ``--dynamic`` goes far beyond all rows, it says that the library has these sizes, and why."""
        path = table_file("mine.json", {"m": [1, 512], "configs": [{**TRITON, "gain_permille": 1500}]})
        result = call("explain", "mm", 8, 64, 64, "--dynamic", "m=1:65536", "--hardware", "mine", "--table", path)
        _, small, large, _ = result.stdout.splitlines()
        assert small.startswith("  m from 1 to 1448: triton_mm 128x128x64 g8 s4 w8, as ")
        assert large == "  m from 1449 to 65536: aten, because no table and no model answers"

    def test_sizes_along_which_nothing_answers(self, table_file: Write) -> None:
        """Where no source answers for any size, it says so, and exits with 1."""
        path = table_file("mine.json", {"op": "bmm", "configs": [ATEN]})
        result = call("explain", "mm", 8, 64, 64, "--dynamic", "m=1:64", "--hardware", "mine", "--table", path)
        _, line = result.stdout.splitlines()
        assert line == (
            "  m from 1 to 64: Inductor decides as it would without diode_lut, because no table and no model answers"
        )
        assert result.exit_code == 1

    def test_a_size_that_was_a_constant(self, table_file: Write) -> None:
        """It says which configs the hook passes over, because their kernels need the size as a constant."""
        rows = (
            {"k": [1, 63], "configs": [{**TRITON, "gain_permille": 1500}, {**ATEN, "gain_permille": 1000}]},
            {"k": [64, 512], "configs": [ATEN]},
        )
        options = ("--hardware", "mine", "--table", table_file("mine.json", *rows))
        for size in ("k=2:512", "k=2:60"):
            _, left_out, one = call("explain", "mm", 8, 64, 64, "--dynamic", size, *options).stdout.splitlines()
            assert left_out.startswith("  triton_mm 128x128x64 g8 s4 w8 is left out: a size that may change was a")
            assert one.startswith(f"  k from 2 to {size[4:]}: aten, as ")

    def test_an_epilogue_along_a_size(self, table_file: Write) -> None:
        """With an epilogue, no part of the range is the library's: one kernel is for all sizes, or nothing is fused."""
        rows = (
            {"epilogue": "light", "m": [1, 63], "configs": [{**TRITON, "gain_permille": 1500}]},
            {"epilogue": "light", "m": [64, 512], "configs": [ATEN]},
        )
        options = ("--hardware", "mine", "--table", table_file("mine.json", *rows), "--epilogue", "light")
        _, line = call("explain", "mm", 8, 64, 64, "--dynamic", "m=2:512", *options).stdout.splitlines()
        assert line.startswith("  m from 2 to 512: aten, as ")

    def test_generated_kernels(self, table_file: Write) -> None:
        """A row is for a range of x if it covers all of it."""
        kernel = ("reduction", "--variant", "inner", "--x", 8, "--r", 768, "--dynamic", "x=2:4096")
        config = {"template": "persistent_reduction", "block_x": 1, "num_warps": 4}
        for largest, code, expected in (
            (4096, 0, "persistent_reduction x1 w4, as "),
            (4095, 1, "Inductor decides as "),
        ):
            path = table_file("mine.json", {"op": "reduction", "x": [1, largest], "configs": [config]})
            result = call("explain", *kernel, "--hardware", "nvidia-h200", "--table", path)
            _, line = result.stdout.splitlines()
            assert (result.exit_code, line.startswith(f"  x from 2 to 4096: {expected}")) == (code, True)

    @pytest.mark.parametrize(
        ("op", "dynamic", "message"),
        [
            ("mm", ("m=1:8", "n=1:8"), "one size at a time"),
            ("scaled_mm", ("m=1:8",), "where sizes of scaled_mm may change, Inductor decides alone"),
        ],
    )
    def test_what_no_dispatch_is_for(self, op: str, dynamic: tuple[str, ...], message: str) -> None:
        """Two sizes that change, and ops whose sizes may not, are errors that say so."""
        variant = ("--variant", "row-bfloat16") if op == "scaled_mm" else ()
        options = [part for size in dynamic for part in ("--dynamic", size)]
        result = call("explain", op, 8, 64, 64, *variant, *options, "--hardware", "nvidia-h200")
        assert (result.exit_code, message in result.stderr) == (2, True)

    @pytest.mark.parametrize("wrong", ["m", "m=0:8", "m=9:8", "q=1:2", "b=1:2"])
    def test_a_size_that_cannot_change(self, wrong: str) -> None:
        """What is no size of the op with a range is an error in one line."""
        result = call("explain", "mm", 8, 8, 8, "--dynamic", wrong, "--hardware", "nvidia-h200")
        assert result.exit_code == 2
        assert "--dynamic" in result.stderr

    def test_hit(self, table_file: Write) -> None:
        """A hit prints the decision that the library makes, and exits with 0."""
        path = table_file("mine.json", {"op": "mm", "configs": [{**TRITON, "gain_permille": 1063}, ATEN]})
        result = call("explain", "mm", 1024, 4096, 1024, "--layout", "nt", "--hardware", "nvidia-h200", "--table", path)
        problem = diode_lut.Problem.of("mm", 1024, 4096, 1024, dtype="bfloat16", layout="nt")
        with diode_lut.config.patch(tables=(path,)):
            assert result.stdout == diode_lut.explain(problem, hardware="nvidia-h200") + "\n"
        assert result.exit_code == 0
        assert f"user: {path}:" in result.stdout
        assert "triton_mm 128x128x64 g8 s4 w8 (1.063 times as fast as aten)" in result.stdout

    def test_generated_kernel(self, tmp_path: Path) -> None:
        """A generated kernel is a variant with sizes of its own; without a row for them the exit code is 1."""
        path = tmp_path / "table.json"
        config = {"template": "looped_reduction", "block_x": 1, "block_r": 512, "num_warps": 2}
        row = {"op": "reduction", "variant": "inner", "x": [1, 64], "configs": [config]}
        hardware = {"name": "Mine", "arch": "sm_90", "sm_count": 100}
        path.write_text(json.dumps({"schema_version": 2, "hardware": hardware, "entries": [row]}))
        command = (
            "explain",
            "reduction",
            "--variant",
            "inner",
            "--r",
            384,
            "--hardware",
            "mine",
            "--table",
            path,
            "--x",
        )
        result = call(*command, 64)
        assert (result.exit_code, result.stdout.splitlines()[0]) == (
            0,
            "reduction inner x 64 r 384 on Mine (sm_90, 100 SMs)",
        )
        assert "looped_reduction x1r512 w2" in result.stdout
        assert call(*command, 65).exit_code == 1

    def test_miss(self, table_file: Write) -> None:
        """A miss prints the steps, and exits with 1."""
        path = table_file("mine.json", ROW)
        result = call("explain", "bmm", 8, 8, 8, "--batch", 4, "--hardware", "mine", "--table", path)
        assert result.exit_code == 1
        assert result.stdout.startswith("bmm 4x8x8x8 bfloat16 nn align 16 on NVIDIA H200")
        assert f"user: {path}: no entry for op=bmm" in result.stdout
        assert "abstain: Inductor decides" in result.stdout

    def test_attention(self, table_file: Write) -> None:
        """Attention has heads, and gains over the default; its sizes cannot change."""
        configs = [{**FLEX, "gain_permille": 1100}, {"template": "default"}]
        path = table_file("mine.json", {"op": "flex_attention", "h": [16, 16], "configs": configs})
        explain = (
            "explain",
            "flex_attention",
            512,
            "1k",
            64,
            "--variant",
            "causal",
            "--hardware",
            "mine",
            "--table",
            path,
        )
        result = call(*explain, "--heads", 16, "--group", 4)
        assert result.exit_code == 0
        name = "flex_attention causal 1x16x512x1024x64 g 4 bfloat16 nt align 16"
        assert result.stdout.startswith(f"{name} on NVIDIA H200")
        assert "triton_flex_attention 64x32 s2 w4 (1.100 times as fast as default)" in result.stdout
        other = call(*explain, "--heads", 8, "--value-dim", 128)
        assert "no entry covers b=1 m=512 n=1024 k=64 h=8 g=1 v=128, out of 1 for op=flex_attention" in other.stdout
        assert call(*explain, "--dynamic", "m=1:8").exit_code == 2

    def test_shipped_table_by_hardware_name(self, table_file: Write) -> None:
        """A shipped table answers for its hardware by name."""
        table_file("tables/nvidia-h200.json", ROW)
        result = call("explain", "mm", 8, 8, 8, "--hardware", "NVIDIA H200")
        assert result.exit_code == 0
        assert "  device: " in result.stdout

    def test_this_machine(self, table_file: Write) -> None:
        """Without a name, the decision is for the device that torch would use here."""
        pytest.importorskip("torch")
        hardware = diode_lut.get_detected_hardware()
        path = table_file("mine.json", ROW, hardware=hardware._asdict())
        result = call("explain", "mm", 8, 8, 8, "--table", path)
        assert result.exit_code == 0
        assert result.stdout.startswith(f"mm 8x8x8 bfloat16 nn align 16 on {hardware}\n  user: {path}:")

    def test_table_comes_before_the_settings(self, table_file: Write) -> None:
        """``--table`` is asked before the tables of the environment."""
        environment, option = table_file("environment.json", ROW), table_file("option.json", ROW)
        with diode_lut.config.patch(tables=(environment,)):
            result = call("explain", "mm", 8, 8, 8, "--hardware", "option", "--table", option)
        assert f"user: {option}:" in result.stdout

    def test_align_by_default_is_that_of_packed_matrices(self, table_file: Write) -> None:
        """Sizes say whether rows can start on 16-byte boundaries, unless the user says it."""
        explain = ("explain", "mm", 8, 8, 7, "--hardware", "mine", "--table", table_file("mine.json", ROW))
        assert " align 2 on" in call(*explain).stdout
        assert " align 16 on" in call(*explain, "--align", 16).stdout

    def test_table_for_other_hardware(self, table_file: Write) -> None:
        """A table for other hardware does not answer, and the step says so."""
        a100 = table_file("a100.json", ROW, hardware={"name": "A100", "arch": "sm_80", "sm_count": 108})
        table_file("tables/h200.json")
        result = call("explain", "mm", 8, 8, 8, "--hardware", "h200", "--table", a100)
        assert result.exit_code == 1
        assert (
            f"user: left out: {a100}: hardware: it is for A100 (sm_80, 108 SMs), not for NVIDIA H200" in result.stdout
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("mm", 8, 8), "Missing argument 'K'"),
            (("conv", 8, 8, 8), "'conv' is not one of"),
            (("mm", 0, 8, 8), "0 is not in the range"),
            (("mm", 8, "x", 8), "'x' is not a size (such as 1024, or 1k, which"),
            (("mm", 8, 8, 8, "--dtype", "int4"), "'int4' is not one of"),
            (("mm", 8, 8, 8, "--batch", 2, "--hardware", "h200"), "error: b: mm has no batch"),
            (("mm", 8, 8, 8, "--hardware", "h300"), "error: h300: no table is for hardware of that name"),
            (("mm", 8, 8, 8, "--table", "missing.json"), "error: missing.json: cannot be read: No such file"),
        ],
    )
    def test_wrong_usage(self, arguments: tuple[object, ...], message: str) -> None:
        """Wrong arguments exit with 2 and name what is wrong."""
        result = call("explain", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr

    def test_many_problems(self, table_file: Write) -> None:
        """--problems explains each problem of a file, and exits with 1 if one gets no answer."""
        path = table_file("mine.json", {"op": "mm", "dtype": "bfloat16", "configs": [TRITON | {"gain_permille": 1063}]})
        problems = path.with_name("problems.json")
        sizes = {"op": "mm", "M": 1024, "N": 4096, "K": 1024}
        problems.write_text(json.dumps([sizes | {"dtype": "bf16"}, sizes | {"dtype": "fp16"}]))
        options = ("--hardware", "nvidia-h200", "--table", path)
        alone = [call("explain", "mm", 1024, 4096, 1024, "--dtype", each, *options) for each in ("bf16", "fp16")]
        together = call("explain", "--problems", problems, *options)
        assert [each.exit_code for each in (*alone, together)] == [0, 1, 1]
        assert together.stdout == "".join(each.stdout for each in alone)
        hit, miss = json.loads(call("explain", "--problems", problems, *options, "--format", "json").stdout)
        assert (hit["tier"], hit["configs"]) == ("user", [TRITON | {"gain_permille": 1063}])
        assert (miss["tier"], miss["configs"], miss["problem"]["dtype"]) == ("abstain", [], "float16")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("mm 8 8", "Missing argument 'K' (OP M N K are one problem; --problems FILE has many)"),
            ("--problems quick mm", "--problems: its problems have all their fields: leave out OP"),
            ("--problems quick --dynamic m=1:8", "leave out --dynamic"),
            ("--problems nothing.json", "no such file, and no shipped set"),
        ],
    )
    def test_wrong_problems(self, arguments: str, message: str) -> None:
        """Neither a whole problem nor a file, or both, is wrong usage."""
        result = call("explain", *arguments.split(), "--hardware", "h200")
        assert (result.exit_code, message in result.stderr) == (2, True)

    def test_json(self, table_file: Write) -> None:
        """``--format json`` has the decision, the row's place, the next rows, and the parts of a range."""
        path = table_file("mine.json", {"op": "mm", "m": [1, 64], "configs": [TRITON]}, ROW)
        options = ("--hardware", "nvidia-h200", "--table", path, "--format", "json")
        found = json.loads(call("explain", "mm", 64, 4096, 1024, *options).stdout)
        assert (found["where"].partition(":")[0], found["configs"]) == (str(path), [TRITON])
        assert [each["configs"] for each in found["runners_up"]] == [[ATEN]]
        over = json.loads(call("explain", "mm", 64, 4096, 1024, "--dynamic", "m=1:128", *options).stdout)
        assert over["over"] == "m from 1 to 128"
        assert {each["config"]["template"] for each in over["parts"]} <= {"triton_mm", "aten"}

    def test_invalid_table(self, tmp_path: Path) -> None:
        """A table that the user names and that is none is an error, with 1."""
        (tmp_path / "mine.json").write_text("{")
        result = call("explain", "mm", 8, 8, 8, "--hardware", "h200", "--table", tmp_path / "mine.json")
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {tmp_path / 'mine.json'}:1:2: not JSON")


def test_tables(table_file: Write) -> None:
    """``tables`` lists name, hardware, origin and file, the user's own first."""
    shipped, mine = table_file("tables/nvidia-h200.json", ROW), table_file("mine.json", ROW)
    with diode_lut.config.patch(tables=(mine,)):
        result = call("tables")
    assert result.stdout.splitlines() == [
        f"mine  NVIDIA H200 (sm_90, 132 SMs)  user  {mine}",
        f"nvidia-h200  NVIDIA H200 (sm_90, 132 SMs)  shipped  {shipped}",
    ]


def test_tables_as_json(table_file: Write) -> None:
    """``tables --format json`` is a list of objects, empty if there is no table."""
    assert json.loads(call("tables", "--format", "json").stdout) == []
    path = table_file("mine.json", ROW)
    with diode_lut.config.patch(tables=(path,)):
        result = call("tables", "--format", "json")
    hardware = "NVIDIA H200 (sm_90, 132 SMs)"
    assert json.loads(result.stdout) == [{"name": "mine", "hardware": hardware, "origin": "user", "file": str(path)}]


class TestProcess:
    """Whole processes: what a shell sees."""

    def test_exit_code_and_message(self, tmp_path: Path) -> None:
        """A library error becomes one line on stderr and an exit code, without a traceback."""
        (tmp_path / "empty.json").touch()
        completed = run("explain", "mm", 8, 8, 8, "--hardware", "h200", "--table", tmp_path / "empty.json")
        assert (completed.returncode, completed.stdout) == (1, "")
        assert completed.stderr.startswith(f"error: {tmp_path / 'empty.json'}: is empty")
        assert len(completed.stderr.splitlines()) == 1

    def test_tables_from_the_environment(self, table_file: Write) -> None:
        """DIODE_LUT_TABLES names tables of the user's own; a bad row of theirs is one line on stderr."""
        path = table_file("mine.json", ROW, {"op": "mn", "configs": [ATEN]})
        completed = run("explain", "mm", 8, 8, 8, "--hardware", "mine", DIODE_LUT_TABLES=str(path))
        assert completed.returncode == 0
        assert f"  user: {path}:" in completed.stdout
        (line,) = completed.stderr.splitlines()
        assert line.startswith(f"row skipped: {path}:")
        assert "entries[1].op" in line

    def test_output_that_nobody_reads(self, table_file: Write) -> None:
        """A pipe that is closed early is no error message."""
        table = json.dumps(str(table_file("mine.json", ROW)))
        shell = f"{sys.executable} -m diode_lut explain mm 8 8 8 --hardware mine --table {table} | true"
        completed = subprocess.run(shell, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "error" not in completed.stderr
        assert "Traceback" not in completed.stderr


@pytest.mark.skipif(os.name != "posix", reason="a directory in use cannot be removed")
def test_a_working_directory_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that needs the working directory says that it has been removed; the system's error names no file."""
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = call("git-setup")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: the working directory has been removed: change to another one\n",
    )
