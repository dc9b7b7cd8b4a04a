"""Rows for generated kernels, which have other sizes than GEMMs, and no dtype."""

from typing import Any

import pytest

from diode_lut.errors import ProblemError
from diode_lut.problem import GENERATED, OP_SIZES, VARIANTS, Problem
from diode_lut.table import decode_entry
from diode_lut.table.faults import Fault
from diode_lut.table.format import key_text
from diode_lut.table.lint import useless
from diode_lut.table.lookup import Index, unreachable
from diode_lut.templates.config import Config

PROBLEM = Problem.generated("reduction", "inner", x=16384, r=384)
LOOPED = {"template": "looped_reduction", "block_x": 8, "block_r": 512, "num_warps": 2}
ROW: dict[str, Any] = {"op": "reduction", "variant": "inner", "x": [4097, 16384], "r": [257, 512], "configs": [LOOPED]}


def test_text_and_form() -> None:
    """A row is written with the names of its sizes, and read again as it was."""
    entry = decode_entry(ROW)
    assert key_text(entry) == "reduction variant inner x 4097-16384 r 257-512"
    assert str(entry.configs[0]) == "looped_reduction x8r512 w2"
    assert Config.parse("looped_reduction x8r512 w2") == entry.configs[0]
    assert Config.parse("pointwise x64 w8y32") == Config("pointwise", (64, 8, 32))
    assert entry.to_json() == {**ROW, "x": (4097, 16384), "r": (257, 512)}
    assert str(PROBLEM) == "reduction inner x 16384 r 384"
    assert PROBLEM.to_json() == {"op": "reduction", "variant": "inner", "X": 16384, "R": 384}


def test_the_narrowest_row_answers() -> None:
    """A row for one size goes before a range, and a row for any variant comes last."""
    exact = decode_entry({**ROW, "x": [16384, 16384], "r": [384, 384]})
    ranges = decode_entry(ROW)
    anything = decode_entry({"op": "reduction", "configs": [{"template": "default"}]})
    index = Index([anything, ranges, exact])
    assert exact.is_exact
    assert index.find(PROBLEM) == exact
    assert index.find(PROBLEM._replace(x=16383)) == ranges
    assert index.find(PROBLEM._replace(r=1)) == index.find(PROBLEM._replace(variant="outer")) == anything
    assert index.find(Problem.generated("pointwise", "flat", x=16384)) is None
    assert index.borders(PROBLEM, ("x",)) == {16384, 4097}
    assert list(unreachable({0: anything, 1: ranges, 2: ranges._replace(r=(300, 400), x=(4097, 9000))})) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": "float16"}, "reduction has no dtypes"),
        ({"align": 16}, "which has no alignment"),
        ({"m": [1, 2]}, "is no size of reduction"),
        ({"y": [1, 2]}, "is no size of reduction"),
        ({"variant": "flat"}, "allowed: inner, outer, outer_tiny, default"),
    ],
)
def test_fields_of_other_ops_are_refused(changed: dict[str, Any], reason: str) -> None:
    """A row has no field that no generated kernel has."""
    with pytest.raises(Fault, match=reason):
        decode_entry({**ROW, **changed})
    with pytest.raises(Fault, match="is no size of mm"):
        decode_entry({"op": "mm", "x": [1, 2], "configs": [{"template": "aten"}]})


def test_problems_are_checked() -> None:
    """A problem has the sizes and one of the variants of its op."""
    for op in GENERATED:
        for variant in VARIANTS[op]:
            assert Problem.generated(op, variant, x="1k").x == 1024
    with pytest.raises(ProblemError, match="r: pointwise has no size r"):
        Problem.generated("pointwise", "flat", x=8, r=2)
    with pytest.raises(ProblemError, match=r"variant: 'flat' is not for reduction"):
        Problem.generated("reduction", "flat", x=8)
    assert [name for op in GENERATED for name in OP_SIZES[op]] == ["x", "y", "loads", "x", "r", "x", "r"]


def test_useless_configs() -> None:
    """``check`` finds configs of other ops, and blocks that leave a thread no registers."""
    assert not list(useless(decode_entry(ROW), "sm_90"))
    (fault,) = useless(decode_entry({**ROW, "configs": [{"template": "aten"}]}), "sm_90")
    assert "aten cannot do reduction" in fault.reason
    (fault,) = useless(decode_entry({**ROW, "configs": [{**LOOPED, "num_warps": 1, "block_r": 4096}]}), "sm_90")
    assert "32768 elements in a block of 1 warps" in fault.reason
