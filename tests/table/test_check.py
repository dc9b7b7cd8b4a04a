"""check_file finds everything that is wrong at once, and says what to do."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.table import Entry, Table, read_table, write_table
from diode_lut.table.lint import check_file, contradictions, useless
from tests.strategies import share

Save = Callable[[str | bytes], Path]

ATEN = {"template": "aten"}
TRITON = {"block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}


def _gemm(template: str = "triton_mm", **params: int) -> dict[str, Any]:
    """A config of 64x64x32 in 4 stages and 4 warps, unless ``params`` say otherwise."""
    sizes = {"block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8, "num_stages": 4, "num_warps": 4}
    return {"template": template, **sizes, **params}


def _check(save: Save, good: str, *rows: Any, **header: Any) -> list[str]:
    document = {**json.loads(good), "entries": list(rows), **header}
    errors = check_file(save(json.dumps(document, indent=1)))
    return [f"{error.where}: {error.reason}" for error in errors if "canonical form" not in error.reason]


def test_a_good_table_has_no_errors(good: str, save: Save) -> None:
    """Nothing is reported for a table in which all is well."""
    assert check_file(save(good)) == []


def test_everything_is_reported_at_once(good: str, save: Save) -> None:
    """All faults of header and rows come in the order of lines, each with its line, path, finding and remedy."""
    text = good.replace('"sm_90"', "90").replace("[513, 1024]", "[1024, 513]").replace('"float16"', '"half"')
    text = text.replace('{"template": "aten"}\n], "note"', '{"template": "aten", "block_m": 96}\n], "nota"')
    path = save(text)
    assert [str(error).removeprefix(f"{path}:") for error in check_file(path)] == [
        "4:45: hardware.arch: 90 is not a name",
        "7:72: entries[0].m: [1024, 513] ends before it begins (allowed: [lowest, highest])",
        (
            '11:24: entries[1].dtype: "half" is not allowed (allowed: float16, bfloat16, float32, tf32, float8_e4m3fn, '
            "float8_e5m2, int8) (did you mean float16?)"
        ),
        "12:35: entries[1].configs[0].block_m: unknown field (known: template, pad, gain_permille)",
        (
            "13:12: entries[1].nota: unknown field (known: op, dtype, layout, align, epilogue, variant, b, m, n, k, "
            "h, g, v, x, y, r, loads, n_align, problems, configs, note)"
        ),
    ]


def test_a_fault_is_reported_once(good: str, save: Save) -> None:
    """Several rules of the schema refuse a config that is text, with one message."""
    assert _check(save, good, {"configs": ["aten"]}) == ['entries[0].configs[0]: "aten" is not {"template": ...}']


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (7, ': 7 is not {"configs": ...}'),
        ({}, ".configs: is missing (required: configs)"),
        ({"configs": []}, ".configs: [] is not a list of 1 to 4096"),
        ({"configs": [ATEN], "m": [1]}, ".m: [1] is not [lowest, highest]"),
        ({"configs": [ATEN], "m": [1, 2, 3]}, ".m: a list of 3 is not [lowest, highest]"),
        ({"configs": [ATEN], "m": [0, 2]}, ".m[0]: 0 is not an integer from 1 to 2147483647"),
        ({"configs": [ATEN], "problems": 2**31}, ".problems: 2147483648 is not an integer from 1 to 2147483647"),
        ({"configs": [{}]}, ".configs[0].template: is missing (required: template)"),
        ({"configs": [ATEN, {**ATEN, "gain_permille": 7}]}, ".configs[1]: aten is listed twice"),
        (
            {"configs": [{"template": "triton_mm", **TRITON, "block_m": 96}]},
            ".configs[0].block_m: 96 is not allowed (allowed: 16, 32, 64, 128, 256)",
        ),
    ],
)
def test_each_fault_of_a_row_is_explained(row: Any, expected: str, good: str, save: Save) -> None:
    """The message says where in the row the fault is, and what is allowed there."""
    assert _check(save, good, row) == [f"entries[0]{expected}"]


def test_faults_of_the_header_do_not_hide_those_of_rows(good: str, save: Save) -> None:
    """Rows are checked even if the header is wrong, and the header even if there are no rows to check."""
    hardware = {"name": "", "arch": "sm_90", "sm_count": 1}
    assert _check(save, good, {"configs": [ATEN, ATEN]}, hardware=hardware) == [
        'hardware.name: "" is not a name',
        "entries[0].configs[1]: aten is listed twice",
    ]
    assert _check(save, good, entries={}) == ["entries: an object is not a list"]


def test_one_fault_of_a_row_does_not_hide_another(good: str, save: Save) -> None:
    """A row that breaks the schema is checked for its meaning as well, as far as its fields can be read."""
    batched = {"template": "triton_bmm", **TRITON}
    rows = [
        {"op": "mm", "m": [9, 2], "b": [2, 2], "configs": [{"template": "triton_mm", **TRITON, "block_m": 96}]},
        {"op": "mm", "align": 3, "n": [9, 2], "configs": [batched]},
        {"op": "mm", "note": 1, "configs": [ATEN, ATEN]},
    ]
    assert _check(save, good, *rows) == [
        "entries[0].m: [9, 2] ends before it begins (allowed: [lowest, highest])",
        "entries[0].b: mm has no batch, so that only a range from 1 is ever asked for",
        "entries[0].configs[0].block_m: 96 is not allowed (allowed: 16, 32, 64, 128, 256)",
        "entries[1].align: 3 is not allowed (allowed: 2, 16)",
        "entries[1].n: [9, 2] ends before it begins (allowed: [lowest, highest])",
        "entries[1].configs[0].template: triton_bmm cannot do mm (it can do: bmm, baddbmm)",
        "entries[2].note: 1 is not a string",
        "entries[2].configs[1]: aten is listed twice",
    ]


def test_fields_that_are_written_twice_are_reported(good: str, save: Save) -> None:
    """JSON parsers keep the last of equal names silently, so that an edit could be lost."""
    text = good.replace('"m": [513, 1024]', '"m": [1, 2],\n"m": [1024, 513]').replace('"arch"', '"name": "x", "arch"')
    text = text.replace('{"template": "aten"}', '{"template": "aten", "template": "aten"}', 1)
    path = save(text)
    reason = "is written twice (only the last one counts)"
    assert [str(error).removeprefix(f"{path}:") for error in check_file(path)] == [
        f"4:45: hardware.name: {reason}",
        "8:6: entries[0].m: [1024, 513] ends before it begins (allowed: [lowest, highest])",
        f"8:6: entries[0].m: {reason}",
        f"10:36: entries[0].configs[1].template: {reason}",
    ]


def test_templates_must_be_able_to_do_the_op(good: str, save: Save) -> None:
    """A template that cannot do the row's op is reported; a row without an op may have any."""
    configs = [{"template": "triton_mm", **TRITON}, {"template": "triton_bmm", **TRITON}, ATEN]
    rows = [{"op": op, "configs": configs} if op else {"configs": configs} for op in ("mm", "bmm", None)]
    assert _check(save, good, *rows) == [
        "entries[0].configs[1].template: triton_bmm cannot do mm (it can do: bmm, baddbmm)",
        "entries[1].configs[0].template: triton_mm cannot do bmm (it can do: mm, addmm, scaled_mm, int_mm)",
    ]


def test_padding_that_never_happens_is_reported(good: str, save: Save) -> None:
    """Inductor pads some ops only, to multiples of 16 bytes, and not where the sizes are such multiples."""
    padded = {**ATEN, "pad": 8}
    fixed = {"op": "mm", "dtype": "float16", "m": [64, 64], "n": [1, 1]}
    rows = [
        {"op": "baddbmm", "configs": [padded]},
        {"op": "mm", "dtype": "float32", "configs": [padded]},
        {"op": "mm", "configs": [{**ATEN, "pad": 16}]},
        {**fixed, "k": [72, 72], "configs": [padded]},
        {**fixed, "k": [71, 71], "configs": [padded]},
        {**fixed, "k": [64, 72], "configs": [padded, {**_gemm(), "pad": 8}]},
        {"op": "addmm", "epilogue": "light", "configs": [ATEN, padded]},
    ]
    assert _check(save, good, *rows) == [
        "entries[0].configs[0].pad: Inductor does not pad baddbmm (it pads: mm, addmm, bmm)",
        "entries[1].configs[0].pad: Inductor does not pad float32 to multiples of 8 (it pads to 4)",
        "entries[2].configs[0].pad: Inductor does not pad any dtype to multiples of 16 (it pads to 4 or 8)",
        "entries[3].configs[0].pad: m, n and k are multiples of 8 already, so that nothing is padded",
        "entries[6].configs[1].pad: a kernel with an epilogue in it takes operands as they are",
    ]


def test_rows_that_nothing_can_reach_are_reported(good: str, save: Save) -> None:
    """No batch comes with mm and addmm, so that a row for 2 of them is never asked for; two such rows do not clash."""
    row = {"op": "mm", "b": [2, 3], "configs": [ATEN]}
    other = {"op": "mm", "b": [1, 3], "configs": [ATEN]}
    expected = ".b: mm has no batch, so that only a range from 1 is ever asked for"
    assert _check(save, good, row, row, other) == [f"entries[{number}]{expected}" for number in (0, 1)]


def test_a_row_for_an_epilogue_that_never_follows_its_op_has_that_fault_alone(good: str, save: Save) -> None:
    """Such a row covers nothing, but not because of its batch."""
    row = {"op": "scaled_mm", "dtype": "float8_e4m3fn", "variant": "row-bfloat16", "epilogue": "light"}
    expected = ["entries[0].epilogue: 'light' is not for scaled_mm (allowed: none)"]
    assert _check(save, good, {**row, "configs": [ATEN]}) == expected


def test_a_misspelt_op_or_variant_is_the_only_fault_of_its_row(good: str, save: Save) -> None:
    """The op of a row decides which fields it may have, and which variants."""
    split = {
        "op": "split-reduction",
        "variant": "inner",
        "x": [1, 8],
        "configs": [{"template": "in_parts", "parts": 8}],
    }
    joined = {"op": "joined_mm", "variant": "gate", "configs": [{"template": "default"}]}
    misspelt, variant = _check(save, good, split, joined)
    assert misspelt.startswith('entries[0].op: "split-reduction" is not allowed (allowed: mm, ')
    assert misspelt.endswith(" (did you mean split_reduction?)")
    assert variant.startswith('entries[1].variant: "gate" is not allowed (allowed: two, three, ')


def test_the_same_key_twice_is_reported(good: str, save: Save) -> None:
    """Rows with the same key are reported with the first of them, also if they differ only in a batch of 1."""
    row = {"op": "mm", "m": [1, 2], "configs": [ATEN]}
    other = {**row, "op": "addmm"}
    assert _check(save, good, row, other, {**row, "note": "again"}, {**row, "b": [1, 1]}) == [
        "entries[2]: has the same key as entries[0]",
        "entries[3]: has the same key as entries[0]",
    ]


def test_overlaps_of_the_same_specificity_are_reported(good: str, save: Save) -> None:
    """Of two rows that cover a problem equally specifically, the message names the problem and the other row."""
    row = {"op": "mm", "dtype": "tf32", "layout": "nt", "align": 16, "n": [1, 9], "k": [5, 5], "configs": [ATEN]}
    rows = [{**row, "m": [1, 4]}, {**row, "m": [5, 8]}, {**row, "m": [4, 7]}, {**row, "m": [1, 100]}]
    reason = "covers mm 4x1x5 tf32 nt align 16 with the same specificity as entries[0] (make one of them narrower)"
    assert _check(save, good, *rows) == [f"entries[2]: {reason}"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty (expected a table, which is a JSON object)"),
        ("{", "not JSON: "),
        ('{"schema_version": 3, "hardware": 1}', "expected 2, found 3 (written by a newer diode_lut: upgrade)"),
        ('{"schema_version": 2, "x": ' + "[" * 1000 + "]" * 1000 + "}", "unknown field"),
    ],
)
def test_a_file_that_is_no_table_is_reported(content: str, expected: str, save: Save) -> None:
    """What reading would raise is returned like any other error."""
    errors = check_file(save(content))
    assert any(expected in str(error) for error in errors)


@pytest.fixture
def recursion_limit() -> Iterator[None]:
    """Python's own limit, which Inductor raises in a process that compiles."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("recursion_limit")
def test_a_file_that_is_nested_too_deeply_is_reported(save: Save) -> None:
    """It is one error, not a RecursionError."""
    (error,) = check_file(save('{"schema_version": 2, "entries": [' + "[" * 1000 + "]" * 1000 + "]}"))
    assert "is nested too deeply to be a table" in str(error)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    """A file that cannot be read is one error."""
    (error,) = check_file(tmp_path / "gone.json")
    assert "cannot be read: No such file" in str(error)


@settings(max_examples=share(50))
@given(data=st.data())
def test_tables_that_are_written_are_valid(data: st.DataObject, draw_from: Any, tmp_path_factory: Any) -> None:
    """Of what is written, check reports only what is wrong with the rows as they are, and reading skips nothing."""
    table: Table = data.draw(draw_from.tables)
    path = tmp_path_factory.getbasetemp() / "check.json"
    write_table(table, path)
    entries: dict[int, Entry] = dict(enumerate(read_table(path).entries))
    expected = [
        *contradictions(entries),
        *(fault for entry in entries.values() for fault in useless(entry, table.hardware.arch)),
    ]
    assert len(check_file(path)) == len(expected)


@pytest.mark.parametrize(
    ("arch", "row", "expected"),
    [
        (
            "sm_90",
            {"op": "mm", "dtype": "float32", "configs": [_gemm(block_m=128, block_n=128, block_k=64, num_stages=4)]},
            "configs[0]: triton_mm 128x128x64 g8 s4 w4 needs 262272 bytes of shared memory (sm_90 has 232448)",
        ),
        (
            "sm_89",
            {"op": "bmm", "configs": [_gemm("triton_bmm", block_m=128, block_n=128, block_k=64, num_stages=5)]},
            "configs[0]: triton_bmm 128x128x64 g8 s5 w4 needs 131200 bytes of shared memory (sm_89 has 101376)",
        ),
        (
            "sm_90",
            {"op": "mm", "configs": [ATEN, _gemm(block_m=256, block_n=128, num_warps=2)]},
            "configs[1].num_warps: 2 do not go with a block of 256x128: 512 registers a thread (allowed: 254)",
        ),
        (
            "sm_86",
            {"op": "mm", "configs": [{"template": "cpp_gemm"}]},
            "configs[0].template: cpp_gemm does not run on sm_86 (what does: "
            + ", ".join(("aten", "triton_mm", "triton_bmm", "decompose_k", "triton_few_rows)")),
        ),
        (
            "cpu-avx512",
            {"op": "mm", "configs": [_gemm()]},
            "configs[0].template: triton_mm does not run on cpu-avx512 (what does: aten, cpp_gemm)",
        ),
        (
            "sm_90",
            {"op": "mm", "configs": [_gemm("triton_mm_persistent_tma", num_warps=2)]},
            "configs[0].num_warps: Inductor makes no kernels with TMA and 2 warps",
        ),
        (
            "sm_90",
            {"op": "mm", "align": 2, "configs": [_gemm("triton_mm_persistent_tma")]},
            "configs[0].template: triton_mm_persistent_tma needs an align of 16",
        ),
        (
            "sm_90",
            {"op": "mm", "k": [1000, 1023], "configs": [{"template": "decompose_k", "k_split": 64}]},
            "configs[0].k_split: 64 divides no k of the row (1000 to 1023)",
        ),
    ],
)
def test_configs_that_cannot_be_launched_are_reported(
    arch: str, row: dict[str, Any], expected: str, good: str, save: Save
) -> None:
    """What the hook would pass over on the table's architecture is named, with what is needed and what there is."""
    hardware = {"name": "GPU", "arch": arch, "sm_count": 1}
    assert _check(save, good, row, hardware=hardware) == [f"entries[0].{expected}"]


@pytest.mark.parametrize(
    "row",
    [
        {"op": "mm", "configs": [_gemm(block_m=128, block_n=128, block_k=64, num_stages=4)]},
        {"op": "mm", "align": 16, "configs": [_gemm("triton_mm_persistent_tma")]},
        {"op": "mm", "k": [1000, 1024], "configs": [{"template": "decompose_k", "k_split": 64}]},
    ],
)
def test_configs_that_can_be_launched_for_some_problem_are_good(row: dict[str, Any], good: str, save: Save) -> None:
    """A row that leaves the dtype or the sizes open is held against the easiest of its problems."""
    assert _check(save, good, row) == []


def test_architectures_without_known_limits_are_not_judged(good: str, save: Save) -> None:
    """Where it is not known how much shared memory there is, nothing is said about it."""
    row = {"op": "mm", "configs": [_gemm(block_m=256, block_n=128, block_k=256, num_stages=8, num_warps=16)]}
    assert _check(save, good, row, hardware={"name": "GPU", "arch": "gfx700", "sm_count": 1}) == []


def test_rows_that_narrower_rows_leave_nothing_are_reported(good: str, save: Save) -> None:
    """A range is of no use where exact rows answer for all of it."""
    row = {"op": "mm", "dtype": "tf32", "layout": "nt", "align": 16, "n": [9, 9], "k": [5, 5], "configs": [ATEN]}
    rows = [{**row, "m": [1, 2]}, {**row, "m": [1, 1]}, {**row, "m": [2, 2]}]
    reason = "is never used: more specific rows cover all of its problems"
    assert _check(save, good, *rows) == [f"entries[0]: {reason}"]


def test_rows_for_other_values_of_n_are_not_reported(good: str, save: Save) -> None:
    """Rows with another ``n_align`` neither clash nor cover each other; rows without one do both."""
    row = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16, "k": [64, 64], "configs": [ATEN]}
    aligned = [{**row, "m": m, "n": [1024, 4096], "n_align": 16} for m in ([1, 8], [9, 16])]
    rest = {**row, "m": [1, 16], "n": [1024, 4096]}
    odd = {**row, "m": [1, 8], "n": [1023, 4095], "n_align": 2}
    assert _check(save, good, *aligned, rest, odd) == []
    reason = (
        "covers mm 1x1024x64 float16 nn align 16 with the same specificity as entries[0] (make one of them narrower)"
    )
    assert _check(save, good, {**row, "m": [1, 8], "n": [1024, 4096]}, aligned[0]) == [f"entries[1]: {reason}"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"op": "scaled_mm"}, "needs an op (allowed: mm, addmm, bmm, baddbmm) and a dtype"),
        ({"op": "mm"}, "needs an op (allowed: mm, addmm, bmm, baddbmm) and a dtype"),
        ({"op": "mm", "dtype": "tf32", "n": [5, 5]}, "is for a range of n (leave it out)"),
        ({"op": "mm", "dtype": "tf32", "n": [5, 7]}, "no n from 5 to 7 is a multiple of 4"),
    ],
)
def test_n_align_that_means_nothing_is_reported(fields: dict[str, Any], reason: str, good: str, save: Save) -> None:
    """A row for some values of N needs to say for which type, and a range in which there are some."""
    assert _check(save, good, {**fields, "n_align": 16, "configs": [ATEN]}) == [f"entries[0].n_align: {reason}"]


def test_what_a_merge_left_open_is_reported(good: str, save: Save) -> None:
    """A note that says so is a fault until somebody decides; other notes are not."""
    note = "mine; merge conflict: ours aten, theirs decompose_k 2"
    rows = [{"op": "mm", "configs": [ATEN], "note": note}, {"op": "bmm", "configs": [ATEN], "note": "after a merge"}]
    (found,) = _check(save, good, *rows)
    assert found.startswith(
        "entries[0].note: 'merge conflict: ours aten, theirs decompose_k 2' is not decided (keep or"
    )


def test_another_form_is_reported_with_its_first_line(good: str, save: Save) -> None:
    """A file that says the same in another form is named, with the first line that fmt would change."""
    path = save(good.replace('"sm_count": 132, ', '"sm_count":132, '))
    assert [str(error) for error in check_file(path)] == [f"{path}:4:1: is not in canonical form (fmt writes it so)"]
    assert [error.line for error in check_file(save(good + " "))] == [len(good.splitlines()) + 1]
    row = {"op": "mm", "m": [9, 2], "configs": [ATEN]}
    (error,) = check_file(save(json.dumps({**json.loads(good), "entries": [row]})))
    assert "ends before it begins" in error.reason
