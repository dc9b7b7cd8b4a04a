import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from write_problem_sets import SETS as WRITTEN
from write_problem_sets import as_file

from diode_lut.dataset import DatasetWriter, Header, Record, Timing, pack, read_dataset
from diode_lut.errors import CollectError
from diode_lut.hardware import Hardware
from diode_lut.measure import SETS
from diode_lut.measure.problems import BLOCK, SETS_DIRECTORY, problem_set, read_kernels, read_problems
from diode_lut.measure.tasks import family_of
from diode_lut.problem import ALIGNS, ATTENTION, BATCHED, MASKS, Modifications, Problem
from diode_lut.table import Candidate, Entry, Table, write_table
from diode_lut.templates.config import ATEN
from tests.strategies import kinds

MM = {"op": "mm", "B": 1, "M": 64, "N": 96, "K": 128, "dtype": "float16", "layout": "nt"}


def write(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_problems_come_once_and_in_order(tmp_path: Path) -> None:
    """Keys that are not known are ignored, repeated problems dropped, and the order kept."""
    document = [{**MM, "src": ["a model"]}, {**MM, "op": "bmm", "B": 3}, {**MM, "src": ["another"]}]
    assert read_problems(write(tmp_path / "problems.json", document)) == [
        Problem("mm", "float16", "nt", 16, 1, 64, 96, 128),
        Problem("bmm", "float16", "nt", 16, 3, 64, 96, 128),
    ]


@pytest.mark.parametrize(
    ("fields", "align"), [({"K": 127}, 2), ({}, 16), ({"align": 2}, 2), ({"K": 127, "align": 16}, 16)]
)
def test_alignment_is_that_of_packed_operands_unless_given(tmp_path: Path, fields: dict[str, int], align: int) -> None:
    """Without ``align`` the sizes decide; with it they do not."""
    (problem,) = read_problems(write(tmp_path / "problems.json", [{**MM, **fields}]))
    assert problem.align == align


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", ":1: not JSON: "),
        ("[1,\n 2", ":2: not JSON: "),
        ({"op": "mm"}, ": expected a list of problems, found one object: put it in []"),
        ([], ": expected a list of problems, found an empty list"),
        ([MM, 7], ": [1]: expected an object with op, dtype, M, N, K, found int"),
        ([MM, {"op": "mm"}], ": [1].dtype: missing (needed: op, dtype, M, N, K)"),
        (
            [{"op": "reduction", "variant": "inner", "X": 8, "r": 8}],
            ": [0].R: missing (needed: op, variant, X, R; sizes",
        ),
        ([{"op": "reduction", "variant": "flat", "X": 8, "R": 8}], ": [0].variant: 'flat' is not for reduction"),
        ([{**MM, "dtype": "int4"}], ": [0].dtype: 'int4' is not one of float16, bfloat16, float32, tf32"),
        ([{**MM, "op": ["mm"]}], ": [0].op: ['mm'] is not one of mm, addmm, bmm, baddbmm"),
        ([{**MM, "layout": "NX"}], ": [0].layout: 'nx' is not one of nn, nt, tn, tt"),
        ([{**MM, "M": 0}], ": [0].m: 0 is not an integer from 1 to 2147483647"),
        ([{**MM, "K": 64.0}], ": [0].k: 64.0 is not an integer from 1 to 2147483647"),
        ([{**MM, "N": True}], ": [0].n: True is not an integer from 1 to 2147483647"),
        ([{**MM, "B": 2}], ": [0].b: mm has no batch, so b is 1, not 2"),
        ([{**MM, "align": 8}], ": [0].align: 8 is not one of 2, 16"),
        ([{**MM, "align": "16"}], ": [0].align: '16' is not one of 2, 16"),
    ],
)
def test_wrong_file_is_named_with_the_place(tmp_path: Path, document: Any, message: str) -> None:
    """What is wrong comes in one line with the file, the index and the field, what was found and what is allowed."""
    path = write(tmp_path / "problems.json", document)
    with pytest.raises(CollectError) as caught:
        read_problems(path)
    assert str(caught.value).startswith(f"{path}{message}")
    assert "\n" not in str(caught.value)


@given(data=st.data())
def test_what_is_written_is_what_is_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any problem survives the way through a file."""
    sizes = st.integers(1, 2**31 - 1)
    op, dtype, layout, variant = data.draw(kinds())
    problem = Problem.checked(
        op,
        dtype,
        layout,
        data.draw(st.sampled_from(ALIGNS)),
        data.draw(sizes) if op in BATCHED else 1,
        *(data.draw(sizes) for _ in "mnk"),
        variant=variant,
    )
    fields = {key.upper() if len(key) == 1 else key: value for key, value in problem._asdict().items()}
    assert read_problems(write(tmp_path_factory.mktemp("problems") / "problems.json", [fields])) == [problem]


SHAPE = {"version": 1, "B": 1, "M": 256, "N": 1024, "K": 512, "out_size": [1, 1024, 256]} | dict.fromkeys(
    ("M_dtype", "K_dtype", "out_dtype"), "float16"
)


def test_torch_diodes_shape_sets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both of its forms are lists of problems; shapes that tables do not know are left out with a warning."""
    path = tmp_path / "shapes.json"
    odd = {**SHAPE, "K_dtype": "int8"}
    path.write_text(json.dumps({"operations": {"addmm": {"shapes": [SHAPE, odd]}, "mm": {"shapes": [SHAPE, SHAPE]}}}))
    assert list(map(str, read_problems(path))) == [
        "addmm 256x1024x512 float16 nn align 16",
        "mm 256x1024x512 float16 nn align 16",
    ]
    assert "shapes left out: 1 (dtype: a mix of 'float16' and 'int8')" in caplog.text
    path.write_text(json.dumps({"shapes": [SHAPE, {**SHAPE, "B": 4}]}))
    assert [problem.op for problem in read_problems(path)] == ["mm", "bmm"]
    for wrong in ({"shapes": [1]}, {"operations": {"mm": {}}}, {"operations": 1}, {"shapes": {"a": 1}}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(CollectError, match="not a shape set: expected lists 'shapes'"):
            read_problems(path)
    path.write_text(json.dumps({"shapes": [odd]}))
    with pytest.raises(CollectError, match="a shape set without a GEMM that tables know"):
        read_problems(path)


def test_what_a_shape_lacks_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Types and sizes that are missing are called so; without B there is no batch."""
    path = tmp_path / "shapes.json"
    shapes = [
        {name: value for name, value in SHAPE.items() if name != left_out} for left_out in ("out_dtype", "K", "B")
    ]
    path.write_text(json.dumps({"operations": {"mm": {"shapes": [*shapes, {"M": 64, "N": 64, "K": 64}]}}}))
    assert list(map(str, read_problems(path))) == ["mm 256x1024x512 float16 nn align 16"]
    for missing in ("out_dtype", "K", "M_dtype, K_dtype, out_dtype"):
        assert f"shapes left out: 1 ({missing}: missing)" in caplog.text


def test_batch_and_layout_have_defaults(tmp_path: Path) -> None:
    """Without ``B`` and ``layout`` a problem has no batch, and both matrices are row-major."""
    fields = {name: value for name, value in MM.items() if name not in ("B", "layout")}
    (problem,) = read_problems(write(tmp_path / "problems.json", [fields]))
    assert problem == Problem.of("mm", 64, 96, 128, dtype="float16", layout="nn")


@pytest.mark.parametrize("name", SETS)
def test_shipped_sets_are_problems_in_blocks(name: str) -> None:
    """Each set has valid problems, each once; in the largest, neighbours share kernels except where a block ends."""
    problems = problem_set(name)
    assert problems == list(dict.fromkeys(problems))
    assert name in ("fp8", "int8", "attention", "grouped") or set(problems) <= set(problem_set("models"))
    changes = sum(family_of(one) != family_of(other) for one, other in pairwise(problems))
    assert name == "grouped" or changes < 3 * len(problems) / BLOCK  # its kernels are for one problem each


@pytest.mark.parametrize("name", WRITTEN)
def test_sets_of_published_models_are_written_by_their_tool(name: str) -> None:
    """``python tools/write_problem_sets.py`` gives the shipped files."""
    assert (SETS_DIRECTORY / f"{name}.json").read_bytes() == as_file(WRITTEN[name]())


def test_set_in_float8_is_of_linear_layers() -> None:
    """Its problems are what torch._scaled_mm takes: sizes that are multiples of 16, forward and backward."""
    problems = problem_set("fp8")
    assert all(Problem.checked(*each) == each for each in problems)
    assert all(each.op == "scaled_mm" and each.n % 16 == each.k % 16 == 0 for each in problems)
    assert {each.m for each in problems if each.dtype == "float8_e4m3fn"} == {2**power for power in range(14)}
    assert {(each.dtype, each.variant) for each in problems} == {
        ("float8_e4m3fn", "tensor-bfloat16-fast"),
        ("float8_e4m3fn", "row-bfloat16-fast"),
        ("float8_e5m2", "tensor-bfloat16"),
    }


def test_set_in_int8_is_of_linear_layers() -> None:
    """Its problems are what torch._int_mm takes on a GPU, each alone and with scales behind it."""
    problems = problem_set("int8")
    assert all(Problem.checked(*each) == each for each in problems)
    assert all(each.op == "int_mm" and each.n % 8 == each.k % 8 == 0 for each in problems)
    assert (min(each.m for each in problems), max(each.m for each in problems)) == (17, 8192)
    alone = {each for each in problems if each == each.alone}
    assert set(problems) == alone | {each._replace(epilogue="light") for each in alone}


def test_set_of_attention() -> None:
    """It has all ops, head dimensions and masks, and lengths from 128 to 32,768."""
    problems = problem_set("attention")
    assert all(Problem.checked(*each) == each for each in problems)
    assert {each.op for each in problems} == set(ATTENTION)
    assert {each.k for each in problems} == {64, 96, 128, 192, 256}
    assert (min(each.n for each in problems), max(each.n for each in problems)) == (128, 32768)
    assert {Modifications.of(each.variant).mask for each in problems} == set(MASKS)


def test_set_of_grouped_matmuls() -> None:
    """It has 60 problems of experts, few rows and many, in both layouts, which tensor descriptors can describe."""
    problems = problem_set("grouped")
    assert all(Problem.checked(*each) == each for each in problems)
    assert {(each.op, each.align, each.dtype) for each in problems} == {("grouped_mm", 16, "bfloat16")}
    assert ({each.layout for each in problems}, len(problems)) == ({"nn", "nt"}, 60)
    assert (min(each.m for each in problems), max(each.m for each in problems)) == (64, 16384)


def test_attention_in_a_problem_file(tmp_path: Path) -> None:
    """Heads and the head dimension of values have defaults; the variant has none."""
    fields = {"op": "flex_attention", "M": 256, "N": 512, "K": 64, "dtype": "bf16", "variant": "causal"}
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([fields, {**fields, "B": 2, "H": 8, "G": 4, "V": 128}]), encoding="utf-8")
    plain, full = read_problems(path)
    assert plain == Problem.of("flex_attention", 256, 512, 64, dtype="bfloat16", layout="nt", variant="causal")
    assert (full.b, full.h, full.g, full.v) == (2, 8, 4, 128)
    assert read_problems(path, contents=json.dumps([full.to_json()]).encode()) == [full]
    path.write_text(json.dumps([{**fields, "variant": ""}]), encoding="utf-8")
    with pytest.raises(CollectError, match="variant: flex_attention needs one"):
        read_problems(path)


def test_generated_kernels_in_a_problem_file(tmp_path: Path) -> None:
    """They have a variant and their own sizes, of which a flat one has x alone; they are written as they are read."""
    document = [
        {"op": "reduction", "variant": "inner", "X": 16384, "R": 384},
        {"op": "pointwise", "variant": "tiled-x", "X": 64, "Y": 4096, "LOADS": 3},
        {"op": "pointwise", "variant": "flat", "X": 64, "LOADS": 1},
    ]
    problems = read_problems(write(tmp_path / "problems.json", document))
    assert list(map(str, problems)) == [
        "reduction inner x 16384 r 384",
        "pointwise tiled-x x 64 y 4096 loads 3",
        "pointwise flat x 64",
    ]
    assert read_problems(write(tmp_path / "again.json", [each.to_json() for each in problems])) == problems


def test_recorded_kernels(tmp_path: Path) -> None:
    """Of kernels with the same problem the one with the largest tensors counts; another file is named."""
    fields = {"op": "reduction", "variant": "inner", "X": 8, "R": 4}
    for name, shape in (("a", [8]), ("b", [8, 4]), ("c", [4])):
        arguments = [["float32", shape, [1] * len(shape)], 8, 4]
        write(tmp_path / f"{name}.json", {**fields, "source": name, "arguments": arguments})
    (kernel,) = read_kernels(tmp_path)
    assert (str(kernel.problem), kernel.source) == ("reduction inner x 8 r 4", "b")
    write(tmp_path / "d.json", fields)
    with pytest.raises(CollectError, match=r"d\.json: is not a kernel that was recorded: remove it"):
        read_kernels(tmp_path)


def test_dataset_is_a_problem_file(tmp_path: Path) -> None:
    """Of a dataset, compact or not, every problem counts once."""
    problems = [Problem.of("mm", m, 96, 128, dtype="float16", layout="nt", epilogue="light") for m in (8, 7)]
    path = tmp_path / "timings.msgpack"
    with DatasetWriter(path, Header(Hardware("A", "sm_90", 1))) as writer:
        for problem in (*problems, problems[0]):
            writer.append(Record(problem, (Timing(ATEN, 1000.0),)))
    assert read_problems(path) == problems
    pack([read_dataset(path)], tmp_path / "packed.msgpack.zst")
    assert sorted(read_problems(tmp_path / "packed.msgpack.zst")) == sorted(problems)


def test_table_is_a_problem_file(tmp_path: Path) -> None:
    """Of a table the ends of each row count, the largest gain first; rows that leave sizes open do not."""
    exact = Entry("mm", "float16", "nt", 16, None, (8, 8), (16, 16), (32, 32), (Candidate(ATEN),))
    wide = exact._replace(m=(64, 128), candidates=(Candidate(ATEN, 1200),))
    write_table(Table(Hardware("A", "sm_90", 1), [exact, wide, exact._replace(k=None)]), tmp_path / "table.json")
    assert [problem.m for problem in read_problems(tmp_path / "table.json")] == [64, 128, 8]
