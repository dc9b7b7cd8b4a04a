"""Sweeps padded operands, float8 and int8 on the interpreter's device, for tests/interpreter/test_collect_padded.py.

``python collect_padded.py DIRECTORY``: a dataset and a table go there. Prints JSON. Times are those of a device that
takes a millisecond for everything; results are checked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.interpreter.device import interpreter_cuda

TILES = (32, 32, 32, 8, 3, 4)


class Event:
    """An event of a device that is behind the CPU, but for the first ``late`` of all events that are asked.

    Launches that it waits for take ten times as long.
    """

    late = 0

    def __init__(self, **_: Any) -> None:
        self.record = self.synchronize = lambda: None
        self.waited = False

    def query(self) -> bool:
        """Whether the device got to the event before the CPU asked."""
        self.waited = Event.late > 0
        Event.late -= self.waited
        return self.waited

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds."""
        del other
        return 10.0 if self.waited else 1.0


def main(directory: Path) -> dict[str, Any]:
    """For each problem and stage, its configs with their times or the reasons of their failures."""
    from diode_lut.dataset import DatasetWriter, Record, read_dataset
    from diode_lut.measure.stages import final as measure_final
    from diode_lut.measure.stages import sweep as measure_sweep
    from diode_lut.measure.tasks import Crash, Outcome, Task, Watch, finalists, find_setup
    from diode_lut.problem import EPILOGUES, Problem
    from diode_lut.templates.config import ATEN, PADDED_OPS, Config, pad_multiple

    def lost(loss: Crash) -> None:
        raise SystemExit(str(loss))

    problems = [
        Problem.of("mm", 24, 27, 77, dtype="bfloat16", layout="nt"),
        Problem.of("addmm", 24, 32, 1029, dtype="float16", layout="nn"),  # Inductor pads long rows even further
        Problem.of("bmm", 20, 30, 45, dtype="float32", layout="nt", b=3),
        Problem.of("scaled_mm", 24, 32, 96, dtype="float8_e4m3fn", layout="nt", variant="tensor-bfloat16-fast"),
        Problem.of("scaled_mm", 33, 32, 96, dtype="float8_e4m3fn", layout="nt", variant="row-bfloat16-fast"),
        Problem.of("scaled_mm", 24, 32, 96, dtype="float8_e5m2", layout="nt", variant="tensor-bfloat16"),
        *(Problem.of("int_mm", 24, 32, 96, dtype="int8", layout="nt", epilogue=each) for each in EPILOGUES),
        Problem.of("int_mm", 33, 72, 200, dtype="int8", layout="nn"),
    ]
    found: dict[str, Any] = {}
    header = find_setup("cuda", "sweep", "default").header
    with DatasetWriter(directory / "padded.msgpack", header) as writer:

        def keep(outcome: Outcome) -> Record:
            assert outcome.record is not None, outcome
            writer.append(outcome.record)
            times = {str(each.config): each.reason or each.ns for each in outcome.record.timings}
            found[f"{outcome.problem} {outcome.record.stage}"] = times
            return outcome.record

        swept: dict[Problem, Record] = {}
        tasks = []
        for problem in problems:
            plain = [ATEN, Config("triton_bmm" if problem.op == "bmm" else "triton_mm", TILES)]
            if problem.op not in ("bmm", "int_mm"):
                plain.append(Config("triton_mm_persistent_tma", TILES))
            configs = tuple(plain)
            if problem.op in PADDED_OPS:
                configs = (*plain[:2], *(config.padded(pad_multiple(problem.dtype)) for config in plain))
            if problem.alone not in swept:
                (outcome,) = measure_sweep([Task(problem.alone, configs)], "cuda", Watch(lost), "default")
                swept[problem.alone] = keep(outcome)
            tasks += finalists([swept[problem.alone]], [problem], header.hardware)
        for outcome in measure_final(tasks, "cuda", Watch(lost), "default"):
            keep(outcome)
    kept = {f"{record.problem} {record.stage}": record for record in read_dataset(directory / "padded.msgpack")}
    assert found == {
        name: {str(each.config): each.reason or each.ns for each in record.timings} for name, record in kept.items()
    }
    fused = problems[0]._replace(epilogue="light")
    task = Task(fused, (ATEN, Config("triton_mm", TILES), ATEN.padded(8), Config("triton_mm", TILES).padded(8)))
    (final,) = measure_final([task], "cuda", Watch(lost), "default")
    assert final.record is not None, final
    found[str(fused)] = {str(each.config): each.reason or each.ns for each in final.record.timings}
    return found | {f"late {number}": rounds_with(number) for number in (0, 1, 2, 20)}


def rounds_with(late: int) -> list[list[float]]:
    """Nanoseconds of one function in two rounds on a device that waits for the first ``late`` launches."""
    from diode_lut.measure.timing import Bench

    Event.late = late
    return Bench().rounds([lambda: None], 2).tolist()


@contextmanager
def timing_device() -> Iterator[None]:
    """The interpreter's device, with Event and all else that timing asks a GPU for.

    Every launch takes the same time there, so one round tells as much as ten.
    """
    with interpreter_cuda(), ExitStack() as stack:
        from tests.fake_cuda import H200

        H200.L2_cache_size = 1024  # all of which is written before each launch
        for target, value in {
            "torch.cuda.Event": Event,
            "torch.cuda._sleep": lambda _: None,
            "diode_lut.measure.timing._ROUNDS": 1,
            "torch.cuda.current_stream": lambda *_: SimpleNamespace(cuda_stream=0),
        }.items():
            stack.enter_context(mock.patch(target, value))
        yield


if __name__ == "__main__":
    with timing_device():
        print(json.dumps(main(Path(sys.argv[1]))))
