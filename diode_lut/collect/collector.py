"""Problems in, dataset out: each product is autotuned on the device and its timings appended."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from diode_lut.collect.product import make_product, matmul_precision
from diode_lut.dataset import DatasetWriter, Header, Record, read_dataset
from diode_lut.errors import CollectError
from diode_lut.hardware import detect_hardware
from diode_lut.inductor.autotune import Round, autotune
from diode_lut.problem import Problem
from diode_lut.settings import config


class Outcome(NamedTuple):
    """What became of one problem.

    ``measured`` comes with the timings just written, ``skipped`` with a reason in words, ``present`` was in the file
    before. ``ignored`` counts candidates of Inductor's that no config can express.
    """

    problem: Problem
    status: Literal["measured", "present", "skipped"]
    record: Record | None = None
    reason: str = ""
    ignored: int = 0


def collect(
    problems: Sequence[Problem], path: Path, *, device: str | None = None, search_space: str = "default"
) -> Iterator[Outcome]:
    """Measure each problem that the dataset at ``path`` does not hold yet, yielding as each is done and on disk.

    ``device`` is ``cuda`` or ``cpu``; by default CUDA where there is any. The hook is off while a problem is measured.
    HardwareError without such a device, DatasetError if the file holds other hardware's timings or other software's,
    CollectError if the device stops working. A problem that cannot be measured is skipped.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with DatasetWriter(path, make_header(device, search_space)) as writer:
        present = {record.problem for record in read_dataset(path)}
        for problem in problems:
            if problem in present:
                yield Outcome(problem, "present")
                continue
            outcome = _measure(problem, device, search_space)
            if outcome.record is not None:
                writer.append(outcome.record)
            yield outcome


def make_header(device: str, search_space: str) -> Header:
    """What the timings of ``device`` will have been taken on and with."""
    on_gpu = device != "cpu"
    return Header(
        hardware=detect_hardware(device),
        torch=torch.__version__,
        triton=_triton_version(),
        cuda=(torch.version.cuda or torch.version.hip or "") if on_gpu else "",
        driver=_driver_version() if on_gpu else "",
        benchmarker=f"inductor max_autotune {search_space}",
        measured_on=date.today().isoformat(),
    )


def _measure(problem: Problem, device: str, search_space: str) -> Outcome:
    try:
        with config.patch(policy="off"), matmul_precision(problem.dtype):
            product = make_product(problem, device)
            rounds = autotune(product.function, product.arguments, search_space=search_space, freeze=product.frozen)
    except CollectError as error:
        _require_alive(device, problem)
        return Outcome(problem, "skipped", reason=str(error))
    found = next((each for each in rounds if each.problem == problem), None)
    if found is None:
        return Outcome(problem, "skipped", reason=_what_came_instead(rounds))
    return Outcome(problem, "measured", Record(problem, found.timings), ignored=found.ignored)


def _what_came_instead(rounds: list[Round]) -> str:
    if not rounds:
        return "Inductor does not compute it as a matrix product"
    return f"reached Inductor as {', '.join(str(each.problem or each.name) for each in rounds)}"


def _require_alive(device: str, problem: Problem) -> None:
    """CollectError if the device answers nothing any more, as after an illegal access in some kernel."""
    if device == "cpu":
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise CollectError(
            f"{problem}: the device stopped working ({str(error).splitlines()[0]}); everything before is in the "
            "dataset: leave this problem out, or set TORCHINDUCTOR_AUTOTUNE_IN_SUBPROC=1, and run again"
        ) from error


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
