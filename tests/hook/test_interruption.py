"""An alarm that strikes in the hook: its exception is the program's, and afterwards all is as it was."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

import diode_lut
from diode_lut.decide.catalog import forget_tables
from diode_lut.hardware import detect_hardware
from diode_lut.hook.switch import cache_identity, off_because
from tests.interrupted import alarm_in

A, B = torch.randn(2, 16, 32), torch.randn(2, 32, 48)


@pytest.fixture(autouse=True)
def own_table(table_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table for this machine's CPU, which was not read yet; empty caches."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    row = {"op": "bmm", "configs": [{"template": "aten"}]}
    path = table_file("own.json", row, hardware={**detect_hardware("cpu")._asdict(), "aliases": []})
    torch._dynamo.reset()
    forget_tables()
    assert V.choices  # the hook is imported
    with fresh_cache(), diode_lut.config.patch(tables=(str(path),), tiers=("user",)):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("module", ["problem.py", "hook/choices.py", "hook/unasked.py", "hook/problems.py"])
def test_alarm_while_a_product_is_answered(module: str) -> None:
    """The compile ends with the alarm's exception, nothing is cached, and the next compile gets the row's kernel."""
    compiled = torch.compile(torch.bmm)
    with pytest.raises(Exception, match="TimeoutError"), alarm_in(module):
        compiled(A, B)
    assert not off_because
    torch._dynamo.reset()
    with diode_lut.profile_predictions() as counts:
        torch.testing.assert_close(compiled(A, B), torch.bmm(A, B))
    assert counts.hits["user"] == 1


@pytest.mark.parametrize("module", ["hardware.py", "decide/catalog.py", "table/__init__.py", "files.py", "settings.py"])
@pytest.mark.parametrize("call", [1, 3])
def test_alarm_while_a_key_is_made(module: str, call: int) -> None:
    """The alarm's exception comes out, the hook stays on, and no table is left out afterwards."""
    with alarm_in(module, call) as called, pytest.raises(TimeoutError):
        cache_identity()
    assert len(called) == call
    assert not off_because
    interrupted = cache_identity()
    forget_tables()
    assert interrupted == cache_identity()
