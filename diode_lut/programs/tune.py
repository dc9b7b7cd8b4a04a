"""``tune``: run a program, measure the GEMMs that it missed, build a table of them, and run the program again.

The misses of the first run are kept until the end, and timings for good, so an interrupted ``tune`` goes on where it
stopped. Measuring and building are our own commands in processes of their own, which leave the device to the program.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

import orjson

from diode_lut.dataset import read_dataset
from diode_lut.decide.sources import TableSource, shown
from diode_lut.errors import DiodeLutError, ProgramError, ReceiptError, counted
from diode_lut.evaluate import Case, evaluate
from diode_lut.files import append, open_to_append, own_directory, own_tables_directory, timings_of
from diode_lut.hardware import Hardware, slug
from diode_lut.measure.problems import problem_of
from diode_lut.probe import RECORDING
from diode_lut.problem import GENERATED, JOINED, Problem
from diode_lut.programs import run
from diode_lut.receipts import NO_ANSWER, Receipt, read_receipt, receipt_bytes
from diode_lut.receipts.summary import joinable, losses
from diode_lut.settings import MODEL, config
from diode_lut.table import read_hardware, read_table
from diode_lut.templates.config import ATEN, DEFAULT, Config

INTERRUPTED = 130  # the exit code after Ctrl-C, as in shells

_GO_ON = "stopped: run the same command again to go on"

_NAMED = 3  # how many GEMMs are named


class Order(NamedTuple):
    """The program to tune, its environment, the table, the seconds to measure, and the seconds until it is interrupted.

    ``table`` is None for the user's own tables, one for each kind of device. ``compare`` is the command that measures
    the table's gain for the program, and ``again`` the one that tunes it again.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    table: Path | None
    budget_s: float
    limit_s: float | None
    compare: str
    again: str


def tune(order: Order, tell: Callable[[str], None]) -> int:
    """Tune, and return an exit code: the program's, or the failed step's. ProgramError if there is nothing to do."""
    tuning = _Tuning(order, _kept_receipt(order), tell)
    kept = tuning.kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        file = open_to_append(kept)
    except BlockingIOError as error:
        raise ProgramError(f"this command is being tuned already: {kept} is {error.strerror}") from error
    except OSError as error:
        raise ProgramError(f"{kept.parent}: {error.strerror}: set XDG_CONFIG_HOME to a directory of yours") from error
    with file:  # which stays locked
        try:
            code = tuning.tune(file)
        except DiodeLutError:
            tuning.forget()
            raise
        if code < INTERRUPTED:  # else the next tune goes on with what is kept
            tuning.forget()
    return code


class _Tuning(NamedTuple):
    """An order being carried out: the file in which the receipt of the first run is kept, and who is told of it."""

    order: Order
    kept: Path
    tell: Callable[[str], None]

    @property
    def kernels(self) -> Path:
        """The directory of the generated kernels of the first run, beside its receipt."""
        return self.kept.with_suffix(".kernels")

    @property
    def environment(self) -> dict[str, str]:
        """The program's environment, in which the table is asked before those of DIODE_LUT_TABLES, once it is built."""
        environment, table = dict(self.order.environment), self.order.table
        if table is not None and table.exists():
            names = [str(table), *filter(None, [environment.get("DIODE_LUT_TABLES")])]
            environment["DIODE_LUT_TABLES"] = os.pathsep.join(names)
        return environment

    def forget(self) -> None:
        """Remove what is kept of the first run."""
        self.kept.unlink(missing_ok=True)
        rmtree(self.kernels, ignore_errors=True)

    def tune(self, file: FileIO) -> int:
        """Tune with the misses that are kept in ``file``, or that it gets, and return the exit code."""
        receipt = before = None
        with suppress(ReceiptError, FileNotFoundError):
            receipt = read_receipt(self.kept)
        if receipt is not None:
            earlier = f"the misses of the interrupted run, from {shown(self.kept)}"
            self.tell(f"continues with {earlier}; remove this file to start again")
        else:
            rmtree(self.kernels, ignore_errors=True)
            self.kernels.mkdir()
            seconds = self.order.budget_s
            budget = f"{seconds:.0f} s" if seconds < 200 else f"{seconds / 60:.0f} minutes"
            self.tell(f"runs the program, measures its misses for up to {budget} (--budget), and runs it again")
            before = self.run(DIODE_LUT_STRICT="0", **{RECORDING: str(self.kernels)})
            if before.ended.signal or before.ended.code:
                how = "was interrupted" if before.ended.signal else f"failed, with exit code {before.ended.code}"
                self.tell(f"the program {how}: nothing is measured")
                self.forget()
                return before.ended.code or INTERRUPTED
            receipt = before.receipt
            wanted = set[Problem]().union(*_unanswered(receipt).values())
            for path in self.kernels.iterdir():
                if problem_of(orjson.loads(path.read_bytes()), str(path)) not in wanted:
                    path.unlink()
            file.truncate(0)
            append(file, receipt_bytes(receipt))
        return self.measure_all(receipt, before)

    def measure_all(self, receipt: Receipt, before: run.ProgramRun | None) -> int:
        """Measure, build, and run the program again."""
        if not losses(receipt) and not _unanswered(receipt):
            devices = receipt.devices.values()
            asked = any(device.calls for device in devices)
            self.tell(f"nothing to measure: {'no GEMM was missed' if asked else run.nothing_asked(receipt)}")
            modelled = {hit.problem.alone for device in devices for hit in device.hits if hit.tier == MODEL}
            if modelled:
                tiers = os.pathsep.join(tier for tier in config.tiers if tier != MODEL)
                text = f"{counted(len(modelled), 'GEMM')} got a model's answer"
                self.tell(f"{text}, and may gain from a measured one: DIODE_LUT_TIERS={tiers} {self.order.again}")
            return before.ended.code if before else 0
        deadline = time.monotonic() + self.order.budget_s
        built: dict[Hardware, Path] = {}
        code = before.ended.code if before else 0
        for hardware, table in _tables(receipt, self.order.table).items():
            problems = self.problems(hardware, receipt)
            if not problems:
                self.tell(f"nothing to measure on {hardware}: no missed kernel could be recorded")
                continue
            code = self.measure(hardware, table, problems, deadline - time.monotonic())
            if code >= INTERRUPTED:
                return code
            if code:
                self.tell(f"no table for {hardware}, for the reasons above: tune again when they are gone")
            else:
                built[hardware] = table
        if not built:
            return code
        after = self.run()
        if after.ended.signal:
            self.tell(_GO_ON)
            return after.ended.code or INTERRUPTED
        missed = {loss.problem for loss in losses(receipt)}.union(*_unanswered(receipt).values())
        now = losses(after.receipt)
        self.tell(f"answered: {_answered(receipt)} before, {_answered(after.receipt)} now")
        if now:
            self.tell(f"still missed: {run.named_gemms(now)}")
        for table in built.values():
            for line in _measured(table, missed):
                self.tell(line)
        if before is not None and self.order.limit_s is None:
            seconds = f"{before.ended.seconds:.1f} s before and {after.ended.seconds:.1f} s now"
            self.tell(f"the program took {seconds}, with cold caches; one run of each proves nothing")
        self.tell(f"to measure what the program gains or loses, and which rows lose: {self.order.compare}")
        return after.ended.code

    def measure(self, hardware: Hardware, table: Path, problems: Sequence[str | Path], seconds: float) -> int:
        """Measure problems on this device, build the table from all its timings, and return an exit code."""
        timings = timings_of(table)
        timings.mkdir(parents=True, exist_ok=True)
        on_cpu = hardware.arch.startswith("cpu")
        variables = {"OMP_NUM_THREADS": str(hardware.sm_count)} if on_cpu else {}
        budget = str(max(seconds / 60, 1e-3))
        device = "cpu" if on_cpu else "cuda"
        options = ("--out", timings, "--device", device, "--budget", budget)
        collected = self.ours(variables, "collect", *options, *problems)
        code = collected or self.ours(variables, "build", *sorted(timings.glob("*.msgpack")), "-o", table)
        if code >= INTERRUPTED and collected != INTERRUPTED:  # collect has said it
            self.tell(_GO_ON)
        return code

    def problems(self, hardware: Hardware, receipt: Receipt) -> list[str | Path]:
        """Return the options that name the misses on this device to ``collect``, or none if none can be measured."""
        missed = [*(loss.hardware for loss in losses(receipt)), *joinable(receipt)]
        options: list[str | Path] = []
        if any(each.same_arch(hardware) for each in missed):
            options += ["--problems", self.kept]
        if any(self.kernels.glob("*.json")):
            options += ["--kernels", self.kernels]
        return options

    def ours(self, variables: Mapping[str, str], *arguments: str | Path) -> int:
        """Run one of our commands with its output on standard error, and return its exit code."""
        command = [sys.executable, "-m", "diode_lut", *map(str, arguments)]
        environment = run.armed({**self.environment, **variables}, DIODE_LUT_STRICT="0")
        ended = run.run_program(command, environment, out=2)
        return ended.code or (INTERRUPTED if ended.signal else 0)

    def run(self, **variables: str) -> run.ProgramRun:
        """Run the program from cold caches: a graph from a cache asks no question."""
        with run.cold({**self.environment, **variables}) as environment:
            return run.run_with_receipt(self.order.command, environment, None, limit_s=self.order.limit_s)


def _unanswered(receipt: Receipt) -> dict[Hardware, set[Problem]]:
    """Return the generated kernels and joined matmuls about which no table and no model had an answer, by hardware."""
    found = joinable(receipt)
    for hardware, device in receipt.devices.items():
        kernels = {kernel.problem for kernel in device.generated if kernel.reason == NO_ANSWER}
        if kernels:
            found.setdefault(hardware, set()).update(kernels)
    return found


def _kept_receipt(order: Order) -> Path:
    """Return where the first receipt of this program, with these arguments in this directory, is kept."""
    identity = repr((list(order.command), str(Path.cwd()), str(order.table)))
    return _own(own_directory()) / "interrupted" / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


def _own(directory: Path | None) -> Path:
    if directory is None:
        raise ProgramError("this user has no home directory for tables: set HOME, or XDG_CONFIG_HOME")
    return directory


def _tables(receipt: Receipt, table: Path | None) -> dict[Hardware, Path]:
    """Return the table to build for each kind of device with misses."""
    missed = list(dict.fromkeys([*(loss.hardware for loss in losses(receipt)), *_unanswered(receipt)]))
    if table is None:
        return {hardware: own_table(hardware) for hardware in missed}
    its = read_hardware(table) if table.exists() else missed[0]
    fitting = {hardware: table for hardware in missed if hardware.same_device(its)}
    if not fitting:
        raise ProgramError(f"{table}: is for {its}, but all misses are on {', '.join(map(str, missed))}")
    return fitting


def own_table(hardware: Hardware) -> Path:
    """Return the user's own table for a kind of device. ProgramError without a home directory."""
    return _own(own_tables_directory()) / f"{slug(f'{hardware.name} {hardware.arch} {hardware.sm_count}')}.json"


def _answered(receipt: Receipt) -> str:
    devices = receipt.devices.values()
    asked = sum(device.calls for device in devices)
    return f"{sum(device.hits.total() for device in devices)} of {counted(asked, 'question')}"


def _measured(table: Path, missed: set[Problem]) -> Iterator[str]:
    """Yield the time that the table saves on earlier misses, as each was measured alone."""
    records = (record for path in sorted(timings_of(table).glob("*.msgpack")) for record in read_dataset(path))
    cases = [case for case in evaluate(TableSource(read_table(table)), records).cases if case.problem in missed]
    kinds = ("group of matmuls", DEFAULT, JOINED), ("generated kernel", DEFAULT, GENERATED)
    gemms = [case for case in cases if case.problem.op not in (*GENERATED, *JOINED)]
    if gemms or not cases:
        yield from _saved(table, gemms, "missed GEMM", ATEN)
    for what, first, ops in kinds:
        if some := [case for case in cases if case.problem.op in ops]:
            yield from _saved(table, some, what, first)


def _saved(table: Path, cases: Sequence[Case], what: str, first: Config) -> Iterator[str]:
    """Yield the time saved over ``first``, in nanoseconds, by the cases with both times."""
    gains = [
        (case.baseline_ns - case.ns, case.baseline_ns, case)
        for case in cases
        if case.ns is not None and case.baseline_ns is not None
    ]
    faster = sorted((gain for gain in gains if gain[0] > 0), key=lambda gain: -gain[0])
    if not faster:
        yield f"{shown(table)}: {first} is the fastest kernel measured for {counted(len(gains), what)}: no gain"
        return
    saved, whole = sum(gain[0] for gain in gains), sum(gain[1] for gain in gains)
    yield (
        f"{shown(table)}: for {len(faster)} of {counted(len(gains), what)} a kernel is faster than {first}. Run "
        f"once each, alone, all take {_us(whole - saved)} instead of {_us(whole)}; in the program they may gain less, "
        "or lose"
    )
    for saved_ns, ns, case in faster[:_NAMED]:
        yield f"  {case.problem}: {_us(ns - saved_ns)} with {case.choice}, {_us(ns)} with {first}"


def _us(ns: float) -> str:
    return f"{ns / 1e3:.1f} us"
