"""Tables for the hook, and a CUDA device that is not there."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._logging._internal import trace_log

import diode_lut
from tests.fake_cuda import fake_cuda
from tests.quick import quicken

quicken()
# Else pytest listens to PyTorch's structured trace, which then has megabytes of JSON made in each compile
trace_log.propagate = True


@pytest.fixture
def h200() -> Iterator[None]:
    """Inductor believes in an H200."""
    with fake_cuda():
        yield


@pytest.fixture(params=["default", "max-autotune"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both modes; benchmarking would fail on the device that is not there."""
    with inductor_config.patch(max_autotune=request.param == "max-autotune"):
        yield request.param


@pytest.fixture
def rows(table_file: Callable[..., Path]) -> Iterator[Callable[..., None]]:
    """Makes these rows the user's own table."""
    with diode_lut.config.patch(tables=(), tiers=("user",)):

        def use(*entries: dict[str, Any], **fields: Any) -> None:
            diode_lut.config.tables = (str(table_file(f"rows{len(diode_lut.config.tables)}.json", *entries, **fields)),)

        yield use


@pytest.fixture
def precision() -> Iterator[None]:
    """Puts float32's precision back."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


class Artifacts(logging.Handler):
    """Our artifacts in PyTorch's structured trace, as names and what is in them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        artifact = record.metadata.get("artifact", {})  # type: ignore[attr-defined]
        if artifact.get("name", "").startswith("diode_lut"):
            assert artifact["encoding"] == "json"
            self.found.append((artifact["name"], json.loads(record.payload)))  # type: ignore[attr-defined]


@pytest.fixture
def artifacts() -> Iterator[Artifacts]:
    handler = Artifacts()
    trace_log.addHandler(handler)
    yield handler
    trace_log.removeHandler(handler)
