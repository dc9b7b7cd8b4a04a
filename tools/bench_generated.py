"""Measure what other configs of the kernels that Inductor generates are worth: reductions and pointwise work.

``python tools/bench_generated.py --out DIRECTORY --seconds 520`` compiles the programs of modelbench.corpus, times each
different kernel once with Inductor's configs and with others, the kernels with the largest share of a program first,
and replays some programs with the fastest. Results are lines of results-*.jsonl, written as they come. At the end
generated.jsonl.zst has all of them, after those of ``--known``; score_generated.py reads it.

It needs PyTorch 2.11, uses all CPUs, and all GPUs or those of ``CUDA_VISIBLE_DEVICES``, and ends in time. A config
takes about 0.4 s of CPU time to compile. On another GPU, ``--as-on tools/modelbench/generated-nvidia-h100.jsonl.zst``
measures first those kernels that told most there.
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
from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

from modelbench.records import Record, append, read

SCRATCH = Path("/tmp/generated")
KERNELS, CLAIMS = SCRATCH / "kernels", SCRATCH / "claims"
USES, TASKS, KNOWN = SCRATCH / "uses.jsonl", SCRATCH / "tasks.json", SCRATCH / "known.json"
WORTH = SCRATCH / "worth.json"

CAPTURE, COMPILE, MEASURE, REPLAY, MEASURE_ONLY = 0.34, 0.74, 0.80, 0.97, 0.88
"""When each stage ends at the latest, as parts of the whole time; compiling ends later if nothing is replayed."""

REPLAYED = (
    *("minilm", "esm", "t5", "bert", "dinov2", "vit", "deberta", "siglip", "llama-1b", "modernbert", "gpt2", "whisper"),
    *("distilbert", "albert", "qwen3", "clip", "gpt2-training", "bert-training", "timm-resnet50", "timm-convnext_tiny"),
    *("timm-swin_tiny_patch4_window7_224", "timm-mixer_b16_224", "timm-efficientnet_b0", "timm-poolformer_s12"),
    *("timm-resnet18-training", "timm-vit_small_patch16_224-training"),
)
SLOW = re.compile("densenet|hrnet|maxvit|training|efficientnet|mobile|regnety|xcit|coat|cait|swin|edgenext|fastvit|dpn")
OF_PIECES, OF_VARIANTS = 0.3, 0.1  # weights of pieces of models, and of kernels that Inductor would not make
FATAL = re.compile("CUDA( driver)? error|device-side assert")  # the process can do nothing more on the GPU

ALWAYS_ALIKE = re.compile("pointwise|heads|joined|transposed|rotary|upsample|gelu|pool$")
SPLIT = re.compile(
    "column-sum|row-sum|gradient|batch-norm|cross-entropy|softmax-8x|training|group-norm|argmax|float8-16"
)


def main() -> None:
    """Start the processes, start some again that failed, and end all in time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--programs", help="comma-separated; by default all")
    parser.add_argument("--known", type=Path, help="results of before: kernels in them are not measured again")
    parser.add_argument("--as-on", type=Path, help="another GPU's results, which tell what to measure first")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that compile")
    parser.add_argument("--measurers", type=int, default=3, help="processes that measure, for each GPU, in turns")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--ends", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role is not None:
        results = arguments.out / f"results-{os.environ['CUDA_VISIBLE_DEVICES']}.jsonl"
        ends = [float(end) for end in arguments.ends.split()]
        role, _, name = arguments.role.partition(" ")
        if role == "keep":
            keep(name, results, ends)
        else:
            {"work": work, "measure": time_kernels}[role](results, ends)
        return
    started = time.time()
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(SCRATCH, ignore_errors=True)
    KERNELS.mkdir(parents=True)
    CLAIMS.mkdir()
    device, gpus = _gpus()
    from modelbench.corpus import PROGRAMS

    names = arguments.programs.split(",") if arguments.programs else list(PROGRAMS)
    earlier = read([arguments.known]) if arguments.known else ()
    known = [record["kernel"] for record in earlier if "cold" in record]
    if arguments.as_on is None:
        kept = [name for name in REPLAYED if name in names]
        tasks, worth = tasks_of(names, kept), dict[str, float]()
    else:
        kept = []
        tasks, worth = worth_measuring(arguments.as_on, names, {*known})
    TASKS.write_text(json.dumps(tasks))
    KNOWN.write_text(json.dumps(known))
    WORTH.write_text(json.dumps(worth))
    print(f"{len(tasks) + len(kept)} captures", flush=True)
    parts = (CAPTURE, COMPILE, MEASURE, REPLAY) if kept else (CAPTURE, MEASURE_ONLY, REPLAY, 1)
    ends = [started + arguments.seconds * part for part in parts]
    children: dict[subprocess.Popen[bytes], tuple[str, int]] = {}

    def start(role: str, gpu: int) -> None:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "TORCHINDUCTOR_CACHE_DIR": str(SCRATCH / "inductor"),
            "TRITON_CACHE_DIR": str(SCRATCH / "triton"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            "TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": "0",
            "HF_HUB_OFFLINE": "1",
            "DIODE_LUT_GENERATED": "0",
        }
        command = [sys.executable, *sys.argv[:1], "--out", str(arguments.out), "--role", role]
        child = subprocess.Popen([*command, "--ends", " ".join(map(str, ends))], env=environment)
        children[child] = (role, gpu)

    for number, name in enumerate(kept):
        start(f"keep {name}", gpus[number % len(gpus)])
    for number in range(arguments.workers):
        start("work", gpus[number % len(gpus)])
    for number in range(arguments.measurers * len(gpus)):
        start("measure", gpus[number % len(gpus)])
    captured = measured = False
    restarts = 0
    while children and time.time() < started + arguments.seconds:
        time.sleep(0.2)
        for child in [child for child in children if child.poll() is not None]:
            role, gpu = children.pop(child)
            if child.returncode and restarts < 100 and not role.startswith("keep"):
                restarts += 1
                start(role, gpu)
        captures = len(_lines(USES))
        if not captured and (captures >= len(tasks) + len(kept) or time.time() > ends[0]):
            captured = True
            kernels = len(list(KERNELS.iterdir()))
            print(f"{time.time() - started:.0f} s: {captures} captures, {kernels} kernels", flush=True)
            (SCRATCH / "captured").touch()
        if captures >= len(tasks) + len(kept):
            (SCRATCH / "complete").touch()
        if not measured and all(role != "measure" for role, _ in children.values()):
            measured = True
            print(f"{time.time() - started:.0f} s: measured", flush=True)
            _keep_sources(arguments.out / "sources.jsonl")
            (SCRATCH / "measured").touch()
    for child in children:
        child.kill()
    _compress(arguments.out, arguments.known, device)
    print(f"{time.time() - started:.0f} s: ended, {len(children)} killed, {restarts} restarts", flush=True)


def tasks_of(names: Sequence[str], kept: Sequence[str]) -> list[tuple[str, str]]:
    """Programs and variants to be captured, the slowest first; those that are kept are captured elsewhere."""
    models = sorted((name for name in names if not _by_hand(name)), key=lambda name: SLOW.search(name) is None)
    small = [name for name in names if _by_hand(name)]
    reducing = [name for name in (*models, *small) if not ALWAYS_ALIKE.search(name)]
    return [
        *((name, "") for name in (*models, *small) if name not in kept),
        *((name, variant) for name in names if SPLIT.search(name) for variant in ("split more", "split less")),
        *((name, "flipped") for name in reversed(reducing)),
    ]


def worth_measuring(
    path: Path, names: Sequence[str], known: set[str]
) -> tuple[list[tuple[str, str]], dict[str, float]]:
    """Programs and variants to be captured, and what each kernel is worth, by another GPU's results.

    A kernel is worth what Inductor's first config loses there, by the kernel's share of its programs' time, and the
    less, the more kernels of its form and sizes are worth more. Programs come first of which that GPU has no results,
    then those whose kernels are worth most for the time of a capture. Those that are kept away make no rows, and are
    left out.
    """
    from modelbench.corpus import KEPT_AWAY

    records = [*read([path])]
    measured = {record["kernel"]: record for record in records if "cold" in record}
    captures = [each for each in records if each.get("kernels") and each["program"] not in KEPT_AWAY]
    shares: dict[str, float] = {}
    for capture in captures:
        spent = {each: n * min(measured[each]["cold"]) for each, n in capture["kernels"].items() if each in measured}
        for kernel, time_of_kernel in spent.items():
            usual = OF_PIECES if _by_hand(capture["program"]) else 1.0
            part = time_of_kernel / sum(spent.values()) * (OF_VARIANTS if capture["variant"] else usual)
            shares[kernel] = shares.get(kernel, 0) + part
    by_form: dict[Any, list[tuple[float, str]]] = {}
    for kernel, share in shares.items():
        record = measured[kernel]
        sizes = [(name, size.bit_length() // (1 if name == "r0_" else 2)) for name, size in record["hints"].items()]
        form = (record["kind"], record["blocks"], record["hint"], sizes, min(record["meta"]["num_load"], 4))
        loss = log(record["cold"][0] / min(record["cold"]))
        by_form.setdefault(str(form), []).append((share * (loss + 0.03), kernel))
    worth = {
        kernel: value / (1 + rank)
        for of_form in by_form.values()
        for rank, (value, kernel) in enumerate(sorted(of_form, reverse=True))
    }
    left = {kernel: value for kernel, value in worth.items() if kernel not in known}
    waiting = {
        (each["program"], each["variant"]): (each["seconds"], [*each["kernels"]])
        for each in captures
        if each["program"] in names
    }
    tried = {each["program"] for each in records if "program" in each}
    tasks = [(name, "") for name in names if name not in tried]

    def worth_now(task: tuple[str, str]) -> float:
        seconds, kernels = waiting[task]
        return float(sum(left.get(kernel, 0.0) for kernel in kernels) / (seconds + 5))

    while waiting and worth_now(best := max(waiting, key=worth_now)) > 0:
        tasks.append(best)
        for kernel in waiting.pop(best)[1]:
            left.pop(kernel, None)
    return tasks, worth


def _by_hand(name: str) -> bool:
    """Whether the program is a piece of a model."""
    return (name[-1].isdigit() and "x" in name) or name.startswith(("pointwise", "cross", "embedding", "drawn"))


def _compress(out: Path, known: Path | None, device: str) -> None:
    """Put all results into one file, each program's first ones, without paths of this machine."""
    import torch
    import triton
    import zstandard

    header = {"device": device, "torch": torch.__version__, "triton": triton.__version__, "unit": "microseconds"}
    kept = [*read([known])] if known else [header]
    seen = {(record.get("program"), record.get("variant")) for record in kept if "kernels" in record}
    for path in sorted(out.glob("results-*.jsonl")):
        for record in _lines(path):
            record.pop("source", None)
            if "kernels" not in record or (record["program"], record["variant"]) not in seen:
                kept.append(record)
    lines = "".join(f"{json.dumps(record)}\n" for record in kept)
    (out / "generated.jsonl.zst").write_bytes(zstandard.compress(lines.encode(), 19))


def _gpus() -> tuple[str, list[int]]:
    """The name of the GPUs, which must be alike, and the numbers of those to use."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert len(set(names)) == 1, names
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names[0], [*map(int, visible.split(","))] if visible else list(range(len(names)))


def keep(name: str, results: Path, ends: Sequence[float]) -> None:
    """Capture a program, wait until the kernels are measured, and replay it."""
    import torch
    from modelbench.generated import capture, replay
    from modelbench.timing import alone

    from diode_lut.measure.timing import Bench

    try:
        program, record = capture(name, "", KERNELS)
    except Exception as error:
        record = _failed(name, "", error)
        raise
    finally:
        append(USES, record)
        append(results, record)
    gc.collect()
    torch.cuda.empty_cache()
    while not (SCRATCH / "measured").exists():
        time.sleep(0.3)
    records = [record for path in results.parent.glob("results-*.jsonl") for record in _lines(path)]
    measured = {record["kernel"]: record for record in records if "cold" in record}
    with alone(SCRATCH / f"gpu-{os.environ['CUDA_VISIBLE_DEVICES']}"):
        if time.time() < ends[3]:
            append(results, replay(program, KERNELS, measured, Bench()))


def work(results: Path, ends: Sequence[float]) -> None:
    """Capture programs, then compile kernels with other configs."""
    import torch
    from modelbench.generated import capture, compile_part, parts

    for name, variant in json.loads(TASKS.read_text()):
        if time.time() < ends[0] and _claimed(f"capture {name} {variant}"):
            try:
                for _ in range(3):
                    try:
                        record = capture(name, variant, KERNELS)[1]
                        break
                    except torch.OutOfMemoryError as error:
                        record = _failed(name, variant, error)
                    gc.collect()
                    torch.cuda.empty_cache()
                    time.sleep(5)
            except Exception as error:
                record = _failed(name, variant, error)
                traceback.print_exc()
                if FATAL.search(str(error)):
                    raise
            finally:
                append(USES, record)
                append(results, record)
            gc.collect()
            torch.cuda.empty_cache()
    taken: set[str] = set()
    while time.time() < ends[1]:
        for _, kernel in _by_share():
            if kernel in taken:
                continue
            about = json.loads((KERNELS / kernel / "about.json").read_text())
            claimed = next((part for part in range(parts(about)) if _claimed(f"{kernel} {part}")), None)
            if claimed is not None:
                compile_part(KERNELS / kernel, claimed)
                break
            taken.add(kernel)
        else:
            if (SCRATCH / "complete").exists():
                return
            time.sleep(0.3)


def time_kernels(results: Path, ends: Sequence[float]) -> None:
    """Load kernels that are compiled, and measure them while no other process does on this GPU."""
    import torch
    from modelbench.generated import load, measure, parts
    from modelbench.timing import alone

    from diode_lut.measure.timing import Bench

    bench = Bench()
    while not (SCRATCH / "captured").exists():
        time.sleep(0.3)
    while time.time() < ends[2]:
        waiting = False
        for _, kernel in _by_share():
            if (CLAIMS / f"measure {kernel}").exists():
                continue
            about = json.loads((KERNELS / kernel / "about.json").read_text())
            if not all((KERNELS / kernel / f"part-{part}.json").exists() for part in range(parts(about))):
                waiting = True
                continue
            if time.time() > ends[2] or not _claimed(f"measure {kernel}"):
                continue
            try:
                ready = load(KERNELS / kernel)
                torch.cuda.synchronize()
                with alone(SCRATCH / f"gpu-{os.environ['CUDA_VISIBLE_DEVICES']}"):
                    append(results, measure(ready, bench))
                del ready
            except Exception as error:
                append(results, {"kernel": kernel, "error": repr(error)[:400]})
                traceback.print_exc()
                if FATAL.search(str(error)):
                    raise
            torch.cuda.empty_cache()
        if (not waiting and (SCRATCH / "complete").exists()) or time.time() > ends[1] + 8:
            return
        time.sleep(0.2)


def _failed(name: str, variant: str, error: Exception) -> dict[str, Any]:
    return {"program": name, "variant": variant, "error": repr(error)[:400], "kernels": {}, "bytes": {}}


def _keep_sources(path: Path) -> None:
    """Write the source of each kernel as a line."""
    with path.open("w") as file:
        for directory in KERNELS.iterdir():
            if (about := directory / "about.json").exists():
                source = Path(json.loads(about.read_text())["source"]).read_text()
                file.write(json.dumps({"kernel": directory.name, "source": source}) + "\n")


def _claimed(what: str) -> bool:
    """Whether no other process has claimed it before."""
    try:
        os.close(os.open(CLAIMS / what, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _by_share() -> list[tuple[float, str]]:
    """All kernels, first those that are worth most, or by their part of the bytes that a program reads and writes."""
    share: dict[str, float] = {}
    known, worth = set(json.loads(KNOWN.read_text())), json.loads(WORTH.read_text())
    for record in _lines(USES):
        moved = {kernel: record["bytes"][kernel] * calls for kernel, calls in record["kernels"].items()}
        for kernel, size in moved.items():
            if kernel in known:
                continue
            part = size / max(sum(moved.values()), 1) * (0.4 if record["variant"] else 1)
            share[kernel] = worth.get(kernel, max(share.get(kernel, 0), part) * (0.1 if worth else 1))
    return sorted(((part, kernel) for kernel, part in share.items()), reverse=True)


def _lines(path: Path) -> list[Record]:
    return [*read([path])] if path.exists() else []


if __name__ == "__main__":
    main()
