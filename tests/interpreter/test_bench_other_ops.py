"""The benchmark of ops that tables do not know, where Triton's interpreter executes their kernels."""

from __future__ import annotations

import pytest
from modelbench.other_ops import KERNEL, OPS

from tests.forks import Forks
from tests.interpreter.conftest import found_by

pytestmark = pytest.mark.slow


def test_all_ways_compute_the_same(with_device: Forks) -> None:
    """Of each op one Triton template is compiled, with a config, and all ways are right."""
    found = found_by(with_device, "other_ops.py")
    assert list(found) == list(OPS)
    for op in found.values():
        assert op.pop("config")
        assert (op[KERNEL]["templates"], op["as mm" if "as mm" in op else "library"]["templates"]) == (1, 0)
        assert all(way["difference"] < 0.01 for way in op.values())
