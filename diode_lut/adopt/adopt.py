"""Adopting a device: within a budget from problems to a table, a model, a report, and a folder to contribute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from diode_lut.adopt.drift import Drift, noise_of
from diode_lut.adopt.machine import Machine, clocks_text, slowed
from diode_lut.adopt.verify import SAMPLE, Report, Sample, measure_drift
from diode_lut.build import BuildResult, build
from diode_lut.collect.collector import Executor, collect, open_executor
from diode_lut.collect.setup import METHODS
from diode_lut.collect.tasks import Outcome
from diode_lut.dataset import Dataset, Record, pack, read_dataset
from diode_lut.domain.errors import CollectError
from diode_lut.domain.hardware import Hardware, slug
from diode_lut.domain.ops import NO_EPILOGUE
from diode_lut.domain.problem import Problem
from diode_lut.evaluate import evaluate
from diode_lut.kernels.config import BASELINES
from diode_lut.selection.tables import TableSource
from diode_lut.table import Table, write_table

BATCH = 64
"""Problems that go through all stages before the next ones do, so that a short budget has finished problems."""

FIRST_BATCH = 16
"""Problems in the first batch, from which the time for others is estimated."""

_MEASURING, _CHECKING = 0.75, 0.85
"""Shares of the budget after which no problem is begun, and none is measured again."""


class Adopted(NamedTuple):
    """What was measured and built: the files in the folder, the table as ``build`` made it, and how it was checked."""

    hardware: Hardware
    dataset: Path
    table: Path
    built: BuildResult
    drift: Drift
    clocks: str
    left: int


class Folder(NamedTuple):
    """Where things are: ``timings`` is what interrupted runs continue, the rest is ready to contribute."""

    root: Path

    @property
    def timings(self) -> Path:
        """All timings, those of unfinished problems too."""
        return self.root / "timings.msgpack"

    @property
    def contribution(self) -> Path:
        """The files of a pull request, placed as in the repository."""
        return self.root / "contribution"

    @property
    def tables(self) -> Path:
        """Where the table and the model are."""
        return self.contribution / "tables"

    def dataset(self, hardware: Hardware, name: str) -> Path:
        """The compact dataset, named after the device and the set of problems."""
        return self.tables / "datasets" / f"{slug(hardware.name)}-{name}.msgpack.zst"


def adopt(
    problems: Sequence[Problem],
    root: Path,
    *,
    name: str,
    budget_s: float,
    measured_by: str = "",
    device: str | None = None,
    report: Report = lambda _: None,
) -> Adopted:
    """Measure the problems in their order within the budget, check the measurements, and build a table.

    What an earlier run measured in ``root`` is not measured again. ``name`` is that of the set of problems,
    ``measured_by`` says who measures.
    CollectError if others use the GPU, if it was slowed down by heat or power, or if gains are not found again: then no
    table is written. Other errors are those of ``collect`` and ``build``.
    """
    begin, folder = time.monotonic(), Folder(root)
    folder.tables.joinpath("datasets").mkdir(parents=True, exist_ok=True)
    machine = Machine(device or "")
    _require(machine.faults_before())
    with open_executor(device, None) as executor:
        setup = executor.find_setup(device, None, "default")
        if setup.device == "cpu":
            machine = Machine("cpu")
        with machine.watched():
            left = _measure(problems, folder.timings, executor, begin + _MEASURING * budget_s, device, report)
            dataset = folder.dataset(setup.header.hardware, name)
            _pack_finished(folder.timings, dataset, METHODS[setup.method][-1], measured_by)
            built = build([read_dataset(dataset)])
            gains = _gains(built.table, read_dataset(dataset))
            now = time.monotonic()
            seconds = max(begin + _CHECKING * budget_s - now, (_CHECKING - _MEASURING) * budget_s)
            report(f"measuring {len(gains)} answers again, to see the noise")
            drift = measure_drift(built.table, gains, executor, seconds, now, device=device, report=report)
    drift = drift._replace(noise=noise_of([(row.recorded, row.measured[0]) for row in drift.rows]))
    _require([*slowed(machine.samples), *_unreliable(drift, len(gains))])
    table = folder.tables / f"{slug(setup.header.hardware.name)}.json"
    write_table(built.table, table)
    return Adopted(setup.header.hardware, dataset, table, built, drift, clocks_text(machine.samples), left)


def _require(faults: Sequence[str]) -> None:
    if faults:
        raise CollectError(f"no table is built: {'; '.join(faults)}; what is measured is kept, so run again")


def _measure(
    problems: Sequence[Problem],
    path: Path,
    executor: Executor,
    deadline: float,
    device: str | None,
    report: Report,
) -> int:
    """Measure batches until the deadline, and return the number of problems that are left.

    The last batch is smaller if a whole one would take longer than the time that is left.
    """
    done, left, took = 0, 0, 0.0
    while done < len(problems) and (remaining := deadline - time.monotonic()) > 0:
        begin = time.monotonic()
        size = max(1, int(BATCH * min(1.0, remaining / took))) if took else FIRST_BATCH
        batch = problems[done : done + size]
        left = 0
        for each in collect(batch, path, device=device, executor=executor, budget_s=remaining):
            tally = Counter(outcome.status for outcome in _shown(each.outcomes, report))
            left += each.total - tally.total()
        done += len(batch)
        if tally["measured"]:
            took = (time.monotonic() - begin) * BATCH / len(batch)
        seconds = max(0.0, deadline - time.monotonic())
        report(f"{done - left} of {len(problems)} problems are done; {seconds:.0f} s are left for more")
    return len(problems) - done + left


def _shown(outcomes: Iterable[Outcome], report: Report) -> Iterator[Outcome]:
    for outcome in outcomes:
        if outcome.status == "skipped":
            report(f"skipped {outcome.problem}: {outcome.reason}")
        yield outcome


def _pack_finished(timings: Path, path: Path, last_stage: str, measured_by: str) -> None:
    """Pack the timings of the problems that went through all stages: others have no careful times to build from."""
    finished = {record.problem for record in read_dataset(timings) if record.stage == last_stage}
    if not finished:
        raise CollectError(f"{timings}: no problem went through all stages within the budget: run again to go on")
    alone = {problem.alone for problem in finished}

    def kept(dataset: Dataset) -> Iterator[Record]:
        return (
            each for each in dataset if each.problem in finished or (each.stage == "sweep" and each.problem in alone)
        )

    pack([read_dataset(timings)], path, kept, measured_by=measured_by)


def _gains(table: Table, records: Iterable[Record]) -> Sample:
    """Measured problems whose answer is not aten, with the measured gains, spread evenly from the largest gain down."""
    found = {
        case.problem: case.gain
        for case in evaluate(TableSource(table), records).cases
        if case.choice not in BASELINES and case.gain is not None and case.problem.epilogue == NO_EPILOGUE
    }
    ranked = sorted(found, key=lambda problem: (-found[problem], problem))
    step = max(1, len(ranked) // SAMPLE)
    return {(problem,): found[problem] for problem in ranked[::step][:SAMPLE]}


def _unreliable(drift: Drift, wanted: int) -> list[str]:
    if wanted and not drift.rows:
        return ["no time was left to measure gains again: give a larger budget"]
    if drift.verdict == "too noisy":
        return [
            f"two measurements of a gain typically differ by {drift.noise or 0:.1%}: end other programs, fix the clocks"
        ]
    if drift.verdict == "does not hold":
        return [
            f"of {len(drift.rows)} gains {len(drift.drifted)} differ by over {drift.tolerance:.0%} when measured again"
        ]
    return []
