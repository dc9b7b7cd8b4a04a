"""Both stages of measuring as one record a problem."""

import pytest

from diode_lut.build.measurements import combined
from diode_lut.dataset import Record, Timing
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

MM = Problem("mm", "float16", "nn", 16, 1, 64, 64, 64)
FAST, MIDDLE, SLOW = (Config("triton_mm", (block, 64, 64, 8, 4, 4)) for block in (32, 64, 128))


def record(stage: str, **times: float | None) -> Record:
    names = {"aten": ATEN, "fast": FAST, "middle": MIDDLE, "slow": SLOW}
    timings = (Timing(names[name], ns, None if ns else "launch") for name, ns in times.items())
    return Record(MM, tuple(timings), stage)


def times(*records: Record) -> dict[Config, float | None]:
    (found,) = combined(records)
    assert found.stage == "final"
    return {timing.config: timing.ns for timing in found.timings}


def test_final_times_count_and_others_are_scaled_to_them() -> None:
    """A config without a final time gets its sweep's, by the factor that the finalists but aten have in common."""
    found = times(
        record("sweep", aten=100, fast=80, middle=100, slow=200), record("final", aten=99, fast=72, middle=90)
    )
    assert found == {ATEN: 99, FAST: 72, MIDDLE: 90, SLOW: 180}


def test_where_only_aten_was_final_it_gives_the_scale() -> None:
    """Then Triton's configs are taken to be as much faster as they usually become."""
    found = times(record("sweep", aten=100, slow=200), record("final", aten=90))
    assert found == {ATEN: 90, SLOW: pytest.approx(180 / 1.012)}


def test_padded_configs_have_a_scale_of_their_own() -> None:
    """Copies take the same time in both stages, so that kernels with padding are scaled by what such kernels have."""
    plain, padded = ({FAST.padded(pad): 80.0, MIDDLE.padded(pad): 100.0, SLOW.padded(pad): 200.0} for pad in (1, 8))
    final = {FAST: 120.0, FAST.padded(8): 80.0, ATEN: 100.0}
    found = times(
        *(
            Record(MM, tuple(Timing(config, ns) for config, ns in each.items()), stage)
            for each, stage in (({**plain, **padded}, "sweep"), (final, "final"))
        )
    )
    assert (found[SLOW], found[SLOW.padded(8)]) == (300, 200)


def test_one_stage_stays_as_it_is() -> None:
    """Without final times nothing is scaled; several times of a config are combined by their median."""
    assert times(record("autotune", aten=10, fast=6), record("autotune", aten=20, fast=8)) == {ATEN: 15, FAST: 7}


@pytest.mark.parametrize("stages", [("sweep", "final"), ("final", "sweep")])
def test_a_failure_rules_a_config_out(stages: tuple[str, str]) -> None:
    """What failed in one of the stages has no time, but the reason."""
    (found,) = combined([record(stages[0], aten=10, fast=5), record(stages[1], aten=10, fast=None, slow=None)])
    failed = [Timing(config, None, "launch") for config in (FAST, SLOW)]
    assert found.timings == (Timing(ATEN, 10), *failed)
