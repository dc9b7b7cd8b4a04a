"""A measurer for tests whose kernel, on one problem, reads where there is no memory."""

from collections.abc import Iterator, Sequence

import torch

from diode_lut.dataset import Record, Timing
from diode_lut.measure.gemm import make_operands
from diode_lut.measure.stages import aten_launch
from diode_lut.measure.tasks import Outcome, Task, Watch
from diode_lut.templates.config import ATEN, Config

BAD = Config("triton_mm", (64, 64, 64, 8, 3, 4))
FAULTS = 96  # the M of the problem on which BAD faults


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
    """A Measurer: ``aten`` is run once; times are made up."""
    for task in tasks:
        operands = make_operands(task.problem, device)
        out = torch.empty(task.problem.m, task.problem.n, dtype=operands[0].dtype, device=device)
        timings = [Timing(ATEN, 1.0)]
        for config in {BAD} - {timing.config for timing in task.failed}:
            with watch(task.problem, config):
                if task.problem.m == FAULTS:
                    operands[0][torch.full((1,), 2**20, device=device)].sum()  # a device-side assertion
                torch.cuda.synchronize()
            timings.append(Timing(config, 2.0))
        with watch(task.problem, ATEN):
            aten_launch(task.problem, operands, out)()
            torch.cuda.synchronize()
        yield Outcome(task.problem, "measured", Record(task.problem, tuple(timings)))
