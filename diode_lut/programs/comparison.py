"""The result of a comparison: verdicts on times and kernels, the rows that lose, and what is not answered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import asdict

from diode_lut.errors import DiodeLutError, ProgramError, as_command, counted, printable
from diode_lut.hardware import Hardware
from diode_lut.problem import GENERATED, OP_SIZES, SIZE_FIELDS, Problem
from diode_lut.programs.costs import Cost
from diode_lut.programs.run import named_gemms, nothing_asked
from diode_lut.programs.times import LEAST_GEMM_RUNS, GemmChange, Speedup, gemm_name
from diode_lut.programs.tune import own_table
from diode_lut.receipts import Hit, Receipt
from diode_lut.receipts.summary import losses
from diode_lut.settings import USER
from diode_lut.table import read_table
from diode_lut.table.row import KIND_FIELDS
from diode_lut.templates.config import BASELINES, baseline

KINDS = WITHOUT, WITH = "without", "with"  # the two kinds of runs

WORDS = {"graph": "a call of a compiled graph", "gemms": "its GEMMs and the work fused into them", "step": "step time"}
"""The names of times. Those of graphs and GEMMs come from traces."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_OWN = "user: left out: "  # the beginning of a receipt's reason against a table of the user's own


class Comparison(NamedTuple):
    """The result of a comparison. ``changes`` has the known times of WORDS, and ``receipt`` is from a run "with".

    ``compile_s`` has the seconds that the first run of each kind took to compile, if both are known. ``on_gpu`` says
    whether traced times are of GPU kernels. ``gemms``, and in ``generated`` the kernels that Inductor generated in both
    kinds of runs, begin with the largest gain. ``spent`` is the number of seconds after which the budget ended the
    comparison with verdicts open, or 0. ``costs`` are the costs of the runs "with" that no kernel's choice removes, the
    largest first. ``stopped`` is the exit code if a signal stopped the comparison, which is then that of the pairs of
    runs that were finished, or 0.
    """

    command: Sequence[str]
    settings: Mapping[str, str]
    receipt: Receipt
    changes: Mapping[str, Speedup]
    on_gpu: bool
    gemms: Sequence[GemmChange]
    spent: float = 0.0
    costs: Sequence[Cost] = ()
    generated: Sequence[GemmChange] = ()
    compile_s: Mapping[str, float] = MappingProxyType({})
    stopped: int = 0

    @property
    def pairs(self) -> int:
        """The number of pairs of runs with times."""
        return max((len(change.without) for change in self.changes.values()), default=0)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return all figures for programs. Times are in nanoseconds or, if the name says so, in seconds."""
    devices = comparison.receipt.devices
    return {
        "command": list(map(printable, comparison.command)),
        "settings": {name: printable(value) for name, value in comparison.settings.items()},
        "hardware": [str(hardware) for hardware in sorted(devices)],
        "versions": [asdict(versions) for versions in sorted(comparison.receipt.versions)],
        "questions": sum(device.calls for device in devices.values()),
        "answered": sum(device.hits.total() for device in devices.values()),
        "seconds": {
            name: {
                WITHOUT: change.without,
                WITH: change.tuned,
                "gain": change.gain,
                "interval": [change.low, change.high],
                "is_clear": change.is_clear,
                "verdict": change.verdict,
            }
            for name, change in comparison.changes.items()
        },
        "first_compile_s": dict(comparison.compile_s),
        "is_stopped": bool(comparison.stopped),
        "on_gpu": comparison.on_gpu,
        "gemms": [{"gemm": change.name, **_figures(change)} for change in comparison.gemms],
        "generated": [{"kernel": change.name, **_figures(change)} for change in comparison.generated],
        "costs": [cost._asdict() for cost in comparison.costs],
    }


def _figures(change: GemmChange) -> dict[str, Any]:
    return {
        "saved_ns": change.saved_ns,
        "ratio": change.ratios and change.ratios[0],
        "interval": change.ratios and change.ratios[1:],
        "is_clear": change.is_clear,
        "is_open": change.is_open,
        WITHOUT: [time._asdict() for time in change.without],
        WITH: [time._asdict() for time in change.tuned],
    }


def spread_text(times: Sequence[float]) -> str:
    """Return the median and the extremes of times in seconds, in a suitable unit."""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if median(times) >= scale or unit == "us")
    scaled = (time / scale for time in (median(times), min(times), max(times)))
    middle, low, high = (f"{time:.3g}" if time < 1000 else f"{time:.0f}" for time in scaled)
    return f"{middle} {unit}" if len(times) == 1 else f"{middle} {unit} ({low} to {high})"


def compile_text(comparison: Comparison) -> str:
    """Return a sentence on the time that compiling took, or empty text if it is unknown."""
    if not comparison.compile_s:
        return ""
    without, tuned = (spread_text([comparison.compile_s[kind]]) for kind in KINDS)
    return f"compile time with empty caches: {without} without tables, {tuned} with (one run of each: no verdict)"


def summary(comparison: Comparison) -> list[str]:
    """Return the verdicts as lines for a terminal."""
    lines = []
    for name, change in comparison.changes.items():
        times = f"{spread_text(change.without)} without tables, {spread_text(change.tuned)} with"
        varies = comparison.on_gpu and name == "step" and not change.is_told
        why = ", as the CPU's part varies from run to run" if varies else ""
        lines.append(f"{WORDS[name]}: {change.verdict} ({change.interval}){why}; {times}")
    lines += filter(None, [compile_text(comparison)])
    for what, changes in (("GEMMs", comparison.gemms), ("generated kernels", comparison.generated)):
        if not changes:
            continue
        clear = [change for change in changes if change.is_clear]
        gained = sum(change.saved_ns > 0 for change in clear)
        are_open = sum(change.is_open for change in changes)
        differ = f"{are_open} open (apart in all runs, but too few runs for so many kernels), " if are_open else ""
        lines.append(
            f"{what}: {gained} faster, {len(clear) - gained} slower, {differ}"
            f"{len(changes) - len(clear) - are_open} without a difference beyond noise"
        )
        runs = min((len(kind) for change in changes for kind in (change.without, change.tuned) if kind), default=0)
        if runs < LEAST_GEMM_RUNS:
            lines.append(f"no verdict on {what} without {LEAST_GEMM_RUNS} traced runs of each kind")
    return [*lines, *(f"no kernel's choice removes: {cost}" for cost in comparison.costs)]


class Loser(NamedTuple):
    """A GEMM or generated kernel that tables make slower.

    ``command`` has the words of a command that sets the kernel without tables in the user's table. ``source`` is the
    name of the shipped table or the model that answered, or empty for a row of the user's.
    """

    problem: Problem
    command: Sequence[str | Path]
    source: str = ""

    def __str__(self) -> str:
        why = f"as {self.source} answers" if self.source else "with its row"
        return f"{self.problem} is slower {why}; for {baseline(self.problem.op)} instead: {as_command(*self.command)}"


def losers(comparison: Comparison) -> Iterator[Loser]:
    """Yield a loser for each row of the user's, and for each problem that a shipped table or a model answered.

    Removing a row would not last, because the next ``build`` from the same timings makes it again. So a row for the
    baseline goes into the user's own table, which may be new, and is asked before shipped tables and models.
    """
    lost = {change.name for change in comparison.gemms if change.is_clear and change.saved_ns < 0}
    saved: defaultdict[str, float] = defaultdict(float)
    for change in comparison.generated:  # several kernels may have a problem, and with it a row
        saved[change.name.partition(": ")[0]] += change.saved_ns * change.is_clear
    lost |= {name for name, ns in saved.items() if ns < 0}
    found: dict[object, Loser] = {}
    for hardware, device in comparison.receipt.devices.items():
        sources = {source.digest: source for source in device.sources}
        decided = [
            Hit(kernel.problem, kernel.tier, kernel.digest, kernel.row, (kernel.config,), kernel.over)
            for kernel in device.generated
            if kernel.config
        ]
        for hit in (*device.hits, *decided):
            problem, source = hit.problem, sources.get(hit.digest)
            name = str(problem) if problem.op in GENERATED else gemm_name(problem.sizes, problem.dtype)
            if name not in lost or source is None:
                continue
            path, entry = Path(source.path), None
            if source.tier == USER:
                with suppress(DiodeLutError):
                    entry = read_table(path).lookup(problem)
                if entry is not None and entry.note is None and entry.best.config not in BASELINES:
                    key = {name: getattr(entry, name) for name in (*KIND_FIELDS, *SIZE_FIELDS)}
                    found[path, entry] = Loser(problem, _set_command(path, problem, key))
            elif not hit.over and hit.configs[0] not in map(str, BASELINES):
                sizes = {name: (size, size) for name in OP_SIZES[problem.op] for size in (getattr(problem, name),)}
                kind = ("op", "variant") if problem.op in GENERATED else KIND_FIELDS
                key = {**{name: getattr(problem, name) or None for name in kind}, **sizes}
                with suppress(ProgramError):  # without a home directory
                    command = _set_command(own_table(hardware), problem, key, hardware)
                    found[hardware, problem] = Loser(problem, command, path.name)
    yield from found.values()


def _set_command(
    path: Path, problem: Problem, key: Mapping[str, Any], hardware: Hardware | None = None
) -> list[str | Path]:
    """Return the command that sets the baseline for a key in a table. With ``hardware``, the table may be new."""
    given = {name: value for name, value in key.items() if name not in ("op", "align") and value is not None}
    texts = {
        name: value if isinstance(value, str) else "-".join(map(str, dict.fromkeys(value)))
        for name, value in given.items()
    }
    options = [word for name, text in texts.items() for word in (f"--{name}", text)]
    if problem.op not in GENERATED:
        options += ["--align", "any" if key["align"] is None else str(key["align"])]
    answer = ("--config", str(baseline(problem.op)), "--note", "slower in a program")
    new = () if hardware is None else ("--hardware", f"{hardware.name},{hardware.arch},{hardware.sm_count}")
    return ["diode-lut", "set", path, key["op"] or "any", *options, *answer, *new]


def not_answered(comparison: Comparison) -> Iterator[str]:
    """Yield the GEMMs that no table and no model answered, with the reason and the remedy."""
    receipt = comparison.receipt
    missed = losses(receipt)
    if missed:
        why = "; ".join(["no row and no model has them", *_left_out(receipt)])
        tune = as_command("diode-lut", "tune", "--", *comparison.command)
        yield f"not answered: {named_gemms(missed)} ({why}); to measure them: {tune}"
    if any(device.no_choice for device in receipt.devices.values()):
        yield f"not asked: {nothing_asked(receipt)}"


def require_answers(receipt: Receipt, command: Sequence[str]) -> None:
    """Raise ProgramError, with a remedy, if a run with tables had no answer."""
    devices = receipt.devices.values()
    if any(device.hits or any(kernel.config for kernel in device.generated) for device in devices):
        return
    asked = sum(device.calls for device in devices)
    if not asked:
        raise ProgramError(f"nothing to compare: {nothing_asked(receipt)}")
    tune = as_command("diode-lut", "tune", "--", *command)
    reasons = [f"`{tune}` measures what was missed", *_left_out(receipt)]
    text = f"no table and no model answered any of {counted(asked, 'question')}; {'; '.join(reasons)}"
    raise ProgramError(f"nothing to compare: {text}")


def _left_out(receipt: Receipt) -> list[str]:
    """Return the reasons why tables of the user's own are left out."""
    reasons = dict.fromkeys(reason for device in receipt.devices.values() for reason in device.left_out)
    return [reason.removeprefix("user: ") for reason in reasons if reason.startswith(_OWN)]
