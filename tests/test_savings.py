"""What answers save and misses lose, as ``run`` estimates it from a receipt."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.programs.run import EXPECTED, UNKNOWN, estimate, savings
from diode_lut.receipts import Device, Hit, Miss, Receipt, SourceRecord
from diode_lut.receipts.summary import roofline_ns
from diode_lut.table import read_table

H200 = Hardware("NVIDIA H200", "sm_90", 132)
TRITON = {"template": "triton_mm", "block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8}
TRITON |= {"num_stages": 3, "num_warps": 4}


def problem(m: int) -> Problem:
    return Problem.of("mm", m, 512, 256, dtype="float16", layout="nn")


@pytest.fixture
def receipt(table_file: Callable[..., Path]) -> Receipt:
    """Three GEMMs with a gain, aten, and a miss."""

    def row(m: int, *configs: dict[str, Any], **fields: Any) -> dict[str, Any]:
        kind = {"op": "mm", "dtype": "float16", "layout": "nn", "align": 16}
        return {**kind, "m": [m, 2 * m - 1], "n": [512, 512], "k": [256, 256], "configs": configs, **fields}

    twice, same = {**TRITON, "gain_permille": 2000}, {**TRITON, "gain_permille": 1500}
    path = table_file("own.json", row(64, twice), row(256, same), row(1024, {"template": "aten"}))
    table = read_table(path)
    assert not table.errors, table.errors
    device = Device(sources={SourceRecord("user", str(path), table.digest, 3): None})
    for m in (64, 96, 256, 1024):
        entry = table.lookup(problem(m))
        assert entry is not None
        device.hits[Hit(problem(m), "user", table.digest, "", tuple(map(str, entry.configs)))] = 1
    device.misses[Miss(problem(7))] = 2
    return Receipt(devices={H200: device})


def test_what_is_saved_is_estimated_from_rows(receipt: Receipt) -> None:
    """A row's gain counts on the roofline's time of aten."""
    saved_ns, lost_ns, calls = savings(receipt)
    times = {m: roofline_ns(problem(m), H200) or 0.0 for m in (64, 96, 256)}
    assert saved_ns == pytest.approx(times[64] / 2 + times[96] / 2 + times[256] / 3)
    assert lost_ns > 0
    assert calls == {EXPECTED: 6}


def test_a_table_that_has_changed_says_nothing(receipt: Receipt, tmp_path: Path) -> None:
    """What its answers saved is not known any more, except for aten, which saves nothing."""
    (tmp_path / "own.json").unlink()
    saved_ns, _, calls = savings(receipt)
    assert (saved_ns, calls) == (0.0, {UNKNOWN: 3, EXPECTED: 3})
    assert estimate(receipt).startswith("if each ran once: 0.0 us saved, ")
    assert estimate(receipt).endswith("lost (3 estimated by a roofline or a model, 3 not known)")
