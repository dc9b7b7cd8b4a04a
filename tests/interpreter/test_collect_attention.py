"""Measuring flex attention, on the device on which Triton's interpreter executes the kernels."""

from typing import Any

import pytest

from tests.forks import Forks
from tests.interpreter.conftest import found_by
from tests.programs.collect_attention import CASES, CONFIGS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(with_device: Forks) -> dict[str, Any]:
    """Run tests/programs/collect_attention.py in a process of its own, and return its findings."""
    return found_by(with_device, "collect_attention.py")


@pytest.mark.parametrize(("op", "variant"), [(op, sizes["variant"]) for op, sizes in CASES])
def test_attention_is_measured(found: dict[str, Any], op: str, variant: str) -> None:
    """Every config runs, forward, backward and decoding, and computes what float64 does."""
    assert found[f"{op} {variant}"] == dict.fromkeys(CONFIGS[op], 1_000_000)
