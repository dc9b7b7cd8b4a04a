"""Candidates of architectures whose GPUs are not here: what our rules let pass compiles, and fits."""

from __future__ import annotations

import random

import pytest
from compile_candidates import ARCHITECTURES, candidates, measure, passes, verdicts

from diode_lut.compilation.trial import Trial

_LARGE_AREA = 128 * 128
"""Blocks that take long to compile; ``tools/compile_candidates.py`` compiles them too."""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_candidate_compiles_and_fits(arch: str) -> None:
    """Triton compiles it for its architecture, and it takes no more shared memory than there is."""
    trials = [Trial(arch, config, "bfloat16", "nt", 16) for config in candidates(arch, "bfloat16")]
    small = [each for each in trials if each.config.tiles.block_m * each.config.tiles.block_n <= _LARGE_AREA]
    trial = random.Random(arch).choice([each for each in small if passes(each)])
    found = set(verdicts(trial, measure(trial)))
    assert found >= {"kernels", "pass"}
    assert not found & {"failed", "too large"}
