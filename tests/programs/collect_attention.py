"""Measures attention on the interpreter's device, as JSON for tests/interpreter/test_collect_attention.py.

Times are those of a device that takes a millisecond for everything; results are checked.
"""

import json
from typing import Any

from tests.programs.collect_padded import timing_device

CONFIGS = {
    "flex_attention": ("default", "triton_flex_attention 64x16 s1 w2"),
    "flex_attention_backward": ("default", "triton_flex_attention_backward 16x32 64x16 s2 w4"),
    "flex_decoding": ("default", "triton_flex_decoding 32 s2 w2"),
}
CASES = (
    ("flex_attention", {"m": 50, "n": 50, "k": 16, "h": 2, "variant": "full"}),
    ("flex_attention", {"m": 64, "n": 80, "k": 32, "v": 16, "h": 4, "g": 2, "variant": "causal-score-computed"}),
    ("flex_attention", {"m": 50, "n": 50, "k": 24, "h": 2, "b": 2, "variant": "captured-score-captured"}),
    ("flex_attention_backward", {"m": 50, "n": 50, "k": 16, "h": 4, "g": 2, "variant": "computed"}),
    ("flex_attention_backward", {"m": 64, "n": 64, "k": 16, "h": 1, "variant": "captured-score-computed"}),
    ("flex_decoding", {"m": 1, "n": 100, "k": 16, "h": 4, "g": 4, "variant": "full"}),
)


def main() -> dict[str, Any]:
    """For each problem, its configs with their times or the reasons of their failures."""
    from diode_lut.measure.stages import sweep as measure
    from diode_lut.measure.tasks import Crash, Task, Watch
    from diode_lut.problem import Problem
    from diode_lut.templates.config import Config

    def lost(loss: Crash) -> None:
        raise SystemExit(str(loss))

    found: dict[str, Any] = {}
    for op, sizes in CASES:
        problem = Problem.of(op, dtype="float32", layout="nt", **sizes)  # type: ignore[arg-type]
        task = Task(problem, tuple(map(Config.parse, CONFIGS[op])))
        *_, outcome = measure([task], "cuda", Watch(lost), "default")
        timings = outcome.record.timings if outcome.record else ()
        reasons = {str(timing.config): timing.ns or timing.reason for timing in timings}
        found[f"{op} {sizes['variant']}"] = reasons or outcome.reason
    return found


if __name__ == "__main__":
    with timing_device():
        print(json.dumps(main()))
