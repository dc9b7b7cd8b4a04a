"""Processes that have the interpreter's device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forks import Forks, forks_after
from tests.interpreter.process import require_interpreter

DEVICE = """
from tests.interpreter.device import interpreter_cuda
with interpreter_cuda():
    import torch._dynamo.backends.inductor, torch._inductor.compile_fx
    import torch._inductor.kernel.bmm, torch._inductor.kernel.mm
"""


@pytest.fixture(scope="session")
def with_device() -> Iterator[Forks]:
    """Programs in processes of their own, in which the interpreter's device and Inductor are loaded."""
    require_interpreter()
    with forks_after(DEVICE) as forks:
        yield forks
