"""How early and how often Triton kernels are compiled, with a pool of compile workers that only notes its jobs."""

import ast
import re
from typing import Any

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_compat import triton_key
from torch._inductor.select_algorithm import TritonTemplate
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace

import diode_lut
from diode_lut.hook.graphs import prepare_workers
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
