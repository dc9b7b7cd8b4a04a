"""Rows for ops with variants, such as scaled_mm, beside rows for ops without any."""

from typing import Any

import pytest

from diode_lut.errors import ProblemError
from diode_lut.problem import DOMAINS, VARIANTS, Problem, Scaling
from diode_lut.table import Entry, decode_entry
from diode_lut.table.faults import Fault
from diode_lut.table.lint import contradictions
from diode_lut.table.lookup import Index

ATEN = [{"template": "aten"}]


def entry(**key: Any) -> Entry:
    return decode_entry({**key, "configs": ATEN})


def problem(variant: str = "row-bfloat16", m: int = 64, dtype: str = "float8_e4m3fn") -> Problem:
    return Problem.of("scaled_mm", m, 1024, 512, dtype=dtype, layout="nt", variant=variant)


@pytest.mark.parametrize("variant", VARIANTS["scaled_mm"])
def test_variant_is_a_scaling_as_text(variant: str) -> None:
    """Each variant of scaled_mm says what a Scaling says."""
    scaling = Scaling.of(variant)
    assert str(scaling) == variant
    assert problem(variant).result_dtype == scaling.result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "bfloat16"}, "dtype: 'bfloat16' is not for scaled_mm (allowed: float8_e4m3fn, float8_e5m2)"),
        ({"layout": "nn"}, "layout: 'nn' is not for scaled_mm (allowed: nt)"),
        ({"variant": "tensor"}, "variant: 'tensor' is not for scaled_mm (allowed: tensor-bfloat16, "),
        ({"op": "mm"}, "dtype: 'float8_e4m3fn' is not for mm (allowed: float16, bfloat16, float32, tf32)"),
        ({"op": "mm", "dtype": "tf32"}, "variant: 'row-float16' is not for mm, which has no variants"),
        ({"epilogue": "light"}, "epilogue: 'light' is not for scaled_mm (allowed: none)"),
    ],
)
def test_impossible_problem(change: dict[str, Any], message: str) -> None:
    """A problem that no library computes is refused, with what is allowed."""
    fields = {"op": "scaled_mm", "dtype": "float8_e4m3fn", "layout": "nt", "variant": "row-float16", **change}
    with pytest.raises(ProblemError) as error:
        Problem.of(m=16, n=16, k=32, **fields)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"op": "mm", "variant": "row-bfloat16"}, "variant"),
        ({"op": "mm", "dtype": "float8_e5m2"}, "dtype"),
        ({"op": "scaled_mm", "layout": "nn"}, "layout"),
        ({"op": "scaled_mm", "dtype": "tf32"}, "dtype"),
        ({"dtype": "bfloat16", "variant": "row-bfloat16"}, "variant"),
        ({"op": "scaled_mm", "epilogue": "heavy"}, "epilogue"),
    ],
)
def test_row_of_no_problem(row: dict[str, Any], field: str) -> None:
    """A row whose fields no problem has is wrong, at the field that does not go with the others."""
    with pytest.raises(Fault) as fault:
        entry(**row)
    assert fault.value.path == (field,)


def test_specificity_counts_what_exists() -> None:
    """The volume of a row counts the types, layouts and variants that its ops have, and no others."""
    sizes = {"b": [1, 1], "m": [1, 1], "n": [1, 1], "k": [1, 1], "align": 16, "epilogue": "none"}
    of_scaled, of_mm = entry(op="scaled_mm", **sizes), entry(op="mm", **sizes)
    assert of_scaled.volume == len(DOMAINS["scaled_mm"].dtypes) * len(VARIANTS["scaled_mm"])
    assert of_mm.volume == 16
    of_int8 = entry(op="int_mm", **sizes)
    assert of_int8.volume == len(DOMAINS["int_mm"].layouts)
    assert entry(**sizes).volume == of_scaled.volume + of_int8.volume + 4 * of_mm.volume
    assert entry(dtype="bfloat16", layout="nt", **sizes).volume == 4
    assert entry(op="scaled_mm", dtype="float8_e5m2", layout="nt", variant="row-bfloat16", **sizes).is_exact


def test_most_specific_row_answers() -> None:
    """A row for a variant comes before one for all, and that before a row for any op."""
    anything, scaled, row = entry(), entry(op="scaled_mm"), entry(op="scaled_mm", variant="row-bfloat16")
    index = Index([anything, scaled, row])
    assert index.find(problem()) is row
    assert index.find(problem("tensor-bfloat16")) is scaled
    assert index.find(Problem.of("mm", 1, 1, 1, dtype="bfloat16", layout="nn")) is anything


def test_rows_of_different_ops_do_not_contradict() -> None:
    """Rows that no problem has both of may look alike: no scaled_mm is in bfloat16, whatever the op of the row."""
    count = len(DOMAINS["scaled_mm"].dtypes) * len(VARIANTS["scaled_mm"])
    halves = {0: entry(dtype="bfloat16", m=[1, count // 4]), 1: entry(op="scaled_mm", m=[1, 1])}
    assert list(contradictions(halves)) == []


def test_contradiction_names_a_problem_that_exists() -> None:
    """Two rows that are as specific as each other on a problem are reported with such a problem."""
    rows = {
        0: entry(op="scaled_mm", variant="row-bfloat16", m=[1, 2], n=[1, 4]),
        1: entry(op="scaled_mm", variant="row-bfloat16", m=[1, 4], n=[1, 2]),
    }
    (fault,) = contradictions(rows)
    assert "covers scaled_mm row-bfloat16 1x1x1 float8_e4m3fn nt align 2 with the same specificity" in fault.reason


def test_row_that_variants_cover_is_never_used() -> None:
    """Rows for all variants leave nothing to a row for any."""
    rows = [entry(op="scaled_mm", variant=variant) for variant in VARIANTS["scaled_mm"]]
    (fault,) = contradictions(dict(enumerate([*rows, entry(op="scaled_mm")])))
    assert fault.path == ("entries", len(rows))
    assert list(contradictions(dict(enumerate([*rows[1:], entry(op="scaled_mm")])))) == []
