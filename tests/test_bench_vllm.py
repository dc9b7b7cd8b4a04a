"""The benchmark of vLLM's engine: the order of starts and measurements, and what it makes of results."""

import runpy
import threading
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("torch")

import torch
from bench_vllm import Gate
from modelbench import vllm_start
from modelbench.records import Record
from modelbench.vllm_table import COLD, WARM, WITH, WITHOUT, draw, markdown


def record(start: str = WARM, taken: tuple[float, float] = (20.0, 21.0), **fields: Any) -> Record:
    """A pair of starts of a model."""
    ways = {
        way: {"start_s": each, "device_name": "a GPU", "compile_s": each / 4}
        for way, each in zip((WITHOUT, WITH), taken, strict=True)
    }
    answered = {"device": 6, "model": 2, "generated": 7}
    apart = {"same": 60, "tokens": 64, "logprobs": 0.01}
    return {
        "model": "<llama>",
        "tensor_parallel": 1,
        "start": start,
        **ways,
        "apart": apart,
        "answered": answered,
        **fields,
    }


def test_nothing_starts_while_a_pair_is_measured() -> None:
    """Pairs start together; a measurement waits for them, has its GPU alone, and comes before the next start."""
    gate, order = Gate(), list[str]()
    started, measured = threading.Barrier(2), threading.Event()

    def measure(gpu: str) -> None:
        with gate.starting():
            started.wait()
            with gate.measuring([gpu], 30.0):
                order.append(f"begin {gpu}")
                measured.wait(0.2)
                order.append(f"end {gpu}")

    def start() -> None:
        with gate.starting():
            order.append("start")

    threads = [threading.Thread(target=measure, args=("0",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not order:
        measured.wait(0.01)
    late = threading.Thread(target=start)
    late.start()
    for thread in (*threads, late):
        thread.join(30.0)
    assert order == ["begin 0", "end 0", "begin 0", "end 0", "start"]


def test_starts_and_throughput_are_shown() -> None:
    """The table and the picture have ratios with intervals for pairs, and a single pair's without one."""
    seconds = {"decode 8": {WITHOUT: [1.0, 0.1, 1.0], WITH: [0.5, -0.1, 0.5]}}
    us = {"decode 8": {WITHOUT: [3000.0, 3000.0], WITH: [2400.0, 2400.0]}}
    records = [
        record(),
        record(),
        record(seconds=seconds, kernels_us=us),
        record(COLD, (40.0, 38.0)),
        record(failed={WITH: "x"}),
    ]
    page = markdown(records)
    assert "| a GPU | <llama> | empty | 1 | 40.0 | 38.0 | 0.950 | 10.0 | 9.5 |" in page
    assert "| a GPU | <llama> | filled | 3 | 20.0 | 21.0 | 1.050 (1.050 to 1.050) | 5.0 | 5.2 |" in page
    assert "| a GPU | <llama> |  | 512, 2.000 (2.000 to 2.000) |" in page
    assert "| a GPU | <llama> | 240 of 256 | 0.010 | 6 / 2 / 0 | 7 / 0 |" in page
    assert "| a GPU | <llama> |  | 3.00, 1.250 (1.250 to 1.250) |" in page
    texts = {element.text for element in ET.fromstring(draw(records)).iter() if element.text}
    assert {"a GPU, <llama>, filled caches, 3 pairs", "2.00\u00d7", "0.95\u00d7"} <= texts
    assert {"a GPU, <llama>, decode 8", "a GPU, <llama>, kernels of decode 8"} <= texts


def test_several_gpus_of_an_engine_are_named() -> None:
    """An engine on two GPUs has figures of its own."""
    page = markdown([record(), record(tensor_parallel=2)])
    assert "| a GPU | <llama> | filled | 1 |" in page
    assert "| 2 x a GPU | <llama> | filled | 1 |" in page


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_workers_can_import_what_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several GPUs, vLLM pickles functions for its workers, which do not have the main module of the engine."""
    started = list[str]()
    monkeypatch.setattr(vllm_start, "main", lambda: started.append(vllm_start.randomize.__module__))
    runpy.run_module("modelbench.vllm_start", run_name="__main__")
    assert started == ["modelbench.vllm_start"]


class Worker:
    """A worker as vLLM's executors call it, which runs a step on the CPU."""

    traced: vllm_start.Trace

    def __init__(self) -> None:
        self.done: list[str] = []

    def execute_model(self, scheduled: Any) -> str:
        """Note a step, and return what it computes."""
        self.done.append(f"{scheduled.total_num_scheduled_tokens} tokens of {len(scheduled.num_scheduled_tokens)}")
        return self.done[-1]


def steps_of(worker: Worker, *steps: tuple[int, int]) -> None:
    """Execute steps, each given by its numbers of tokens and sequences."""
    for tokens, sequences in steps:
        scheduled = SimpleNamespace(
            total_num_scheduled_tokens=tokens, num_scheduled_tokens=dict.fromkeys(range(sequences), 1)
        )
        assert worker.execute_model(scheduled) == f"{tokens} tokens of {sequences}"


def test_only_steps_with_all_sequences_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace of decoding begins with the first step that decodes a token of each sequence, and ends in time."""
    at: list[tuple[str, int]] = []
    worker = Worker()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.profiler.profile, name, lambda _, name=name: at.append((name, len(worker.done))))
    vllm_start.start_trace(worker, 8)
    steps_of(worker, (96, 3), (163, 8), *[(8, 8)] * vllm_start.TRACED)
    assert at == [("start", 2)]
    steps_of(worker, (8, 8), (7, 7))
    assert at == [("start", 2), ("stop", 2 + vllm_start.TRACED)]
    vllm_start.start_trace(worker, 8)
    steps_of(worker, (8, 8), (7, 7))
    with pytest.raises(RuntimeError, match="1 steps decoded"):
        vllm_start.stop_trace(worker)
