"""Tables, and GEMMs or graphs, at random through the hook: no table may break a compile or change a digit.

Run with ``python tools/fuzz_hook.py --device interpreter --seed 1 --cases 500``. ``fake`` is a CUDA device that is
not there: kernels are made for it and compiled by Triton for sm_90. On ``interpreter``, which needs no GPU either, on
``cpu`` and on ``cuda`` they run, and results are compared with float64. A case of kind ``gemms`` is a GEMM and what is
fused with it. One of kind ``graphs`` has several GEMMs, views, reductions, gradients, and options of Inductor. One of
kind ``attention`` is a flex attention, also with its gradients, one of kind ``grouped`` a grouped matmul, one of kind
``scaled`` a matmul of float8, one of kind ``generated`` pointwise work and a reduction. Ends with 1 if anything
failed; each failure comes with the command that repeats it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from threading import Lock, Thread, Timer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzzing.cases import TableCase
    from tests.fuzzing.outcome import Outcome

ROOT = Path(__file__).parents[1]

PATIENCE_S = 300.0  # seconds after which a process that is still busy with a case is killed
GRACE_S = 15.0  # the same after the end of the time, when such a case counts for nothing
EVERY = 20  # cases after which a line of counts is printed
OPS = ("attention", "generated", "grouped", "scaled")  # the kinds of cases that need a GPU, or one that is not there

Report = dict[str, Any]
"""What a worker says about a case: its ``number``, a ``status`` (first ``begun``, then an Outcome's), a ``detail``."""

NO_MORE = ("begun", "fault")  # the last status of a worker whose process or GPU a case has put an end to


def main() -> int:
    """Run the cases, and say how to exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["fake", "cpu", "interpreter", "cuda"], default="fake")
    parser.add_argument(
        "--kind", choices=["gemms", "graphs", *OPS], help="of cases; graphs where Triton's interpreter runs"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first case")
    parser.add_argument("--seconds", type=float, default=1e6, help="start no case after this many seconds")
    parser.add_argument("--processes", type=int, default=1, help="number of processes, which are spread over all GPUs")
    parser.add_argument("--compile-every", type=int, default=1, metavar="N", help="fake: have Triton compile each Nth")
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)  # given to workers: how far it is to the next case
    parser.add_argument("--off", action="store_true", help=argparse.SUPPRESS)  # the same: no rows, no hook
    options = parser.parse_args()
    options.kind = options.kind or ("graphs" if options.device == "interpreter" else "gemms")
    if options.device == "fake" and options.kind == "graphs":
        parser.error("--kind graphs: graphs are run, and nothing runs on --device fake (use interpreter)")
    if options.device == "cpu" and options.kind in OPS:
        parser.error(f"--kind {options.kind}: rows for it are for GPUs (use fake, interpreter or cuda)")
    if options.step is not None:
        work(options)
        return 0
    return Team(options).run()


class Team:
    """Workers with a share of the cases each. One that dies is replaced, and the case that it was at has failed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._counts: Counter[str] = Counter()
        self._start = time.monotonic()
        self._lock = Lock()

    def run(self) -> int:
        """Print each failure as it comes, and a summary; 1 if there was a failure, or no case at all."""
        first, cases, step = self._options.first, self._options.cases, self._options.processes
        shares = [range(first + place, first + cases, step) for place in range(step)]
        threads = [Thread(target=self._do, args=(place, share)) for place, share in enumerate(shares)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._summarise()
        return 1 if self._counts["failed"] or not self._counts else 0

    def _do(self, place: int, share: range) -> None:
        while share and self._seconds_left() > 0:
            share = self._one_worker(place, share)

    def _one_worker(self, place: int, share: range) -> range:
        """Have a process do its cases; what is left of them if it dies."""
        environment = _environment(self._options.device, place)
        report: Report = {"number": share.start, "status": "begun"}
        with subprocess.Popen(self._command(share), stdout=subprocess.PIPE, text=True, env=environment) as worker:
            timer = self._timer(worker)
            assert worker.stdout is not None
            for line in worker.stdout:
                timer.cancel()
                timer = self._timer(worker)
                report = json.loads(line)
                if report["status"] not in NO_MORE:
                    self._note(report)
            timer.cancel()
            code = worker.wait()
        if code == 0 or (code == -SIGKILL and self._seconds_left() <= 0):
            return range(0)
        if report["status"] in NO_MORE:
            detail = report.get("detail", f"the process ended with {code}")
            blame = "void" if self._is_inductors(place, report["number"]) else "failed"
            self._note({**report, "status": blame, "detail": detail})
        return range(report["number"] + share.step, share.stop, share.step)

    def _timer(self, worker: subprocess.Popen[str]) -> Timer:
        """Start to wait for what the process says next."""
        timer = Timer(min(PATIENCE_S, max(self._seconds_left(), 0) + GRACE_S), worker.kill)
        timer.start()
        return timer

    def _is_inductors(self, place: int, number: int) -> bool:
        """Whether a case that ended its process, or its GPU's work for that, ends a new one without diode_lut too."""
        command = [*self._command(range(number, number + 1)), f"--seconds={PATIENCE_S}", "--off"]
        environment = _environment(self._options.device, place)
        try:
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return True
        reports = [json.loads(line) for line in said.stdout.splitlines()]
        return bool(reports) and reports[-1]["status"] in NO_MORE

    def _command(self, share: range) -> list[str]:
        options = self._options
        values = {
            "device": options.device,
            "kind": options.kind,
            "seed": options.seed,
            "compile-every": options.compile_every,
            "first": share.start,
            "cases": share.stop - share.start,
            "step": share.step,
            "seconds": self._seconds_left(),
        }
        return [sys.executable, __file__, *(f"--{name}={value}" for name, value in values.items())]

    def _note(self, report: Report) -> None:
        status, number = report["status"], report["number"]
        with self._lock:
            self._counts[status] += 1
            if status == "failed":
                options = self._options
                again = (
                    f"--device {options.device} --kind {options.kind} --seed {options.seed} --first {number} --cases 1"
                )
                print(f"{report['detail']}\n  python tools/fuzz_hook.py {again}", flush=True)
            if self._counts.total() % EVERY == 0:
                self._summarise()

    def _summarise(self) -> None:
        answered = self._counts["kernel"] + self._counts["row"]
        tried = self._counts.total() - self._counts["void"]
        share = answered / tried if tried else 0.0
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self._counts.items()))
        kernels = self._counts["kernel"] / tried if tried else 0.0
        answers = f"rows answered {share:.0%} of {tried}, {kernels:.0%} with a row's Triton kernel"
        print(f"{time.monotonic() - self._start:.0f} s: {counts}; {answers}", flush=True)

    def _seconds_left(self) -> float:
        return float(self._start + self._options.seconds - time.monotonic())


def _environment(device: str, place: int) -> dict[str, str]:
    """That of a worker, which gets one of the GPUs in turn if it is to use one."""
    names: list[str] = []
    if device == "cuda":
        import torch

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    chosen = {"CUDA_VISIBLE_DEVICES": names[place % len(names)]} if names else {}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1", **chosen}


def work(options: argparse.Namespace) -> None:
    """Do the cases of one process, with a cache of its own, and report on each in a line of JSON."""
    end = time.monotonic() + options.seconds
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no report

    def report(**fields: Any) -> None:
        print(json.dumps(fields), file=out, flush=True)

    with ExitStack() as stack:
        if options.device == "interpreter":
            from tests.interpreter.device import interpreter_cuda

            stack.enter_context(interpreter_cuda())  # before torch is imported
        import torch
        from torch._inductor.utils import fresh_cache

        from tests.fake_cuda import fake_cuda

        logging.getLogger("torch").setLevel(logging.CRITICAL)  # void cases say a lot
        if options.device == "fake":
            stack.enter_context(fake_cuda())
        stack.enter_context(fresh_cache())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gc.freeze()  # what is here already is no case's garbage, for which graphs are searched after each compile
        for number in range(options.first, options.first + options.cases, options.step):
            if time.monotonic() > end:
                return
            report(number=number, status="begun")
            case, outcome = _tried(options, number, directory)
            detail = f"{case}\n  {outcome.detail}" if outcome.status in ("failed", "fault") else outcome.detail
            report(number=number, status=outcome.status, detail=detail)
            if options.device == "cuda":
                torch.cuda.synchronize()  # after a fault the device does nothing any more, and this process must end


def _tried(options: argparse.Namespace, number: int, directory: Path) -> tuple[TableCase, Outcome]:
    """A case, and what becomes of it."""
    from tests.fuzzing.cases import draw_case, draw_graph_case
    from tests.fuzzing.check import executed, lowered
    from tests.fuzzing.graph_check import executed_graph
    from tests.fuzzing.kinds import OP_KINDS

    small = options.device == "interpreter"
    device = "cuda" if small else options.device
    off: dict[str, Any] = {"rows": [], "settings": {"policy": "off"}} if options.off else {}
    compiling = number % options.compile_every == 0
    if options.kind in OPS:
        kind = OP_KINDS[options.kind]
        op = replace(kind.draw(options.seed, number, small=small), **off)
        if device == "fake":
            return op, kind.lowered(op, directory, compiling=compiling)
        return op, kind.executed(op, device, directory)
    if options.kind == "graphs":
        graph = replace(draw_graph_case(options.seed, number), **off)
        return graph, executed_graph(graph, device, directory)
    case = replace(draw_case(options.seed, number), **off)
    if device == "fake":
        return case, lowered(case, directory, compiling=compiling)
    return case, executed(case, device, directory)


if __name__ == "__main__":
    sys.exit(main())
