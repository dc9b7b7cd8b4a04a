"""Flex attention on the device on which Triton's interpreter executes kernels: rows change no digit that counts."""

from typing import Any

import pytest

from tests.interpreter.conftest import found_for
from tests.programs.attention import CASES
from tests.sampled import sampled

FORWARD = {"BLOCK_M": 64, "BLOCK_N": 32}
BACKWARD = {"BLOCK_M1": 16, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32}


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run tests/programs/attention.py in a process of its own, and return its findings."""
    return found_for(request, "attention.py")


@pytest.mark.parametrize("case", sampled(CASES, "window, soft cap, shared keys", "no mask", "decoding"))
def test_rows_compute_attention(found: dict[str, Any], case: str) -> None:
    """The rows' kernels run, forward, backward and decoding, and results and gradients are those of float64."""
    decoding = case == "decoding"
    expected = {"BLOCK_M": 16, "BLOCK_N": 32} if decoding else FORWARD
    assert found[case]["blocks"] == {**expected, **(BACKWARD if CASES[case].gradients else {})}
    assert len(found[case]["errors"]) == (4 if CASES[case].gradients else 1)
    assert max(found[case]["errors"]) < 1e-5


HITS = {
    "causal": ["flex_attention causal 1x2x130x130x16", "flex_attention_backward causal 1x2x130x130x16"],
    "window, soft cap, shared keys": ["flex_attention computed-score-computed 1x4x128x128x32 v 16 g 2"],
    "documents": ["flex_attention captured 1x2x140x140x16"],
    "no mask": ["flex_attention full 1x2x130x70x16", "flex_attention_backward full 1x2x130x70x16"],
    "decoding": ["flex_decoding full 1x4x3x100x16 g 2"],
}


def test_receipt_names_the_problems(found: dict[str, Any]) -> None:
    """The receipt has each attention that a row answered."""
    assert found["hits"] == sorted(f"{hit} float32 nt align 16" for case in found.keys() & HITS for hit in HITS[case])
