"""Programs in processes of their own that take turns, until it is known which way is faster.

A wave of programs starts at once, each program in one process for each way to run it. All of them make their first
step, which compiles. Then the processes of one program after the other take turns with some steps, and nothing else
runs. A program is told once the interval of its speed-up is narrow, or its time is up.
"""

import gzip
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from statistics import fmean, median
from typing import Any

import torch
from modelbench.labels import DEFAULT, Label
from modelbench.real_programs import programs
from modelbench.real_worker import EXACT
from modelbench.records import Record, append, read
from modelbench.scheduling import ROOT, error_in
from modelbench.timing import NOT_COMPUTED

from diode_lut.probe import CALL
from diode_lut.programs.costs import costs_in, largest
from diode_lut.programs.run import armed
from diode_lut.programs.times import ProcessTrace, change_of
from diode_lut.receipts import read_receipt
from diode_lut.receipts.summary import losses

TURN_S = 0.12  # about how long a turn takes
LEAST_PAIRS, NARROW, ERROR = 6, 0.01, 0.05
"""Pairs of turns before a look, the width of an interval that tells, and the chance that it misses the speed-up."""
TRACES_S, LAST_S, LEAST_WAVE_S = 6.0, 5.0, 60.0
"""About what traces of a program and turns for its kernels take, the end of all, and the first steps of a wave."""
KERNELS_S = 3.5  # seconds for the turns in which the GPU kernels are timed


@dataclass(frozen=True)
class Plan:
    """Programs to run, each in ``ways``, ``at_once`` on each of ``gpus``; ``turns_s`` is for the turns of a program.

    Programs of ``twice`` have two processes for each way, whose difference is that of two compiles.
    """

    names: Sequence[str]
    ways: Sequence[Label]
    out: Path
    caches: Path
    traces: Path | None
    device: str
    tiny: bool
    gpus: int
    at_once: int
    seconds: float
    turns_s: float
    twice: Sequence[str] = ()
    started: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        """Seconds until the time is up."""
        return self.started + self.seconds - time.monotonic()


def measure(plan: Plan) -> int:
    """Run what the results do not have yet; the exit code is 1 if something failed, and 3 if the time was up."""
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    done = {record["program"] for record in read([plan.out] if plan.out.exists() else [])}
    known = programs()
    todo = []
    for name in plan.names:
        if missing := known[name].missing():
            print(f"{name}: skipped, needs {', '.join(missing)}", flush=True)
        elif name not in done:
            todo.append(name)
    with ThreadPoolExecutor(plan.gpus) as pool:
        records = [*pool.map(lambda gpu: list(_waves(plan, gpu, todo[gpu :: plan.gpus])), range(plan.gpus))]
    found = [record for each in records for record in each]
    return 1 if any("failed" in record for record in found) else 3 if len(found) < len(todo) else 0


def _waves(plan: Plan, gpu: int, names: Sequence[str]) -> Iterator[Record]:
    """Run programs on one GPU, a wave after the other."""
    for begin in range(0, len(names), plan.at_once):
        wave = names[begin : begin + plan.at_once]
        if plan.left() < LEAST_WAVE_S + (plan.turns_s + TRACES_S) * len(wave):
            return
        yield from _wave(plan, gpu, wave)


def _wave(plan: Plan, gpu: int, names: Sequence[str]) -> Iterator[Record]:
    """Start programs at once, and have them told. Those that compile for long are stopped while others take turns."""
    running = {name: _Program(plan, gpu, name) for name in names}
    each_s = plan.turns_s + TRACES_S
    try:
        waiting = list(names)
        while waiting and plan.left() > each_s + LAST_S:
            ready = [name for name in waiting if running[name].is_ready()]
            spare = plan.left() - each_s * len(waiting) - LAST_S
            if not ready or (spare > 0 and any(not running[name].is_done() for name in waiting)):
                time.sleep(0.2)
                continue
            waiting = [name for name in waiting if name not in ready]
            for name in waiting:
                running[name].stop()
            for place, name in enumerate(ready):
                left = len(ready) - place + len(waiting)
                seconds = max(plan.turns_s, (plan.left() - LAST_S) / left - TRACES_S)
                record = running[name].told(min(seconds, 3 * plan.turns_s))
                running[name].end()
                append(plan.out, record)
                print(line_of(record), flush=True)
                yield record
            for name in waiting:
                running[name].go_on()
        for name in waiting:
            print(f"{name}: not ready in time", flush=True)
    finally:
        for each in running.values():
            each.end()


class _Process:
    """A process that runs a program in one way."""

    def __init__(self, plan: Plan, gpu: int, name: str, way: str, label: Label | None) -> None:
        self.home = plan.caches / name / way
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.results, self.receipt, self.log = (self.home / each for each in ("results.pt", "receipt.json", "log.txt"))
        task = {"program": name, "way": way, "device": plan.device, "tiny": plan.tiny, "results": str(self.results)}
        task["call"] = f"{CALL} 0"
        self.answers: list[dict[str, Any]] = []
        self._buffer = b""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "modelbench.real_worker", json.dumps(task)],
                env=self._environment(gpu, label),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self, gpu: int, label: Label | None) -> dict[str, str]:
        paths = [str(ROOT / "tools"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DIODE_LUT")},
            "PYTHONPATH": os.pathsep.join(paths),
            "TORCHINDUCTOR_CACHE_DIR": str(self.home / "cache"),
            "TRITON_CACHE_DIR": str(self.home / "cache" / "triton"),
            "HF_HUB_OFFLINE": "1",
        }
        visible = (
            os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if os.environ.get("CUDA_VISIBLE_DEVICES") else []
        )
        environment["CUDA_VISIBLE_DEVICES"] = visible[gpu] if gpu < len(visible) else str(gpu)
        if label is None:
            return {**environment, "TORCHDYNAMO_DISABLE": "1"}
        settings = dict(label.settings)
        if settings.get("policy") == "off":
            return environment  # as without diode_lut
        own = {f"DIODE_LUT_{name.upper()}": str(value) for name, value in settings.items()}
        return armed(environment, DIODE_LUT_RECEIPT=str(self.receipt), **own)

    def poll(self) -> str | None:
        """Take in answers; ``failed`` if the process has ended early, ``ready`` once it has answered, else None."""
        assert self._process.stdout is not None
        ended = self._process.poll() is not None
        while select([self._process.stdout], [], [], 0)[0]:
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                break
            *lines, self._buffer = (self._buffer + part).split(b"\n")
            self.answers += map(json.loads, lines)
        if self.answers:
            return "ready"
        return "failed" if ended else None

    def ask(self, line: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Send a line, and return the answer; TimeoutError or EOFError without one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        known = len(self.answers)
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        until = time.monotonic() + timeout_s
        while len(self.answers) == known:
            if not select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no answer to {line!r}")
            self.poll()
            if self._process.poll() is not None and len(self.answers) == known:
                raise EOFError(self.error())
        return self.answers[-1]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def error(self) -> str:
        """The line of its log that names the exception."""
        return error_in(self.log.read_text(errors="replace"))[:300]

    def end(self) -> None:
        """Kill it with all that it has started."""
        self.send(signal.SIGKILL)
        with suppress(BrokenPipeError):
            self._process.communicate()
        shutil.rmtree(self.home / "cache", ignore_errors=True)


class _Program:
    """All processes of one program."""

    def __init__(self, plan: Plan, gpu: int, name: str) -> None:
        self.plan, self.name = plan, name
        again = [label._replace(name=f"{label.name}-2") for label in plan.ways if name in plan.twice]
        self.ways = {label.name: _Process(plan, gpu, name, label.name, label) for label in (*plan.ways, *again)}
        self.exact = _Process(plan, gpu, name, EXACT, None)
        self.was_stopped = False

    def is_ready(self) -> bool:
        """Whether each way has made its first step, or one of them failed."""
        states = [process.poll() for process in self.ways.values()]
        return "failed" in states or None not in states

    def is_done(self) -> bool:
        """Whether it is ready, and its exact results are there."""
        return self.is_ready() and self.exact.poll() is not None

    def stop(self) -> None:
        """Stop all processes for a while."""
        self.was_stopped = True
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have stopped processes go on."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for process in (*self.ways.values(), self.exact):
            process.send(number)

    def end(self) -> None:
        """End all processes."""
        for process in (*self.ways.values(), self.exact):
            process.end()

    def told(self, seconds: float) -> Record:
        """Have the processes take turns, and return what is known then."""
        fields: Record = {"program": self.name, "about": programs()[self.name].about, "tiny": self.plan.tiny}
        failed = {way: each.error() for way, each in self.ways.items() if each.poll() == "failed"}
        if failed:
            return {**fields, "failed": failed}
        first = {way: each.answers[0] for way, each in self.ways.items()}
        any_ = next(iter(first.values()))
        fields |= {"device_name": any_["device_name"], "torch": any_["torch"]}
        if not self.was_stopped:
            fields["first_s"] = {way: round(each["first_s"], 2) for way, each in first.items()}
        fields |= self._errors()
        try:
            fields["steps_ms"] = self._turns("run", seconds, 1e3)
            fields["speedups"] = {way: interval(fields["steps_ms"], way) for way in list(self.ways)[1:]}
        except (OSError, EOFError) as error:
            return {**fields, "failed": {"turns": str(error)[:300]}}
        with suppress(OSError, EOFError):
            fields["traced"] = {way: self._traced(way) for way in self.ways}
            if all(each["gpu_us"] for each in fields["traced"].values()):
                fields["gpu_us"] = self._turns("kernels", min(KERNELS_S, self.plan.left() - LAST_S), 1e6)
        fields["answered"] = {way: answered(each.receipt) for way, each in self.ways.items() if each.receipt.exists()}
        return fields

    def _turns(self, verb: str, seconds: float, per_second: float) -> dict[str, list[float]]:
        """Times of a step in each turn of each way, in units of which a second has this many; ways begin in turn."""
        begin = time.monotonic()
        for process in self.ways.values():
            process.ask(f"{verb} 1")
        count = max(1, round(TURN_S * len(self.ways) / (time.monotonic() - begin)))
        times: dict[str, list[float]] = {way: [] for way in self.ways}
        order = list(self.ways)
        for number in range(10_000):
            for way in order if number % 2 else reversed(order):
                times[way].append(round(self.ways[way].ask(f"{verb} {count}")["seconds"] / count * per_second, 5))
            found = [interval(times, way) for way in order[1:]] if number + 1 >= LEAST_PAIRS else []
            if found and number % 2 and all(high / low - 1 < NARROW for _, low, high in found):
                break
            if time.monotonic() > begin + seconds and number >= 2:
                break
        return times

    def _traced(self, way: str) -> dict[str, Any]:
        path = (self.plan.traces or self.ways[way].home) / f"{self.name}-{way}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        answer = self.ways[way].ask(f"trace {path}")
        with gzip.open(path) as file:
            trace = ProcessTrace(json.load(file)["traceEvents"])
        report = {"graph_breaks": answer["breaks"]}
        return {**answer, "costs": [str(cost) for cost in largest([costs_in([trace], [report])])]}

    def _errors(self) -> dict[str, Any]:
        """Relative errors against float64, or what kept them from being computed."""
        found = {way: torch.load(each.results) for way, each in self.ways.items()}
        default = next(iter(found.values()))
        apart = {way: _distance(each, default) for way, each in found.items()}
        if self.exact.poll() != "ready":
            return {"apart": apart, "not_exact": self.exact.error()}
        known = torch.load(self.exact.results)
        exact, eager = known[EXACT], known["eager"]
        said = [index for index, one in enumerate(exact) if _distance([eager[index]], [one]) < NOT_COMPUTED]
        errors = {
            way: _distance([each[index] for index in said], [exact[index] for index in said])
            for way, each in {"eager": eager, **found}.items()
        }
        return {"apart": apart, "errors": errors, "compared": [len(said), len(exact)]}


def interval(steps_ms: dict[str, list[float]], way: str) -> tuple[float, float, float]:
    """The speed-up of a way over the first one, and the ends of its interval."""
    default = next(iter(steps_ms.values()))
    change = change_of(default, steps_ms[way], error=ERROR)
    return change.gain, change.low, change.high


def _distance(results: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The root mean square of the tensors' relative errors; infinite if one is not finite, 0 without tensors."""
    squares = []
    for one, other in zip(results, others, strict=True):
        norm = float(other.norm())
        error = float((one - other).norm())
        squares.append((error / norm if norm else error) ** 2)
    return math.sqrt(fmean(squares)) if squares else 0.0


def answered(path: Path) -> dict[str, int]:
    """How many questions each tier answered, how many were missed, and how many generated kernels have a row."""
    found: Counter[str] = Counter()
    receipt = read_receipt(path)
    for device in receipt.devices.values():
        for hit, calls in device.hits.items():
            found[hit.tier] += calls
        for kernel, calls in device.generated.items():
            found["generated, missed" if kernel.reason else "generated"] += calls
    found["missed"] = sum(loss.calls for loss in losses(receipt))
    return dict(+found)


def verdict(gain: float, low: float, high: float) -> str:
    """Say whether a way is faster or slower than default mode by this interval, or how little is known."""
    if low > 1:
        return "faster"
    if high < 1:
        return "slower" if gain < 0.99 else "slower by less than 1 %"
    return "equal" if high / low - 1 < NARROW else "open"


def line_of(record: Record) -> str:
    """Return the line to print when a program has its verdict."""
    if "failed" in record:
        return f"{record['program']}: failed: {record['failed']}"
    parts = []
    for way, (gain, low, high) in record["speedups"].items():
        times = f"{median(record['steps_ms'][DEFAULT]):.3f} ms, {median(record['steps_ms'][way]):.3f} ms {way}"
        parts.append(f"{times}: {gain:.3f} ({low:.3f} to {high:.3f}), {verdict(gain, low, high)}")
        if gpu_us := record.get("gpu_us"):
            gain, low, high = interval(gpu_us, way)
            parts.append(f"kernels {gain:.3f} ({low:.3f} to {high:.3f}), {verdict(gain, low, high)}")
    known: dict[str, float] = record["errors"] if "errors" in record else record["apart"]
    errors = {way: f"{error:.1e}" for way, error in known.items()}
    seconds: Mapping[str, float] = record.get("first_s") or {}
    first = ", ".join(f"{each:.0f}" for each in seconds.values())
    return f"{record['program']}: {'; '.join(parts)}; first {first} s; errors {errors}; {record['answered']}"
