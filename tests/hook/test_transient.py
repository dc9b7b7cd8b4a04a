"""Errors that may not happen again: what they leave to Inductor is in no cache under the key of the tables' answers."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor.codegen.cpp_bmm_template import CppBmmTemplate
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.proxy_tensor import make_fx

import diode_lut
from diode_lut import process as own_code
from diode_lut.decide.catalog import forget_tables
from diode_lut.hardware import detect_hardware
from diode_lut.hook.switch import cache_identity, off_because
from tests.forks import Forks

A, B = torch.randn(4, 64, 128), torch.randn(4, 128, 96)


@pytest.fixture(autouse=True)
def own_table(table_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table for this machine's CPU that answers with the C++ template; empty caches."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    row = {"op": "bmm", "configs": [{"template": "cpp_gemm"}]}
    path = table_file("own.json", row, hardware={**detect_hardware("cpu")._asdict(), "aliases": []})
    forget_tables()
    with fresh_cache(), diode_lut.config.patch(tables=(str(path),), tiers=("user",)):
        yield
    torch._dynamo.reset()


def asked(*, backward: bool = False) -> int:
    """How many graphs a fresh Dynamo finds in no cache."""
    torch._dynamo.reset()
    counters.clear()
    a = A.clone().requires_grad_(backward)
    with functorch_config.patch(enable_autograd_cache=True):
        result = torch.compile(torch.bmm)(a, B)
        if backward:
            result.sum().backward()
    torch.testing.assert_close(result, torch.bmm(A, B))
    return int(counters["aot_autograd"]["autograd_cache_miss"])


@pytest.mark.parametrize(
    ("error", "bundled", "backward"),
    [(MemoryError, False, True), (OSError, True, False), (RecursionError, False, False)],
)
def test_graph_in_which_an_answer_failed_is_not_cached(
    error: type[Exception], bundled: bool, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error that may not happen again, the next compile asks the tables once more, and its graph is cached."""

    def fail(*_: object, **__: object) -> None:
        raise error

    with functorch_config.patch(bundled_autograd_cache=bundled):
        with monkeypatch.context() as once:
            once.setattr(CppBmmTemplate, "add_choices", fail)
            first = asked(backward=backward)
        assert not off_because
        assert first == asked(backward=backward) > 0
        assert asked(backward=backward) == 0


def test_hook_stays_on_where_no_file_can_be_opened_for_a_moment() -> None:
    """The graph whose key is made then is in no cache; the next is answered, and cached, as ever."""
    forget_tables()
    before = asked()
    with no_free_descriptor():
        forget_tables()
        first, second = cache_identity(), cache_identity()
    assert first != second
    assert not off_because
    with diode_lut.profile_predictions() as counts:
        assert asked() == 0
    assert (before, counts.hits["user"], counts.cached) == (1, 1, 1)


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """A moment in which this process has as many open files as it may have."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_error_that_comes_again_costs_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph in which another error left a matmul to Inductor is cached as any other."""

    def fail(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(CppBmmTemplate, "add_choices", fail)
    assert [asked(), asked()] == [1, 0]


@pytest.mark.parametrize("bundled", [False, True])
def test_graph_is_not_cached_once_diode_lut_was_replaced(
    bundled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose code is no longer on the disk neither saves graphs nor gets those of the new code."""
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(own_code, "_CODE", str(tmp_path / "code"))
    monkeypatch.setattr(own_code, "_imported", None)
    own_code.remember_code()
    with functorch_config.patch(bundled_autograd_cache=bundled):
        assert [asked(), asked()] == [1, 0]
        (tmp_path / "code" / "new.py").touch()
        assert [asked(), asked()] == [1, 1]


def test_the_code_is_looked_at_before_and_after_the_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile lists diode_lut's files for its key and for what it saves, and a cache hit for its key alone."""
    listed: list[str] = []
    scandir = os.scandir

    def noted(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    assert own_code._imported
    for missed, times in ((1, 2), (0, 1)):
        listed.clear()
        assert asked() == missed
        assert listed.count(own_code._CODE) == times


@pytest.mark.slow
def test_graph_during_which_the_hook_went_off_is_not_cached(after_inductor: Forks, tmp_path: Path) -> None:
    """A backward pass that Inductor decides alone is not under the key that the tables gave the forward pass."""
    program = """
import sys, torch, diode_lut
from torch._dynamo.utils import counters
from diode_lut.hook.switch import turn_off

result = torch.compile(torch.bmm)(torch.randn(4, 64, 128, requires_grad=True), torch.randn(4, 128, 96))
if sys.argv[1] == "off":
    turn_off(TypeError())
result.sum().backward()
print(counters["aot_autograd"]["autograd_cache_hit"])
"""
    (path,) = diode_lut.config.tables
    variables = {"DIODE_LUT_TABLES": path, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = [after_inductor.run("-c", program, how, **variables) for how in ("off", "on", "on")]
    assert [each.stdout for each in done] == ["0\n", "0\n", "1\n"], done[0].stderr


@pytest.mark.parametrize("fails", [False, True])
def test_compiled_artifact_is_saved(fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled on its own can be saved and loaded, with the kernels that it got, also after such an error."""

    def compile_alone() -> Any:
        graph = make_fx(lambda a, b: (torch.bmm(a, b),), tracing_mode="fake")(A, B)
        return torch._inductor.standalone_compile(graph, [A, B], dynamic_shapes="from_example_inputs")

    with monkeypatch.context() as once:
        if fails:
            once.setattr(CppBmmTemplate, "add_choices", raise_memory_error)
        artifact = compile_alone()
    for kind in ("unpacked", "binary"):
        artifact.save(path=str(tmp_path / kind), format=kind)
        with fresh_cache():
            loaded = torch._inductor.CompiledArtifact.load(path=str(tmp_path / kind), format=kind)
            torch.testing.assert_close(loaded(A, B)[0], torch.bmm(A, B))
    with diode_lut.profile_predictions() as counts:
        compile_alone()
    assert counts.total_predictions + counts.no_choice - counts.cached == fails


def raise_memory_error(*_: object, **__: object) -> None:
    raise MemoryError
