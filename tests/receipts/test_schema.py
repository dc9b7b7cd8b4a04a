"""The JSON Schema of receipts, and what writes and reads them."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from diode_lut.errors import ReceiptError
from diode_lut.files import schemas_directory
from diode_lut.hardware import Hardware
from diode_lut.problem import MAX_SIZE, Problem
from diode_lut.receipts import (
    MAX_COUNT,
    MAX_PERMILLE,
    Device,
    Left,
    Miss,
    Receipt,
    decode_receipt,
    merge_receipts,
    read_receipt,
    receipt_bytes,
)
from tests.mutated import containers, mutate
from tests.receipts.strategies import receipts
from tests.strategies import share
from tools import write_schema

H200 = Hardware("NVIDIA H200", "sm_90", 132)
SCHEMA = orjson.loads((schemas_directory() / "receipt.v1.schema.json").read_bytes())
VALIDATOR = Draft202012Validator(SCHEMA)
NUMBERS = [0, 1, 2, -1, 1.0, 16.0, 1.5, True, MAX_SIZE, MAX_SIZE + 1, MAX_PERMILLE + 1, MAX_COUNT, MAX_COUNT + 1, 1e300]
JUNK = st.sampled_from([None, "", "mm", "nn", "none", "light", "user", "kin", [], ["a"], [1], {}, *NUMBERS]).map(
    copy.deepcopy
)
NAMES = st.sampled_from(["torch", "epilogue", "expected_permille", "over", "reason", "aliases", "row", "x"])


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """A receipt, parsed, in which up to two values are not what they were."""
    document = orjson.loads(receipt_bytes(draw(receipts)))
    for _ in range(draw(st.integers(0, 2))):
        mutate(draw, document, NAMES, JUNK)
    return document


def is_read(document: Any) -> bool:
    try:
        decode_receipt(document, "receipt.json")
    except ReceiptError:
        return False
    return True


@settings(max_examples=share(200))
@given(document=documents())
def test_schema_and_reader_accept_the_same(document: Any) -> None:
    """Of good receipts and of almost good ones, both accept the same."""
    assert is_read(document) == VALIDATOR.is_valid(document)


@settings(max_examples=share(50))
@given(receipt=receipts)
def test_what_is_written_is_read(receipt: Receipt) -> None:
    """A receipt keeps to the schema and comes back as it was."""
    document = orjson.loads(receipt_bytes(receipt))
    VALIDATOR.validate(document)
    assert decode_receipt(document, "receipt.json") == receipt


@settings(max_examples=share(50))
@given(parts=st.lists(receipts, max_size=4), data=st.data())
def test_the_order_of_merging_does_not_matter(parts: list[Receipt], data: st.DataObject) -> None:
    """Merged in any order, and in any groups, the file has the same bytes, and counts add up."""
    whole = merge_receipts(parts)
    assert sum(device.calls for device in whole.devices.values()) == sum(
        device.calls for part in parts for device in part.devices.values()
    )
    shuffled = data.draw(st.permutations(parts))
    cut = data.draw(st.integers(0, len(parts)))
    grouped = merge_receipts([merge_receipts(shuffled[:cut]), merge_receipts(shuffled[cut:])])
    assert receipt_bytes(grouped) == receipt_bytes(whole)


def test_the_schema_is_the_one_that_is_generated() -> None:
    """Tiers, ops and other names in the schema are those of the code: ``tools/write_schema.py`` has been run."""
    assert write_schema.RECEIPT.read_text(encoding="utf-8") == write_schema.text(write_schema.receipt())


def test_the_schema_is_closed() -> None:
    """It keeps to JSON Schema 2020-12, and no object allows a field that it does not name."""
    Draft202012Validator.check_schema(SCHEMA)
    objects = [part for part in containers(SCHEMA) if isinstance(part, dict) and part.get("type") == "object"]
    assert len(objects) > 5
    assert all(part["additionalProperties"] is False for part in objects)


def test_what_is_written_can_be_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Of a receipt that readers would refuse, the entries with the highest counts are written, with a warning."""
    problems = [Problem.of("mm", m, 64, 64, dtype="float16", layout="nn") for m in range(1, 101)]
    device = Device(misses=Counter({Miss(problem): problem.m for problem in problems}))
    left = [Left(problem, "a reason") for problem in problems[:3]]
    device.no_choice.update(left)
    receipt = Receipt(7, devices={H200: device})
    monkeypatch.setattr("diode_lut.receipts.MAX_VALUES", 700)
    read = read_receipt(Path("r.json"), receipt_bytes(receipt))
    assert read.processes == 7
    assert sorted(read.devices[H200].misses.values()) == list(range(51, 101))
    assert read.devices[H200].no_choice == Counter(left[:1])
    assert caplog.messages == ["a receipt has room for about half of 103 entries: those asked least are left out"]
    monkeypatch.setattr("diode_lut.receipts.MAX_BYTES", 100)
    with pytest.raises(OSError, match="File too large"):
        receipt_bytes(receipt)
