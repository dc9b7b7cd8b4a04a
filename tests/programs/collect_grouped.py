"""Measures grouped matmuls on the interpreter's device, as JSON for tests/interpreter/test_collect_grouped.py.

Times are those of a device that takes a millisecond for everything; results are checked.
"""

import json
from typing import Any

from tests.programs.collect_padded import timing_device

CONFIGS = ("aten", "triton_grouped_mm 16x32x16 s2 w4", "triton_grouped_mm 32x16x64 s3 w4")
CASES = {
    "transposed": {"b": 4, "m": 50, "n": 40, "k": 24, "layout": "nt"},
    "row-major": {"b": 3, "m": 16, "n": 24, "k": 72, "layout": "nn"},
    "empty groups": {"b": 12, "m": 8, "n": 16, "k": 16, "layout": "nt"},
}


def main() -> dict[str, Any]:
    """For each case, its configs with their times or the reasons of their failures."""
    from diode_lut.measure.stages import sweep as measure
    from diode_lut.measure.tasks import Crash, Task, Watch
    from diode_lut.problem import Problem
    from diode_lut.templates.config import Config

    def lost(loss: Crash) -> None:
        raise SystemExit(str(loss))

    found: dict[str, Any] = {}
    for name, sizes in CASES.items():
        problem = Problem.of("grouped_mm", dtype="bfloat16", **sizes)  # type: ignore[arg-type]
        task = Task(problem, tuple(map(Config.parse, CONFIGS)))
        for outcome in measure([task], "cuda", Watch(lost), "default"):
            timings = outcome.record.timings if outcome.record else ()
            reasons = {str(timing.config): timing.ns or timing.reason for timing in timings}
            found[name] = reasons or outcome.reason
    return found


if __name__ == "__main__":
    with timing_device():
        print(json.dumps(main()))
