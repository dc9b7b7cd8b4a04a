"""Judge a table: verify it on a device, and review it as a contribution.

``verify`` measures gains of a table's rows again, finds the rows that drifted, and concludes on all rows. ``review``
says if others can rebuild a contributed table from its datasets, and how much its answers gain.
"""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np

from diode_lut.build import build
from diode_lut.build.measurements import combined, measurements_of
from diode_lut.build.rows import WIDE
from diode_lut.dataset import Dataset, Record, current_records, read_dataset
from diode_lut.decide.catalog import open_model
from diode_lut.decide.sources import ModelSource, Source, TableSource
from diode_lut.errors import DatasetError, ModelError, TableError, as_command, counted
from diode_lut.evaluate import evaluate, geometric_mean, usual_kernels
from diode_lut.hardware import known_gpu, slug
from diode_lut.measure.collector import Executor, InProcess, collect
from diode_lut.measure.problems import RecordedKernel, ends
from diode_lut.model import SUFFIX, TEST, TRAIN, Split
from diode_lut.problem import GENERATED, TOGETHER, Problem
from diode_lut.table import Entry, Table, located, table_of
from diode_lut.table.edit import SAME_GAIN, as_version
from diode_lut.table.faults import Fault
from diode_lut.table.format import key_text, winner_text
from diode_lut.table.row import is_point
from diode_lut.templates.config import BASELINES, Config, baseline

TOLERANCE = 0.1
"""A row has drifted if each measured gain differs from the recorded gain by more than this fraction.

tools/score_verify.py computes its consequences. In later runs on other H200 at most 1 of 48 rows drifted, and with the
configs of 30 % of the rows swapped 4 to 18.
"""

NOISE_FACTOR = 4.0  # the tolerance is this many times the typical difference of two measurements, if that is much
MAX_NOISE = 0.05  # maximum typical difference between two measurements of a gain, as a fraction, for a verdict

HEALTHY, SICK = 0.15, 0.02
"""A table holds if surely fewer than the first fraction of rows drifted, and fails if surely more than the second."""

MIN_ROWS = 8  # minimum number of rows for a verdict

_Z = NormalDist().inv_cdf(0.975)

Verdict = Literal["holds", "does not hold", "undecided", "too noisy"]


class RemeasuredRow(NamedTuple):
    """A row with its recorded gain over aten, and the gains measured here (geometric means), 0 if the config failed."""

    problems: tuple[Problem, ...]
    recorded: float
    measured: tuple[float, ...]

    @property
    def shifts(self) -> list[float]:
        """The logarithms of measured over recorded gain, for each measurement."""
        return [math.log(gain / self.recorded) if gain > 0 else -math.inf for gain in self.measured]

    def drifted(self, tolerance: float) -> bool:
        """Return whether every measurement is off by more than the tolerance, all in the same direction."""
        limit = math.log1p(tolerance)
        return all(shift > limit for shift in self.shifts) or all(shift < -limit for shift in self.shifts)


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class Drift(NamedTuple):
    """The result for all measured rows. ``noise`` is the median difference between two measurements of a gain."""

    rows: Sequence[RemeasuredRow]
    noise: float | None

    @property
    def tolerance(self) -> float:
        """By how much a gain may differ, a fraction."""
        return max(TOLERANCE, NOISE_FACTOR * (self.noise or 0.0))

    @property
    def drifted(self) -> list[RemeasuredRow]:
        """The rows that drifted, the largest loss first."""
        found = [row for row in self.rows if row.drifted(self.tolerance)]
        return sorted(found, key=lambda row: max(row.shifts))

    @property
    def share(self) -> Interval:
        """The fraction of rows that drifted, with Wilson's interval."""
        return wilson(len(self.drifted), len(self.rows))

    @property
    def kept(self) -> Interval | None:
        """The geometric mean of measured over recorded gain, of the rows whose configs ran. None for fewer than two."""
        shifts = [row.shifts[-1] for row in self.rows if row.measured[-1] > 0]
        if len(shifts) < 2:
            return None
        mean, error = fmean(shifts), _Z * stdev(shifts) / math.sqrt(len(shifts))
        return Interval(math.exp(mean), math.exp(mean - error), math.exp(mean + error))

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole table."""
        if self.noise is not None and self.noise > MAX_NOISE:
            return "too noisy"
        if len(self.rows) < MIN_ROWS:
            return "undecided"
        if self.share.low > SICK:
            return "does not hold"
        return "holds" if self.share.high < HEALTHY else "undecided"


def noise_of(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the median difference, a fraction, between two measurements of the same gains."""
    both = [abs(math.log(one / other)) for one, other in pairs if one > 0 and other > 0]
    return math.expm1(median(both)) if both else None


def wilson(hits: int, count: int) -> Interval:
    """Return the fraction ``hits / count`` with its 95 % interval by Wilson, from 0 to 1 without a count."""
    if not count:
        return Interval(0.0, 0.0, 1.0)
    fraction, z2 = hits / count, _Z * _Z
    middle = (fraction + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(fraction * (1 - fraction) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return Interval(fraction, max(0.0, middle - half), min(1.0, middle + half))


SAMPLE = 48  # default number of rows to measure
_REPEATED = 8  # number of rows without drift to measure twice all the same, for the noise
_LEAST = 1 / 3  # share of the budget for measuring, however long the start takes
_FIRST = 0.75  # share of that time after which the first measurement begins no row, to leave time for the second
Report = Callable[[str], None]  # a function that gets a line of text about the progress
Problems = tuple[Problem, ...]  # the problems that a row was built from
Gains = dict[Problems, float]  # rows as their problems, with the recorded gains
MAX_PROBLEMS = 4  # maximum number of problems of a measured row


def sample_of(gains: Gains, count: int, seed: int = 0) -> Gains:
    """Draw at most ``count`` of these rows: half of them gain most, the others are drawn from the rest."""
    ranked = sorted(gains, key=lambda problems: (-gains[problems], problems))
    top, rest = ranked[: count // 2], ranked[count // 2 :]
    drawn = random.Random(seed).sample(rest, min(count - len(top), len(rest)))  # noqa: S311 - no secret depends on it
    return {problems: gains[problems] for problems in (*top, *drawn)}


def comparable(table: Table, datasets: Iterable[Dataset] = (), kernels: Iterable[RecordedKernel] = ()) -> Gains:
    """Return all rows with a recorded gain to compare.

    ``datasets`` are the available datasets of the table, and ``kernels`` the generated kernels that can be measured.
    Rows whose first config is ``aten`` record no gain, and are left out, as are rows with more than MAX_PROBLEMS
    problems, rows for joined matmuls, whose gain depends on the columns of each B, and rows for generated kernels that
    are not the recorded ones.
    """
    measured: defaultdict[Entry, Problems] = defaultdict(tuple)
    of_gemms = {record.problem for dataset in datasets for record in dataset if record.problem.op not in GENERATED}
    for problem in sorted({*of_gemms, *(kernel.problem for kernel in kernels)}):
        row = table.lookup(problem)
        if row is not None:
            measured[row] += (problem,)
    found = {}
    for entry in table.entries:
        if entry.best.config not in BASELINES and entry.best.gain_permille and entry.op not in TOGETHER:
            problems = measured[entry]
            if not of_gemms and entry.op not in GENERATED:  # as far as ranges tell; rows of WIDE ops may hold none
                ranges = [size for size in entry.sizes if size is not None and not is_point(size)]
                problems = ends(entry) if len(ranges) < (1 if entry.op in WIDE else 2) else ()
            known = len(problems) == (entry.problems or 1) <= MAX_PROBLEMS
            if known and all(table.lookup(each) == entry for each in problems):
                found[problems] = entry.best.gain_permille / 1000
    return found


def verify(
    table: Table,
    gains: Gains,
    executor: Executor | None = None,
    *,
    device: str | None = None,
    method: str | None = None,
    budget_s: float = 60.0,
    begun: float | None = None,
    kernels: Sequence[RecordedKernel] = (),
    report: Report = lambda _: None,
) -> Drift:
    """Measure these rows of the table against the baseline, and compare their gains with the recorded gains.

    Rows that seem to have drifted, and some others, are measured twice. ``executor`` is open. Without it, this process
    measures, and a hanging kernel ends it. ``device``, ``method``, ``kernels`` and the errors are those of ``collect``.
    No row is begun after ``budget_s`` seconds, from now or from ``begun``, in seconds of ``time.monotonic``. The first
    kernel may take a minute to compile if nothing is in memory yet. A third of the budget is for the time after that in
    any case.
    """
    begin = time.monotonic() if begun is None else begun
    started = math.inf

    def is_over(share: float) -> bool:
        left = max(begin + budget_s - started, _LEAST * budget_s)
        return time.monotonic() >= started + share * left

    with TemporaryDirectory(prefix="diode-lut-") as directory:

        def measure(rows: Sequence[Problems], name: str, share: float) -> dict[Problems, float]:
            nonlocal started
            problems = [problem for row in rows for problem in row]
            found: dict[Problem, float] = {}
            passes = collect(
                [problem for problem in problems if problem.op not in GENERATED],
                Path(directory) / f"{name}.msgpack",
                device=device,
                method=method,
                table=table,
                executor=executor or InProcess(),
                kernels=[kernel for kernel in kernels if kernel.problem in set(problems)],
            )
            with closing(passes):
                for outcome in chain.from_iterable(each.outcomes for each in (() if is_over(share) else passes)):
                    started = min(started, time.monotonic())
                    times = outcome.record.times if outcome.record else {}
                    entry, aten = table.lookup(outcome.problem), times.get(baseline(outcome.problem.op))
                    if entry is not None and aten is not None:
                        ns = times.get(entry.best.config)
                        found[outcome.problem] = aten / ns if ns else 0.0  # it failed
                    if is_over(share):
                        break
            known = {row: [found[each] for each in row] for row in rows if found.keys() >= set(row)}
            # The geometric mean is 0 if a config failed on any of a row's problems.
            return {row: (geometric_mean(own) or 0.0) if all(own) else 0.0 for row, own in known.items()}

        first = measure(list(gains), "first", _FIRST)
        report(f"{len(first)} of {len(gains)} rows measured once")
        once = [RemeasuredRow(problems, gains[problems], (gain,)) for problems, gain in first.items()]
        suspects = Drift(once, None).drifted
        steady = [row for row in once if row not in suspects]
        repeated = [row.problems for row in (*steady[:_REPEATED], *suspects)]
        second = measure(repeated, "second", 1.0)
        report(f"{len(second)} of {len(repeated)} rows measured twice")
    rows = [
        RemeasuredRow(problems, gains[problems], (gain, second[problems]) if problems in second else (gain,))
        for problems, gain in first.items()
    ]
    return Drift(rows, noise_of([row.measured for row in rows if len(row.measured) == 2]))


REQUIRED = ("torch", "benchmarker", "measured_on", "measured_by", "datasets", "diode_lut")  # in a contributed table
REQUIRED_ON_GPUS = ("triton", "driver")  # further required fields for NVIDIA's GPUs
AFTERWARDS = "afterwards"  # the directory of datasets from a later run, which time a table's answers once more
HELD_OUT = Split(0, 0.2)  # The problems for testing a table on unseen problems. No table is built from them
RESAMPLES = 2000  # draws of the bootstrap
_SHOWN = 10  # maximum number of differing rows to name
NAMESPACE = "diode-lut"  # the purpose in a signature
TrackRecords = Callable[[Dataset], Iterable[Record]]  # passes on the records of a dataset, and may show progress


def review(path: Path, data: bytes, track: TrackRecords = iter) -> list[TableError]:
    """Yield faults of a contributed table in the order of its lines, and notes with its figures.

    The datasets are in ``datasets/`` beside it, in any directory. A model lies beside it, too. The findings of
    ``check_file`` are not repeated. ``data`` are the file's contents. TableError if it is no table.
    """
    table = table_of(path, data)
    faults = [*_of_header(table, path), *_signature(path, data)]
    try:
        files = datasets_beside(path)
        named = table.provenance.get("datasets", [])
        datasets = [files[digest] for digest in named if digest in files]
        others = [str(each.path.relative_to(path.parent)) for digest, each in files.items() if digest not in named]
        changed = f"; if it is one of {', '.join(others)}, that was changed afterwards" if others else ""
        remedy = f"add the dataset that the table was built from{changed}"
        faults += [
            Fault(f"no file in datasets/ has the digest {digest} ({remedy})", "provenance", "datasets", number)
            for number, digest in enumerate(named)
            if digest not in files
        ]
        if datasets and len(datasets) == len(named) and not table.errors:
            faults += [] if "pruned_with" in table.provenance else _of_rows(table, datasets, track)
            faults += _figures(table, path, datasets, files)
    except DatasetError as error:
        faults.append(Fault(str(error), "provenance", "datasets"))
    return sorted(located(path, data, faults), key=lambda error: (error.note, error.line or 0))


def _of_header(table: Table, path: Path) -> Iterator[Fault]:
    """Yield missing fields of the provenance, and a fault if the file has not the name of the hardware."""
    names = (*REQUIRED, *(REQUIRED_ON_GPUS if table.hardware.arch.startswith("sm_") else ()))
    for name in names:
        if not table.provenance.get(name):
            how = (
                "name who measured: `adopt --measured-by NAME` again; or `pack --measured-by NAME`, and build from that"
                if name == "measured_by"
                else "build the table from datasets of `collect`, which say it"
            )
            yield Fault(f"{name} is missing ({how})", "provenance")
    if "pruned_with" in table.provenance:
        yield Fault("rows were left to a model (build the table without --prune-with)", "provenance", "pruned_with")
    called = [each for each in (table.hardware, known_gpu(table.hardware.name)) if each is not None]
    if path.name != f"{slug(path.stem)}.json" or not any(each.called(path.stem) for each in called):
        expected = f"{slug(table.hardware.name)}.json"
        yield Fault(f"the file is called {path.name} (a table is named after its hardware: {expected})", "hardware")


def datasets_beside(table: Path) -> dict[str, Dataset]:
    """Read the datasets in ``datasets/`` beside a table, in any directory, by their digests."""
    found = {}
    for path in sorted(table.parent.joinpath("datasets").rglob("*.msgpack*")):
        with suppress(DatasetError, OSError):  # an unreadable file is a fault only if the table needs it
            dataset = read_dataset(path)
            found[f"sha256:{dataset.digest}"] = dataset
    return found


def _of_rows(table: Table, datasets: Sequence[Dataset], track: TrackRecords) -> Iterator[Fault]:
    """Yield the differences from the table that ``build`` makes of the datasets. Rows with a note are only named."""
    noted = [entry for entry in table.entries if entry.note is not None]
    built = build(datasets, previous=Table(table.hardware, noted), progress=track).table.with_schema(table.schema)
    if built.canonical_digest() != table.canonical_digest():
        yield from _differences(table, built)
    for dataset in datasets:
        if dataset.lost:
            reason = f"{dataset.path}: damaged: pack what can be read, and build from that"
            yield Fault(reason, "provenance", "datasets")
    numbers = [number for number, entry in table.numbered.items() if entry.note is not None]
    if numbers:
        reason = f"{counted(len(numbers), 'row')} with a note: written or changed by a person, without timings"
        yield Fault(reason, "entries", numbers[0], note=True)


def stale_gains(table: Table, datasets: Sequence[Dataset]) -> Iterator[Fault]:
    """Note gains that are not those of the timings, and timings of older software, for rows measured here entirely.

    A gain of a config that was not timed is noted if all datasets of the table are here.
    """
    are_all_here = {f"sha256:{dataset.digest}" for dataset in datasets}.issuperset(table.provenance.get("datasets", []))
    for name in ("torch", "triton"):
        said, older = str(table.provenance.get(name, "")), defaultdict[str, list[str]](list)
        for dataset in datasets:
            version = getattr(dataset.header, name)
            if version and said and as_version(version) < as_version(said):
                older[version].append(dataset.path.name)
        for version, files in older.items():
            reason = f"{said}, but {', '.join(files)} has timings of {version} (measure again, or name {version} here)"
            yield Fault(reason, "provenance", name, note=True)
    found = measurements_of(record for dataset in datasets for record in dataset)
    answered: dict[Entry | None, list[dict[Config, float]]] = defaultdict(list)
    for number, problem in enumerate(found.problems):
        answered[table.lookup(problem)].append(found.times_on(number))
    for number, entry in table.numbered.items():
        times = answered[entry]
        if len(times) != (entry.problems or 1):
            continue
        usual = baseline(entry.op or "mm")
        for place, (config, gain) in enumerate(entry.candidates):
            if gain is None or not all(usual in each for each in times):
                continue
            if are_all_here and not any(config in each for each in times):
                reason = f"the gain is {gain}, but no timing is of {config} (take it out, or build from timings again)"
                yield Fault(reason, "entries", number, "configs", place, "gain_permille", note=True)
            if not all(config in each for each in times):
                continue
            measured = round(1000 * (geometric_mean(each[usual] / each[config] for each in times) or 0.0))
            if abs(measured / gain - 1) > SAME_GAIN:
                reason = f"the gain is {gain}, but the timings say {measured} for {config} (build from them again)"
                yield Fault(reason, "entries", number, "configs", place, "gain_permille", note=True)


def _differences(table: Table, built: Table) -> Iterator[Fault]:
    """Yield the differences from the table of the datasets, field by field and row by row."""
    remedy = "undo the change, or say with a note why it was made"
    for name in sorted({*table.provenance, *built.provenance}):
        found, wanted = table.provenance.get(name), built.provenance.get(name)
        if found != wanted:
            yield Fault(f"{name} is {found!r}, but the datasets give {wanted!r} (build the table again)", "provenance")
    expected = {entry.key: entry for entry in built.entries}
    different = []
    for number, entry in table.numbered.items():
        wanted_row = expected.get(entry.key)
        if wanted_row is None:
            different.append((number, "the datasets give no row with this key"))
        elif entry.best != wanted_row.best:
            different.append((number, f"the datasets give {winner_text(wanted_row)}, not {winner_text(entry)}"))
        elif entry != wanted_row:
            text = f"the datasets give the same first config, {entry.best.config}, with other details"
            different.append((number, text))
    for number, text in different[:_SHOWN]:
        yield Fault(f"was edited after it was built: {text} ({remedy})", "entries", number)
    if len(different) > _SHOWN:
        yield Fault(f"{len(different) - _SHOWN} more rows were edited after they were built ({remedy})", "entries")
    missing = expected.keys() - {entry.key for entry in table.entries}
    if missing:
        first = key_text(min((expected[key] for key in missing), key=key_text))
        rows = counted(len(missing), "row")
        yield Fault(f"{rows} missing that the datasets give, such as {first} (add them)", "entries")


def _figures(table: Table, path: Path, datasets: Sequence[Dataset], files: Mapping[str, Dataset]) -> Iterator[Fault]:
    """Yield gain and regret of the table, and of the model beside it, as notes, and a fault for each without a gain."""
    gain = yield from _measured("measured problems", TableSource(table), current_records(datasets))
    if gain.low <= 1:
        usual = usual_kernels(record.problem for record in current_records(datasets))
        remedy = "measure more problems, or on an idle machine: a table that gains nothing helps nobody"
        yield Fault(f"its gain over {usual} may be none (95 %: from {gain.low:.3f}; {remedy})")
    with suppress(DatasetError):  # too few problems to keep some of them out
        kept = build(datasets, progress=lambda each: (one for one in each if HELD_OUT.group(one.problem) == TRAIN))
        unseen = (record for record in current_records(datasets) if HELD_OUT.group(record.problem) == TEST)
        yield from _measured("problems, held out, of a table built from the others", TableSource(kept.table), unseen)
    for each in files.values():
        if each.path.parent.name == AFTERWARDS and each.header.hardware.same_device(table.hardware):
            yield from _measured(f"problems of {AFTERWARDS}/{each.path.name}", TableSource(table), each)
    model = path.with_name(path.stem + ".mlp" + SUFFIX)
    if model.exists():
        yield from _of_model(model, table, files)


def _of_model(path: Path, table: Table, files: Mapping[str, Dataset]) -> Iterator[Fault]:
    """Yield gain and regret of a model on problems outside of its training."""
    try:
        model = open_model(path)
    except ModelError as error:
        yield Fault(f"the model cannot be used: {error}")
        return
    named = list(map(str, model.provenance.get("datasets", [])))
    missing = [digest for digest in named if digest not in files]
    if not model.hardware.same_device(table.hardware):
        yield Fault(f"{path.name} is for {model.hardware}, the table for {table.hardware} (train it for this device)")
    elif missing:
        remedy = "add the dataset, or train again"
        yield Fault(f"{path.name} was trained on {missing[0]}, which no file in datasets/ has as its digest ({remedy})")
    else:
        records = current_records(files[digest] for digest in named)
        unseen = combined(record for record in records if model.split.group(record.problem) != TRAIN)
        gain = yield from _measured(f"problems, held out, of {path.name}", ModelSource(model, model.hardware), unseen)
        if gain.value <= 1:
            remedy = "leave it out, or measure more problems and train again"
            yield Fault(f"{path.name} gains nothing on problems that it was not trained on ({remedy})")


def _measured(what: str, source: Source, records: Iterable[Record]) -> Generator[Fault, None, Interval]:
    """Yield a note with gain, interval and regret, and return the gain."""
    evaluation = evaluate(source, records)
    gains = [case.gain for case in evaluation.cases if case.gain is not None]
    gain, regret = bootstrap(gains), evaluation.summary.regret or 0.0
    interval = f"95 %: {gain.low:.3f} to {gain.high:.3f}, bootstrap"
    over = f"gain over {evaluation.against} {gain.value:.3f} ({interval})"
    yield Fault(f"{len(gains)} {what}: {over}, regret {regret:.2%}", note=True)
    return gain


def bootstrap(gains: Sequence[float]) -> Interval:
    """Return the geometric mean with its 95 % interval: the percentiles of RESAMPLES draws with replacement."""
    logarithms = np.log(gains)
    source = np.random.default_rng(0)
    drawn = [source.choice(logarithms, len(logarithms)).mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Interval(*(math.exp(value) for value in (logarithms.mean(), low, high)))


def _signature(path: Path, data: bytes) -> Iterator[Fault]:
    """Yield whether the signature beside the table fits these bytes, and the name of its key."""
    signature = path.with_name(f"{path.name}.sig")
    program = shutil.which("ssh-keygen")
    if not signature.exists():
        return
    if program is None:
        yield Fault(f"{signature.name} was not looked at: there is no ssh-keygen", note=True)
        return
    command = [program, "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(signature)]
    answer = subprocess.run(command, input=data, capture_output=True, check=False)  # noqa: S603 - a fixed program
    said = " ".join(answer.stdout.decode(errors="replace").split())
    if answer.returncode:
        sign = as_command("ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", "KEY", Path(path.name))
        remedy = f"undo the change, or sign again: {sign}"
        yield Fault(f"was edited after it was signed, or {signature.name} is none ({remedy})")
    else:
        yield Fault(f"signed: {said}", note=True)
