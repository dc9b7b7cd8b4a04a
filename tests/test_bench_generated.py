"""The programs of the benchmark of generated kernels, without their values."""

from __future__ import annotations

import pytest
from modelbench.corpus import PROGRAMS, build


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_can_be_built(name: str) -> None:
    """One of transformers or timm only where it is installed."""
    try:
        build(name, "meta")
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "timm"):
            raise
        pytest.skip(str(error))
