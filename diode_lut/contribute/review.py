"""Review a contributed table: can others rebuild it from its datasets, and how much do its answers gain?"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from diode_lut.build import build
from diode_lut.build.measurements import combined, measurements_of
from diode_lut.contribute.verify import Interval
from diode_lut.dataset import Dataset, Record, read_dataset
from diode_lut.decide.catalog import open_model
from diode_lut.decide.sources import ModelSource, Source, TableSource
from diode_lut.errors import DatasetError, ModelError, TableError, as_command, counted
from diode_lut.evaluate import evaluate, usual_kernels
from diode_lut.hardware import known_gpu, slug
from diode_lut.model import SUFFIX, TEST, TRAIN, Split
from diode_lut.table import Entry, Table, located, table_of
from diode_lut.table.edit import SAME_GAIN, as_version
from diode_lut.table.faults import Fault
from diode_lut.table.format import key_text, winner_text
from diode_lut.templates.config import Config, baseline

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
            measured = round(1000 * geometric_mean([each[usual] / each[config] for each in times]))
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
    gain = yield from _measured("measured problems", TableSource(table), _records(datasets))
    if gain.low <= 1:
        usual = usual_kernels(record.problem for record in _records(datasets))
        remedy = "measure more problems, or on an idle machine: a table that gains nothing helps nobody"
        yield Fault(f"its gain over {usual} may be none (95 %: from {gain.low:.3f}; {remedy})")
    with suppress(DatasetError):  # too few problems to keep some of them out
        rest = build(datasets, progress=lambda each: _of_group(each, HELD_OUT, TRAIN)).table
        unseen = (record for each in datasets for record in _of_group(each, HELD_OUT, TEST))
        yield from _measured("problems, held out, of a table built from the others", TableSource(rest), unseen)
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
        records = _records(files[digest] for digest in named)
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


def _records(datasets: Iterable[Dataset]) -> Iterator[Record]:
    return (record for each in datasets for record in each)


def _of_group(dataset: Dataset, split: Split, group: str) -> Iterator[Record]:
    return (record for record in dataset if split.group(record.problem) == group)


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
