"""Measure what other configs of the kernels that Inductor generates are worth: reductions and pointwise work.

``python tools/bench_generated.py --out DIRECTORY --seconds 300`` compiles the programs of modelbench.corpus, times
each generated kernel with Inductor's configs and with some drawn at random, and replays programs with the fastest.
It needs PyTorch 2.11 and uses all GPUs. Compilation costs about 0.35 s of CPU time for each config.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import subprocess
import sys
import time
import traceback
from pathlib import Path


def main() -> None:
    """Start the processes, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300, help="at least 120; the last minute compiles nothing")
    parser.add_argument("--programs", help="comma-separated; by default all")
    parser.add_argument("--flipped", type=int, default=1, help="1: also with the other form of each reduction")
    parser.add_argument("--share", type=int, default=4, help="programs for each process")
    parser.add_argument("--threads", type=int, default=3, help="compile workers of each process")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seconds < 120:
        parser.error("--seconds: at least 120")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.worker is not None:
        work(arguments.out, arguments.worker, arguments.until)
        return

    import torch
    from modelbench.corpus import PROGRAMS

    names = arguments.programs.split(",") if arguments.programs else list(PROGRAMS)
    tasks = [f"{name}{suffix}" for name in names for suffix in ("", "!")[: 1 + arguments.flipped]]
    random.Random(1).shuffle(tasks)
    gpus, until = torch.cuda.device_count(), time.time() + arguments.seconds
    print(f"{len(tasks)} programs on {gpus} x {torch.cuda.get_device_name()}", flush=True)
    processes = []
    groups = [tasks[start :: -(-len(tasks) // arguments.share)] for start in range(-(-len(tasks) // arguments.share))]
    for number, group in enumerate(groups):
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": str(number % gpus),
            "TORCHINDUCTOR_CACHE_DIR": f"/tmp/generated/{number}",
            "TORCHINDUCTOR_COMPILE_THREADS": str(arguments.threads),
            "OMP_NUM_THREADS": "2",
            "TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": "0",
        }
        command = [sys.executable, __file__, "--out", str(arguments.out), "--until", str(until)]
        log = (arguments.out / f"log-{number}.txt").open("w")
        command += ["--worker", ",".join([str(number), str(len(groups)), *group])]
        processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    for process in processes:
        process.wait(timeout=max(1, until + 60 - time.time()))


def work(out: Path, task: str, until: float) -> None:
    """Prepare some programs, wait until all processes are ready, and measure them while no other uses the GPU."""
    number, count, *names = task.split(",")

    import torch
    from modelbench.generated import Program, append, measure, prepare

    import diode_lut
    from diode_lut.measure.timing import Bench

    diode_lut.config.receipt = None
    results = out / f"results-{number}.jsonl"
    programs: list[Program] = []
    for name in names:
        if time.time() > until - 60:
            break
        try:
            programs.append(prepare(name.rstrip("!"), name.endswith("!")))
        except Exception as error:  # noqa: BLE001 - other programs go on
            append(results, {"program": name, "error": repr(error)[:300]})
            traceback.print_exc()
    for program in programs:
        done = 0
        for job in program.jobs:
            try:
                done += job.result(timeout=max(1.0, until - 45 - time.time()))
            except Exception as error:  # noqa: BLE001, PERF203 - they are compiled later, or left out
                print(f"{program.name}: {error!r}"[:300], flush=True)
        print(f"{program.name}: {program.seconds:.1f} s, {done} configs of {len(program.recorder.kernels)} kernels")
    (out / f"ready-{number}").touch()
    while len(list(out.glob("ready-*"))) < int(count) and time.time() < until - 40:
        time.sleep(0.2)
    with Path(f"/tmp/gpu-{os.environ['CUDA_VISIBLE_DEVICES']}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bench = Bench()
        for program in programs:
            if time.time() > until:
                break
            try:
                measure(program, bench, lambda record: append(results, record), until)
            except Exception as error:  # noqa: BLE001 - other programs go on
                append(results, {"program": program.name, "error": repr(error)[:300]})
                traceback.print_exc()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
