"""``check --compile``: what Triton says about the configs of a table, without a GPU."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diode_lut.errors import install_command
from diode_lut.templates.config import Config
from tests.commands import call

Write = Callable[..., Path]

KEY = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16}


def config(text: str) -> dict[str, Any]:
    return Config.parse(text).to_json()


def hardware(arch: str) -> dict[str, Any]:
    return {"name": "GPU", "arch": arch, "sm_count": 1}


SMALL_HEADS = {"k": [64, 256], "v": [64, 256]}
ATTENTION = [
    {"op": "flex_attention", **SMALL_HEADS, "configs": [config("triton_flex_attention 32x32 s2 w4")]},
    {
        "op": "flex_attention_backward",
        **SMALL_HEADS,
        "configs": [config("default"), config("triton_flex_attention_backward 16x16 16x16 s1 w4")],
    },
    {"op": "flex_decoding", **SMALL_HEADS, "configs": [config("triton_flex_decoding 32 s1 w2")]},
]
GROUPED = {"op": "grouped_mm", "configs": [config("triton_grouped_mm 16x64x64 s3 w4"), config("aten")]}
FLOAT8 = {"op": "scaled_mm", "configs": [config("triton_mm 32x32x64 g8 s3 w4")]}
GOOD = [
    {**KEY, "configs": [config("triton_mm 32x32x32 g8 s3 w4"), config("aten")]},
    {**KEY, "op": "bmm", "configs": [config("triton_bmm 32x32x32 g8 s3 w4")]},
]


@pytest.mark.parametrize(
    ("arch", "rows"),
    [
        (
            "sm_90",
            [
                {"op": "mm", "layout": "nn", "configs": [config("triton_mm 32x32x32 g8 s3 w4")]},
                {"op": "int_mm", "layout": "nt", "align": 2, "configs": [config("triton_mm 64x64x64 g8 s3 w4")]},
                *({**FLOAT8, "dtype": dtype} for dtype in ("float8_e4m3fn", "float8_e5m2")),
                *({**row, "dtype": "bfloat16"} for row in ATTENTION),
                GROUPED,
            ],
        ),
        pytest.param("sm_80", GOOD, marks=pytest.mark.slow),
        pytest.param("gfx942", [*GOOD, *({**row, "dtype": "bfloat16"} for row in ATTENTION)], marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_configs_that_compile_are_good(arch: str, rows: list[dict[str, Any]], table_file: Write) -> None:
    """A table of which everything compiles for its architecture has no problems; what is aten is not compiled."""
    result = call("check", "--compile", table_file(f"{arch}.json", *rows, hardware=hardware(arch)))
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.slow
def test_rows_for_any_op_are_not_those_of_bytes(table_file: Write) -> None:
    """A row that names no op is compiled for GEMMs, whose types are no float8 and no int8."""
    row = {"layout": "nt", "configs": [config("triton_mm 32x32x16 g8 s3 w4")]}
    result = call("check", "--compile", table_file("any.json", row))
    assert (result.exit_code, result.stdout) == (0, "")


def test_what_does_not_compile_is_reported(table_file: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """Each place with such a config is named, with what Triton says; rows that cannot be read are counted, too."""
    bad = {**KEY, "m": [1, 64], "configs": [config("aten"), config("triton_mm 32x32x32 g8 s3 w4")]}
    padded = {**KEY, "align": 2, "configs": [config("triton_mm 32x32x32 g8 s3 w4 pad8"), config("aten pad8")]}
    rows = [{"op": "mn", "configs": [config("aten")]}, {**bad, "m": [1, 32]}, bad, padded]
    path = table_file("mine.json", *rows, hardware=hardware("sm_20"))
    lines = [line for line in call("check", "--compile", path).stdout.splitlines() if "does not compile" in line]
    places = ["entries[1].configs[1]", "entries[2].configs[1]", "entries[3].configs[0]"]
    assert [line.split(": ")[1] for line in lines] == places
    assert "triton_mm 32x32x32 g8 s3 w4 for float16 nn align 16 does not compile for sm_20: " in lines[0]
    assert "triton_mm 32x32x32 g8 s3 w4 pad8 for float16 nn align 16 does not compile" in lines[2]


@pytest.mark.slow
def test_what_an_architecture_lacks_is_reported(table_file: Write) -> None:
    """Kernels for float8 do not compile where there is none; those with Triton's descriptors are not tried there."""
    path = table_file("old.json", FLOAT8, GROUPED, hardware=hardware("sm_80"))
    grouped, float8 = call("check", "--compile", path).stdout.splitlines()
    assert "entries[1].configs[0].template: triton_grouped_mm does not run on sm_80" in grouped
    assert "entries[0].configs[0]: triton_mm 32x32x64 g8 s3 w4 for float8_e" in float8
    assert "does not compile for sm_80" in float8


@pytest.mark.slow
def test_attention_that_does_not_compile_is_reported(table_file: Write) -> None:
    """Each such config is named with its line and with what it was compiled for, the smallest heads of its row."""
    path = table_file("mine.json", *[{**row, "dtype": "float16"} for row in ATTENTION], hardware=hardware("sm_35"))
    lines = [line for line in call("check", "--compile", path).stdout.splitlines() if "does not compile" in line]
    places = ["entries[0].configs[0]", "entries[1].configs[1]", "entries[2].configs[0]"]
    assert [line.split(": ")[1] for line in lines] == places
    kernels = ["triton_flex_attention", "triton_flex_attention_backward", "triton_flex_decoding"]
    written = path.read_text(encoding="utf-8").splitlines()
    numbers = [int(line.removeprefix(f"{path}:").split(":")[0]) for line in lines]
    assert all(f'"{kernel}"' in written[number - 1] for kernel, number in zip(kernels, numbers, strict=True))
    expected = (
        "triton_flex_decoding 32 s1 w2 for float16 align 16 and heads of 64 and 64 elements does not compile for sm_"
    )
    assert expected in lines[2]


def test_what_cannot_be_launched_is_reported_once(table_file: Write) -> None:
    """A config that check finds fault with anyway is not compiled."""
    path = table_file("mine.json", {**KEY, "configs": [config("triton_mm 128x128x256 g8 s8 w8")]})
    (line,) = call("check", "--compile", path).stdout.splitlines()
    assert "bytes of shared memory (sm_90 has 232448)" in line


def test_files_that_are_no_tables_are_reported_once(tmp_path: Path) -> None:
    """What cannot be read cannot be compiled."""
    result = call("check", "--compile", tmp_path / "missing.json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (2, 1)


@pytest.mark.parametrize(("arch", "code"), [("xpu-1", 1), ("sm_9x", 0)])
def test_architectures_that_triton_does_not_know(table_file: Write, arch: str, code: int) -> None:
    """There is no compiling for them, which is an error, but only if there is something to compile."""
    path = table_file("mine.json", {**KEY, "configs": [config("triton_mm 32x32x32 g8 s3 w4")]}, hardware=hardware(arch))
    result = call("check", "--compile", path)
    assert result.exit_code == 2
    assert f"error: {path}: Triton cannot compile for {arch} (allowed: sm_..., gfx...)" in result.stderr
    aten = table_file("mine.json", {**KEY, "configs": [config("aten")]}, hardware=hardware(arch))
    result = call("check", "--compile", aten)
    assert (result.exit_code, "is no architecture" in result.stdout) == (code, code == 1)


def test_missing_triton_is_a_clear_error(table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton is not installed, the message says what to install."""
    monkeypatch.setitem(sys.modules, "triton", None)
    path = table_file("mine.json", {**KEY, "configs": [config("triton_mm 32x32x32 g8 s3 w4")]})
    result = call("check", "--compile", path)
    assert result.exit_code == 2
    assert f"error: --compile needs Triton: {install_command('torch')}" in result.stderr
