"""How early and how often Triton kernels are compiled, with a pool of compile workers that only notes its jobs."""

import ast
import re
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event
from typing import Any

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.select_algorithm import TritonTemplate
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace
from triton.runtime import driver
from triton.runtime.cache import triton_key

import diode_lut
from diode_lut.hook.graphs import prepare_workers
from diode_lut.hook.graphs import triton_key as key_of_triton
from tests.fake_cuda import Input, lower
from tests.hook.test_hook import Rows, triton

pytestmark = pytest.mark.usefixtures("h200")

INPUTS = (Input((256, 128)), Input((128, 512)))


class Pool:
    """Notes jobs."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, ...]] = []

    def submit(self, *job: Any) -> None:
        self.jobs.append(job)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """Inductor's pool, which is ready."""
    found = Pool()
    monkeypatch.setattr(AsyncCompile, "process_pool", staticmethod(lambda: found))
    monkeypatch.setattr(AsyncCompile, "use_process_pool", classmethod(lambda cls: True))
    monkeypatch.setattr("diode_lut.hook.graphs.get_compile_threads", lambda: 4)
    return found


def test_a_template_s_kernel_is_compiled_once(rows: Rows, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source that workers get early is the one by which the graph's code asks for the kernel."""
    early: dict[str, str] = {}

    def note(self: AsyncCompile, name: str, source: str, *_: object, **__: object) -> None:
        early[name] = source

    monkeypatch.setattr(AsyncCompile, "triton", note)
    rows({"op": "mm", "configs": [triton("triton_mm", 64, 64, 32)]})
    code = lower(lambda a, b: ((a @ b).relu(), a.float().mean(-1)), *INPUTS).code
    asked = re.findall(r"async_compile\.triton\('(\w+)', ('''.*?'''), device", code, flags=re.DOTALL)
    assert early == {name: ast.literal_eval(source) for name, source in asked}
    assert sum("triton_heuristics.template(" in source for source in early.values()) == 1


def test_the_code_of_a_choice_is_loaded_for_a_benchmark_only(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written, and a benchmark loads it from there."""
    choices: list[Any] = []
    generate = TritonTemplate.generate

    def noted(template: TritonTemplate, *arguments: Any, **named: Any) -> Any:
        choices.append(generate(template, *arguments, **named))
        return choices[-1]

    monkeypatch.setattr(TritonTemplate, "generate", noted)
    rows({"op": "mm", "configs": [triton("triton_mm", 64, 64, 32)]})
    lower(torch.mm, *INPUTS)
    (choice,) = choices
    request = choice.bmreq
    assert request.module_path not in PyCodeCache.modules_no_attr
    module = PyCodeCache.load_by_key_path(request.module_cache_key, request.module_path)
    assert hasattr(module, request.kernel_name)


@pytest.mark.parametrize(
    ("device", "settings", "jobs"),
    [("cuda", {}, 4), ("cpu", {}, 0), ("cuda", {"policy": "off"}, 0)],
    ids=["gpu", "cpu", "off"],
)
def test_workers_prepare_while_a_graph_is_lowered(device: str, settings: dict[str, Any], jobs: int, pool: Pool) -> None:
    """A job for each worker, but no more than the graph may have kernels; a worker that is ready has nothing to do."""

    def relus(x: Any) -> Any:
        for _ in range(30):
            x = x.relu()
        return x

    graph = symbolic_trace(relus)
    with FakeTensorMode():
        for node in graph.graph.nodes:
            node.meta["val"] = torch.empty(4, device=device)
    with diode_lut.config.patch(**settings):
        prepare_workers(graph)
    assert len(pool.jobs) == jobs
    for job, *arguments in pool.jobs:
        job(*arguments)
        assert triton_key.cache_info().currsize == 1


class Asked(Pool):
    """Answers each job at once, or never."""

    def __init__(self, answer: str | None) -> None:
        super().__init__()
        self.answer = answer

    def submit(self, *job: Any) -> Any:
        super().submit(*job)
        found = Future[str | None]()
        if self.answer is not None:
            found.set_result(self.answer)
        return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Event:
    """CUDA is initialised. The event is set when Triton's driver is made."""
    found = Event()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(type(driver), "default", property(lambda self: found.set()))
    monkeypatch.setattr("diode_lut.hook.graphs._KEY_S", 0.01)
    key_of_triton.cache_clear()
    return found


@pytest.mark.parametrize(
    ("answer", "settings", "key", "jobs"),
    [("told", {}, "told", 1), (None, {}, "computed", 1), ("told", {"policy": "off"}, "computed", 0)],
    ids=["told", "late", "off"],
)
def test_a_worker_tells_the_key_of_triton(
    answer: str | None, settings: dict[str, Any], key: str, jobs: int, made: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread makes Triton's driver. If no worker answers in time, this process computes the key itself."""
    pool = Asked(answer)
    monkeypatch.setattr(AsyncCompile, "process_pool", staticmethod(lambda: pool))
    monkeypatch.setattr(AsyncCompile, "use_process_pool", classmethod(lambda cls: True))
    compute: Callable[[], str] = lambda: "computed"  # noqa: E731 (a new function each time, as its keys are cached)
    with diode_lut.config.patch(**settings):
        assert key_of_triton(compute) == key
        assert key_of_triton(compute) == key
    assert pool.jobs == [(compute,)] * jobs
    assert made.wait(10 if jobs else 0) == bool(jobs)
