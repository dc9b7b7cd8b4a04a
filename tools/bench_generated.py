"""Measure what other configs of the kernels that Inductor generates are worth: reductions and pointwise work.

``python tools/bench_generated.py --out DIRECTORY --seconds 520`` compiles the programs of modelbench.corpus, times each
different kernel once with Inductor's configs and with others, the kernels with the largest share of a program first,
and replays some programs with the fastest. Results are lines of results.jsonl, written as they come.

It needs PyTorch 2.11, uses all GPUs and all CPUs, and ends in time. A config takes about 0.4 s of CPU time to compile.
"""

from __future__ import annotations

import argparse
import fcntl
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRATCH = Path("/tmp/generated")
KERNELS, CLAIMS, USES = SCRATCH / "kernels", SCRATCH / "claims", SCRATCH / "uses.jsonl"

CAPTURE, COMPILE, MEASURE, REPLAY = 0.34, 0.74, 0.80, 0.97
"""When each stage ends at the latest, as parts of the whole time."""

REPLAYED = (
    *("minilm", "esm", "t5", "bert", "dinov2", "vit", "deberta", "siglip", "llama-1b", "modernbert", "gpt2", "whisper"),
    *("distilbert", "albert", "qwen3", "clip", "gpt2-training", "bert-training", "timm-resnet50", "timm-convnext_tiny"),
    *("timm-swin_tiny_patch4_window7_224", "timm-mixer_b16_224", "timm-efficientnet_b0", "timm-poolformer_s12"),
    *("timm-resnet18-training", "timm-vit_small_patch16_224-training"),
)
SLOW = re.compile("densenet|hrnet|maxvit|training|efficientnet|mobile|regnety|xcit|coat|cait|swin|edgenext|fastvit|dpn")
FATAL = re.compile("CUDA( driver)? error|device-side assert")
"""After such an error a process can do nothing on the GPU any more."""

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
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that compile")
    parser.add_argument("--measurers", type=int, default=3, help="processes that measure, for each GPU, in turns")
    arguments = parser.parse_args()
    started = time.time()
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(SCRATCH, ignore_errors=True)
    KERNELS.mkdir(parents=True)
    CLAIMS.mkdir()
    os.environ |= {
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(SCRATCH / "inductor"),
        "TRITON_CACHE_DIR": str(SCRATCH / "triton"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": "0",
        "HF_HUB_OFFLINE": "1",
    }
    gpus = _gpus()
    _import_all()
    from modelbench.corpus import PROGRAMS

    names = arguments.programs.split(",") if arguments.programs else list(PROGRAMS)
    kept = [name for name in REPLAYED if name in names]
    tasks = tasks_of(names, kept)
    print(f"{len(tasks) + len(kept)} captures, {len(gpus)} GPUs, imports {time.time() - started:.0f} s", flush=True)
    ends = [started + arguments.seconds * part for part in (CAPTURE, COMPILE, MEASURE, REPLAY)]
    results = arguments.out / "results.jsonl"
    children: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}

    def start(function: Callable[..., None], *args: Any) -> None:
        children[_forked(function, *args)] = (function, args)

    for number, name in enumerate(kept):
        start(keep, name, gpus[number % len(gpus)], results, ends)
    for number in range(arguments.workers):
        start(work, tasks, gpus[number % len(gpus)], results, ends)
    measuring = restarts = 0
    while children and time.time() < started + arguments.seconds:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.2)
        elif status and restarts < 200:
            function, args = children.pop(pid)
            restarts += 1
            if function is not keep:
                start(function, *args)
        else:
            children.pop(pid, None)
        captures = len(_lines(USES))
        if not measuring and (captures >= len(tasks) + len(kept) or time.time() > ends[0]):
            measuring = 1
            print(
                f"{time.time() - started:.0f} s: {captures} captures, {len(list(KERNELS.iterdir()))} kernels",
                flush=True,
            )
            (SCRATCH / "captured").touch()
            for number in range(arguments.measurers * len(gpus)):
                start(time_kernels, gpus[number % len(gpus)], results, ends)
        if measuring == 1 and all(function is not time_kernels for function, _ in children.values()):
            measuring = 2
            print(f"{time.time() - started:.0f} s: measured", flush=True)
            _keep_sources(arguments.out / "sources.jsonl")
            (SCRATCH / "measured").touch()
    for pid in children:
        os.kill(pid, 9)
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


def _by_hand(name: str) -> bool:
    """Whether the program is a piece of a model."""
    return (name[-1].isdigit() and "x" in name) or name.startswith(("pointwise", "cross", "embedding"))


def _gpus() -> list[int]:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    print(listed, flush=True)
    return list(range(listed.count("GPU ")))


def _import_all() -> None:
    """Import whatever the processes need, before they are forked; CUDA must not start here."""
    import modelbench.generated
    import timm
    import torch
    import transformers
    import transformers.modeling_utils
    import triton
    from torch._inductor import compile_fx

    import diode_lut

    diode_lut.config.receipt = None
    versions = [torch.__version__, triton.__version__, transformers.__version__, timm.__version__]
    print(versions, modelbench.generated.__name__, compile_fx.__name__, flush=True)
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _forked(function: Callable[..., None], *args: Any) -> int:
    """Call the function in a process of its own; return its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        function(*args)
        status = 0
    except BaseException:  # noqa: BLE001 - the parent starts it again
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def keep(name: str, gpu: int, results: Path, ends: Sequence[float]) -> None:
    """Capture a program, wait until the kernels are measured, and replay it."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    from modelbench.generated import append, capture, replay

    from diode_lut.collect.rounds import Bench

    try:
        program, record = capture(name, "", KERNELS)
    except Exception as error:
        record = _failed(name, "", error)
        raise
    finally:
        append(USES, record)
        append(results, record)
    while not (SCRATCH / "measured").exists():
        time.sleep(0.3)
    measured = {record["kernel"]: record for record in _lines(results) if "cold" in record}
    with _alone(gpu):
        if time.time() < ends[3]:
            append(results, replay(program, KERNELS, measured, Bench()))


def work(tasks: Sequence[tuple[str, str]], gpu: int, results: Path, ends: Sequence[float]) -> None:
    """Capture programs, then compile kernels with other configs."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    import torch
    from modelbench.generated import append, capture, compile_part, parts

    for name, variant in tasks:
        if time.time() < ends[0] and _claimed(f"capture {name} {variant}"):
            try:
                record = capture(name, variant, KERNELS)[1]
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
            if (SCRATCH / "captured").exists():
                return
            time.sleep(0.3)


def time_kernels(gpu: int, results: Path, ends: Sequence[float]) -> None:
    """Load kernels that are compiled, and measure them while no other process does on this GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    import torch
    from modelbench.generated import append, load, measure, parts

    from diode_lut.collect.rounds import Bench

    bench = Bench()
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
                with _alone(gpu):
                    append(results, measure(ready, bench))
                del ready
            except Exception as error:
                append(results, {"kernel": kernel, "error": repr(error)[:400]})
                traceback.print_exc()
                if FATAL.search(str(error)):
                    raise
            torch.cuda.empty_cache()
        if not waiting or time.time() > ends[1] + 5:
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


@contextmanager
def _alone(gpu: int) -> Iterator[None]:
    with (SCRATCH / f"gpu-{gpu}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _claimed(what: str) -> bool:
    """Whether no other process has claimed it before."""
    try:
        os.close(os.open(CLAIMS / what, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _by_share() -> list[tuple[float, str]]:
    """All kernels, first those with the largest part of the bytes that a program's kernels read and write."""
    share: dict[str, float] = {}
    for record in _lines(USES):
        moved = {kernel: record["bytes"][kernel] * calls for kernel, calls in record["kernels"].items()}
        for kernel, size in moved.items():
            part = size / max(sum(moved.values()), 1) * (0.4 if record["variant"] else 1)
            share[kernel] = max(share.get(kernel, 0), part)
    return sorted(((part, kernel) for kernel, part in share.items()), reverse=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
