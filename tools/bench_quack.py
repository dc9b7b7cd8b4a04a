"""Compare QuACK's GEMMs for Hopper, with fused epilogues, with the library's GEMM and Inductor's kernels after it.

``python tools/bench_quack.py --out DIRECTORY --seconds 560`` times each GEMM of modelbench.epilogues in three ways:

- aten: what Inductor makes of it in default mode, the library's GEMM and generated kernels after it;
- triton: the fastest of Inductor's Triton templates, with what Inductor fuses into it (max-autotune, Triton alone);
- quack: all configs that QuACK tunes for this epilogue, and all without an epilogue and with Inductor's kernels after.

A time is a median of rounds in which CUDA graphs take turns. ``cold`` has all operands in memory; ``in graph`` has a
kernel before that writes x (and the gate), so they may be in the L2 cache, and whose own time is taken off. Errors are
relative to float64.

Results are lines of results-*.jsonl, written as they come; a GEMM that has one is not measured again. ``--compile``
only compiles QuACK's kernels into QUACK_CACHE_DIR, with all CPUs and without a GPU. ``--read`` prints the summary.
It needs the package quack-kernels, uses all GPUs and ends in time. ``--device cpu`` tries it out without a GPU.
"""

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from modelbench.epilogues import MODELS, Gemm, Operands, functions, operands
from modelbench.records import Record, append, read

Call = Callable[[Operands], Any]

SCRATCH = Path(os.environ.get("QUACK_SCRATCH", "/tmp/bench-quack"))
ROUNDS, LAST_ROUNDS = 5, 40
FINALISTS = 4  # number of QuACK's kernels that are timed again: the fastest in each of both ways
LAUNCHES = 8  # minimum number of launches in a CUDA graph, each with other operands
ROTATED = 256 << 20  # minimum size of all these operands together, in bytes: five times the L2 cache
HANGS = 200  # seconds without a sign of life after which a process is ended

TRITON = {
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_epilogue_benchmarked_choices": 3,
    "triton.enable_persistent_tma_matmul": True,
}


def main() -> None:
    """Start the processes, start some again that failed, and end all in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--gemms", default="", help="a regular expression; by default all")
    parser.add_argument("--configs", type=int, help="only the first of QuACK's configs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compile", action="store_true", help="only compile QuACK's kernels")
    parser.add_argument("--read", action="store_true", help="only print the summary")
    parser.add_argument("--order", type=Path, help="also write the order of configs to this JSON file")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--ends", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("QUACK_CACHE_DIR", str(SCRATCH / "cache"))
    if arguments.role is not None:
        role, number = arguments.role.split()
        {"compile": compile_kernels, "measure": measure_gemms}[role](arguments, int(number))
        return
    if not arguments.read:
        run(arguments)
    records = lines(arguments.out)
    print(summary(records))
    if arguments.order is not None:
        arguments.order.write_text(json.dumps(order_file(records), indent=1) + "\n")


def run(arguments: argparse.Namespace) -> None:
    """Compile what the cache has not, then measure with a process for each GPU."""
    started = time.time()
    ends = started + arguments.seconds
    shutil.rmtree(SCRATCH / "claims", ignore_errors=True)
    (SCRATCH / "claims").mkdir(parents=True)
    gpus = [0]
    if arguments.device == "cuda" and not arguments.compile:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
        gpus = list(range(len(listed.splitlines())))
    cpus = os.cpu_count() or 1

    def start(role: str, number: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if role == "measure":
            environment |= {"CUDA_VISIBLE_DEVICES": str(number), "DIODE_LUT_POLICY": "off"}
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(cpus // len(gpus), 1))
        (SCRATCH / f"trying-{number}").write_text("\t")
        with (arguments.out / f"log-{role}.txt").open("a") as log:
            command = [sys.executable, *sys.argv, "--role", f"{role} {number}", "--ends", str(ends)]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    compiling = [start("compile", number) for number in range(cpus)]
    while any(child.poll() is None for child in compiling) and time.time() < ends:
        time.sleep(0.2)
    print(
        f"{time.time() - started:.0f} s: compiled, {sum(child.poll() != 0 for child in compiling)} failed", flush=True
    )
    children = {} if arguments.compile else {start("measure", number): number for number in gpus}
    restarts = 0
    while children and time.time() < ends:
        time.sleep(0.2)
        for child in list(children):
            trying = SCRATCH / f"trying-{children[child]}"
            if child.poll() is None and time.time() - trying.stat().st_mtime > HANGS:
                child.kill()
                child.wait()
            if child.poll() is None:
                continue
            number = children.pop(child)
            if child.returncode and restarts < 60:
                restarts += 1
                name, kernel = trying.read_text().split("\t")
                if name:
                    append(arguments.out / "skipped.jsonl", {"skipped": name, "kernel": kernel})
                    (SCRATCH / "claims" / _file(name)).unlink(missing_ok=True)
                children[start("measure", number)] = number
    for child in [*compiling, *children]:
        child.kill()
    print(f"{time.time() - started:.0f} s: ended, {len(children)} killed, {restarts} restarts", flush=True)


def gemms(pattern: str) -> dict[str, Gemm]:
    """Return the GEMMs to measure by name, those first that are followed by most."""
    named = {f"{model}: {name}": gemm for model, layer in MODELS.items() for name, (gemm, _) in layer.items()}
    first = sorted(named, key=lambda name: named[name].epilogue == named[name].plain)
    return {name: named[name] for name in first if re.search(pattern, name)}


def compile_kernels(arguments: argparse.Namespace, part: int) -> None:
    """Compile a part of all kernels, and note the seconds of each."""
    from modelbench.quack_kernels import compile_kernel, configs

    used = dict.fromkeys(name for gemm in gemms(arguments.gemms).values() for name in (gemm.epilogue, gemm.plain))
    kernels = [(name, *item) for name in used for item in list(configs(name).items())[: arguments.configs]]
    for name, config, values in kernels[part :: os.cpu_count() or 1]:
        began, used_before = time.time(), time.process_time()
        compile_kernel(name, values)
        seconds, cpu = time.time() - began, time.process_time() - used_before
        if cpu > 0.3:
            record = {"compiled": name, "config": config, "seconds": round(seconds, 2), "cpu": round(cpu, 2)}
            append(arguments.out / f"results-compile-{part}.jsonl", record)
        if time.time() > arguments.ends:
            return


def measure_gemms(arguments: argparse.Namespace, gpu: int) -> None:
    """Measure the GEMMs that no other process has claimed."""
    import torch

    done = {record["gemm"] for record in lines(arguments.out) if "gemm" in record}
    skipped = [(record["skipped"], record["kernel"]) for record in lines(arguments.out) if "skipped" in record]
    results = arguments.out / f"results-{gpu}.jsonl"
    for name, gemm in gemms(arguments.gemms).items():
        if name in done or skipped.count((name, "")) > 1 or time.time() > arguments.ends - 15:
            continue
        try:
            os.close(os.open(SCRATCH / "claims" / _file(name), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        began = time.time()

        def trying(kernel: str, name: str = name) -> None:
            (SCRATCH / f"trying-{gpu}").write_text(f"{name}\t{kernel}")

        trying("")
        avoided = {kernel for gemm_name, kernel in skipped if gemm_name == name}
        record = measure(gemm, arguments.device, arguments.configs, avoided, trying)
        append(results, {"gemm": name, **gemm._asdict(), **record, "seconds": round(time.time() - began, 1)})
        print(f"{name}: {time.time() - began:.1f} s", flush=True)
        torch._dynamo.reset()
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


def measure(
    gemm: Gemm, device: str, limit: int | None, avoided: set[str], trying: Callable[[str], None]
) -> dict[str, Any]:
    """Compile all ways, compare each with float64, and time them."""
    import torch
    from modelbench import quack_kernels as quack

    torch.manual_seed(0)
    if device == "cpu":
        gemm = gemm._replace(m=gemm.m // 64, n=gemm.n // 2, k=gemm.k // 2)
    whole, rest, normed = functions(gemm)
    count = 1
    sets = [operands(gemm, device)]
    while sum(value.nbytes for value in sets[0].values()) * count < ROTATED and device == "cuda":
        sets.append(operands(gemm, device))
        count += 1
    if len(sets) == 1:
        sets.append(operands(gemm, device))
    exact = whole({name: value.double() for name, value in sets[0].items()})
    record: Record = {"errors": {}, "failures": {}, "compile_seconds": {}}

    def compiled(function: Callable[..., Any], options: Record | None = None) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False, options=options) if device == "cuda" else function

    def error(call: Call) -> float:
        sets[0]["out"].fill_(torch.nan)
        sets[0]["y"].fill_(torch.nan)
        results = call(sets[0])
        return max(float((r.double() - e).norm() / e.norm()) for r, e in zip(results, exact, strict=True))

    calls: dict[str, Call] = {}
    with torch.no_grad():
        for label, options in (("aten", None), ("triton", TRITON)):
            began = time.time()
            call = compiled(whole, options)
            try:
                if device == "cuda" and label == "triton":
                    record["triton_code"] = _kernels(call, sets[0])
                record["errors"][label] = error(call)
                calls[label] = call
            except Exception as failure:
                if _fatal(record, label, failure):
                    raise
            record["compile_seconds"][label] = round(time.time() - began, 1)
        tail, end = compiled(rest), compiled(normed)

        def fused(config: Record, o: Operands) -> Any:
            w = o.get("turns", o["w"])
            _launch(quack, gemm.epilogue, config, {**o, "w": w}, o["out"])
            return end(o["out"], o) if gemm.norm else (o["out"],)

        def unfused(config: Record, o: Operands) -> Any:
            _launch(quack, gemm.plain, config, o, o["y"])
            return tail(o["y"], o) if gemm.plain != gemm.epilogue or gemm.norm else (o["y"],)

        ours: dict[str, Call] = {}
        kinds = [(gemm.plain, unfused), (gemm.epilogue, fused)][: 1 if gemm.plain == gemm.epilogue else 2]
        if gemm.n % 8 or gemm.k % 8:
            kinds = []
            record["failures"]["quack"] = "rows are not 16-byte aligned"
        for kind, function in kinds:
            for name, config in list(quack.configs(kind).items())[:limit]:
                label = f"{kind} {name}"
                if label in avoided:
                    record["failures"][label] = "ended the process"
                    continue
                trying(label)
                try:
                    found = error(partial(function, config))
                except Exception as failure:
                    if _fatal(record, label, failure):
                        raise
                    continue
                if not found < 1.5 * record["errors"]["aten"] + 1e-3:
                    record["failures"][label] = f"error {found}"
                    continue
                ours[label] = partial(function, config)
                record["errors"][kind] = max(found, record["errors"].get(kind, 0))
        trying("")
        timed = timings(ours, sets, ROUNDS, keep=False)
        record["screened"] = {label: [timed["cold"][label], timed["in graph"][label]] for label in ours}
        best = dict.fromkeys(
            label for times in timed.values() for label in sorted(ours, key=times.__getitem__)[:FINALISTS]
        )
        for kind, _ in kinds:  # at least one of each kind, to see what fusing is worth
            same = [label for label in ours if label.startswith(f"{kind} ")]
            best |= dict.fromkeys(sorted(same, key=timed["in graph"].__getitem__)[:1])
        record |= timings(calls | {label: ours[label] for label in best}, sets, LAST_ROUNDS, keep=True)
    return record


def _launch(quack: Any, kind: str, config: Record, o: Operands, out: Any) -> None:
    if out.is_cuda:
        quack.launch(kind, config, o, out, run=True)
        return
    quack.compile_kernel(kind, config)
    import torch
    from modelbench.epilogues import epilogue

    turns = kind.startswith("joined")
    w = torch.cat((o["w"][::2], o["w"][1::2])) if turns else o["w"]
    y = o["x"] @ w.t() + (o["bias"] if kind.startswith("bias") else 0)
    out.copy_(epilogue(kind, y, o))


def _kernels(call: Call, o: Operands) -> dict[str, int]:
    """Compile, and return how many kernels of Triton and of the library the code launches."""
    from torch._inductor.utils import run_and_get_code

    code = "\n".join(run_and_get_code(call, o)[1])
    return {"triton": len(re.findall(r"\.run\(", code)), "library": len(re.findall(r"extern_kernels\.\w+\(", code))}


def _fatal(record: Record, label: str, failure: Exception) -> bool:
    """Note why something cannot be timed. Return True if the GPU is not usable any more."""
    reason = f"{type(failure).__name__}: {failure}"
    record["failures"][label] = reason[:300]
    traceback.print_exc()
    return re.search(r"CUDA( driver)? error|device-side assert|illegal", reason) is not None


def timings(
    calls: dict[str, Call], sets: Sequence[Operands], rounds: int, *, keep: bool
) -> dict[str, dict[str, float]]:
    """Return the microseconds of each call, cold and in a graph.

    If results are kept, each launch of a graph has memory of its own for them.
    """
    import torch

    launches = -(-max(LAUNCHES, len(sets)) // len(sets)) * len(sets)

    def before(o: Operands) -> None:
        for name in ("x", "c"):
            if f"from {name}" in o:
                torch.mul(o[f"from {name}"], 1.0, out=o[name])

    def sequence(call: Call | None, produced: bool) -> Callable[[], Any]:
        """Return a graph of launches, or on a CPU a function."""
        kept: list[Any] = []

        def launch() -> None:
            for number in range(launches):
                o = sets[number % len(sets)]
                if produced:
                    before(o)
                result = call(o) if call is not None else None
                if keep:
                    kept.append(result)

        if not sets[0]["x"].is_cuda:
            return launch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        return partial(lambda graph, _: graph.replay(), graph, kept)

    sequences = [sequence(None, True)]
    sequences += [sequence(call, produced) for call in calls.values() for produced in (False, True)]
    times = list(_rounds(sequences, rounds, sets[0]["x"].is_cuda))
    middle = [median(column) * 1e3 / launches for column in zip(*times, strict=True)]
    return {
        "cold": {label: round(us, 2) for label, us in zip(calls, middle[1::2], strict=True)},
        "in graph": {label: round(us - middle[0], 2) for label, us in zip(calls, middle[2::2], strict=True)},
    }


def _rounds(sequences: Sequence[Callable[[], Any]], count: int, cuda: bool) -> Iterator[list[float]]:
    """Yield milliseconds of all sequences for each round, in which they run in a new order."""
    import numpy as np
    import torch

    random = np.random.default_rng(0)
    event: Callable[..., Any] = torch.cuda.Event
    for _ in range(count if cuda else 1):
        row = [0.0] * len(sequences)
        if not cuda:
            for number, sequence in enumerate(sequences):
                began = time.perf_counter()
                sequence()
                row[number] = (time.perf_counter() - began) * 1e3
            yield row
            continue
        events = [[event(enable_timing=True) for _ in range(2)] for _ in sequences]
        torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]  # so the CPU gets ahead
        for number in random.permutation(len(sequences)):
            events[number][0].record()
            sequences[number]()
            events[number][1].record()
        torch.cuda.synchronize()
        yield [start.elapsed_time(end) for start, end in events]


def lines(out: Path) -> list[Record]:
    """Return all records in a directory."""
    return [*read(sorted(out.glob("*.jsonl")))]


def _file(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def summary(records: Sequence[Record]) -> str:
    """Return tables: each GEMM, the sums of a layer by model, and an order of configs."""
    found = {record["gemm"]: record for record in records if "gemm" in record}
    text = ["| GEMM | m, n, k | epilogue | aten | triton | quack | quack, unfused | in graph: aten | triton | quack |"]
    text += ["|" + "---|" * 10]
    for name, record in found.items():
        plain = Gemm(*(record[field] for field in Gemm._fields)).plain
        cold, graph = record["cold"], record["in graph"]
        unfused = min((us for label, us in cold.items() if label.startswith(f"{plain} ")), default=float("nan"))
        cells = [*(_best(cold, way) for way in ("aten", "triton", "quack")), unfused]
        cells += [_best(graph, way) for way in ("aten", "triton", "quack")]
        sizes = "{m}, {n}, {k}".format(**record)
        text.append(f"| {name} | {sizes} | {record['epilogue']} {record['norm']} | " + _cells(cells))
    text += ["", "| model | way | aten | triton | quack | best without | best with | ratio |", "|" + "---|" * 8]
    for model, layer in MODELS.items():
        parts = [(found[f"{model}: {name}"], n) for name, (_, n) in layer.items() if n and f"{model}: {name}" in found]
        if not parts or len(parts) < sum(n > 0 for _, n in layer.values()):
            continue
        for way in ("cold", "in graph"):
            sums = [0.0] * 5
            for record, n in parts:
                aten, triton, quack = (_best(record[way], name) for name in ("aten", "triton", "quack"))
                without = min(aten, triton)
                with_quack = min(without, quack)
                values = (aten, min(triton, float("inf")), quack, without, with_quack)
                sums = [total + n * value for total, value in zip(sums, values, strict=True)]
            text.append(f"| {model} | {way} | {_cells(sums)} {sums[4] / sums[3]:.3f} |")
    text += ["", "Order of configs by regret in a graph (each next one lowers the sum of the best's ratios most):"]
    chosen = _order(list(found.values()))
    text += [f"{number}. {name}: {cost:.3f} of the best" for number, (name, cost) in enumerate(chosen, 1)]
    return "\n".join(text)


def order_file(records: Sequence[Record]) -> Record:
    """Return the order of configs with the fields that QuACK and PyTorch name them by, and where it is from.

    ``time_over_best`` is the mean over GEMMs and epilogues of the time with the fastest config up to this one.
    """
    found = list({record["gemm"]: record for record in records if "gemm" in record}.values())
    order = []
    for name, cost in _order(found):
        order.append({**config_fields(name), "time_over_best": round(cost, 3)})
    device = {"device": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "torch": "2.11.0+cu130"}
    packages = {"quack-kernels": "0.6.5", "nvidia-cutlass-dsl": "4.8.1"}
    source = {"repository": "diode_lut", "tool": "tools/bench_quack.py", "results": "tools/modelbench/quack"}
    means = (
        "mean over GEMMs and epilogues of the time in a CUDA graph with the fastest config so far"
        " over that with the fastest of all"
    )
    epilogues = sorted({label.split()[0] for record in found for label in record["screened"]})
    problems = {"dtype": "bfloat16", "gemms": len(found), "epilogues": epilogues, "time_over_best": means}
    return {**device, **packages, **source, **problems, "order": order}


def config_fields(name: str) -> Record:
    """Return the fields of a config by the names that QuACK and PyTorch have for them."""
    tile, cluster, *flags = name.split("-")
    fields: Record = dict(zip(("tile_m", "tile_n"), map(int, tile.split("x")), strict=True))
    fields |= dict(zip(("cluster_m", "cluster_n"), map(int, cluster.split("x")), strict=True))
    return fields | {"pingpong": "pingpong" in flags, "swap_ab": "swap" in flags}


def _best(times: dict[str, float], way: str) -> float:
    """Return the time of aten, of triton, or of QuACK's fastest kernel; infinite if there is none."""
    if way != "quack":
        return times.get(way, float("inf"))
    return min((us for label, us in times.items() if label not in ("aten", "triton")), default=float("inf"))


def _cells(values: Sequence[float]) -> str:
    return " | ".join(f"{value:.1f}" for value in values) + " |"


def _order(records: Sequence[Record]) -> Iterator[tuple[str, float]]:
    """Yield configs with the mean time over the best so far.

    The next is always the one with which the fastest of those so far come closest to the best.
    """
    problems: list[dict[str, float]] = []
    for record in records:
        for kind in dict.fromkeys(label.split()[0] for label in record["screened"]):
            times = {k.split()[1]: us[1] for k, us in record["screened"].items() if k.split()[0] == kind}
            problems.append({config: us / min(times.values()) for config, us in times.items()})
    chosen: list[str] = []
    names = list(dict.fromkeys(config for problem in problems for config in problem))
    while problems and len(chosen) < min(12, len(names)):

        def cost(config: str) -> float:
            return sum(min(p.get(each, 2.0) for each in [*chosen, config]) for p in problems) / len(problems)

        chosen.append(min((name for name in names if name not in chosen), key=cost))
        yield chosen[-1], cost(chosen[-1])


if __name__ == "__main__":
    main()
