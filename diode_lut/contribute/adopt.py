"""Adopt a device without a table: check the machine, measure within a budget, build, and write a contribution."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console

from diode_lut.build import BuildResult, build
from diode_lut.contribute.judge import SAMPLE, Drift, Gains, Report, noise_of, verify
from diode_lut.dataset import Dataset, Record, pack, read_dataset
from diode_lut.decide.catalog import open_table
from diode_lut.decide.sources import TableSource
from diode_lut.distill import as_text, distill
from diode_lut.distill.training import TrainingPlan
from diode_lut.errors import CollectError, ModelError, counted, install_command
from diode_lut.evaluate import as_columns, evaluate, geometric_mean
from diode_lut.files import write_atomically
from diode_lut.hardware import Hardware, slug
from diode_lut.measure import METHODS
from diode_lut.measure.collector import Executor, collect, open_executor
from diode_lut.measure.problems import RecordedKernel
from diode_lut.model import SUFFIX, Split
from diode_lut.model.weights import write_model
from diode_lut.problem import NO_EPILOGUE, Problem
from diode_lut.table import read_bytes, write_table
from diode_lut.templates.config import BASELINES

MAX_UTILIZATION = 10  # maximum load, in percent, that others may put on the GPU before measuring begins
MAX_SLOWED = 0.1  # maximum share of the samples in which heat or power slows down the GPU

_SLOWDOWNS = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""The bits of NVML's reasons for low clocks that spoil times. A power cap is normal under load."""

_FIELDS = ("clocks.sm", "clocks.max.sm", "temperature.gpu", "utilization.gpu")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # of the bits, now and before driver 535

_INTERVAL_S = 2.0
_IDLE_SAMPLES = 3
_TIMEOUT_S = 20.0


class GpuState(NamedTuple):
    """The state of a GPU at one moment: MHz, degrees Celsius, percent, and NVML's bits for low clocks."""

    clock: int
    max_clock: int
    temperature: int
    utilization: int
    reasons: int


def parse_sample(text: str) -> GpuState | None:
    """Read a line of nvidia-smi's CSV with _FIELDS and one of _REASONS. None if a field is unknown to nvidia-smi."""
    parts = [part.strip() for part in text.split(",")]
    try:
        clock, max_clock, temperature, utilization, reasons = parts
        return GpuState(int(clock), int(max_clock), int(temperature), int(utilization), int(reasons, 16))
    except ValueError:
        return None


def busy(samples: Sequence[GpuState], processes: int | None) -> list[str]:
    """Return the reason not to begin measuring, from samples of an idle GPU."""
    if not samples or median(sample.utilization for sample in samples) <= MAX_UTILIZATION:
        return []
    used = max(sample.utilization for sample in samples)
    others = f" ({processes} processes are on it)" if processes else ""
    return [f"others use the GPU, up to {used} % of the time{others}: stop them"]


def slowed(samples: Sequence[GpuState]) -> list[str]:
    """Return the reason to distrust times, from samples taken meanwhile."""
    hit = [sample for sample in samples if any(sample.reasons & bit for bit in _SLOWDOWNS)]
    if len(hit) <= MAX_SLOWED * len(samples):
        return []
    causes = {name for sample in hit for bit, name in _SLOWDOWNS.items() if sample.reasons & bit}
    hottest = max(sample.temperature for sample in samples)
    why = f"{', '.join(sorted(causes))}; up to {hottest} degrees Celsius"
    remedy = "cool it, or set lower clocks with `nvidia-smi -lgc`"
    return [f"the GPU was slowed down in {len(hit)} of {len(samples)} samples ({why}): {remedy}"]


def clocks_text(samples: Sequence[GpuState]) -> str:
    """Return the clocks and temperatures while measuring."""
    if not samples:
        return "not known: no nvidia-smi"
    clocks = [sample.clock for sample in samples]
    return (
        f"{min(clocks)} to {max(clocks)} MHz, median {median(clocks):.0f} of at most {samples[0].max_clock}; up to "
        f"{max(sample.temperature for sample in samples)} degrees Celsius"
    )


class Machine:
    """The GPU of this process in nvidia-smi. Without nvidia-smi, and on a CPU, there are no samples."""

    def __init__(self, device: str) -> None:
        self._program = shutil.which("nvidia-smi") if device != "cpu" else None
        self._index = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
        self._reasons = list(_REASONS)
        self.samples: list[GpuState] = []

    def faults_before(self) -> list[str]:
        """Return the reason not to begin measuring. It takes a second."""
        samples = []
        for _ in range(_IDLE_SAMPLES):
            samples += self._sample()
            threading.Event().wait(_INTERVAL_S / _IDLE_SAMPLES if samples else 0)
        running = self._ask("--query-compute-apps=pid")
        return busy(samples, None if running is None else len(running))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take samples in a thread while the block runs."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_INTERVAL_S):
                self.samples += self._sample()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _sample(self) -> list[GpuState]:
        for name in self._reasons:
            answer = self._ask(f"--query-gpu={','.join((*_FIELDS, name))}")
            if answer:  # a field that this nvidia-smi does not know is an error
                self._reasons = [name]
                sample = parse_sample(answer[0])
                return [sample] if sample else []
        return []

    def _ask(self, query: str) -> list[str] | None:
        if self._program is None:
            return None
        command = [self._program, "-i", self._index, query, "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip().splitlines() if answer.returncode == 0 else None


BATCH = 64  # number of problems that go through all stages together, so a short budget ends with finished problems
FIRST_BATCH = 16  # number of problems in the first batch, from which the time for others is estimated
_MEASURING, _CHECKING = 0.75, 0.85  # shares of the budget after which no problem is begun, and none is measured again


class Adopted(NamedTuple):
    """The result: the files in the folder, the table from ``build``, and its check."""

    hardware: Hardware
    dataset: Path
    table: Path
    built: BuildResult
    drift: Drift
    clocks: str
    left: int

    @property
    def contribution(self) -> Path:
        """The directory with the files of a pull request."""
        return self.table.parents[1]


def adopt(
    problems: Sequence[Problem],
    root: Path,
    *,
    name: str,
    budget_s: float,
    measured_by: str = "",
    device: str | None = None,
    kernels: Sequence[RecordedKernel] = (),
    report: Report = lambda _: None,
) -> Adopted:
    """Measure the problems in their order within the budget, check the measurements, and build a table.

    All timings are in ``root``, those of an earlier run and of unfinished problems too. ``name`` is the name of the set
    of problems, ``measured_by`` the person who measures. ``kernels`` are generated kernels of a program, and are
    measured first.

    CollectError if others use the GPU, if heat or power slowed it down, or if gains are not found again. Then no table
    is written. Other errors are those of ``collect`` and ``build``.
    """
    begin, timings = time.monotonic(), root / "timings.msgpack"
    tables = root / "contribution" / "tables"  # the files of a pull request, placed as in the repository
    tables.joinpath("datasets").mkdir(parents=True, exist_ok=True)
    machine = Machine(device or "")
    _require(machine.faults_before())
    with open_executor(device) as executor:
        setup = executor.find_setup(device, None, "default")
        if setup.device == "cpu":
            machine = Machine("cpu")
        with machine.watched():
            work: list[Problem | RecordedKernel] = [*kernels, *problems]
            left = _measure(work, timings, executor, begin + _MEASURING * budget_s, device, report)
            dataset = tables / "datasets" / f"{slug(setup.header.hardware.name)}-{name}.msgpack.zst"
            _pack_finished(timings, dataset, METHODS[setup.method][-1], measured_by)
            built = build([read_dataset(dataset)])
            # Problems whose answer is not aten, with the measured gains, spread evenly from the largest gain down.
            found = {
                case.problem: case.gain
                for case in evaluate(TableSource(built.table), read_dataset(dataset)).cases
                if case.choice not in BASELINES and case.gain is not None and case.problem.epilogue == NO_EPILOGUE
            }
            ranked = sorted(found, key=lambda problem: (-found[problem], problem))
            step = max(1, len(ranked) // SAMPLE)
            gains: Gains = {(problem,): found[problem] for problem in ranked[::step][:SAMPLE]}
            now = time.monotonic()
            seconds = max(begin + _CHECKING * budget_s - now, (_CHECKING - _MEASURING) * budget_s)
            report(f"measuring {len(gains)} answers again, to see the noise")
            drift = verify(
                *(built.table, gains, executor),
                device=device,
                budget_s=seconds,
                begun=now,
                kernels=kernels,
                report=report,
            )
    drift = drift._replace(noise=noise_of([(row.recorded, row.measured[0]) for row in drift.rows]))
    faults = slowed(machine.samples)
    if gains and not drift.rows:
        faults.append("no time was left to measure gains again: give a larger budget")
    elif drift.verdict == "too noisy":
        remedy = "end other programs, fix the clocks"
        faults.append(f"two measurements of a gain typically differ by {drift.noise or 0:.1%}: {remedy}")
    elif drift.verdict == "does not hold":
        drifted = f"of {len(drift.rows)} gains {len(drift.drifted)}"
        faults.append(f"{drifted} differ by over {drift.tolerance:.0%} when measured again")
    _require(faults)
    table = tables / f"{slug(setup.header.hardware.name)}.json"
    write_table(built.table, table)
    return Adopted(setup.header.hardware, dataset, table, built, drift, clocks_text(machine.samples), left)


def _require(faults: Sequence[str]) -> None:
    if faults:
        raise CollectError(f"no table is built: {'; '.join(faults)}; what is measured is kept, so run again")


def _measure(
    work: Sequence[Problem | RecordedKernel],
    path: Path,
    executor: Executor,
    deadline: float,
    device: str | None,
    report: Report,
) -> int:
    """Measure batches until the deadline, the last one perhaps smaller, and return how many problems are left."""
    done, left, took = 0, 0, 0.0
    while done < len(work) and (remaining := deadline - time.monotonic()) > 0:
        begin = time.monotonic()
        size = max(1, int(BATCH * min(1.0, remaining / took))) if took else FIRST_BATCH
        batch = work[done : done + size]
        kernels = [each for each in batch if isinstance(each, RecordedKernel)]
        problems = [each for each in batch if isinstance(each, Problem)]
        left = 0
        for each in collect(problems, path, device=device, executor=executor, budget_s=remaining, kernels=kernels):
            tally: Counter[str] = Counter()
            for outcome in each.outcomes:
                tally[outcome.status] += 1
                if outcome.status == "skipped":
                    report(f"skipped {outcome.problem}: {outcome.reason}")
            left += each.total - tally.total()
        done += len(batch)
        if tally["measured"]:
            took = (time.monotonic() - begin) * BATCH / len(batch)
        seconds = max(0.0, deadline - time.monotonic())
        report(f"{done - left} of {len(work)} problems are done; {seconds:.0f} s are left for more")
    return len(work) - done + left


def _pack_finished(timings: Path, path: Path, last_stage: str, measured_by: str) -> None:
    """Pack the timings of the problems that went through all stages. Others have no careful times to build from."""
    finished = {record.problem for record in read_dataset(timings) if record.stage == last_stage}
    if not finished:
        raise CollectError(f"{timings}: no problem went through all stages within the budget: run again to go on")
    alone = {problem.alone for problem in finished}

    def kept(dataset: Dataset) -> Iterator[Record]:
        return (
            each for each in dataset if each.problem in finished or (each.stage == "sweep" and each.problem in alone)
        )

    pack([read_dataset(timings)], path, kept, measured_by=measured_by)


_WIDTH = 120  # width of the figures in columns


def complete(adopted: Adopted, report: Report = lambda _: None) -> list[str]:
    """Write model, page and README beside the table and the dataset, and return the README's figures as lines."""
    model, figures = _distilled(adopted, report)
    folder = adopted.contribution
    file = read_bytes(adopted.table)
    table = open_table(adopted.table, file)
    evaluation = evaluate(TableSource(table), read_dataset(adopted.dataset))
    printed = io.StringIO()
    Console(file=printed, width=_WIDTH, highlight=False).print(as_columns(evaluation))
    evaluated = [line.rstrip() for line in printed.getvalue().splitlines()]
    drift, summary = adopted.drift, evaluation.summary
    noise = "not known, because too few kernels beat aten" if drift.noise is None else f"{drift.noise:.1%}"
    rows = counted(len(adopted.built.table.entries), "row")
    lines = [
        f"{adopted.hardware}: {counted(summary.problems, 'problem')}, {rows}; problems not measured: {adopted.left}",
        f"gain over aten of all answers: {summary.gain or 1:.3f} (best possible: {summary.best_gain or 1:.3f})",
        f"answers other than aten that were measured again: {len(drift.rows)}",
        f"difference between two measurements of a gain: {noise}",
    ]
    again = geometric_mean(row.measured[0] for row in drift.rows if row.measured[0] > 0)
    recorded = geometric_mean(row.recorded for row in drift.rows if row.measured[0] > 0)
    if again and recorded:
        both = f"{recorded:.3f}, measured again {again:.3f}"
        lines.append(f"gain of these answers: {both}; drifted: {len(drift.drifted)}")
    lines += [f"clocks while measuring: {adopted.clocks}", f"model: {model.name if model else 'none'}"]
    lines += ["", *evaluated, "", *figures]
    link = adopted.table.relative_to(folder).as_posix()
    if find_spec("vl_convert") is None:
        report(f"no report page: {install_command('report')}, then run again or use `diode-lut report`")
    else:
        from diode_lut.report import Side, as_data, as_page

        data = as_data(Side(table, evaluation, link, file), datasets=[adopted.dataset.name])
        write_atomically(folder / "report.html", as_page(data).encode())
    text = _README.format(hardware=adopted.hardware, table=link, figures="\n".join(lines))
    write_atomically(folder / "README.md", text.encode())
    return lines


_README = """# {hardware}

Measured and built by `diode-lut adopt`. To use the table at once: `export DIODE_LUT_TABLES="$PWD/{table}"`.

To contribute it, let `diode-lut check --contribution .` pass in this directory, copy `tables/` into a clone of
diode_lut, and open a pull request with the figures below. docs/contributing-tables.md has the details. The check builds
the table from the dataset once more, and compares the two byte for byte.

## Figures

```
{figures}
```
"""


def _distilled(adopted: Adopted, report: Report) -> tuple[Path | None, Sequence[str]]:
    """Train a model, and return it with its figures, or None with the reason."""
    path = adopted.table.with_name(adopted.table.stem + ".mlp" + SUFFIX)
    path.unlink(missing_ok=True)  # an older run's, from other timings
    try:
        distilled = distill([read_dataset(adopted.dataset)], Split(0, 0.2), TrainingPlan(), report)
    except ModelError as error:
        return None, [f"no model: {error}"]
    figures = [line for name, each in distilled.validations.items() for line in as_text(name, each).splitlines()]
    answered = [each.answered() for each in distilled.validations.values()]
    gains = [1 / choice.time for validation in answered for choice in validation.choices]
    if (geometric_mean(gains) or 0.0) <= 1:
        return None, ["no model: on the problems kept for testing its answers are no faster than aten", *figures]
    write_model(distilled.model, path)
    return path, figures
