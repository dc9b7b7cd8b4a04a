"""A process that runs one program: ``python -m modelbench.real_worker TASK``.

With the way ``exact`` it computes the program's results without compiling, in its own type and in float64. With any
other way it makes the first step, which compiles, and then does what it is told, a line at a time: ``run COUNT`` runs
steps and answers with their seconds, ``kernels COUNT`` answers with the seconds of their GPU kernels, which do not
depend on how fast the CPU launches them, ``host SECONDS`` with those until each step's call returns, ``calls`` with the
functions that a step calls, ``trace`` traces one step, and ``export FILE`` writes this trace and says what
is in it. What it answers are JSON lines.
"""

import cProfile
import gc
import gzip
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from modelbench.kernels import kernel_times
from modelbench.real_programs import Given, Program, Run, programs
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

SEED = 7
MOST_VALUES = 1 << 16  # of a larger result, values at equal distances are compared
LEAST_STEPS = 3
EXACT = "exact"


def main() -> None:
    """Do the task, a JSON object."""
    task = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the program may print

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    program, device, path = programs()[task["program"]], task["device"], Path(task["results"])
    if task["way"] == EXACT:
        found = {}
        for exact in (False, True):
            run = start(program, Given(device, program.dtype, task["tiny"], exact))
            found["exact" if exact else "eager"] = sampled(run.results())
            del run
            gc.collect()
            _ready(device, torch.cuda.empty_cache)
        torch.save(found, path)
        answer(done=True)
        return
    run = start(program, Given(device, program.dtype, task["tiny"]))
    _ready(device)
    begin = time.monotonic()
    results = sampled(run.results())
    first = begin, time.monotonic()
    torch.save(results, path)
    for _ in range(2):  # what is dynamic may compile again, and CUDA graphs are captured in the second call
        run.step()
    _ready(device, torch.cuda.empty_cache)
    compiled = counters["stats"]["unique_graphs"]
    name = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"
    answer(first=first, device_name=name, torch=torch.__version__)
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        if verb == "run":
            run.step()
            _ready(device)
            begin = time.perf_counter()
            for _ in range(int(argument)):
                run.step()
            _ready(device)
            answer(seconds=time.perf_counter() - begin)
        elif verb == "kernels":
            answer(seconds=kernel_seconds(run, int(argument)))
        elif verb == "host":
            answer(seconds=host_seconds(run, device, float(argument)))
        elif verb == "calls":
            answer(calls=calls(run, device), launchers=launchers())
        elif verb == "trace":
            profile = trace(run, device, task["call"])
            answer(traced=True)
        elif verb == "export":
            kernels = exported(profile, argument)
            breaks = {str(why)[:200]: count for why, count in counters["graph_break"].items()}
            graphs = counters["stats"]["unique_graphs"]
            answer(graphs=graphs, recompiled=graphs - compiled, breaks=breaks, memory=_memory(device), **kernels)


def start(program: Program, given: Given) -> Run:
    """Start the program, with the same weights and inputs in each process."""
    torch.manual_seed(SEED)
    run = program.start(given)
    torch.manual_seed(SEED)
    return run


def sampled(results: Iterable[Tensor]) -> list[Tensor]:
    """The values to compare, on the host."""
    found = []
    for result in results:
        flat = result.detach().flatten()
        found.append(flat[:: max(1, flat.numel() // MOST_VALUES)].double().cpu())
    return found


def trace(run: Run, device: str, call: str) -> Any:
    """Trace one step, named ``call``. Backward passes run in the thread of the call, so that they are part of it."""
    run.step()
    _ready(device)
    in_one_thread = torch.autograd.set_multithreading_enabled(False)
    with torch.profiler.profile(record_shapes=True) as profile, torch.profiler.record_function(call), in_one_thread:
        run.step()
        _ready(device)
    return profile


def exported(profile: Any, path: str) -> dict[str, Any]:
    """Write a trace without the events that nobody reads, and return the microseconds of its longest kernels."""
    profile.export_chrome_trace(path)
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    events = [event for event in events if event.get("ph") == "X" and event.get("cat") in TRACED]
    for event in events:
        event["args"] = {name: value for name, value in event.get("args", {}).items() if name in ARGUMENTS}
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": events}, file, separators=(",", ":"))
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        if event["cat"] == "kernel":
            name = event["name"][:100]
            times[name] += event["dur"]
            calls[name] += 1
    most = [[name, calls[name], round(us, 1)] for name, us in times.most_common(MOST_KERNELS)]
    return {"gpu_us": round(times.total(), 1), "launched": calls.total(), "kernels": most}


def kernel_seconds(run: Run, count: int) -> float:
    """The time that the GPU's kernels of some steps take, one by one."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            run.step()
        torch.cuda.synchronize()
    return sum(map(sum, kernel_times(profile).values())) / 1e6


def host_seconds(run: Run, device: str, duration: float) -> list[float]:
    """The seconds until the call of a step returns, from an idle GPU, for the steps of so many seconds, at least 3."""
    found: list[float] = []
    until = time.perf_counter() + duration
    while len(found) < LEAST_STEPS or time.perf_counter() < until:
        _ready(device)
        begin = time.perf_counter()
        run.step()
        found.append(time.perf_counter() - begin)
    _ready(device)
    return found


def calls(run: Run, device: str) -> Counter[str]:
    """How often a step calls each function, by its file and name. Backward passes run in the thread of the call."""
    found: Counter[str] = Counter()
    profile = cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):
        run.step()
        _ready(device)
        profile.runcall(run.step)
        _ready(device)
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "nowhere")
    for entry in profile.getstats():
        code = entry.code
        if not isinstance(code, str):
            file = "generated" if code.co_filename.startswith(generated) else code.co_filename
            code = f"{file}:{code.co_name}"
        found[code] += entry.callcount
    return found


def launchers() -> Counter[str]:
    """The kinds of this process's Triton kernels, by how they are launched, with their numbers."""
    kernels = (each for each in gc.get_objects() if issubclass(type(each), CachingAutotuner))
    return Counter(type(result).__name__ for kernel in kernels for result in kernel.compile_results)


TRACED = ("kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
ARGUMENTS = ("External id", "correlation", "Input Dims", "Input type", "stream")
MOST_KERNELS = 25
"""The kinds of events that a kept trace has, their arguments, and how many of the longest kernels a record names."""


def _ready(device: str, then: Callable[[], object] = lambda: None) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
        then()


def _memory(device: str) -> int:
    """The most bytes that tensors took."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


if __name__ == "__main__":
    main()
