"""The setup of a measurement: hardware, software, and the method with its stages.

It is the same for a whole dataset. Nothing is imported for a stage before it is measured, so the command line can list
the methods without torch or msgpack.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.domain.errors import HardwareError
from diode_lut.domain.hardware import Hardware, detect_hardware

if TYPE_CHECKING:
    from diode_lut.collect.tasks import Outcome, Task, Watch
    from diode_lut.dataset import Header, Record, Timing
    from diode_lut.domain.problem import Problem


_FIRST_YEAR = 2026
"""The year of the first release: an earlier date is wrong."""


class Setup(NamedTuple):
    """How a collection measures. ``device`` is ``cuda`` or ``cpu``, ``method`` one of METHODS."""

    device: str
    method: str
    search_space: str
    header: Header


def find_setup(device: str | None, method: str | None, search_space: str) -> Setup:
    """This process's setup; by default CUDA where there is any, method ``sweep`` on CUDA and ``autotune`` elsewhere.

    HardwareError without such a device, or with one that the method is not for.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    method = method or ("sweep" if device == "cuda" else "autotune")
    if method == "sweep" and device == "cpu":
        raise HardwareError("cpu: method sweep times Triton kernels, which need CUDA: use --method autotune")
    return Setup(device, method, search_space, _make_header(device, method, search_space))


def difference(one: Setup, other: Setup) -> str:
    """Why timings of the two setups cannot be mixed, as text; empty if they can."""
    from diode_lut.dataset.record import SOFTWARE

    for name in ("hardware", *SOFTWARE):
        mine, others = getattr(one.header, name), getattr(other.header, name)
        if mine != others:
            return f"{name} {mine} and {others}"
    return ""


def _make_header(device: str, method: str, search_space: str) -> Header:
    import torch

    from diode_lut.dataset import Header

    on_gpu = device != "cpu"
    return Header(
        hardware=detect_hardware(device),
        torch=torch.__version__,
        triton=_triton_version(),
        cuda=(torch.version.cuda or torch.version.hip or "") if on_gpu else "",
        driver=_driver_version() if on_gpu else "",
        benchmarker=f"inductor max_autotune {search_space}" if method == "autotune" else "diode_lut sweep 1",
        measured_on=today(),
    )


def today() -> str:
    """The ISO date for a header; empty if the clock is wrong, as it says a year before _FIRST_YEAR."""
    day = date.today()
    return day.isoformat() if day.year >= _FIRST_YEAR else ""


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


def _driver_version() -> str:
    """The GPU driver's version as nvidia-smi gives it, empty where there is no nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed program
    return answer.stdout.strip().splitlines()[0] if answer.returncode == 0 else ""


METHODS = {"autotune": ("autotune",), "sweep": ("sweep", "final")}
"""The stages of each method, in order: all problems go through one stage before any goes through the next."""

SETS = {
    "models": "GEMMs of model suites in float16 and of language models in bfloat16, then some of them with epilogues",
    "llm": "those in bfloat16, of language models",
    "quick": "the first 128 of models",
    "fp8": "linear layers of language models in float8: scaled_mm, forward and backward, up to 8,192 rows",
    "int8": "linear layers of language models in int8: int_mm, alone and with scales behind it, 17 to 8,192 rows",
    "attention": "flex attention, forward, backward and decoding: head dimensions from 64 to 256, lengths to 32,768",
    "grouped": "grouped matmuls of the experts of six public models: 64 to 16,384 rows",
}
"""The sets of problems by name. The first three begin with the GEMMs that gained most over aten on an H200."""

MEASURERS = {
    "autotune": "diode_lut.collect.autotune:measure",
    "sweep": "diode_lut.collect.sweep:measure",
    "final": "diode_lut.collect.final:measure",
}
"""The Measurer of each stage."""

FINALISTS = "diode_lut.collect.search_space:finalists"
"""The function that makes the tasks of stage ``final`` from the records of stage ``sweep``."""


def final_tasks(records: Iterable[Record], problems: Sequence[Problem], hardware: Hardware) -> list[Task]:
    """The tasks of stage ``final``, from the records of stage ``sweep`` on such a device."""
    tasks: list[Task] = resolve_name(FINALISTS)(records, problems, hardware)
    return tasks


def measure_tasks(tasks: Sequence[Task], measurer: str, setup: Setup, watch: Watch) -> Iterator[Outcome]:
    """The outcomes of one of MEASURERS; records include the configs that failed before.

    ``tasks`` are those of a shard.
    """
    failed = {task.problem: task.failed for task in tasks}
    for outcome in resolve_name(measurer)(tasks, setup.device, watch, setup.search_space):
        yield _with_failures(outcome, failed[outcome.problem])


def _with_failures(outcome: Outcome, failed: tuple[Timing, ...]) -> Outcome:
    if outcome.record is None:
        return outcome
    configs = {timing.config for timing in failed}
    others = (timing for timing in outcome.record.timings if timing.config not in configs)
    return outcome._replace(record=outcome.record._replace(timings=(*others, *failed)))
