"""Methods of measuring: their stages and measurers, the shipped sets of problems, and the setup of a collection.

Nothing is imported for a stage before it is measured, so the command line lists methods without torch or msgpack.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.errors import HardwareError
from diode_lut.hardware import Hardware, detect_hardware

if TYPE_CHECKING:
    from diode_lut.dataset import Header, Record
    from diode_lut.measure.tasks import Outcome, Task, Watch
    from diode_lut.problem import Problem

METHODS = {"autotune": ("autotune",), "sweep": ("sweep", "final")}
"""The stages of each method, in order: all problems go through a stage before any goes through the next."""

MEASURERS = {
    "autotune": "diode_lut.measure.autotune:measure",
    "sweep": "diode_lut.measure.stages:sweep",
    "final": "diode_lut.measure.stages:final",
}
"""The Measurer of each stage."""

FINALISTS = "diode_lut.measure.search_space:finalists"
"""The function from records of stage ``sweep`` to the tasks of stage ``final``."""

SETS = {
    "models": "GEMMs of model suites in float16 and of language models in bfloat16, then some of them with epilogues",
    "llm": "those in bfloat16, of language models",
    "quick": "the first 128 of models",
    "fp8": "linear layers of language models in float8: scaled_mm, forward and backward, up to 8,192 rows",
    "int8": "linear layers of language models in int8: int_mm, alone and with scales after it, 17 to 8,192 rows",
    "attention": "flex attention, forward, backward and decoding: head dimensions from 64 to 256, lengths to 32,768",
    "grouped": "grouped matmuls of the experts of six public models: 64 to 16,384 rows",
}
"""The shipped sets of problems by name. The first three begin with the largest gains over aten on an H200."""

_FIRST_YEAR = 2026
"""The year of the first release. An earlier date is wrong."""


class Setup(NamedTuple):
    """How a collection measures. ``device`` is ``cuda`` or ``cpu``, ``method`` a key of METHODS."""

    device: str
    method: str
    search_space: str
    header: Header


def find_setup(device: str | None, method: str | None, search_space: str) -> Setup:
    """Return this process's setup. The defaults are CUDA if there is any, ``sweep`` on CUDA and ``autotune`` elsewhere.

    HardwareError if there is no such device, or the method is not for it.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    method = method or ("sweep" if device == "cuda" else "autotune")
    if method == "sweep" and device == "cpu":
        raise HardwareError("cpu: method sweep times Triton kernels, which need CUDA: use --method autotune")
    return Setup(device, method, search_space, _make_header(device, method, search_space))


def difference(one: Setup, other: Setup) -> str:
    """Return the reason why timings of the two setups cannot be mixed, or an empty text."""
    from diode_lut.dataset import SOFTWARE

    for name in ("hardware", *SOFTWARE):
        mine, others = getattr(one.header, name), getattr(other.header, name)
        if mine != others:
            return f"{name} {mine} and {others}"
    return ""


def _make_header(device: str, method: str, search_space: str) -> Header:
    import torch

    from diode_lut.dataset import Header

    try:
        import triton
    except ImportError:
        triton = None
    driver = ""
    program = None if device == "cpu" else shutil.which("nvidia-smi")
    if program is not None:
        query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed program
        driver = answer.stdout.strip().splitlines()[0] if answer.returncode == 0 else ""
    return Header(
        hardware=detect_hardware(device),
        torch=torch.__version__,
        triton="" if triton is None else str(triton.__version__),
        cuda="" if device == "cpu" else torch.version.cuda or torch.version.hip or "",
        driver=driver,
        benchmarker=f"inductor max_autotune {search_space}" if method == "autotune" else "diode_lut sweep 1",
        measured_on=today(),
    )


def today() -> str:
    """Return the ISO date for a header, or an empty text if the clock says a year before _FIRST_YEAR."""
    day = date.today()
    return day.isoformat() if day.year >= _FIRST_YEAR else ""


def final_tasks(records: Iterable[Record], problems: Sequence[Problem], hardware: Hardware) -> list[Task]:
    """Return the tasks of stage ``final``, from the records of stage ``sweep`` on such a device."""
    tasks: list[Task] = resolve_name(FINALISTS)(records, problems, hardware)
    return tasks


def measure_tasks(tasks: Sequence[Task], measurer: str, setup: Setup, watch: Watch) -> Iterator[Outcome]:
    """Yield the outcomes of the tasks of a shard. Records include configs with an earlier failure."""
    failed = {task.problem: task.failed for task in tasks}
    for outcome in resolve_name(measurer)(tasks, setup.device, watch, setup.search_space):
        if outcome.record is not None:
            before = failed[outcome.problem]
            configs = {timing.config for timing in before}
            others = (timing for timing in outcome.record.timings if timing.config not in configs)
            outcome = outcome._replace(record=outcome.record._replace(timings=(*others, *before)))
        yield outcome
