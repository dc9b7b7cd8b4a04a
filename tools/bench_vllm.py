"""vLLM's engine with and without diode_lut's plugin: start-up, decoding, prefill, and greedy tokens.

Engines are started in pairs, in fresh processes: one with the plugin, and one without, at the same time, so that both
find the same machine. A cold start finds empty caches of vLLM and Inductor, a warm one those of the cold one before.
For throughput, the engines of a pair take turns with measurements while nothing starts and no other pair is measured on
their GPUs. Traces then tell the time of the GPU's kernels, which is less noisy. Results are appended to ``--out``, a
JSON line for each pair; run again, it goes on with the others and those that failed. ``--table`` prints them, and
``--draw`` makes a picture.

vLLM and diode_lut have to be installed, so that vLLM finds the plugin.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from select import select
from statistics import median
from threading import Condition
from typing import Any

from modelbench.real_turns import answered
from modelbench.records import Record, append, read
from modelbench.scheduling import ROOT
from modelbench.vllm_start import MODELS
from modelbench.vllm_table import STARTS, TASKS, WITH, WITHOUT, draw, markdown

from diode_lut.receipts import merge_receipts, read_receipt, receipt_bytes

PLUGIN = "diode_lut"
CHECKED = 8  # sequences whose greedy tokens are compared
LONGEST_START_S = 300.0


def main() -> None:
    """Measure, or print results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, nargs="+", required=True, metavar="FILE", help="results, a JSON line each")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {','.join(MODELS)}")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="pairs of cold and of warm starts of a model")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="measurements of each task in a pair")
    parser.add_argument("--traces", type=int, default=3, metavar="N", help="traces of each task in a pair")
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"measure some of {', '.join(TASKS)}")
    parser.add_argument("--throughput-pairs", type=int, default=1, metavar="N", help="pairs with such measurements")
    parser.add_argument("--starts", default=",".join(STARTS), help="throughput is measured after the last")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="measure on the first N GPUs at once")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="pairs that start at once on a GPU")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs of an engine")
    parser.add_argument("--arguments", type=json.loads, default={}, metavar="JSON", help="for vllm.LLM")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then; the next run continues")
    parser.add_argument("--caches", type=Path, default=Path("/tmp/diode-lut-vllm"), help="for caches and logs")
    parser.add_argument("--table", action="store_true", help="print a table of the results")
    parser.add_argument("--draw", type=Path, metavar="SVG", help="draw the results")
    options = parser.parse_args()
    if options.table or options.draw:
        records = [*read(options.out)]
        if options.table:
            print(markdown(records))
        if options.draw:
            options.draw.write_text(draw(records), encoding="utf-8")
        return
    if PLUGIN not in {point.name for point in entry_points(group="vllm.general_plugins")}:
        sys.exit("diode_lut is not installed: vLLM would not find its plugin")
    sys.exit(Benchmark(options).run())


class Benchmark:
    """All pairs of starts; each lane has GPUs of its own and takes the models that are next."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out, self._starts = options, options.out[0], options.starts.split(",")
        self._until = time.monotonic() + options.seconds
        records = read([self.out]) if self.out.exists() else ()
        self._done = {_key(record) for record in records if "failed" not in record}
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._todo = [
            (model, number)
            for number in range(options.pairs)
            for model in options.models.split(",")
            if any(self._is_open(model, number, start) for start in self._starts)
        ]
        self._longest: dict[str, float] = {}  # seconds of a start
        self._gate = Gate()

    def _is_open(self, model: str, number: int, start: str) -> bool:
        return (model, self.options.tensor_parallel, number, start) not in self._done

    def left(self) -> float:
        """Seconds until the time is up."""
        return float(self._until - time.monotonic())

    def run(self) -> int:
        """Measure what the results do not have yet; the exit code is 1 if a start failed, and 3 if the time was up."""
        width = self.options.tensor_parallel
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = named.split(",") if named else [str(index) for index in range(self.options.gpus)]
        lanes = [gpus[begin : begin + width] for begin in range(0, self.options.gpus, width)] * self.options.at_once
        with ThreadPoolExecutor(len(lanes)) as pool:
            codes = [*pool.map(lambda lane: self._lane(lane), lanes)]
        return max(codes) if 1 not in codes else 1

    def _lane(self, gpus: Sequence[str]) -> int:
        failed = 0
        while self._todo:
            model, number = self._todo.pop(0)
            home = self.options.caches / f"{model}-{self.options.tensor_parallel}-{number}"
            shutil.rmtree(home, ignore_errors=True)
            with self._gate.starting():
                for start in self._starts:
                    if self.left() < self._longest.get(start, 60.0) * 1.15:
                        return 3
                    record = self._pair(gpus, home, model, number, start)
                    if record is None:
                        return 3
                    taken = (record.get(way, {}).get("start_s", 0.0) for way in (WITHOUT, WITH))
                    self._longest[start] = max(self._longest.get(start, 0.0), *taken)
                    append(self.out, record)
                    print(_line_of(record), flush=True)
                    if "failed" in record:
                        failed = 1
                        break  # its logs stay
                else:
                    shutil.rmtree(home, ignore_errors=True)
        return failed

    def _pair(self, gpus: Sequence[str], home: Path, model: str, number: int, start: str) -> Record | None:
        """Start an engine each way, and measure; None if the time is up before both have started."""
        width, arguments = self.options.tensor_parallel, {**_ARGUMENTS, **self.options.arguments}
        record: Record = {"model": model, "tensor_parallel": width, "number": number, "start": start}
        engines = dict[str, _Engine]()
        try:
            for way in (WITHOUT, WITH):
                engines[way] = _Engine(gpus, home / way, model, way, arguments, width)
            for way, engine in engines.items():
                record[way] = engine.answer(min(LONGEST_START_S, self.left() - 5))
                record[way]["compile_s"] = engine.compile_s()
            record["apart"] = _apart(*(engine.ask(f"check {CHECKED}", 60.0) for engine in engines.values()))
            if number < self.options.throughput_pairs and start == self._starts[-1]:
                with self._gate.measuring(gpus, self.left()):
                    record |= self._measured(engines)
        except TimeoutError:
            if self.left() < 10:
                return None
            record["failed"] = dict.fromkeys(engines, "no answer")
        except EOFError:
            record["failed"] = {way: engine.error() for way, engine in engines.items() if engine.ended()}
        finally:
            for engine in engines.values():
                engine.end()
        if (receipts := [*(home / WITH).glob("receipt-*.json")]) and "failed" not in record:
            merged = home / WITH / "receipt.json"
            receipt = merge_receipts(map(read_receipt, receipts))
            merged.write_bytes(receipt_bytes(receipt))
            kernels = [kernel for device in receipt.devices.values() for kernel in device.generated if kernel.reason]
            record |= {"answered": answered(merged), "receipts": len(receipts)}
            record["left"] = {str(kernel.problem): kernel.reason for kernel in kernels}  # to Inductor
        return record

    def _measured(self, engines: dict[str, _Engine]) -> Record:
        """Of each task and way, the seconds of all rounds, and the kernels' microseconds in all traces."""
        seconds = dict(self._turns(engines, "", self.options.rounds))
        traces = dict(self._turns(engines, "kernels ", self.options.traces))
        return {
            "seconds": {
                task: {way: [round(each["seconds"], 6) for each in taken[way]] for way in taken}
                for task, taken in seconds.items()
            },
            "kernels_us": {
                task: {way: [each["us"] for each in taken[way]] for way in taken} for task, taken in traces.items()
            },
            "kernels": {task: {way: taken[way][-1] for way in taken} for task, taken in traces.items()},
        }

    def _turns(
        self, engines: dict[str, _Engine], words: str, rounds: int
    ) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
        """Answers of each task, way and round; the ways begin in turn, and the first round is not counted."""
        for task in self.options.tasks.split(","):
            answers: dict[str, list[dict[str, Any]]] = {WITHOUT: [], WITH: []}
            for number in range(rounds + 1 if rounds else 0):
                if self.left() < 8:
                    break
                for way in answers if number % 2 else reversed(answers):
                    answer = engines[way].ask(f"{words}{task}", 60.0)
                    if number:
                        answers[way].append(answer)
            if all(answers.values()):
                yield task, answers


class Gate:
    """Lets pairs start, or some of them be measured, one on each GPU; those that wait to be measured come first."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._starting = self._measuring = 0
        self._taken: set[str] = set()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Wait until no pair is measured or waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._measuring)
            self._starting += 1
        try:
            yield
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    @contextmanager
    def measuring(self, gpus: Sequence[str], seconds: float) -> Iterator[None]:
        """Within ``starting``: wait until no other pair starts, nor is measured on these GPUs, or the time is up."""
        with self._changed:
            self._starting -= 1
            self._measuring += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._starting and self._taken.isdisjoint(gpus), seconds)
            self._taken |= {*gpus}
        try:
            yield
        finally:
            with self._changed:
                self._taken -= {*gpus}
                self._measuring -= 1
                self._starting += 1
                self._changed.notify_all()


_ARGUMENTS = {
    "max_model_len": 4352,
    "enable_prefix_caching": False,  # each prompt is computed
    "kv_cache_memory_bytes": 4_000_000_000,  # engines share a GPU, whose free memory vLLM would take for its own
    "gpu_memory_utilization": 0.05,  # vLLM does not start where less is free
}


class _Engine:
    """A process of ``modelbench.vllm_start``."""

    def __init__(
        self, gpus: Sequence[str], home: Path, model: str, way: str, arguments: dict[str, Any], width: int
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        for receipt in home.glob("receipt*"):
            receipt.unlink()
        self._log, self._buffer = home / "log.txt", b""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DIODE_LUT")},
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT / "tools"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            "VLLM_PLUGINS": PLUGIN if way == WITH else "",
            "VLLM_CACHE_ROOT": str(home / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(home / "cache" / "inductor"),
            "TRITON_CACHE_DIR": str(home / "cache" / "triton"),
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # modelbench.vllm_start.randomize is sent to the workers
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **({"DIODE_LUT_RECEIPT": str(home / "receipt-%p.json")} if way == WITH else {}),
        }
        task = {"model": model, "directory": str(home / "model"), "begin": time.time()}
        task["arguments"] = {**arguments, "tensor_parallel_size": width}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "modelbench.vllm_start", json.dumps(task)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def ask(self, line: str, seconds: float) -> dict[str, Any]:
        """Send a line, and return the answer; TimeoutError or EOFError without one."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        return self.answer(seconds)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the next answer; TimeoutError if there is none in time, EOFError if the process has ended."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise EOFError
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def compile_s(self) -> float | None:
        """The seconds of ``torch.compile`` that vLLM's log has for the last start; None if it has none."""
        found = re.findall(r"torch\.compile took ([\d.]+) s in total", self._log.read_text(errors="replace"))
        return float(found[-1]) if found else None

    def ended(self) -> bool:
        """Whether the process has ended or is about to."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        return self._process.poll() is not None

    def error(self) -> str:
        """The first exception in its log, which of several processes' is the cause of the others."""
        found = re.search(r"\b[A-Z]\w*(Error|Exception): .+", self._log.read_text(errors="replace"))
        return found[0][:300] if found else "see its log"

    def end(self) -> None:
        """Let it end, with all that it has started."""
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(15.0)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _key(record: Record) -> tuple[str, int, int, str]:
    return record["model"], record["tensor_parallel"], record["number"], record["start"]


def _apart(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Tokens before the first that differs, of all, and the largest difference of their log-probabilities.

    It is infinite if one is not a number. ``spread`` is the range of all log-probabilities: equal ones tell nothing.
    """
    same, tokens, largest = 0, 0, 0.0
    for ours, theirs, mine, yours in zip(
        one["tokens"], other["tokens"], one["logprobs"], other["logprobs"], strict=True
    ):
        tokens += len(ours)
        alike = next(
            (index for index, pair in enumerate(zip(ours, theirs, strict=True)) if len({*pair}) > 1), len(ours)
        )
        same += alike
        apart = [abs(mine[index] - yours[index]) for index in range(alike)]
        largest = max(largest, *(each if math.isfinite(each) else math.inf for each in apart), 0.0)
    found = [each for row in one["logprobs"] for each in row]
    return {"same": same, "tokens": tokens, "logprobs": largest, "spread": max(found) - min(found)}


def _line_of(record: Record) -> str:
    """Return the line to print when a pair is done."""
    name = f"{record['model']} {record['start']} {record['number']}"
    if "failed" in record:
        return f"{name}: failed: {record['failed']}"
    parts = [f"start {record[WITHOUT]['start_s']:.1f} s, {record[WITH]['start_s']:.1f} s with"]
    parts.append(f"torch.compile {record[WITHOUT]['compile_s']} s, {record[WITH]['compile_s']} s with")
    for words, field in (("", "seconds"), ("kernels of ", "kernels_us")):
        for task, taken in record.get(field, {}).items():
            parts.append(f"{words}{task} {median(taken[WITHOUT]) / median(taken[WITH]):.3f}")
    return f"{name}: {'; '.join(parts)}; {record['apart']}; {record.get('answered')}"


if __name__ == "__main__":
    main()
