"""What people type for a file: names of tables, ``-``, and files in git's history."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import diode_lut
from diode_lut.cli import main
from diode_lut.cli.arguments import hardware_of
from diode_lut.dataset import read_dataset
from diode_lut.errors import CollectError, HardwareError, ProblemError
from diode_lut.hardware import KNOWN, Hardware, architecture, known_gpu, slug
from diode_lut.measure.problems import read_problems
from diode_lut.model import parse_family
from diode_lut.problem import Problem
from diode_lut.table import read_table
from tests.commands import call
from tests.distill import synthetic

ROW = {"op": "mm", "m": [1, 8], "configs": [{"template": "aten"}]}
Write = Callable[..., Path]


def piped(data: str | bytes, *arguments: object) -> Result:
    """What a command does with this on its standard input."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=data)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show",), "NVIDIA H200 (sm_90, 132 SMs)"),
        (("query",), '"hardware"'),
        (("check",), ""),
        (("diff",), "no differences"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_shipped_tables_have_names(arguments: tuple[str, ...], words: str) -> None:
    """Where a table is read, the name of a shipped one, or of its GPU, does."""
    more = {"query": ["{hardware: hardware}"], "diff": ["NVIDIA H200"]}.get(arguments[0], [])
    result = call(*arguments, "nvidia-h200", *more)
    assert result.exit_code == 0, result.output
    assert words in result.stdout


@pytest.mark.parametrize("name", ["H200", "h200", "NVIDIA H200", "nvidia_h200"])
def test_a_gpu_means_its_table(name: str) -> None:
    """What people call a GPU is enough for its table, and for --hardware."""
    assert call("query", name, "hardware.name").stdout == '"NVIDIA H200"\n'
    assert "NVIDIA H200 (sm_90, 132 SMs)" in call("explain", "mm", 8, 8, 8, "--hardware", name).stdout


def test_a_misspelt_name_gets_the_nearest() -> None:
    """The message has the known names, and the one that was probably meant."""
    result = call("show", "nvidia-h20")
    assert result.exit_code == 2
    assert "no table of that name" in result.stderr
    assert "(did you mean nvidia-h200?)" in result.stderr


def test_tables_of_ones_own_have_names(table_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that ``tables`` prints for one of them is read and changed; if a shipped one has it, that is meant."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "diode_lut").mkdir(parents=True)
    own = table_file(
        "config/diode_lut/tables/amd-x-8.json", ROW, hardware={"name": "X", "arch": "cpu-avx2", "sm_count": 8}
    )
    table_file("config/diode_lut/tables/nvidia-h200.json", ROW)
    assert "amd-x-8  X (cpu-avx2, 8 threads)" in call("tables").stdout
    assert call("show", "amd-x-8").stdout == call("show", own).stdout
    assert call("set", "amd-x-8", "bmm", "--config", "aten", "--note", "x").exit_code == 0
    assert "bmm" in own.read_text()
    assert "a shipped table" in call("fmt", "nvidia-h200").stderr
    assert "; your own: amd-x-8, nvidia-h200) (did you mean amd-x-8?)" in call("show", "amd-x-9").stderr


@pytest.mark.parametrize("command", ["fmt nvidia-h200", "set nvidia-h200 mm --m 3 --config aten --note x"])
def test_shipped_tables_are_not_changed_by_name(command: str) -> None:
    """What is changed is a file, so the message says how to get one."""
    result = call(*command.split())
    assert result.exit_code == 2
    assert "a shipped table, which is not changed by its name (give the path of a file" in result.stderr


def test_standard_input_and_output(table_file: Write) -> None:
    """``-`` is standard input, and where a file would be changed or written, standard output."""
    text = table_file("a.json", ROW).read_text()
    loose = json.dumps(json.loads(text))
    assert piped(loose, "fmt", "-").stdout == text
    assert piped(text, "check", "-").exit_code == 0
    assert piped(loose, "check", "-").stdout.startswith("<stdin>:1:1: is not in canonical form")
    changed = piped(text, "set", "-", "bmm", "--m", "3", "--config", "aten", "--note", "x")
    assert [entry["op"] for entry in json.loads(changed.stdout)["entries"]] == ["mm", "bmm"]
    assert changed.stderr.startswith("+ bmm")
    assert piped(text, "query", "-", "length(entries)").stdout == "1\n"


def test_standard_input_is_read_once(table_file: Write) -> None:
    """Two files cannot both be standard input."""
    result = piped("{}", "diff", "-", "-")
    assert (result.exit_code, "can be read only once" in result.stderr) == (2, True)


def test_timings_come_through_a_pipe(tmp_path: Path) -> None:
    """A dataset on standard input is built into a table on standard output, as it is from a file."""
    data = synthetic.write(tmp_path / "d.msgpack", 20).read_bytes()
    built = piped(data, "build", "-", "-o", "-")
    assert built.exit_code == 0, built.output
    call("build", tmp_path / "d.msgpack", "-o", tmp_path / "t.json")
    assert built.stdout == (tmp_path / "t.json").read_text()
    (tmp_path / "t.json").write_text(built.stdout)
    figures = piped(data, "evaluate", tmp_path / "t.json", "-", "--format", "json")
    assert json.loads(figures.stdout)["rows"] == len(json.loads(built.stdout)["entries"])


def test_datasets_go_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pack`` and ``import`` write a dataset to standard output, and it is what they write to a file."""
    monkeypatch.chdir(tmp_path)
    data = synthetic.write(tmp_path / "d.msgpack", 20).read_bytes()
    assert call("pack", "d.msgpack", "-o", "p.msgpack.zst").exit_code == 0
    packed = piped(data, "pack", "-", "-o", "-")
    assert packed.stdout_bytes == Path("p.msgpack.zst").read_bytes()
    assert "20 problems" in packed.stderr
    results = "Validator,PT_VERSION,2.9.0\nGemmTunableOp_Half_NN,nn_64_64_64,Default,0.02\n"
    imported = piped(results, "import", "tunableop", "-", "-o", "-", "--hardware", "H200")
    assert piped(imported.stdout_bytes, "query", "-", "length(records)").stdout == "1\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.msgpack", "p.msgpack.zst"]


def test_tables_are_explained_through_a_pipe(table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """``explain --table -`` answers as the table does as a file, also for its own hardware by name."""
    path = table_file("x.json", ROW)
    monkeypatch.chdir(path.parent)
    explain = ("explain", "mm", 8, 8, 8, "--hardware", "H200", "--table")
    text = call(*explain, "x.json").stdout
    assert "x.json" in text
    assert piped(path.read_text(), *explain, "-").stdout == text.replace("x.json:7", "<stdin>")


def test_solutions_come_through_a_pipe(tmp_path: Path) -> None:
    """A max-autotune solution of torch-diode on standard input is the baseline that it is as a file."""
    synthetic.write(tmp_path / "d.msgpack", 3)
    config = {"block_m": 32, "block_n": 64, "block_k": 64, "group_m": 8, "num_stages": 4, "num_warps": 4}
    (tmp_path / "s.json").write_text(json.dumps({"config": [config]}))
    evaluate = ("evaluate", "H200", tmp_path / "d.msgpack", "--format", "json", "--against")
    evaluated = json.loads(call(*evaluate, tmp_path / "s.json").stdout)
    through_a_pipe = json.loads(piped((tmp_path / "s.json").read_text(), *evaluate, "-").stdout)
    assert evaluated.pop("against") == "s.json"
    assert through_a_pipe.pop("against") == "<stdin>"
    assert through_a_pipe == evaluated


@pytest.mark.parametrize(
    "typed",
    [
        "collect --random 1 -o -",
        "run --receipt - -- true",
        "tune --table - -- true",
        "compare -o - -- true",
        "distill d.msgpack -o -",
        "distill d.msgpack -o m.mlp.safetensors --picture -",
        "verify H200 -o -",
        "adopt --budget 1 -o -",
    ],
)
def test_what_cannot_be_standard_output_is_refused(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file or directory called ``-`` is made where somebody means standard output."""
    monkeypatch.chdir(tmp_path)
    result = call(*typed.split())
    assert (result.exit_code, "standard output (-) is not possible here: give a name" in result.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


def test_datasets_are_shown_and_queried(tmp_path: Path) -> None:
    """``show`` prints every time, ``query`` sees problems, stages and timings, the fastest first."""
    path = tmp_path / "d.msgpack"
    synthetic.write(path, 3)
    records = list(read_dataset(path))
    lines = call("show", path).stdout.splitlines()
    assert f"{records[0].problem} {records[0].stage}" in lines
    assert len([line for line in lines if line.startswith("  ")]) == sum(len(record.timings) for record in records)
    found = json.loads(call("query", path, "records[*].timings[].ns").stdout)
    assert sorted(found) == sorted(timing.ns for record in records for timing in record.timings if timing.ns)
    assert min(timing.ns for timing in records[0].timings if timing.ns) == found[0]


def test_files_in_gits_history(tmp_path: Path, table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """``REVISION:PATH`` is the file as git has it, which can be read and not changed."""
    path = table_file("x.json", ROW)
    monkeypatch.chdir(path.parent)
    identity = ("-c", "user.name=x", "-c", "user.email=x")
    for arguments in (("init", "--quiet"), ("add", "x.json"), (*identity, "commit", "--quiet", "-m", "x")):
        subprocess.run(["git", *arguments], check=True)
    assert call("set", "x.json", "bmm", "--config", "aten", "--note", "x").exit_code == 0
    result = call("diff", "HEAD:x.json", "x.json")
    assert result.exit_code == 1
    assert result.stdout.startswith("HEAD:x.json -> x.json\nadded")
    assert call("diff", ":./x.json", "HEAD:x.json").exit_code == 0, "what is staged"
    assert "is in git's history, which is not changed" in call("fmt", "HEAD:x.json").stderr
    missing = call("diff", "HEAD:y.json", "x.json")
    assert missing.exit_code == 2
    assert "no such file, and git has none either: fatal: path 'y.json' does not exist in 'HEAD'" in missing.stderr


def test_types_layouts_and_sizes_are_spelled_as_people_do(table_file: Write) -> None:
    """``bf16``, ``NT`` and ``1k`` mean what they mean elsewhere, on the command line as in problem files."""
    path = table_file("x.json", {"op": "mm", "dtype": "bfloat16", "layout": "nt", "configs": [{"template": "aten"}]})
    explained = call(
        "explain", "MM", "1k", "4K", "1_024", "--dtype", "bf16", "--layout", "NT", "--hardware", "nvidia-h200"
    )
    assert "mm 1024x4096x1024 bfloat16 nt align 16" in explained.stdout
    key = ("Mm", "--m", "513-1k", "--dtype", "torch.float16", "--layout", "Tn")
    assert call("set", path, *key, "--config", "aten", "--note", "x").exit_code == 0
    assert "mm float16 tn m 513-1024" in call("show", path).stdout
    refused = call("set", path, "mm", "--m", "1x", "--config", "aten", "--note", "x")
    assert (refused.exit_code, "'1x' is neither a size nor a range like 513-1024" in refused.stderr) == (2, True)


def test_problem_files_are_spelled_as_people_do(tmp_path: Path) -> None:
    """A problem file may say ``MM``, ``bf16``, ``NT`` and ``"1k"`` as well."""
    path = tmp_path / "p.json"
    sizes = {"M": "1k", "N": 8, "K": 8}
    path.write_text(
        json.dumps([{"op": "MM", "dtype": "bf16", "layout": "NT", **sizes}, {"op": "Addmm", "dtype": "half", **sizes}])
    )
    mm = Problem.of("mm", 1024, 8, 8, dtype="bfloat16", layout="nt")
    assert read_problems(path) == [mm, Problem.of("addmm", 1024, 8, 8, dtype="float16", layout="nn")]
    path.write_text(path.read_text().replace("1k", "1x"))
    with pytest.raises(CollectError, match=r"p.json: \[0\].m: '1x' is not a size"):
        read_problems(path)


def test_problems_in_python_are_spelled_as_people_do() -> None:
    """``Problem.of`` takes the spellings of the command line, torch's types, and sizes as text."""
    plain = Problem.of("bmm", 1024, 8, 8, dtype="bfloat16", layout="nt", b=4)
    assert Problem.of("BMM", "1k", 8, "8", dtype="bf16", layout="NT", b="4") == plain
    with pytest.raises(ProblemError, match=r"^n: '8x' is not a size"):
        Problem.of("mm", 8, "8x", 8, dtype="bf16", layout="NT")
    scaled = Problem.of("scaled_mm", 16, 16, 16, dtype="fp8", layout="nt", variant="Row-BF16-fast")
    assert scaled.variant == "row-bfloat16-fast"
    torch = pytest.importorskip("torch")
    assert Problem.of("bmm", 1024, 8, 8, dtype=torch.bfloat16, layout="nt", b=4) == plain


@pytest.mark.parametrize("size", ["9" * 5000, "1" + "_" * 5000])
def test_no_size_has_thousands_of_digits(size: str) -> None:
    """Such text is refused as any other that is no size."""
    refused = call("explain", "mm", size, 8, 8, "--hardware", "H200")
    assert (refused.exit_code, "is not a size" in refused.stderr) == (2, True)


def test_variants_are_spelled_as_people_do() -> None:
    """The type in a variant may be a short name."""
    explain = ("explain", "scaled_mm", 16, 16, 16, "--hardware", "H200", "--epilogue", "None", "--variant")
    assert call(*explain, "row-bf16").stdout == call(*explain, "row-bfloat16").stdout
    assert "scaled_mm row-bfloat16 16x16x16" in call(*explain, "Row-BF16").stdout


def test_conditions_and_dynamic_sizes_are_spelled_as_people_do() -> None:
    """``--leave-out`` and ``--dynamic`` take the same spellings as arguments do."""
    assert parse_family("OP=MM,dtype=bf16,layout=NT,m=1:1k") == parse_family("op=mm,dtype=bfloat16,layout=nt,m=1:1024")
    text, short = (
        call("explain", "mm", 8, 8, 8, "--dynamic", each, "--hardware", "H200") for each in ("m=1:8192", "M=1:8k")
    )
    assert text.exit_code == 0
    assert short.stdout == text.stdout


def test_shape_sets_are_spelled_as_people_do(tmp_path: Path) -> None:
    """The types of torch-diode's shape sets may have torch's names, or short ones."""
    shape = {"B": 1, "M": 8, "N": 8, "K": 8} | dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "torch.float16")
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"shapes": [shape, {**shape, "M": 16, "M_dtype": "fp16"}]}))
    assert [problem.dtype for problem in read_problems(path)] == ["float16", "float16"]


@pytest.mark.parametrize("name", ["aten.mm", "aten::mm", "torch.mm", "torch.ops.aten.mm.default", "MM"])
def test_ops_are_spelled_as_pytorch_prints_them(name: str) -> None:
    """Names with the library before them, or the underscore of private functions, are those of ops."""
    assert Problem.of(name, 8, 8, 8, dtype="bf16", layout="nn").op == "mm"
    assert Problem.of("torch._int_mm", 32, 32, 32, dtype="i8", layout="nt").op == "int_mm"


def test_what_is_no_problem_is_refused() -> None:
    """The message says what makes one; names of functions that are nearly right get the right one."""
    for function in (diode_lut.select, diode_lut.explain):
        with pytest.raises(ProblemError, match=r"'mm 8 8 8' is not a Problem \(diode_lut.Problem.of makes one\)"):
            function("mm 8 8 8", hardware="H200")  # type: ignore[operator]
    with pytest.raises(AttributeError) as raised:
        diode_lut.regster_table  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("regster_table", diode_lut)


def test_known_gpus_need_no_description(tmp_path: Path) -> None:
    """The name of a well-known GPU says its architecture and multiprocessors, with the names that drivers give it."""
    assert hardware_of("a100").same_device(Hardware("NVIDIA A100-SXM4-40GB", "sm_80", 108))
    assert hardware_of("h100-pcie") == hardware_of("H100PCIe") == known_gpu("NVIDIA H100 PCIe")
    assert hardware_of("rtx4090") == hardware_of("RTX 4090")
    with pytest.raises(HardwareError, match="x100: no table is for hardware of that name"):
        hardware_of("x100")


def test_known_gpus_have_one_meaning() -> None:
    """No two known GPUs share a name, and all of their architectures are known or AMD's."""
    names = [name for gpu in KNOWN for name in {slug(each).replace("-", "") for each in (gpu.name, *gpu.aliases)}]
    assert len(names) == len(set(names))
    assert all(gpu.arch.startswith("gfx") or architecture(gpu.arch).shared_memory for gpu in KNOWN)


@pytest.mark.parametrize(
    ("name", "inside"), [("d.json", "NVIDIA H100 80GB HBM3"), ("matmul_nvidia_h100_deep.json", "unknown")]
)
def test_torch_diodes_files_may_say_the_device(name: str, inside: str, tmp_path: Path) -> None:
    """What the file calls its hardware is enough to build a table, and so is the file's name."""
    key = dict.fromkeys("BMNK", 64) | {"B": 1} | dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "float16")
    config = dict.fromkeys(("block_m", "block_n", "block_k"), 64) | {"group_m": 8, "num_stages": 3, "num_warps": 4}
    solution = {json.dumps(key): {"timed_configs": [{"config": config, "time": 0.01}]}}
    document = {"hardware": {inside: {"operation": {"mm": {"solution": solution}}}}}
    (tmp_path / name).write_text(json.dumps(document))
    assert call("build", tmp_path / name, "-o", tmp_path / "t.json").exit_code == 0
    assert read_table(tmp_path / "t.json").hardware.same_device(hardware_of("H100"))


def test_imports_come_through_a_pipe(tmp_path: Path) -> None:
    """A file of another tool on standard input is imported, and the table is all that is on standard output."""
    shipped = call("export", "torch-diode-table", "nvidia-h200", "-o", "-")
    assert shipped.exit_code == 0, shipped.output
    result = piped(shipped.stdout, "import", "torch-diode-table", "-", "-o", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["hardware"]["name"] == "NVIDIA H200"
    assert "not Inductor's cache directory" in piped("", "import", "inductor-cache", "-", "-o", tmp_path / "x").stderr


@pytest.mark.parametrize("command", ["show", "check", "fmt", "query - x"])
def test_standard_input_has_the_limits_of_files(command: str) -> None:
    """What is too large for a table is refused before it is parsed, wherever it comes from."""
    name, *more = command.split()
    result = piped(b"{" + b" " * (64 << 20) + b"}", name, *(more or ["-"]))
    assert result.exit_code == 2
    assert "<stdin>: cannot be read: too large (allowed: 64 MiB)" in result.output
