"""One snapshot for each compile: whatever changes in between, the caches hold under a key what the key stands for."""

import os
from collections.abc import Callable, Iterator
from importlib import reload
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.precompile_context import PrecompileContext
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.codegen.cpp_bmm_template import CppBmmTemplate
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.mock_cache import PatchCaches, global_stats
from torch._inductor.utils import fresh_cache
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import diode_lut
from diode_lut.hardware import detect_hardware
from diode_lut.hook.snapshot import InductorSnapshot
from diode_lut.templates.config import ATEN, Config
from tests.forks import Forks
from tests.hook import reloaded

CPP = Config("cpp_gemm")

Table = Callable[..., str]


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    """All of Inductor's caches are empty, and both those of compiled graphs are used; settings can be assigned."""
    torch._dynamo.reset()
    settings = diode_lut.config.patch(tables=(), policy="pick", top_k=1)
    with fresh_cache(), functorch_config.patch(enable_autograd_cache=True), settings:
        yield
    torch._dynamo.reset()


@pytest.fixture
def table(table_file: Callable[..., Path]) -> Table:
    """Writes a table for this machine's CPU, and gives its path."""

    def write(name: str, *configs: Config, **fields: Any) -> str:
        row = {"op": "bmm", "configs": [config.to_json() for config in configs], **fields}
        return str(table_file(name, row, hardware={**detect_hardware("cpu")._asdict(), "aliases": []}))

    return write


def operands(*, training: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 64, 128, requires_grad=training), torch.randn(4, 128, 96, requires_grad=training)


class Run:
    """A new compile of the GEMM by ``compiler``, with what was asked for it, and whether a cache answered."""

    def __init__(self, compiler: Callable[..., Any] = torch.compile) -> None:
        torch._dynamo.reset()
        counters.clear()
        gemm = reload(reloaded).gemm
        operand = operands()
        with diode_lut.profile_predictions() as counts:
            result = compiler(gemm)(*operand)
        torch.testing.assert_close(result, gemm(*operand))
        hits = ("autograd_cache_hit", "fxgraph_cache_hit", "dynamo_cache_hit")
        self.cached = any(values[name] for values in counters.values() for name in hits)
        self.traced = counters["stats"]["unique_graphs"] > 0
        self.asked = counts.total_predictions + counts.no_choice - counts.cached

    def __eq__(self, other: object) -> bool:
        return (self.cached, self.asked) == other

    def __repr__(self) -> str:
        return f"{'cached' if self.cached else 'compiled'}, asked {self.asked}"

    __hash__ = None  # type: ignore[assignment]


COMPILED, CACHED, NOT_ASKED = (False, 1), (True, 0), (False, 0)


def step(*, between: Callable[[], Any] = lambda: None) -> int:
    """A forward and a backward pass in a new compile, and how many GEMMs were asked for in both."""
    torch._dynamo.reset()
    a, b = operands(training=True)
    with diode_lut.profile_predictions() as counts:
        result = torch.compile(reloaded.gemm)(a, b)
        between()
        result.sum().backward()
    assert a.grad is not None
    torch.testing.assert_close(a.grad, torch.autograd.grad(reloaded.gemm(a, b).sum(), a)[0])
    return counts.total_predictions + counts.no_choice - counts.cached


def test_backward_pass_sees_what_the_forward_pass_saw(table: Table) -> None:
    """The backward pass is compiled later, under the key of the forward pass: so with the settings of that."""
    diode_lut.config.tables = (table("aten.json", ATEN),)
    with diode_lut.config.patch(policy="off"):
        assert step(between=lambda: setattr(diode_lut.config, "policy", "pick")) == 0
    assert step() == 3
    assert step(between=lambda: setattr(diode_lut.config, "policy", "off")) == 0  # both passes from the cache
    diode_lut.config.policy = "pick"
    diode_lut.config.top_k = 2
    with diode_lut.profile_predictions() as counts:
        step(between=lambda: setattr(diode_lut.config, "tables", ()))
    assert (counts.hits["user"], counts.no_choice) == (2, 1)  # with a transposed A there is only the library


def test_policy_off_reads_no_table(table: Table) -> None:
    """Then no answer depends on one, so a graph is served with any tables."""
    paths = table("aten.json", ATEN), table("cpp.json", CPP)
    identities: dict[str, set[Any]] = {"off": set(), "pick": set()}
    for policy, found in identities.items():
        for path in paths:
            with diode_lut.config.patch(policy=policy, tables=(path,)):
                found.add(InductorSnapshot().identity)
    assert {policy: len(found) for policy, found in identities.items()} == {"off": 1, "pick": 2}


class Meanwhile(CustomGraphPass):
    """Changes settings once a graph's key is known, and before its GEMMs are asked for, as another thread might."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def __call__(self, graph: torch.fx.Graph) -> None:
        for name, value in self.values.items():
            setattr(diode_lut.config, name, value)

    def uuid(self) -> str:
        return "meanwhile"


def without_dynamo(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """What compiles a graph as other front ends than Dynamo have it done."""

    def run(*operand: torch.Tensor) -> Any:
        with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
            return compile_fx(make_fx(lambda *each: (function(*each),))(*operand), operand)(*operand)[0]

    return run


@pytest.mark.parametrize("compiler", [torch.compile, without_dynamo])
def test_settings_changed_while_a_graph_is_compiled(table: Table, compiler: Callable[..., Any]) -> None:
    """A compile goes on with the settings that it began with, and so does what the caches hold under its key."""
    diode_lut.config.tables = (table("aten.json", ATEN),)
    with (
        diode_lut.config.patch(policy="pick"),
        inductor_config.patch(post_grad_custom_pre_pass=Meanwhile(policy="off")),
    ):
        assert Run(compiler) == COMPILED
        assert Run(compiler) == NOT_ASKED
        diode_lut.config.policy = "pick"
        assert Run(compiler) == CACHED
    diode_lut.config.tables = (table("cpp.json", CPP),)
    with inductor_config.patch(post_grad_custom_pre_pass=Meanwhile(tables=())):
        assert Run(compiler) == COMPILED


@pytest.mark.parametrize("autograd_cache", [True, False])
def test_machines_that_share_a_remote_cache(table: Table, autograd_cache: bool) -> None:
    """A remote cache serves what another machine has put there to those with its settings and tables alone."""
    aten, cpp = ({"tables": (table(f"{config.template}.json", config),)} for config in (ATEN, CPP))
    off = {**cpp, "policy": "off"}

    def machine(**settings: Any) -> Run:
        with fresh_cache(), diode_lut.config.patch(**settings):
            return Run()

    of_graphs = inductor_config.patch(fx_graph_remote_cache=True)
    of_autograd = functorch_config.patch(
        enable_autograd_cache=autograd_cache, enable_remote_autograd_cache=autograd_cache
    )
    with PatchCaches(), of_graphs, of_autograd, pytest.MonkeyPatch.context() as once:
        once.setattr(CppBmmTemplate, "add_choices", raise_memory_error)
        machine(**cpp)
        once.undo()
        stored = global_stats.aot_autograd if autograd_cache else global_stats.fx_graph
        before = stored.num_put
        runs = [machine(**settings) for settings in (aten, cpp, off, aten, cpp, off)]
        assert stored.num_put == before + 3
    assert runs == [COMPILED, COMPILED, NOT_ASKED, CACHED, CACHED, CACHED]


def raise_memory_error(*_: object, **__: object) -> None:
    raise MemoryError


def test_precision_is_part_of_the_keys(table: Table) -> None:
    """GEMMs of float32 have other rows where PyTorch may compute them in TF32."""
    diode_lut.config.tables = (table("tf32.json", ATEN, dtype="tf32"),)
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, runs = matmul.fp32_precision, []
    try:
        for precision in ("tf32", "ieee", "tf32"):
            matmul.fp32_precision = precision
            runs.append(Run())
    finally:
        matmul.fp32_precision = before
    assert runs == [COMPILED, COMPILED, CACHED]


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_a_compile_inside_a_compile_sees_what_the_outer_one_saw(table: Table) -> None:
    """A graph whose backend compiles its parts one by one is of one snapshot, for it is under one key."""
    diode_lut.config.tables = (table("aten.json", ATEN),)

    def compile_twice(graph: Any, example: Any) -> Any:
        compile_fx(graph, example)
        own = TracingContext(TracingContext.get().fake_mode)
        with diode_lut.config.patch(policy="off"), tracing(own):
            return compile_fx(graph, example)

    with inductor_config.patch(force_disable_caches=True):
        assert Run(lambda function: torch.compile(function, backend=compile_twice)).asked == 2


def test_packages_are_served_to_those_who_would_make_the_same(table: Table) -> None:
    """Dynamo's cache of packages, which goes by a function's name, serves none that other tables or settings made."""
    aten, cpp = table("aten.json", ATEN), table("cpp.json", CPP, ATEN)
    with dynamo_config.patch(caching_precompile=True):
        runs = [saved_run(tables=tables) for tables in ((aten,), (aten,), (cpp,), (cpp,), (aten,), ())]
        artifacts = torch.compiler.save_cache_artifacts()
        assert artifacts is not None
        with fresh_cache():
            torch.compiler.load_cache_artifacts(artifacts[0])
            runs += [saved_run(tables=()), saved_run(tables=(cpp,))]
    assert [run.traced for run in runs] == [True, False, True, False, True, True, False, True]
    assert [run.asked for run in runs] == [1, 0, 1, 0, 0, 1, 0, 0]


def test_a_graph_without_its_answer_is_in_no_package(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error that may not happen again, the next process asks the tables, and its package is served."""
    diode_lut.config.tables = (table("cpp.json", CPP),)
    with dynamo_config.patch(caching_precompile=True):
        with monkeypatch.context() as once:
            once.setattr(CppBmmTemplate, "add_choices", raise_memory_error)
            saved_run()
        runs = [saved_run(), saved_run()]
    assert [(run.traced, run.asked) for run in runs] == [(True, 1), (False, 0)]


@pytest.mark.parametrize("sizes", ["static", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_artifacts_are_served_to_those_who_would_make_the_same(table: Table, sizes: str) -> None:
    """What was saved of the caches for other machines answers there if the tables are the same, and else does not."""
    compiler = dynamic if sizes == "dynamic" else torch.compile
    aten, cpp = table("aten.json", ATEN), table("cpp.json", CPP, ATEN)
    diode_lut.config.tables = (aten,)
    assert Run(compiler) == COMPILED
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    for tables, expected in (((aten,), CACHED), ((cpp,), COMPILED)):
        with fresh_cache():
            torch.compiler.load_cache_artifacts(artifacts[0])
            diode_lut.config.tables = tables
            assert Run(compiler) == expected


def dynamic(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The function compiled for a dynamic M."""
    compiled = torch.compile(function)

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        torch._dynamo.mark_dynamic(a, 1, min=2, max=4096)
        return compiled(a, b)

    return run


def saved_run(**settings: Any) -> Run:
    """With a package for the next."""
    PrecompileContext.clear()
    with diode_lut.config.patch(**settings):
        run = Run()
        PrecompileContext.save_to_dynamo_cache()
    return run


def test_packages_of_a_process_without_the_hook(table: Table, after_inductor: Forks) -> None:
    """What a process saved that did not import diode_lut is not served where tables answer."""
    program = """
import sys, torch
from torch._dynamo.precompile_context import PrecompileContext
from tests.hook.reloaded import gemm
torch._dynamo.config.caching_precompile = True
torch.compile(gemm)(torch.randn(4, 64, 128), torch.randn(4, 128, 96))
PrecompileContext.save_to_dynamo_cache()
assert "diode_lut" not in sys.modules
"""
    done = after_inductor.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert list(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "dynamo").iterdir())
    diode_lut.config.tables = (table("aten.json", ATEN),)
    with dynamo_config.patch(caching_precompile=True):
        assert Run().asked == 1
