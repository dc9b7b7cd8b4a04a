"""The report of a receipt: how many calls each tier answered, and the misses by the time they may have cost.

The cost of a miss is an estimate that puts misses in order. The time of one execution is a roofline: the larger of the
time of the arithmetic at the device's peak and the time of the matrices at the peak of memory. A table would save the
share of it that a model expects. Where no model knows the problem, it would save the share that tables typically save.
A receipt does not know how often a compiled matmul runs, so each counts once. Where the peaks of a device are not
known, its misses are in the order of their arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import asdict

from diode_lut import receipts
from diode_lut.errors import as_json as printable_as_json
from diode_lut.errors import as_lines, counted
from diode_lut.hardware import Hardware, roofline_ns
from diode_lut.problem import EPILOGUES, FUSED, JOINED, NO_EPILOGUE, Problem
from diode_lut.settings import TIERS
from diode_lut.templates.config import baseline

TYPICAL_PERMILLE = 1100  # the gain over aten in thousandths, without a model: about the mean of the shipped H200 table


class Loss(NamedTuple):
    """A missed problem with the nanoseconds lost if each call ran once, or None if the device's peaks are unknown."""

    hardware: Hardware
    problem: Problem
    calls: int
    nanoseconds: float | None
    by_model: bool
    over: str = ""


def freezing(devices: Iterable[receipts.Device]) -> list[str]:
    """Name the remedy for GEMMs that have a choice once weights are frozen; empty if there are none."""
    lefts = (left for device in devices for left in device.no_choice)
    found = [*dict.fromkeys(str(left.problem) for left in lefts if left.reason == receipts.FREEZABLE)]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    setting = "torch._inductor.config.freezing = True, set in the thread that compiles, gives it one for"
    return [f"{setting} {found[0]}{more}"] if found else []


def losses(receipt: receipts.Receipt) -> list[Loss]:
    """Return all misses of a receipt, the most time lost first."""
    found: list[tuple[float, float, Loss]] = []
    for hardware, device in receipt.devices.items():
        for (problem, over), calls in device.misses.items():
            permille = device.expected_permille.get(problem)
            saved = calls * (1 - 1000 / max(permille or TYPICAL_PERMILLE, 1000))
            time = roofline_ns(problem, hardware)
            lost = None if time is None else saved * time
            loss = Loss(hardware, problem, calls, lost, permille is not None, over)
            found.append((-(lost or 0.0), -saved * problem.operations, loss))
    return [loss for *_, loss in sorted(found)]


MOST_ROWS_TO_JOIN = 1024  # with more rows of A, joined matmuls gained nothing on an H100


def joinable(receipt: receipts.Receipt) -> dict[Hardware, set[Problem]]:
    """Return the matmuls that a row might join, or join with the work after them, and no table knows, by hardware."""
    found = {
        hardware: {
            asked.problem
            for asked in device.apart
            if asked.reason == receipts.NO_ANSWER
            and (asked.problem.op in FUSED or asked.problem.m <= MOST_ROWS_TO_JOIN)
        }
        for hardware, device in receipt.devices.items()
    }
    return {hardware: problems for hardware, problems in found.items() if problems}


_SHOWN = 10  # how many misses, and how many skipped configs, are shown for each device


def as_text(receipt: receipts.Receipt) -> str:
    """Return the whole report."""
    processes = counted(receipt.processes, "process")
    lines = [f"{processes}, {receipt.selecting_ns / 1e6:.1f} ms spent on selecting"]
    software = (receipts.versions_to_json(versions) for versions in sorted(receipt.versions))
    lines += [", ".join(f"{name} {version}" for name, version in each.items()) for each in software]
    lost = losses(receipt)
    for hardware, device in sorted(receipt.devices.items(), key=lambda item: item[0]):
        lines += ["", str(hardware)]
        for source in sorted(device.sources):
            rows = f", {counted(source.rows, 'row')}" if source.rows else ""
            lines.append(f"  {source.tier}: {source.path}{rows}, sha256 {source.digest[:12]}")
        lines += [*(f"  {reason}" for reason in sorted(device.left_out)), *_answers(device)]
        hits = sorted((-calls, hit) for hit, calls in device.hits.items() if hit.over)
        lines += ["  kernels for sizes that may change:"] if hits else []
        for calls, hit in hits[:_SHOWN]:
            lines.append(f"    {counted(-calls, 'call'):>9}  {hit.problem}, {hit.over}: {', '.join(hit.configs)}")
        lines += _more(len(hits), "kernels")
        missed, typical = [loss for loss in lost if loss.hardware == hardware], TYPICAL_PERMILLE / 1000
        about = f"with the time lost if each call ran once (by a model; ~: for a gain of {typical:.2f}):"
        lines += [f"  missed, {about}"] if missed else []
        for loss in missed[:_SHOWN]:
            sign = " " if loss.by_model else "~"
            microseconds = "not known" if loss.nanoseconds is None else f"{loss.nanoseconds / 1e3:.2f} us"
            sizes = f"{loss.problem}, {loss.over}" if loss.over else loss.problem
            lines.append(f"  {sign}{microseconds:>13}  {counted(loss.calls, 'call'):>9}  {sizes}")
        lines += _more(len(missed), "problems; `collect --problems` takes them all from the receipt")
        reasons = Counter[tuple[str, str, str]]()
        for skip, calls in device.skipped.items():
            reasons[skip.config, skip.row or skip.tier, skip.reason] += calls
        lines += ["  configs that could not run:"] if reasons else []
        for (config, row, why), calls in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]:
            lines.append(f"    {counted(calls, 'call'):>9}  {config} of {row}: {why}")
        lines += _more(len(reasons), "configs")
    if not any(device.calls or device.no_choice or device.generated for device in receipt.devices.values()):
        lines += ["", "nothing was asked: no GEMM was compiled, and none came with a graph from Inductor's caches"]
    return as_lines(lines)


def _answers(device: receipts.Device) -> Iterator[str]:
    """Yield how many calls and generated kernels were answered, and why others were not."""
    found = _numbers(device)
    if device.calls:
        by_tier = ", ".join(f"{tier} {calls}" for tier, calls in found["hits"].items() if calls)
        share = f"{found['answered'] / device.calls:.1%} answered{by_tier and f' ({by_tier})'}"
        yield f"  {counted(device.calls, 'call')}, {share}, {device.misses.total()} left to Inductor"
    for reason, times in found["why_no_choice"].items():
        remedy = f" ({', '.join(freezing([device]))})" if reason == receipts.FREEZABLE else ""
        yield f"  {counted(times, 'call')} without a choice: {reason}{remedy}"
    if device.cached:
        yield f"  {device.cached} of these were decided in an earlier compile, whose graph came from Inductor's caches"
    for name, (fused, apart) in ((name, each.values()) for name, each in found["epilogues"].items()):
        yield f"  {name} epilogues: {fused} fused into the matmul, {apart} left to a kernel of their own"
    for reason, times in found["unfused"].items():
        yield f"  nothing fused after {counted(times, 'matmul')}: {reason}"
    for reason, times in found["not_joined"].items():
        yield f"  {counted(times, 'group')} of matmuls with the same input not joined: {reason}"
    for reason, times in found["work_apart"].items():
        yield f"  {counted(times, 'matmul')} apart from the work that follows: {reason}"
    if device.generated:
        tiers, left = found["generated"]["decided"], found["generated"]["left"]
        by_tier = ", ".join(f"{tier} {kernels}" for tier, kernels in tiers.items())
        kernels = counted(device.generated.total(), "generated kernel")
        decided = f"{sum(tiers.values())} decided{by_tier and f' ({by_tier})'}"
        yield f"  {kernels}, {decided}, {sum(left.values())} left to Inductor"
        yield from (f"    {times} left to Inductor: {reason}" for reason, times in left.items())


def _more(count: int, things: str) -> list[str]:
    return [f"    and {count - _SHOWN} more {things}"] if count > _SHOWN else []


def as_json(receipt: receipts.Receipt) -> str:
    """Return the calls of each device with their tiers, and all misses, the most time lost first, as JSON."""
    report = {
        "processes": receipt.processes,
        "selecting_ns": receipt.selecting_ns,
        "versions": [receipts.versions_to_json(versions) for versions in sorted(receipt.versions)],
        "devices": [
            {"hardware": receipts.hardware_to_json(hardware), **_numbers(device)}
            for hardware, device in sorted(receipt.devices.items())
        ],
        "missed": [
            {
                **loss.problem.to_json(),
                **receipts.over_to_json(loss.over),
                "calls": loss.calls,
                "hardware": loss.hardware.name,
                "lost_ns": None if loss.nanoseconds is None else round(loss.nanoseconds),
                "estimate": "model" if loss.by_model else "typical",
            }
            for loss in losses(receipt)
        ],
    }
    return printable_as_json(report)


def _numbers(device: receipts.Device) -> dict[str, Any]:
    """Return the numbers about a device, by their names in JSON.

    ``epilogues`` counts for each class how many were fused, and how many the library's kernel left apart.
    """
    hits, decided = dict.fromkeys(TIERS, 0), Counter[str]()
    epilogues = {name: {"fused": 0, "apart": 0} for name in EPILOGUES}
    for hit, calls in device.hits.items():
        hits[hit.tier] += calls
        is_apart = hit.configs[0] == str(baseline(hit.problem.op))
        epilogues[hit.problem.epilogue]["apart" if is_apart else "fused"] += calls
    for kernel, times in device.generated.items():
        if kernel.config:
            decided[kernel.tier] += times
    left = _by_reason((kernel, times) for kernel, times in device.generated.items() if kernel.reason)
    apart = [
        _by_reason((each, times) for each, times in device.apart.items() if each.problem.op in ops)
        for ops in (JOINED, FUSED)
    ]
    return {
        "calls": device.calls,
        "answered": device.hits.total(),
        "hits": hits,
        "epilogues": {name: each for name, each in epilogues.items() if name != NO_EPILOGUE and any(each.values())},
        "unfused": _by_reason(device.unfused.items()),
        "not_joined": apart[0],
        "work_apart": apart[1],
        "skipped_configs": device.skipped.total(),
        "no_choice": device.no_choice.total(),
        "why_no_choice": _by_reason(device.no_choice.items()),
        "generated": {"decided": dict(sorted(decided.items())), "left": left},
        "cached": device.cached,
        "sources": [asdict(source) for source in sorted(device.sources)],
        "left_out": sorted(device.left_out),
    }


def _by_reason(left: Iterable[tuple[receipts.Left | receipts.GeneratedKernel, int]]) -> dict[str, int]:
    """Count each reason, the most frequent first."""
    times = Counter[str]()
    for each, count in sorted(left):
        times[each.reason] += count
    return dict(times.most_common())
