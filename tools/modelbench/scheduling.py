"""What is left to measure, done by processes, some at a time, until all is done or the time is up."""

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelbench.labels import Label
from modelbench.models import MODELS, ON_REQUEST
from modelbench.records import Record, append, key, read
from modelbench.summary import wrong

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Plan:
    """What to measure: ``labels`` says how often each is compiled; ``seconds`` is for all, ``timeout`` for a task.

    Tasks spread over ``gpus``, with ``processes`` at a time on each. Those on one GPU take turns, and each compiles
    with that GPU's share of the cores. With ``retry``, what failed earlier is tried again. Unless ``warm``, a compile's
    time includes what is left of the start of Inductor's compile workers.
    """

    models: list[str]
    labels: dict[Label, int]
    out: Path
    caches: Path
    device: str
    tiny: bool
    processes: int
    share: bool
    seconds: float
    timeout: int
    retry: bool
    warm: bool = True
    runs: bool = True
    gpus: int = 1
    started: float = field(default_factory=time.monotonic)
    places: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        for gpu in list(range(self.gpus)) * self.processes:
            self.places.put(gpu)

    @contextmanager
    def place(self) -> Iterator[int]:
        """The number of a GPU that has room for one more process, until it has ended."""
        gpu = self.places.get()
        try:
            yield gpu
        finally:
            self.places.put(gpu)

    def left(self) -> float:
        """Seconds until the time is up."""
        return self.started + self.seconds - time.monotonic()

    def cache_of(self, model: str, label: Label, repetition: int) -> Path:
        """The directory of the caches of one compile."""
        return self.caches / model / label.name / str(repetition)

    def compiles(self) -> Iterator[tuple[Label, int]]:
        """Labels and the numbers of their compiles; the labels take turns."""
        for repetition in range(max(self.labels.values(), default=0)):
            yield from ((label, repetition) for label, count in self.labels.items() if repetition < count)


def measure(plan: Plan) -> int:
    """Do what the results do not have yet; the exit code is 1 if something failed, and 3 if the time was up."""
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.caches.mkdir(parents=True, exist_ok=True)
    earlier = read([plan.out] if plan.out.exists() else [])
    done = {key(record): record for record in earlier if not (plan.retry and "failed" in record)}
    with ThreadPoolExecutor(plan.processes * plan.gpus) as pool:
        futures = [future for model in plan.models for future in _submit(plan, model, done, pool)]
    records = [future.result() for future in futures]
    return 3 if None in records else 1 if any(record and "failed" in record for record in records) else 0


def _submit(
    plan: Plan, model: str, done: dict[tuple[object, ...], Record], pool: ThreadPoolExecutor
) -> Iterator[Future[Record | None]]:
    """All tasks of a model; the last one takes the times of what the others, and earlier runs, have compiled."""
    if missing := (MODELS | ON_REQUEST)[model].missing():
        print(f"{model}: skipped, needs {', '.join(missing)}", flush=True)
        return
    known = [record for record in done.values() if record["kind"] == "compile" and record["model"] == model]
    compiles: list[Future[Record | None]] = []
    for label, repetition in plan.compiles():
        fields = {"kind": "compile", "model": model, "label": label.to_json(), "repetition": repetition}
        if key(fields) not in done:
            compiles.append(pool.submit(_compile, plan, fields, plan.cache_of(model, label, repetition)))
    yield from compiles
    wanted = {"kind": "run", "model": model}
    if not plan.runs:
        return
    if compiles or key(wanted) not in done or not _has_times(done[key(wanted)], known):
        yield pool.submit(_run, plan, wanted, known, compiles)


def _has_times(run: Record, compiles: list[Record]) -> bool:
    """Whether a record has the times of all compiles that did not fail."""
    names = [each["label"]["name"] for each in compiles if "failed" not in each]
    return "failed" in run or all(len(run["us"].get(name, [])) >= names.count(name) for name in names)


def _compile(plan: Plan, fields: Record, caches: Path) -> Record | None:
    shutil.rmtree(caches, ignore_errors=True)
    caches.mkdir(parents=True)
    autotunes = Label.from_json(fields["label"]).autotunes
    exclusive = autotunes or not plan.share
    return _do(plan, {**fields, "exclusive": exclusive}, fields, caches)


def _run(plan: Plan, fields: Record, known: list[Record], compiling: list[Future[Record | None]]) -> Record | None:
    """Waits only for tasks that were submitted earlier, so that it cannot wait for ever."""
    records = [*known, *(future.result() for future in compiling)]
    if None in records:
        return None
    compiles = [
        {"label": each["label"], "repetition": each["repetition"], "caches": str(caches)}
        for each in records
        if each is not None and "failed" not in each
        for caches in [plan.cache_of(each["model"], Label.from_json(each["label"]), each["repetition"])]
    ]
    if not compiles:
        return next(iter(records), None)
    caches = plan.caches / fields["model"] / "run"
    caches.mkdir(parents=True, exist_ok=True)
    again = any(not Path(each["caches"]).exists() for each in compiles)  # on another machine than before
    return _do(plan, {**fields, "exclusive": again or not plan.share, "compiles": compiles}, fields, caches)


def _do(plan: Plan, task: Record, fields: Record, caches: Path) -> Record | None:
    """Have a process do the task, and record the result; None if the time is up."""
    if plan.left() <= 0:
        return None
    result, log = caches / "result.json", caches / "log.txt"
    result.unlink(missing_ok=True)
    conditions = {"device": plan.device, "tiny": plan.tiny, "warm": plan.warm, "exclusive": task["exclusive"]}
    with plan.place() as gpu:
        task |= conditions | {"timeout": plan.timeout, "lock": str(plan.caches / f"lock{gpu}")}
        found = _in_process(task, _environment(caches, gpu, plan.gpus), result, log, plan.left())
    if found is None:
        return None
    record = {**fields, **conditions, "processes": plan.processes, "gpus": plan.gpus, **found}
    append(plan.out, record)
    print(_line(record), flush=True)
    return record


def _in_process(task: Record, environment: dict[str, str], result: Path, log: Path, seconds: float) -> Record | None:
    """What a new process finds; None if it takes longer than the time that is left."""
    command = [sys.executable, "-m", "modelbench.worker", json.dumps(task), str(result)]
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
        try:
            code = process.wait(None if seconds == float("inf") else seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
    if code == -signal.SIGALRM:
        return {"failed": f"took over {task['timeout']} s"}
    if code or not result.exists():
        return {"failed": f"exit code {code}: {error_in(log.read_text(errors='replace'))} (see {log})"}
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def error_in(log: str) -> str:
    """The line that names the exception, as far as there is one; torch adds advice behind it."""
    lines = [line for line in log.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failed)\b", line)]
    return (named or lines or ["no output"])[-1]


def _environment(caches: Path, gpu: int, gpus: int) -> dict[str, str]:
    paths = [str(ROOT / "tools"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"TORCHINDUCTOR_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")}
    if gpus > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        own |= {
            "CUDA_VISIBLE_DEVICES": visible[gpu],
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, len(os.sched_getaffinity(0)) // gpus)),
        }
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}


def _line(record: Record) -> str:
    """What is said of a result as soon as it is there."""
    name = record["model"]
    if record["kind"] == "compile":
        name += f" {record['label']['name']} {record['repetition']}"
    if "failed" in record:
        return f"{name}: {record['failed']}"
    if record["kind"] == "compile":
        return f"{name}: {record['seconds']:.1f} s, {record['timed']['kernels']} kernels timed, {record['receipt']}"
    times = ", ".join(f"{label} {sorted(values)[len(values) // 2]:.1f}" for label, values in record["us"].items())
    faults = f"; wrong: {', '.join(labels)}" if (labels := wrong(record["errors"])) else ""
    return f"{name}: {times} us{faults}"
