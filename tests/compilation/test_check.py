"""``check --compile``: what Triton says about the configs of a table, without a GPU."""

from __future__ import annotations

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


def test_configs_that_compile_are_good(table_file: Write) -> None:
    """A table of which everything compiles for its architecture has no problems; aten needs no compiling."""
    rows = [
        {**KEY, "configs": [config("triton_mm 32x32x32 g8 s3 w4"), config("aten")]},
        {**KEY, "op": "bmm", "configs": [config("triton_bmm 32x32x32 g8 s3 w4")]},
    ]
    for arch in ("sm_90", "sm_80", "gfx942"):
        result = call("check", "--compile", table_file(f"{arch}.json", *rows, hardware=hardware(arch)))
        assert (result.exit_code, result.stdout) == (0, "")


def test_types_of_a_byte_compile(table_file: Write) -> None:
    """Rows for float8 and int8 are compiled for what these ops multiply and return; any other row is not."""
    fits = {"configs": [config("triton_mm 64x64x64 g8 s3 w4")]}
    rows = [
        {"op": "scaled_mm", "dtype": "float8_e4m3fn", **fits},
        {"op": "scaled_mm", "dtype": "float8_e5m2", **fits},
        {"op": "int_mm", "layout": "nt", "align": 2, **fits},
        {"layout": "nt", "configs": [config("triton_mm 32x32x16 g8 s3 w4")]},
    ]
    result = call("check", "--compile", table_file("bytes.json", *rows))
    assert (result.exit_code, result.stdout) == (0, "")


def test_padded_operands_are_aligned(table_file: Write) -> None:
    """A kernel on padded operands is compiled for aligned rows, whatever the row says of the operands before that."""
    row = {**KEY, "align": 2, "configs": [config("triton_mm 32x32x32 g8 s3 w4 pad8"), config("aten pad8")]}
    (line,) = call("check", "--compile", table_file("mine.json", row, hardware=hardware("sm_20"))).stdout.splitlines()
    assert "triton_mm 32x32x32 g8 s3 w4 pad8 for float16 nn align 16 does not compile" in line


def test_what_does_not_compile_is_reported(table_file: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """Each place with such a config is named, with what Triton says, and Triton itself prints nothing.

    Rows that cannot be read are counted, too.
    """
    bad = {**KEY, "m": [1, 64], "configs": [config("aten"), config("triton_mm 32x32x32 g8 s3 w4")]}
    rows = [{"op": "mn", "configs": [config("aten")]}, {**bad, "m": [1, 32]}, bad]
    path = table_file("mine.json", *rows, hardware=hardware("sm_20"))
    lines = [line for line in call("check", "--compile", path).stdout.splitlines() if "does not compile" in line]
    assert [line.split(": ")[1] for line in lines] == ["entries[1].configs[1]", "entries[2].configs[1]"]
    assert "triton_mm 32x32x32 g8 s3 w4 for float16 nn align 16 does not compile for sm_20: " in lines[0]


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


def test_attention_is_compiled(table_file: Write) -> None:
    """Each kernel of attention compiles; the default is Inductor's to compile."""
    rows = [{**row, "dtype": "bfloat16"} for row in ATTENTION]
    for arch in ("sm_90", "gfx942"):
        result = call("check", "--compile", table_file(f"{arch}.json", *rows, hardware=hardware(arch)))
        assert (result.exit_code, result.stdout) == (0, "")


def test_grouped_matmuls_are_compiled(table_file: Write) -> None:
    """A row's kernel compiles from sm_90, and on what Triton has no descriptors for it is reported."""
    row = {"op": "grouped_mm", "configs": [config("triton_grouped_mm 16x64x64 s3 w4"), config("aten")]}
    result = call("check", "--compile", table_file("new.json", row, hardware=hardware("sm_90")))
    assert (result.exit_code, result.stdout) == (0, "")
    result = call("check", "--compile", table_file("old.json", row, hardware=hardware("sm_80")))
    assert "triton_grouped_mm" in result.stdout


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


def test_float8_is_compiled(table_file: Write) -> None:
    """Kernels of scaled_mm compile where there is float8; elsewhere that is what is wrong with them."""
    row = {"op": "scaled_mm", "configs": [config("triton_mm 32x32x64 g8 s3 w4")]}
    assert call("check", "--compile", table_file("new.json", row, hardware=hardware("sm_90"))).stdout == ""
    (line,) = call("check", "--compile", table_file("old.json", row, hardware=hardware("sm_80"))).stdout.splitlines()
    assert "entries[0].configs[0]: triton_mm 32x32x64 g8 s3 w4 for float8_e" in line
    assert "does not compile for sm_80" in line


def test_rows_for_any_dtype(table_file: Write) -> None:
    """A row of GEMMs that names no dtype is compiled for those that its op has."""
    row = {"op": "mm", "layout": "nn", "configs": [config("triton_mm 32x32x32 g8 s3 w4")]}
    assert call("check", "--compile", table_file("mine.json", row)).stdout == ""


def test_what_cannot_be_launched_is_reported_once(table_file: Write) -> None:
    """A config that check finds fault with anyway is not compiled."""
    path = table_file("mine.json", {**KEY, "configs": [config("triton_mm 128x128x256 g8 s8 w8")]})
    (line,) = call("check", "--compile", path).stdout.splitlines()
    assert "bytes of shared memory (sm_90 has 232448)" in line


def test_files_that_are_no_tables_are_reported_once(tmp_path: Path) -> None:
    """What cannot be read cannot be compiled."""
    result = call("check", "--compile", tmp_path / "missing.json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (2, 1)


@pytest.mark.parametrize("arch", ["xpu-1", "sm_9x"])
def test_architectures_that_triton_does_not_know(table_file: Write, arch: str) -> None:
    """There is no compiling for them, which is an error, but only if there is something to compile."""
    path = table_file("mine.json", {**KEY, "configs": [config("triton_mm 32x32x32 g8 s3 w4")]}, hardware=hardware(arch))
    result = call("check", "--compile", path)
    assert result.exit_code == 2
    assert f"error: {path}: Triton cannot compile for {arch} (allowed: sm_..., gfx...)" in result.stderr
    aten = table_file("mine.json", {**KEY, "configs": [config("aten")]}, hardware=hardware(arch))
    assert call("check", "--compile", aten).exit_code == 0


def test_missing_triton_is_a_clear_error(table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton is not installed, the message says what to install."""
    monkeypatch.setitem(sys.modules, "triton", None)
    path = table_file("mine.json", {**KEY, "configs": [config("triton_mm 32x32x32 g8 s3 w4")]})
    result = call("check", "--compile", path)
    assert result.exit_code == 2
    assert f"error: --compile needs Triton: {install_command('torch')}" in result.stderr
