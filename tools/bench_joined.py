"""Measure matmuls that share their input, matmuls of few rows, and 1x1 convolutions as matmuls: needs a GPU.

``python tools/bench_joined.py --out joined.jsonl --seconds 450 --gpus 4`` measures, of public models' layers:

1. ``siblings``: q, k, v or gate, up, each with its own kernel, joined by a copied weight, and joined without a copy by
   a kernel that takes several weights; gate, up also with silu(gate) * up in the kernel;
2. ``few``: 1 to 16 rows by the library, and by Triton's matmuls, deep pipelines, reductions, parts of K, and with
   programmatic dependent launch (``pdl``; ``pdl2`` also fetches weights before it waits);
3. ``convolution``: each 1x1 convolution of some networks, by cuDNN, by the library's and Triton's matmul, alone and
   with scale, shift and ReLU; ``net``: the whole networks, compiled with and without convolutions as matmuls.

A process for each GPU takes the tasks whose kernels other processes have compiled. Times are medians of a call in CUDA
graphs of several calls, each with other weights, in interleaved rounds with a cold L2 cache; results are compared with
float32. Each task is a line of the results as soon as it is done; those that are there are not measured again.
``--summary FILE...`` prints tables. ``TRITON_INTERPRET=1 python tools/bench_joined.py --device cpu --tiny`` tries it
out.
"""

import argparse
import contextlib
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import torch
from modelbench.joined_kernels import Spec, compile_in_cache
from modelbench.joined_tasks import NETS, Task, image, network, tasks_of
from modelbench.joined_ways import MEASURES, ROUNDS, Clock, Line, launching, spread
from modelbench.records import append, read
from modelbench.timing import alone


def measure(task: Task, clock: Clock) -> Line:
    """The line of a task; CUDA's errors are raised, others are in the line."""
    begun = time.monotonic()
    line = {"task": task.key, "kind": task.kind, "sizes": task.sizes, **task.about}
    try:
        with clock.on_stream(), torch.no_grad():
            line |= MEASURES[task.kind](task, clock)
    except Exception as error:  # noqa: BLE001 - the next task may do
        line["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return line | {"seconds": round(time.monotonic() - begun, 2)}


def work(gpu: int, tasks: Any, done: Any, out: Path, lock: Path) -> None:
    """Measure tasks on a GPU, until there is None; a CUDA error ends the process."""
    torch.cuda.set_device(gpu)
    torch.backends.cuda.matmul.allow_tf32 = True
    clock = Clock("cuda")
    with alone(lock), clock.on_stream():
        name = torch.cuda.get_device_name()
        append(
            out,
            {"kind": "device", "gpu": gpu, "name": name, "bytes_per_us": clock.bandwidth(), "torch": torch.__version__},
        )
    while (task := tasks.get()) is not None:
        with alone(lock):
            line = measure(task, clock)
        append(out, {**line, "gpu": gpu})
        if "CUDA error" in line.get("error", ""):
            os._exit(1)
        done.put(task.key)
        torch.cuda.empty_cache()


def measure_net(name: str, gpu: int, device: str, out: Path, lock: Path) -> None:
    """Time a whole network, compiled in four ways, as a line of the results."""
    from modelbench.models import build
    from modelbench.ways import Way as Compiling
    from modelbench.ways import compiled

    if device == "cuda":
        torch.cuda.set_device(gpu)
    torch.manual_seed(0)
    clock = Clock(device)
    line: Line = {"task": f"net: {name}", "kind": "net", "gpu": gpu}
    as_mm = {"conv_1x1_as_mm": True}
    ways = {
        "default": Compiling(""),
        "as mm": Compiling("", options=as_mm),
        "diode_lut": Compiling("", "pick"),
        "as mm, diode_lut": Compiling("", "pick", as_mm),
    }
    try:
        if name == "unet":
            workload = build("unet", device, tiny=False)
            module, inputs = workload.module, workload.inputs
        else:
            module = network(name).eval().to(device, torch.bfloat16).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = (
                torch.randn(image(name, 32), device=device).to(torch.bfloat16, memory_format=torch.channels_last),
            )
        with torch.no_grad(), clock.on_stream():
            steps = {label: compiled(lambda *tensors: module(*tensors), inputs, way) for label, way in ways.items()}
            line["kernels"] = {label: step.kernels for label, step in steps.items()}
            with alone(lock):
                runs = [launching([[step.step]], [], "") for step in steps.values()]
                times = clock.times(runs, 1, ROUNDS)
        line["us"] = {label: round(median(found), 2) for label, found in zip(ways, times, strict=True)}
        line["spread"] = {label: round(spread(found), 4) for label, found in zip(ways, times, strict=True)}
    except Exception as error:  # noqa: BLE001 - the next task may do
        line["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    append(out, line)


def run(options: argparse.Namespace) -> None:
    """Compile, and have a process for each GPU measure, until all is done or the time is up."""
    until = time.monotonic() + options.seconds
    context = multiprocessing.get_context("spawn")
    kinds, known = (
        options.kinds.split(","),
        {line.get("task") for line in read([options.out] if options.out.exists() else [])},
    )
    locks = [options.caches / f"lock{gpu}" for gpu in range(options.gpus)]
    nets = []
    for index, name in enumerate(NETS if "net" in kinds else ()):
        if f"net: {name}" not in known:
            gpu = index % options.gpus
            places = ["--gpu", str(gpu), "--out", options.out, "--caches", options.caches]
            command = [sys.executable, __file__, "--net", name, *places]
            own = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "TORCHINDUCTOR_CACHE_DIR": str(options.caches / name)}
            own |= {"TRITON_CACHE_DIR": str(options.caches / name / "triton")}
            with (options.caches / f"{name}.log").open("w") as log:
                nets.append(
                    subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log, start_new_session=True)
                )
    tasks, done = context.Queue(), context.Queue()

    def start(gpu: int) -> Any:
        process = context.Process(target=work, args=(gpu, tasks, done, options.out, locks[gpu]), daemon=True)
        process.start()
        return process

    workers = [start(gpu) for gpu in range(options.gpus)]
    pool = ProcessPoolExecutor(options.compilers, mp_context=context)
    compiling: dict[Spec, Future[str]] = {}
    waiting: list[Task] = []

    def submit() -> None:
        for task in tasks_of(kinds, tiny=options.tiny):
            if task.key not in known:
                for spec in (spec for each in task.candidates for spec in each.specs):
                    if spec not in compiling:
                        try:
                            compiling[spec] = pool.submit(compile_in_cache, spec)
                        except RuntimeError:  # the pool is broken: who measures has to compile
                            compiling[spec] = Future()
                            compiling[spec].set_result("")
                waiting.append(task)

    making = threading.Thread(target=submit, daemon=True)
    making.start()
    given = finished = 0
    said = time.monotonic()
    while time.monotonic() < until:
        for task in [t for t in waiting[:100] if all(compiling[s].done() for c in t.candidates for s in c.specs)]:
            waiting.remove(task)
            bad = {
                s
                for each in task.candidates
                for s in each.specs
                if not compiling[s].exception() and compiling[s].result()
            }
            tasks.put(task._replace(candidates=tuple(c for c in task.candidates if not bad & set(c.specs))))
            given += 1
        with contextlib.suppress(queue.Empty):
            done.get(timeout=0.2)
            finished += 1
            while True:
                done.get_nowait()
                finished += 1
        for gpu, worker in enumerate(workers):
            if not worker.is_alive():
                print(f"GPU {gpu}: exit code {worker.exitcode}, once more", flush=True)
                workers[gpu], finished = start(gpu), finished + 1
        rest = making.is_alive() or waiting or finished < given
        if not rest and all(net.poll() is not None for net in nets):
            break
        if time.monotonic() > said + 20:
            said = time.monotonic()
            count = sum(each.done() for each in list(compiling.values()))
            print(f"{finished} tasks of {given + len(waiting)}, {count} kernels of {len(compiling)}, "
                  f"{until - said:.0f} s left", flush=True)  # fmt: skip
    for net in nets:
        if net.poll() is None:
            os.killpg(net.pid, signal.SIGKILL)
    for child in multiprocessing.active_children():
        child.kill()


def markdown(lines: Sequence[Line]) -> str:
    """Tables of all kinds."""
    by_kind: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_kind["error" if "error" in line else line["kind"]].append(line)
    bandwidth = median([line["bytes_per_us"] for line in by_kind["device"]] or [3e6])
    rows = [
        f"Devices: {', '.join(sorted({line['name'] for line in by_kind['device']}))}; copies {bandwidth / 1e6:.2f} TB/s"
    ]
    columns = "library | apart | copied | joined | apart/copied | apart/joined | share of the bound"
    rows += ["", f"| siblings | M | {columns} | silu: apart | joined | gated | apart/gated |"]
    rows += ["|---" * 13 + "|"]
    for line in sorted(by_kind["siblings"], key=lambda each: (each["layer"], each["m"])):
        us = line["us"]
        apart, joined = us["apart best"], us.get("joined", float("nan"))
        copied = min([us[name] for name in ("copied", "copied library") if name in us], default=float("nan"))
        bound = min(copied, joined)
        share = (apart - joined) / (apart - bound) if apart > 1.01 * bound else float("nan")
        cells = [line["layer"], line["m"], us["apart library"], apart, copied, joined]
        cells += [f"{apart / copied:.3f}", f"{apart / joined:.3f}", f"{share:.2f}"]
        if "apart best, silu" in us:
            best, one = us["apart best, silu"], us.get("gated", float("nan"))
            cells += [best, us.get("joined, silu", ""), one, f"{best / one:.3f}"]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    groups = (
        "library",
        "mm",
        "deep",
        "deep pdl1",
        "deep pdl2",
        "reduction",
        "reduction pdl2",
        "split",
        "split pdl1",
        "decompose_k",
    )
    rows += [
        "",
        f"| few rows | M | MB | floor | {' | '.join(groups)} | best of new to best of library, mm |",
        "|---" * (len(groups) + 5) + "|",
    ]
    for line in sorted(by_kind["few"], key=lambda each: (each["layer"], each["m"])):
        us = line["us"]
        today, new = (min((us[g] for g in some if g in us), default=float("nan")) for some in (groups[:2], groups[2:]))
        cells = [line["layer"], line["m"], f"{line['bytes'] / 1e6:.1f}", f"{5 + line['bytes'] / bandwidth:.2f}"]
        cells += [us.get(group, "") for group in groups] + [f"{today / new:.3f}"]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    rows += ["", *_of_nets(by_kind["convolution"], by_kind["net"]), ""]
    rows += [f"{line.get('task')}: {line['error']}" for line in by_kind["error"]]
    return "\n".join(rows)


def _of_nets(lines: Sequence[Line], nets: Sequence[Line]) -> Iterator[str]:
    """Sums over the 1x1 convolutions of each network, and times of whole networks."""
    single = (
        "cudnn channels_last",
        "cudnn channels_last, benchmark",
        "cudnn contiguous",
        "cudnn contiguous, benchmark",
        "library mm",
        "mm",
    )
    then = ("cudnn channels_last, then", "library mm, then", "fused")
    sums: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for line in lines:
        us = line["us"]
        library = us.get("cudnn channels_last", float("nan"))
        values = {name: us.get(name, library) for name in single} | {
            "best": min([us[name] for name in us if name in single], default=library)
        }
        base = us.get(then[0], float("nan"))
        values |= {name: us.get(name, base) for name in then} | {
            "best, then": min([us[name] for name in us if name in then], default=base)
        }
        for net, number in line["nets"].items():
            for name, value in values.items():
                sums[net, line["dtype"], line["batch"]][name] += number * value
            sums[net, line["dtype"], line["batch"]]["layers"] += number
    columns = ("layers", *single, "best", *then, "best, then")
    yield f"| 1x1 of a network, us | dtype | batch | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 3) + "|"
    for (net, dtype, batch), values in sorted(sums.items()):
        yield f"| {net} | {dtype} | {batch} | " + " | ".join(f"{values[name]:.1f}" for name in columns) + " |"
    yield ""
    yield "| network | us | kernels |"
    yield "|---|---|---|"
    for line in nets:
        yield f"| {line['task']} | {line['us']} | {line['kernels']} |"


def main() -> None:
    """Measure what is missing, or print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("joined.jsonl"))
    parser.add_argument("--seconds", type=float, default=450, help="end after this time; default: %(default)s")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--compilers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 8), help="processes")
    parser.add_argument("--caches", type=Path, default=Path(tempfile.gettempdir()) / "bench_joined")
    parser.add_argument(
        "--kinds", default="siblings,few,convolution,net", metavar="KIND,...", help="default: %(default)s"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="try it out with small sizes")
    parser.add_argument("--net", help=argparse.SUPPRESS)
    parser.add_argument("--gpu", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--summary", type=Path, nargs="+", metavar="FILE", help="print the tables of these results")
    options = parser.parse_args()
    if options.summary:
        print(markdown(list(read(options.summary))))
        return
    options.caches.mkdir(parents=True, exist_ok=True)
    if options.net:
        lock = options.caches / f"lock{options.gpu}"
        measure_net(options.net, options.gpu, options.device, options.out, lock)
        return
    os.environ["TRITON_CACHE_DIR"] = str(options.caches / "triton")
    if options.device == "cpu":
        clock = Clock("cpu")
        append(options.out, {"kind": "device", "name": "CPU", "bytes_per_us": clock.bandwidth()})
        for task in tasks_of(options.kinds.split(","), tiny=options.tiny):
            append(options.out, measure(task, clock))
        if "net" in options.kinds:
            measure_net("tiny", 0, "cpu", options.out, options.caches / "lock0")
    else:
        run(options)
    print(markdown(list(read([options.out]))), flush=True)
    os._exit(0)  # threads and processes that are left have nothing more to do


if __name__ == "__main__":
    main()
