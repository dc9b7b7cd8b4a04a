"""What was decided for a graph is told again by every process that gets the graph from Inductor's caches."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

import diode_lut
from diode_lut.hardware import detect_hardware
from diode_lut.receipts import read_receipt
from diode_lut.receipts.summary import as_text
from tests.forks import Forks
from tests.hook.conftest import Artifacts

PROGRAM = Path(__file__).parents[1] / "programs" / "tell.py"
A, B = torch.randn(4, 64, 128), torch.randn(4, 128, 96)

Table = Callable[..., str]


@pytest.fixture
def table(table_file: Callable[..., Path], no_tables: None) -> Table:
    """Writes a table for this machine's CPU, and gives its path."""

    def write(*rows: dict[str, Any]) -> str:
        return str(table_file("mine.json", *rows, hardware={**detect_hardware("cpu")._asdict(), "aliases": []}))

    return write


@pytest.mark.parametrize("autograd_cache", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_cached_graphs_tell_the_same(autograd_cache: str, table: Table, after_inductor: Forks, tmp_path: Path) -> None:
    """Receipt and statistics of a second process are those of the first, marked as cached."""
    unable = {"template": "triton_bmm", "block_m": 64, "block_n": 64, "block_k": 32}
    triton = {**unable, "group_m": 8, "num_stages": 3, "num_warps": 4}
    path = table({"op": "bmm", "k": [128, 128], "configs": [triton, {"template": "cpp_gemm"}]})
    results, receipts = [], []
    for name in ("first.json", "second.json"):
        done = after_inductor.run(
            str(PROGRAM),
            DIODE_LUT_TABLES=path,
            DIODE_LUT_RECEIPT=str(tmp_path / name),
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
            TORCHINDUCTOR_AUTOGRAD_CACHE=autograd_cache,
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
        receipts.append(read_receipt(tmp_path / name))
    first, second = (result["statistics"] for result in results)
    asked = first["total_predictions"] + first["no_choice"]
    assert [result["cached"] for result in results] == [False, True]
    assert min(first["hits"]["user"], first["skipped_configs"], first["fallbacks"], first["no_choice"]) > 0
    assert first["cached"] == 0
    assert {**second, "seconds": 0, "cached": 0} == {**first, "seconds": 0}
    assert second["cached"] == asked
    (told,), (again,) = (receipt.devices.values() for receipt in receipts)
    assert (told.cached, again.cached) == (0, asked)
    again.cached = 0
    assert again == told
    assert f"{asked} of these were decided in an earlier compile" in as_text(read_receipt(tmp_path / "second.json"))


def test_a_process_that_is_killed_leaves_its_receipt(after_inductor: Forks, tmp_path: Path) -> None:
    """It is written after each graph, whether that was compiled or came from a cache."""
    program = (
        "import os, signal, torch, diode_lut\n"
        "torch.compile(torch.bmm)(torch.randn(4, 64, 128), torch.randn(4, 128, 96))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    for name in ("first.json", "second.json"):
        receipt = str(tmp_path / name)
        cache = str(tmp_path / "cache")
        done = after_inductor.run("-c", program, DIODE_LUT_RECEIPT=receipt, TORCHINDUCTOR_CACHE_DIR=cache)
        assert done.returncode == -signal.SIGKILL
    (first,), (second,) = (read_receipt(tmp_path / f"{name}.json").devices.values() for name in ("first", "second"))
    assert (first.calls, first.cached, second.calls, second.cached) == (1, 0, 1, 1)


def test_what_is_kept_is_plain(table: Table) -> None:
    """Graphs in the caches can be unpickled without diode_lut: what is kept in them are Python's own values."""
    from torch._inductor.compile_fx import _InProcessFxCompile

    graphs = []
    compile_graph = _InProcessFxCompile.codegen_and_compile

    def keeping(*args: Any, **kwargs: Any) -> Any:
        graphs.append(compile_graph(*args, **kwargs))
        return graphs[-1]

    with (
        pytest.MonkeyPatch.context() as patch,
        fresh_cache(),
        diode_lut.config.patch(tables=(table({"op": "bmm", "configs": [{"template": "aten"}]}),)),
    ):
        patch.setattr(_InProcessFxCompile, "codegen_and_compile", keeping)
        torch._dynamo.reset()
        torch.compile(torch.bmm)(A, B)
    (graph,) = graphs
    assert types_in(graph._diode_lut) == {tuple, dict, str, int, float, bytes}


def types_in(value: Any) -> set[type]:
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, tuple) else []
    return {type(value)}.union(*map(types_in, parts))


def test_trace_has_an_artifact_for_each_decision_and_graph(table: Table, artifacts: Artifacts) -> None:
    """What ``TORCH_TRACE`` writes says for each GEMM what was decided and why, and for each graph a receipt."""
    rows = table({"op": "bmm", "k": [128, 128], "configs": [{"template": "aten"}]})

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(torch.bmm(a, b), b.mT.contiguous()[..., :8]) @ a[0, :8, :8]

    with fresh_cache(), diode_lut.config.patch(tables=(rows,)):
        for _ in range(2):
            torch._dynamo.reset()
            torch.compile(function)(A, B)
    answered, missed, without_choice, graph, cached = artifacts.found
    assert [name for name, _ in artifacts.found] == ["diode_lut_decision"] * 3 + ["diode_lut_graph"] * 2
    assert (answered[1]["gemm"], answered[1]["tier"]) == ("bmm 4x64x96x128 float32 nn align 16", "user")
    assert (answered[1]["inductor_gets"], answered[1]["from"].partition(":")[0]) == (["aten"], rows)
    assert missed[1]["tier"] == "abstain"
    assert any("no entry covers" in step for step in missed[1]["steps"])
    assert without_choice[1]["steps"] == ["there is no choice: Inductor has only the library's kernel"]
    assert (graph[1]["cached"], cached[1]["cached"]) == (False, True)
    assert {**graph[1], "cached": True} == cached[1]
    assert (graph[1]["counts"]["hits"]["user"], graph[1]["receipt"]["processes"]) == (1, 1)


def test_graphs_compiled_after_a_fault_are_not_kept(after_inductor: Forks, tmp_path: Path) -> None:
    """What was compiled while a chooser failed is not served to a process in which it answers."""
    program = """
import sys, torch, diode_lut
from torch._dynamo.utils import counters
def rule(problem, hardware):
    assert sys.argv[1] == "well"
    return diode_lut.Config("cpp_gemm")
diode_lut.register_chooser(rule, name="rule", digest="1")
torch.compile(torch.bmm)(torch.randn(4, 64, 128), torch.randn(4, 128, 96))
cached = any(values["autograd_cache_hit"] or values["fxgraph_cache_hit"] for values in counters.values())
print("cached" if cached else "compiled", diode_lut.get_prediction_stats()["hits"]["chooser"])
"""
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")

    def run(how: str) -> str:
        done = after_inductor.run(str(path), how, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [run("badly"), run("well"), run("well"), run("badly")] == [
        "compiled 0",
        "compiled 1",
        "cached 1",
        "cached 1",
    ]


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_compiling_again_counts_once_more(table: Table) -> None:
    """In one process, too, a graph from the cache counts again, as cached."""
    torch._dynamo.reset()
    rows = table({"op": "bmm", "configs": [{"template": "aten"}]})
    with fresh_cache(), diode_lut.config.patch(tables=(rows,)), diode_lut.profile_predictions() as counts:
        for _ in range(2):
            torch.compile(torch.bmm)(A, B)
            torch._dynamo.reset()
        assert (counts.hits["user"], counts.total_predictions, counts.cached) == (2, 2, 1)
        with inductor_config.patch(force_disable_caches=True):
            torch.compile(torch.bmm)(A, B)
    assert (counts.hits["user"], counts.cached) == (3, 1)
