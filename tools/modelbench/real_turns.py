"""Programs in processes of their own that take turns, until it is known which way is faster.

Some programs run at once, each in one process for each way to run it, and make their first step, which compiles. Once a
program is ready, its processes take turns with some steps, and the others on its GPU are stopped until the interval of
the speed-up is narrow, or the program's time is up. Then the next program starts.
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
from collections import Counter, deque
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
TRACES_S, LAST_S, LEAST_S = 3.0, 5.0, 30.0
"""About what traces of a program take, the end of all, and the least until a first step."""
KERNELS_S = 2.0  # the least seconds for the turns in which the GPU kernels are timed


@dataclass(frozen=True)
class Plan:
    """Programs to run, each in ``ways``, ``at_once`` on each of ``gpus``.

    ``turns_s`` is for the turns of a program's steps, and again for those of its kernels. Programs of ``twice`` have
    two processes for each way, whose difference is that of two compiles.
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
    todo: deque[str] = deque()
    for name in plan.names:
        if missing := known[name].missing():
            print(f"{name}: skipped, needs {', '.join(missing)}", flush=True)
        elif name not in done:
            todo.append(name)
    wanted = len(todo)
    with ThreadPoolExecutor(plan.gpus) as pool:
        records = [*pool.map(lambda gpu: list(_on_gpu(plan, gpu, todo)), range(plan.gpus))]
    found = [record for each in records for record in each]
    return 1 if any("failed" in record for record in found) else 3 if len(found) < wanted else 0


def _on_gpu(plan: Plan, gpu: int, todo: deque[str]) -> Iterator[Record]:
    """Keep ``at_once`` programs compiling on one GPU; whenever one is ready, stop the others and have it told."""
    running: dict[str, _Program] = {}
    each_s = plan.turns_s + max(KERNELS_S, plan.turns_s) + TRACES_S
    try:
        while running or todo:
            while todo and len(running) < plan.at_once and plan.left() > LEAST_S + each_s:
                with suppress(IndexError):  # another GPU took the last one
                    name = todo.popleft()
                    running[name] = _Program(plan, gpu, name)
            late = plan.left() < each_s * (len(running) + 1) + LAST_S
            if not running or plan.left() < each_s + LAST_S:
                break
            ready = [name for name, each in running.items() if each.is_ready() and (late or each.is_done())]
            if not ready:
                time.sleep(0.2)
                continue
            told = running.pop(ready[0])
            for each in running.values():
                each.stop()
            record = told.timed()
            for each in running.values():
                each.go_on()
            record |= told.explained() if "failed" not in record else {}
            told.end()
            append(plan.out, record)
            print(line_of(record), flush=True)
            yield record
        for name in running:
            print(f"{name}: not ready in time", flush=True)
    finally:
        for each in running.values():
            each.end()


class WorkerProcess:
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

    def bind(self, cores: set[int]) -> None:
        """Bind all threads that it has now to these cores."""
        for thread in Path(f"/proc/{self._process.pid}/task").iterdir():
            with suppress(OSError):
                os.sched_setaffinity(int(thread.name), cores)

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
        self.ways = {label.name: WorkerProcess(plan, gpu, name, label.name, label) for label in (*plan.ways, *again)}
        self.exact = WorkerProcess(plan, gpu, name, EXACT, None)
        self._pauses: list[tuple[float, float]] = []
        self._stopped = 0.0

    def is_ready(self) -> bool:
        """Whether each way has made its first step, or one of them failed."""
        states = [process.poll() for process in self.ways.values()]
        return "failed" in states or None not in states

    def is_done(self) -> bool:
        """Whether it is ready, and its exact results are there."""
        return self.is_ready() and self.exact.poll() is not None

    def stop(self) -> None:
        """Stop all processes for a while."""
        self._stopped = time.monotonic()
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have stopped processes go on."""
        self._send(signal.SIGCONT)
        self._pauses.append((self._stopped, time.monotonic()))

    def _send(self, number: signal.Signals) -> None:
        for process in (*self.ways.values(), self.exact):
            process.send(number)

    def end(self) -> None:
        """End all processes."""
        for process in (*self.ways.values(), self.exact):
            process.end()

    def timed(self) -> Record:
        """Have the processes take turns, and trace a step of each, for which nothing else may run on the GPU."""
        fields: Record = {"program": self.name, "about": programs()[self.name].about, "tiny": self.plan.tiny}
        failed = {way: each.error() for way, each in self.ways.items() if each.poll() == "failed"}
        if failed:
            return {**fields, "failed": failed}
        first = {way: each.answers[0] for way, each in self.ways.items()}
        any_ = next(iter(first.values()))
        fields |= {"device_name": any_["device_name"], "torch": any_["torch"]}
        fields["first_s"] = {way: round(self._without_pauses(*each["first"]), 2) for way, each in first.items()}
        try:
            fields["steps_ms"] = self._turns("run", self.plan.turns_s, 1e3)
            fields["speedups"] = {way: interval(fields["steps_ms"], way) for way in list(self.ways)[1:]}
            if self.plan.device == "cuda":
                seconds = min(max(KERNELS_S, self.plan.turns_s), self.plan.left() - LAST_S)
                fields["gpu_us"] = self._turns("kernels", seconds, 1e6)
            for process in self.ways.values():
                process.ask("trace")
        except (OSError, EOFError) as error:
            return {**fields, "failed": {"turns": str(error)[:300]}}
        return fields

    def explained(self) -> Record:
        """Return the errors, what the traces say, and who answered; the GPU may be busy meanwhile."""
        fields: Record = self._errors()
        with suppress(OSError, EOFError):
            fields["traced"] = {way: self._traced(way) for way in self.ways}
        fields["answered"] = {way: answered(each.receipt) for way, each in self.ways.items() if each.receipt.exists()}
        return fields

    def _without_pauses(self, begin: float, end: float) -> float:
        """The seconds between two times in which the processes were not stopped."""
        return end - begin - sum(max(0.0, min(end, late) - max(begin, early)) for early, late in self._pauses)

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
        answer = self.ways[way].ask(f"export {path}")
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
