"""Host time of a step with and without diode_lut: does anything besides the kernels change?

Each program of ``modelbench/real_*.py`` compiles in several processes for each way. Then one process at a time makes
steps, each from an idle GPU, and notes how long the call takes, without waiting for the GPU. All others are stopped.
In every third round, each process is bound to the same core. Before, one process for each way counts the functions that
a step calls, and the kinds of its kernels' launchers. A program's result is a JSON line in ``--out``.
"""

import argparse
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from modelbench.labels import DEFAULT, DIODE_LUT, OFF, Label
from modelbench.real_turns import Plan, WorkerProcess
from modelbench.records import append

TURN_S = 0.25  # how long a turn takes
LAST_S = 2.0  # for the results at the end
PINNED = 3  # every such round has the processes on one core
SHOWN = 12  # functions whose numbers of calls differ most


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, a JSON line for each program")
    parser.add_argument(
        "--programs", default="graph-sage=6,whisper=4", metavar="NAME=PROCESSES,...", help="processes for each way"
    )
    parser.add_argument("--seconds", type=float, default=170.0, help="for all, compiling included")
    parser.add_argument("--compile", type=float, default=90.0, help="of these, the most to wait for slow compiles")
    parser.add_argument("--caches", type=Path, default=Path("/tmp/diode-lut-steps"), help="for Inductor's caches")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny versions of the programs, to try this out")
    options = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    wanted = {name: int(count) for name, _, count in (each.partition("=") for each in options.programs.split(","))}
    ways = [Label(DEFAULT, settings=OFF), Label(DIODE_LUT)]
    plan = Plan(
        names=[*wanted],
        ways=ways,
        out=options.out,
        caches=options.caches.absolute(),
        traces=None,
        device=options.device,
        tiny=options.tiny,
        gpus=1,
        at_once=len(wanted),
        seconds=options.seconds,
        turns_s=0.0,
    )
    processes: dict[tuple[str, str, int], WorkerProcess] = {
        (name, label.name, number): WorkerProcess(plan, 0, name, f"{label.name}-{number}", label)
        for name, count in wanted.items()
        for number in range(count)
        for label in ways
    }
    try:
        ready = _ready(processes, min(options.compile, plan.left() / 2))
        print(f"{len(ready)} of {len(processes)} processes ready, {plan.left():.0f} s left", flush=True)
        counted = {name: _counted({key: each for key, each in ready.items() if key[0] == name}) for name in wanted}
        times = _rounds(ready, plan)
        for name in wanted:
            record = {"program": name, **counted[name]}
            for pinned, field in ((False, "host_ms"), (True, "host_pinned_ms")):
                record[field] = {
                    way: [each for key, each in times[pinned].items() if key[:2] == (name, way) and each]
                    for way in (DEFAULT, DIODE_LUT)
                }
            append(plan.out, record)
            print(_told(record), flush=True)
    finally:
        for process in processes.values():
            process.end()


def _ready(processes: Mapping[Any, WorkerProcess], seconds: float) -> dict[Any, WorkerProcess]:
    """Wait for first steps, stop the processes that have made theirs, and return these."""
    found: dict[Any, WorkerProcess] = {}
    failed: set[Any] = set()
    until = time.monotonic() + seconds
    while len(found) + len(failed) < len(processes) and time.monotonic() < until:
        for key, process in processes.items():
            if key in found or key in failed:
                continue
            state = process.poll()
            if state == "failed":
                failed.add(key)
                print(f"{key}: {process.error()}", flush=True)
            elif state == "ready":
                found[key] = process
        time.sleep(0.1)
    for process in processes.values():
        process.send(signal.SIGSTOP)
    return found


def _rounds(ready: Mapping[Any, WorkerProcess], plan: Plan) -> dict[bool, dict[Any, list[float]]]:
    """Milliseconds of steps in each process, on all cores and on a single one, in rounds of random order."""
    times: dict[bool, dict[Any, list[float]]] = {pinned: {key: [] for key in ready} for pinned in (False, True)}
    cores = os.sched_getaffinity(0)
    keys, number, draw = [*ready], 0, random.Random(7)
    round_s = 2 * len(keys) * TURN_S  # at most, so far
    while keys and plan.left() > LAST_S + 1.2 * round_s:
        begin = time.monotonic()
        pinned = number % PINNED == PINNED - 1
        draw.shuffle(keys)
        for key in [*keys]:
            process = ready[key]
            process.bind({min(cores)} if pinned else cores)
            process.send(signal.SIGCONT)
            try:
                seconds = process.ask(f"host {TURN_S}", 10.0)["seconds"]
            except (OSError, EOFError) as error:
                print(f"{key}: {error!r}", flush=True)
                keys.remove(key)
                continue
            finally:
                process.send(signal.SIGSTOP)
            times[pinned][key] += [round(1e3 * each, 4) for each in seconds]
        number += 1
        round_s = max(round_s, time.monotonic() - begin)
    return times


def _counted(processes: Mapping[Any, WorkerProcess]) -> dict[str, Any]:
    """Return the calls of functions in a step, and the kinds of launchers, of the first process of each way."""
    calls: dict[str, Counter[str]] = {}
    launchers: dict[str, dict[str, int]] = {}
    for (_, way, _), process in processes.items():
        if way not in calls:
            process.send(signal.SIGCONT)
            with suppress(OSError, EOFError):
                process.ask("host 0", 20.0)
                answer = process.ask("calls", 20.0)
                calls[way], launchers[way] = Counter(answer["calls"]), answer["launchers"]
            process.send(signal.SIGSTOP)
    if len(calls) < 2:
        return {"calls": {way: each.total() for way, each in calls.items()}, "launchers": launchers}
    default, ours = calls[DEFAULT], calls[DIODE_LUT]
    differ = {name: ours[name] - default[name] for name in {*default, *ours} if ours[name] != default[name]}
    most = sorted(differ, key=lambda name: -abs(differ[name]))[:SHOWN]
    return {
        "calls": {way: each.total() for way, each in calls.items()},
        "ours": {name: count for name, count in ours.items() if "/diode_lut/" in name},
        "differ": {name: [default[name], ours[name]] for name in most},
        "launchers": launchers,
    }


def _told(record: Mapping[str, Any]) -> str:
    lines = [f"{record['program']}: calls {record['calls']}, launchers {record['launchers']}"]
    for field in ("host_ms", "host_pinned_ms"):
        for way, each in record[field].items():
            lines.append(f"  {field} {way}: least {_each(each, min)}; median {_each(each, median)}")
    return "\n".join(lines)


def _each(processes: Sequence[Sequence[float]], of: Any) -> str:
    values = sorted(map(of, processes))
    return ", ".join(f"{value:.3f}" for value in values) + (f" (median {median(values):.3f})" if values else "")


if __name__ == "__main__":
    main()
