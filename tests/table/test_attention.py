"""Rows for attention, which has sizes that GEMMs do not have."""

from typing import Any

import pytest

from diode_lut.errors import ProblemError
from diode_lut.problem import ATTENTION, GENERATED, MAX_SIZE, TOGETHER, VARIANTS, Modifications, Problem
from diode_lut.table import Entry, decode_entry
from diode_lut.table.faults import Fault
from diode_lut.table.format import key_text
from diode_lut.table.lint import contradictions, useless
from diode_lut.table.lookup import Index, overlaps, shared_problem

DEFAULT = {"template": "default"}
SIZES = {"b": 2, "m": 512, "n": 1024, "k": 64, "h": 8, "g": 4, "v": 128}
KIND = {"op": "flex_attention", "dtype": "bfloat16", "layout": "nt", "align": 16, "variant": "causal"}


def entry(config: dict[str, Any] = DEFAULT, **key: Any) -> Entry:
    return decode_entry({"op": "flex_attention", **key, "configs": [config]})


def exact(**changes: int) -> dict[str, list[int]]:
    return {name: [size, size] for name, size in {**SIZES, **changes}.items()}


PROBLEM = Problem.of(**KIND, **SIZES)


@pytest.mark.parametrize("variant", VARIANTS["flex_attention"])
def test_variant_is_modifications_as_text(variant: str) -> None:
    """Each variant of attention says what Modifications say."""
    assert str(Modifications.of(variant)) == variant


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"g": 3}, "g: 3 does not divide h, which is 8"),
        ({"variant": ""}, "variant: flex_attention needs one (allowed: full, full-score-computed, "),
        ({"layout": "nn"}, "layout: 'nn' is not for flex_attention (allowed: nt)"),
        ({"h": 0}, "h: 0 is not an integer from 1 to 2147483647"),
        ({"op": "mm", "variant": ""}, "b: mm has no batch, so b is 1, not 2"),
        ({"op": "mm", "variant": "", "b": 1}, "h: mm has no size h, so h is 1, not 8"),
    ],
)
def test_impossible_problem(change: dict[str, Any], message: str) -> None:
    """A problem that there is not is refused, with what is allowed."""
    with pytest.raises(ProblemError) as error:
        Problem.of(**{**KIND, **SIZES, **change})
    assert str(error.value).startswith(message)


def test_packed_heads_are_aligned() -> None:
    """Without an alignment, packed tensors are meant."""
    sizes = {**SIZES, "k": 100}
    kind = {name: value for name, value in KIND.items() if name != "align"}
    assert Problem.of(**kind, **SIZES).align == 16
    assert Problem.of(**kind, **sizes).align == 2


@pytest.mark.parametrize("changed", SIZES)
def test_every_size_is_part_of_the_key(changed: str) -> None:
    """Of rows for one problem, for a range of one size and for any, the most specific one answers."""
    low, high = SIZES[changed], SIZES[changed] + 8
    of_range, of_any, of_one = {**exact(), changed: [low, high]}, exact(), exact()
    del of_any[changed]
    rows = [entry(**KIND, **of_any), entry(**KIND, **of_range), entry(**KIND, **of_one)]
    index = Index(rows)
    assert [row.volume for row in rows] == [MAX_SIZE, 9, 1]
    assert index.find(PROBLEM) is rows[2]
    assert rows[2].is_exact
    assert index.find(PROBLEM._replace(**{changed: high})) is rows[1]
    assert index.find(PROBLEM._replace(**{changed: high + 1})) is rows[0]


def test_row_without_op_is_for_gemms() -> None:
    """A row that names no op answers for no attention, and is as specific as before there was any."""
    row = decode_entry({"configs": [{"template": "aten"}]})
    assert Index([row]).find(PROBLEM) is None
    assert not row.covers(PROBLEM)
    assert row.volume < entry().volume


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"op": "mm", "h": [1, 8]}, "h"),
        ({"op": None, "v": [64, 64]}, "v"),
        ({"op": "flex_attention", "h": [8, 4]}, "h"),
        ({"op": "flex_attention", "epilogue": "light"}, "epilogue"),
        ({"op": "flex_attention", "variant": "row-bfloat16"}, "variant"),
        ({"op": "bmm", "variant": "causal"}, "variant"),
    ],
)
def test_row_of_no_problem(row: dict[str, Any], field: str) -> None:
    """A row with a size or a value that its op does not have is wrong, at that field."""
    fields = {name: value for name, value in row.items() if value is not None}
    with pytest.raises(Fault) as fault:
        decode_entry({**fields, "configs": [DEFAULT]})
    assert fault.value.path == (field,)


def test_contradictions_along_the_new_sizes() -> None:
    """Rows that overlap in heads contradict each other; rows that do not, or of other ops, do not."""
    rows = {0: entry(h=[1, 8]), 1: entry(h=[8, 15]), 2: entry(h=[16, 23]), 3: entry(op="flex_decoding", h=[8, 15])}
    assert list(overlaps(rows)) == [(1, 0)]
    assert shared_problem(rows[0], rows[1]).h == 8
    assert any("with the same specificity" in fault.reason for fault in contradictions(rows))


def test_rows_that_are_never_used() -> None:
    """A row whose heads narrower rows cover is never used."""
    rows = {0: entry(h=[1, 8]), 1: entry(h=[1, 4]), 2: entry(h=[5, 8])}
    assert [fault.path for fault in contradictions(rows)] == [("entries", 0)]


def test_useless_configs() -> None:
    """``check`` finds configs of other ops, and those that no head of the row can launch."""
    forward = {"template": "triton_flex_attention", "block_m": 128, "block_n": 128, "num_stages": 4, "num_warps": 8}
    assert not list(useless(entry(forward), "sm_90"))
    (fault,) = useless(entry(forward, k=[200, 256]), "sm_90")
    assert "bytes of shared memory" in fault.reason
    (fault,) = useless(decode_entry({"op": "mm", "configs": [DEFAULT]}), "sm_90")
    assert fault.reason == f"default cannot do mm (it can do: {', '.join((*ATTENTION, *TOGETHER, *GENERATED))})"


def test_text_and_form() -> None:
    """A key is written with the names of its sizes, and read again as it was."""
    row = entry(**KIND, **exact())
    assert key_text(row) == ("flex_attention bfloat16 nt align 16 variant causal b 2 m 512 n 1024 k 64 h 8 g 4 v 128")
    assert decode_entry(row.to_json()) == row
    assert str(PROBLEM) == "flex_attention causal 2x8x512x1024x64 v 128 g 4 bfloat16 nt align 16"
