"""Tables for the hook on this machine's GPU."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

import diode_lut

Rows = Callable[..., None]


@pytest.fixture
def rows(table_file: Callable[..., Path]) -> Iterator[Rows]:
    """Makes rows for this machine's GPU the user's own table."""
    found = diode_lut.get_detected_hardware()
    hardware = {"name": found.name, "arch": found.arch, "sm_count": found.sm_count}
    with diode_lut.config.patch(tables=(), tiers=("user",)):

        def use(*entries: dict[str, Any]) -> None:
            diode_lut.config.tables = (str(table_file("rows.json", *entries, hardware=hardware)),)

        yield use


@pytest.fixture
def cold() -> Iterator[None]:
    """Nothing compiled yet, nothing counted."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    with fresh_cache():
        yield


@pytest.fixture(params=[False, True], ids=["default", "max-autotune"])
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both modes, without the benchmarks that Inductor's padding of GEMMs makes."""
    with inductor_config.patch(max_autotune=request.param, shape_padding=False):
        yield
