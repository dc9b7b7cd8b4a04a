"""From a miss to a hit, as a user goes: receipt, collect, build, and compile again."""

from pathlib import Path

import pytest
import torch
from torch._inductor.utils import fresh_cache

import diode_lut
from diode_lut.receipts import receipt_bytes, recorder
from tests.commands import call


@pytest.mark.usefixtures("no_tables")
def test_what_was_missed_becomes_a_hit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receipt of a compile is all that ``collect`` needs, and the table built from it answers the next compile."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recorder._devices.clear()
    a, b = torch.randn(2, 32, 32), torch.randn(2, 32, 32)
    torch._dynamo.reset()
    with fresh_cache():
        torch.compile(torch.bmm)(a, b)
    Path("receipt.json").write_bytes(receipt_bytes(recorder.own_receipt()))
    assert call("collect", "--problems", "receipt.json", "--device", "cpu", "--out", "timings.msgpack").exit_code == 0
    assert call("build", "timings.msgpack", "-o", "mine.json").exit_code == 0
    recorder._devices.clear()
    torch._dynamo.reset()
    with fresh_cache(), diode_lut.config.patch(tables=("mine.json",), strict=True):
        torch.testing.assert_close(torch.compile(torch.bmm)(a, b), torch.bmm(a, b))
    (device,) = recorder.own_receipt().devices.values()
    (hit,) = device.hits
    assert (hit.tier, hit.row) == ("user", "bmm float32 nn align 16 b 2 m 32 n 32 k 32")
    assert device.misses == {}
