"""Run a program with the hook, and account for it: its receipt, and estimates of the time saved and lost.

Nothing is measured here. A receipt does not know how often a compiled GEMM runs, so each runs once per call. The time
of ``aten`` is a roofline, its lower bound. The saved share comes from the row's gain, or from the model's expectation.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import move, rmtree
from typing import NamedTuple

from diode_lut.decide.catalog import open_file
from diode_lut.decide.sources import THRESHOLD, Source, shown, source_of
from diode_lut.errors import DiodeLutError, ReceiptError
from diode_lut.files import write_atomically
from diode_lut.hardware import Hardware, roofline_ns
from diode_lut.problem import NO_EPILOGUE, Problem
from diode_lut.programs.launch import INHERITED, Ended, Streams, armed, run_program
from diode_lut.receipts import FREEZABLE, Device, Hit, Receipt, merge_receipts, read_receipt, receipt_bytes
from diode_lut.receipts.receipt_file import AFTER_RUN
from diode_lut.receipts.summary import Loss, freezing, losses
from diode_lut.templates.config import ATEN, baseline

EXPECTED, UNKNOWN = "expected", "unknown"
"""Whether the saved time of a GEMM can be estimated."""


class Savings(NamedTuple):
    """Nanoseconds saved by answers and lost by misses and slower answers, and the calls by how well they are known."""

    saved_ns: float
    lost_ns: float
    calls: Counter[str]


def savings(receipt: Receipt) -> Savings:
    """Estimate the savings of a receipt on all its devices. Changed tables and models count as not known."""
    saved, lost, calls = 0.0, 0.0, Counter[str]()
    for hardware, device in receipt.devices.items():
        sources = {}
        for source in device.sources:
            with suppress(DiodeLutError):  # the receipt outlives its tables, and their files may have changed
                opened = source_of(open_file(Path(source.path)), hardware)
                sources[opened.digest] = opened
        for hit, count in _run(device):
            ns, how = _saved_ns(hit, sources.get(hit.digest), hardware)
            saved, lost = saved + count * max(ns, 0.0), lost + count * max(-ns, 0.0)
            calls[how] += count
    for loss in losses(receipt):
        lost += loss.nanoseconds or 0.0
        calls[UNKNOWN if loss.nanoseconds is None else EXPECTED] += loss.calls
    return Savings(saved, lost, calls)


def _run(device: Device) -> Iterator[tuple[Hit, int]]:
    """Yield the answers that run. A GEMM with a fused epilogue has a question without epilogue as well."""
    fused = Counter[Problem]()
    for hit, calls in device.hits.items():
        if hit.problem.epilogue != NO_EPILOGUE:
            fused[hit.problem.alone] += calls
    for hit, calls in device.hits.items():
        instead = min(calls, fused[hit.problem]) if hit.problem.epilogue == NO_EPILOGUE else 0
        fused[hit.problem] -= instead
        if calls > instead:
            yield hit, calls - instead


def _saved_ns(hit: Hit, source: Source | None, hardware: Hardware) -> tuple[float, str]:
    """Return the time that the first config saves in one execution, and how well it is known."""
    if hit.configs[0] == str(baseline(hit.problem.op)):
        return 0.0, EXPECTED
    answer = None if source is None else source.ask(hit.problem, THRESHOLD, padding=True)
    if answer is None:
        return 0.0, UNKNOWN
    if answer.ranking is not None:
        times = dict(zip(map(str, answer.ranking.configs), answer.ranking.times, strict=True))
        ratio = times.get(hit.configs[0])
    else:
        assert answer.entry is not None
        gains = {str(each.config): each.gain_permille for each in answer.entry.candidates}
        gain = gains.get(hit.configs[0])
        ratio = 1000 / gain if gain else None  # the row may not tell
    baseline_ns = roofline_ns(hit.problem, hardware)
    return (0.0, UNKNOWN) if ratio is None or baseline_ns is None else (baseline_ns * (1 - ratio), EXPECTED)


_NAMED = 3
"""How many missed problems are named."""


_NO_RECEIPT = "no receipt: no process compiled a graph, or imported PyTorch and ended by itself"


class ProgramRun(NamedTuple):
    """A run of a program: its end, and the merged receipt of all its processes."""

    ended: Ended
    receipt: Receipt


def run_with_receipt(
    command: Sequence[str],
    environment: Mapping[str, str],
    destination: Path | None,
    streams: Streams = INHERITED,
    limit_s: float | None = None,
) -> ProgramRun:
    """Run the program, armed, and write the merged receipt of its processes, if there is any, to ``destination``.

    ``limit_s`` is as in ``run_program``. OSError, before the program is started, without a directory for temporary
    files. Processes that go on after the program put their receipts beside ``destination``.
    """
    parent = Path(tempfile.mkdtemp(prefix="diode-lut-"))
    try:
        directory = parent / "processes"
        directory.mkdir()
        # One file for each process: what two that are started one after the other asked is in both.
        variables = {"DIODE_LUT_RECEIPT": str(directory / "%p.json"), AFTER_RUN: str(destination or "")}
        ended = run_program(command, armed(environment, **variables), streams, limit_s)
        move(directory, parent / "done")  # from now on no process writes there
        receipts = []
        for path in sorted(parent.glob("done/*.json")):
            with suppress(ReceiptError, OSError):  # a program may have put a file of its own there
                receipts.append(read_receipt(path))
        receipt = merge_receipts(receipts)
    finally:
        rmtree(parent, ignore_errors=True)
    if destination is not None and receipt.processes:
        write_atomically(destination, receipt_bytes(receipt))
    return ProgramRun(ended, receipt)


def summary(run: ProgramRun, destination: Path | None, tune: str) -> list[str]:
    """Return lines for people, fewer without questions. ``tune`` is the command that measures misses."""
    receipt = run.receipt
    asked = sum(device.calls for device in receipt.devices.values())
    where = [] if destination is None or not receipt.processes else [f"receipt: {shown(destination)}"]
    if destination is not None and run.ended.left:
        go_on, its = ("goes on", "its") if run.ended.left == 1 else ("go on", "each one's")
        later = shown(destination.with_suffix(f".PID{destination.suffix}"))
        where.append(f"{counted(run.ended.left, 'process')} of the program {go_on}; {its} receipt will be {later}")
    if not receipt.processes:
        return [_NO_RECEIPT, *where]
    if not asked:
        return [f"nothing was answered: {nothing_asked(receipt)}", *where]
    problems = {hit.problem for device in receipt.devices.values() for hit in device.hits}
    missed = losses(receipt)
    problems.update(loss.problem for loss in missed)
    misses = sum(loss.calls for loss in missed)
    questions = f"{counted(asked, 'question')} about {counted(len(problems), 'GEMM')}"
    others = len(_without_choice(receipt))
    more = f"; Inductor has no choice for {others} more" if others else ""
    return [
        f"{questions}, of {counted(receipt.processes, 'process')}: {asked - misses} answered, {misses} missed{more}",
        f"answered by: {', '.join(_answering(receipt)) or 'no table and no model'}",
        *_compiled(receipt),
        f"missed: {named_gemms(missed)}; to measure them: {tune}" if missed else "missed: none",
        estimate(receipt),
        *where,
    ]


def nothing_asked(receipt: Receipt) -> str:
    """Return the reason for no question: no GEMM was compiled, or Inductor has no choice for any."""
    without = _without_choice(receipt)
    if not without:
        return "Inductor asked for no GEMM (only what torch.compile compiles is asked for)"
    reasons = {each.reason for device in receipt.devices.values() for each in device.no_choice} - {FREEZABLE}
    why = "; ".join([*freezing(receipt.devices.values()), *sorted(reasons)])
    return f"Inductor has no choice of kernels for {_named(without)} ({why})"


def _without_choice(receipt: Receipt) -> list[str]:
    return list(dict.fromkeys(str(each.problem) for device in receipt.devices.values() for each in device.no_choice))


def named_gemms(missed: Sequence[Loss]) -> str:
    """The first GEMMs of these misses, and how many more there are."""
    return _named(list(dict.fromkeys(str(loss.problem) for loss in missed)))


def _named(named: Sequence[str]) -> str:
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{', '.join(named[:_NAMED])}{more}"


def _answering(receipt: Receipt) -> Iterator[str]:
    """Yield each file with its number of answers, most answers first."""
    calls: Counter[tuple[str, str]] = Counter()
    for device in receipt.devices.values():
        paths = {source.digest: source.path for source in device.sources}
        for hit, count in device.hits.items():
            calls[hit.tier, paths.get(hit.digest, "")] += count
    for (tier, path), count in calls.most_common():
        yield f"{Path(path).name or 'a table in memory'} ({tier}) {count}"


def _compiled(receipt: Receipt) -> Iterator[str]:
    """Yield a line on the cost of C++ kernels, if there are any: the compiler takes seconds, and aten needs none."""
    hits = (hit for hardware, device in receipt.devices.items() if hardware.is_cpu for hit in device.hits)
    problems = {hit.problem for hit in hits if hit.configs[0] != str(ATEN)}
    if problems:
        yield (
            f"C++ kernels: for {counted(len(problems), 'GEMM')}; each takes the compiler 0.7 to 10 s if it is in no "
            "cache, and aten none (DIODE_LUT_MIN_GAIN=0.1 leaves gains below 10 % to aten)"
        )


def estimate(receipt: Receipt) -> str:
    """Return a line on the time saved and lost, and on how much of it is known."""
    found = savings(receipt)
    words = {EXPECTED: "estimated by a roofline or a model", UNKNOWN: "not known"}
    known = ", ".join(f"{found.calls[how]} {text}" for how, text in words.items() if found.calls[how])
    return f"if each ran once: {_time(found.saved_ns)} saved, {_time(found.lost_ns)} lost ({known})"


def _time(ns: float) -> str:
    return f"{ns / 1e3:.1f} us" if ns < 1e6 else f"{ns / 1e6:.2f} ms"


def counted(number: int, what: str) -> str:
    """A number of things, such as ``2 processes``."""
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"
