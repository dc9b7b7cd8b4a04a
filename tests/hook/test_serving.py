"""Serving engines that compile with Inductor; of vLLM there is a stand-in, with the names that its releases have."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache
from torch.profiler import ProfilerActivity, profile

import diode_lut
from diode_lut.hardware import detect_hardware
from diode_lut.hook.patches import FACTORY
from diode_lut.hook.switch import cache_identity
from diode_lut.startup import plugin
from tests.fake_cuda import H100, Input, fake_cuda, lower
from tests.forks import ROOT, Forks
from tests.hook.test_dynamic import SMALL_AND_LARGE, UNBACKED, B, Rows, mm_at
from tests.hook.test_generated import LONG, kernels
from tests.hook.test_hook import blocks

CONTEXTS = ["vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass"]


class Vllm:
    """The module of vLLM that says for which range it has a graph compiled."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    @contextmanager
    def compiles(self, start: int, end: int) -> Iterator[None]:
        """For these numbers of tokens."""
        vars(self._module)["_pass_context"] = SimpleNamespace(compile_range=SimpleNamespace(start=start, end=end))
        try:
            yield
        finally:
            vars(self._module)["_pass_context"] = None


@pytest.fixture(params=CONTEXTS)
def vllm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Vllm:
    """A vLLM is imported in which the module has this name."""
    module = ModuleType(request.param)
    vars(module)["_pass_context"] = None
    monkeypatch.setitem(sys.modules, request.param, module)
    return Vllm(module)


@pytest.mark.usefixtures("h200")
def test_the_range_that_vllm_compiles_for(vllm: Vllm, rows: Rows) -> None:
    """A graph gets the kernels for the range that vLLM compiles it for, although the symbol has no such bounds."""
    rows(*SMALL_AND_LARGE)
    with vllm.compiles(1, 60):
        (kernel,) = mm_at(16, most=None).triton_templates
        assert blocks(kernel)[:3] == [64, 128, 32]
    with vllm.compiles(64, 8192):
        (kernel,) = mm_at(16, most=None).triton_templates
        assert blocks(kernel)[:3] == [128, 128, 64]
    assert len(mm_at(16).triton_templates) == 2


@pytest.mark.usefixtures("h200")
@pytest.mark.skipif(torch.__version__ < (2, 13), reason="these templates index in 32 bits, and the symbol has no bound")
def test_the_range_of_an_unbacked_number_of_tokens(vllm: Vllm, rows: Rows) -> None:
    """VLLM may leave it to the data how many tokens there are: the range that it compiles for is the only one."""
    rows(*SMALL_AND_LARGE)
    with vllm.compiles(1, 60):
        (kernel,) = lower(torch.mm, UNBACKED._replace(most=None), B).triton_templates
    assert blocks(kernel)[:3] == [64, 128, 32]
    assert lower(torch.mm, UNBACKED._replace(most=None), B).triton_templates == []


@pytest.mark.usefixtures("h200")
def test_a_single_token_has_its_own_kernel(vllm: Vllm, rows: Rows) -> None:
    """VLLM decodes one sequence with the graph of its range, although PyTorch assumes at least 2 of each size."""
    small, _ = SMALL_AND_LARGE
    rows({**small, "m": [1, 1], "configs": [{"template": "aten"}]}, {**small, "m": [2, 8192]})
    with vllm.compiles(1, 8192):
        code = mm_at(16, most=None).code
    for_one, for_others = code.partition(" <= 1:\n")[2].split("else:\n")
    assert for_one.split()[0].startswith("extern_kernels.mm(")
    assert "triton_tem" in for_others


def test_generated_kernels_of_few_rows(vllm: Vllm) -> None:
    """Decoding calls a kernel with few rows, which wait for its steps; with a range of many tokens it has others."""
    program = LONG[0], [Input((64, 3072), dynamic=(0,), most=None)]
    found = []
    for start in (1, 2049):
        with fake_cuda(H100), diode_lut.config.patch(tiers=("model",)), vllm.compiles(start, 16384):
            found += kernels(program)
    few, many = (each["R0_BLOCK"] for each in found if isinstance(each, dict))
    assert few == 4096 > many


@pytest.mark.usefixtures("h200")
def test_a_range_beyond_the_bounds_does_not_count(vllm: Vllm, rows: Rows) -> None:
    """A range that has no size in common with the symbol's bounds is about something else."""
    rows(*SMALL_AND_LARGE)
    with vllm.compiles(9000, 10000):
        assert len(mm_at(16).triton_templates) == 2


def test_the_range_is_part_of_the_keys(vllm: Vllm) -> None:
    """No cache serves a graph that was compiled for another range."""
    with vllm.compiles(1, 60):
        small, again = cache_identity(), cache_identity()
    with vllm.compiles(61, 8192):
        assert small == again != cache_identity()


def saved(artifact: Any, path: Path) -> Any:
    """The artifact, loaded from its file."""
    artifact.save(path=str(path), format="binary")
    return torch._inductor.CompiledArtifact.load(path=str(path))


def serialized(artifact: Any, _: Path) -> Any:
    """The artifact, made of its bytes."""
    return type(artifact).deserialize(artifact.serialize())


@pytest.mark.parametrize("vllm", CONTEXTS[:1], indirect=True)
@pytest.mark.parametrize(("options", "kept"), [({}, saved), ({"aot": True}, serialized)], ids=["files", "bytes"])
def test_a_graph_that_is_compiled_as_vllm_does(
    vllm: Vllm, options: dict[str, Any], kept: Callable[..., Any], table_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Each range's artifact is for its sizes, and right, also where it is kept in a file or as bytes."""
    cpp, aten = {"template": "cpp_gemm", "gain_permille": 1500}, {"template": "aten"}
    rows = [{"op": "bmm", "m": [1, 63], "configs": [cpp]}, {"op": "bmm", "m": [64, 8192], "configs": [aten]}]
    path = str(table_file("cpu.json", *rows, hardware={**detect_hardware("cpu")._asdict(), "aliases": []}))

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        loaded = []
        for sizes in ((1, 63), (64, 8192)):
            with vllm.compiles(*sizes):
                artifact = torch._inductor.standalone_compile(graph, inputs, dynamic_shapes="from_graph", **options)
            loaded.append(kept(artifact, tmp_path / str(sizes)))
        return lambda *args: loaded[0 if args[0] < 64 else 1](*args)  # the first is the size

    a, b = torch.randn(4, 16, 32), torch.randn(4, 32, 24)
    torch._dynamo.mark_dynamic(a, 1)
    with fresh_cache(), diode_lut.config.patch(tables=(path,), tiers=("user",)):
        torch._dynamo.reset()
        compiled = torch.compile(torch.bmm, backend=backend)
        for operand, library in ((a, False), (torch.randn(4, 100, 32), True)):
            compiled(operand, b)
            with profile(activities=[ProfilerActivity.CPU], acc_events=True) as trace:  # else torch 2.11 warns
                result = compiled(operand, b)
            torch.testing.assert_close(result, torch.bmm(operand, b))
            assert any(event.name == "aten::bmm" for event in trace.events()) == library


@pytest.mark.parametrize("arguments", [(), (False,)], ids=["of earlier releases", "of vLLM 0.33"])
def test_the_key_of_vllms_own_cache(
    arguments: tuple[bool, ...], table_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows what answers depend on, in releases that hash Inductor's configuration and in those that do not."""
    interface = ModuleType("vllm.compilation.compiler_interface")
    vars(interface)["get_inductor_factors"] = cache(lambda *_: ["the system", "PyTorch"])
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    plugin(), plugin()
    key: Callable[[], str] = lambda: str(vars(interface)["get_inductor_factors"](*arguments))  # noqa: E731
    config: Callable[[], str] = lambda: str(inductor_config.save_config_portable())  # noqa: E731
    before, other = (key(), config(), repr(FACTORY)), {"tables": (str(table_file("other.json")),), "min_gain": 0.5}
    assert (key(), config(), repr(FACTORY)) == before
    assert before[0].startswith("['the system', 'PyTorch', ")
    assert before[0].count("the system") == 1
    with diode_lut.config.patch(**other):
        assert [key() != before[0], config() != before[1], repr(FACTORY) != before[2]] == [True] * 3
    monkeypatch.setitem(sys.modules, interface.__name__, ModuleType(interface.__name__))
    plugin()


FACTORY_AS_TEXT = "from diode_lut.hook.patches import FACTORY; print(repr(FACTORY))"


def test_the_factory_is_the_same_text_in_every_process(after_inductor: Forks) -> None:
    """In torch 2.11 the key of vLLM's cache has this text, and the next process must find the same key."""
    first, second = (after_inductor.run("-c", FACTORY_AS_TEXT).stdout for _ in range(2))
    assert first == second
    assert "Factory(" in first
    assert "0x" not in first


AS_A_SERVER = """
import sys, warnings
from importlib.metadata import EntryPoint
warnings.simplefilter("error")
for name, value, group in zip(*[iter(sys.argv[1:])] * 3):
    plugin = EntryPoint(name, value, group).load()
    plugin(), plugin()
from torch._inductor import config
from diode_lut.hook.patches import FACTORY
assert config.inductor_choices_class is FACTORY
"""


GROUPS = ["vllm.general_plugins", "sglang.srt.plugins", "sglang.multimodal_gen.plugins"]


@pytest.mark.parametrize("state", ["torch imported", "Inductor imported"])
def test_the_plugin_arms_the_hook(state: str, after_torch: Forks, after_inductor: Forks) -> None:
    """The entry point, which is the same in each group, arms the hook however often it is called, and says nothing."""
    forks = after_torch if state == "torch imported" else after_inductor
    plugins = [entry_point(group) for group in GROUPS]
    assert len({(name, value) for name, value, _ in plugins}) == 1
    done = forks.run("-c", AS_A_SERVER, *(part for each in plugins for part in each))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def entry_point(group: str) -> tuple[str, str, str]:
    """The entry point that pyproject.toml installs in this group: its name, value and group."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ((name, value),) = re.findall(rf'\[project.entry-points."{group}"\]\n(\w+) = "([\w.:]+)"', text)
    return name, value, group


WRITES = """
import os, sys
sys.dont_write_bytecode = True
written = []

def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        written.append(arguments[0])
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink"):
        written.append(str(arguments[0]))

sys.addaudithook(note)
import diode_lut, torch
operands = torch.randn(4, 16, 128), torch.randn(4, 128, 96)
with diode_lut.profile_predictions() as counts:
    torch.compile(torch.bmm)(*operands)
assert counts.hits["user"] == 1
directory = os.environ["TORCHINDUCTOR_CACHE_DIR"]
print([path for path in written if not path.startswith((directory, "/dev/", "/proc/"))], len(written) > 0)
"""


def test_nothing_is_written_but_inductors_caches(
    table_file: Callable[..., Path], tmp_path: Path, after_inductor: Forks
) -> None:
    """A program whose GEMMs tables answer writes nothing but what Inductor writes, so all else may be read-only."""
    row = {"op": "bmm", "configs": [{"template": "aten"}]}
    table = table_file("cpu.json", row, hardware={**detect_hardware("cpu")._asdict(), "aliases": []})
    cache = {name: str(tmp_path / "cache") for name in ("TORCHINDUCTOR_CACHE_DIR", "TMPDIR")}
    (tmp_path / "cache").mkdir()
    done = after_inductor.run("-c", WRITES, DIODE_LUT_TABLES=str(table), HOME=str(tmp_path / "home"), **cache)
    assert (done.returncode, done.stdout) == (0, "[] True\n"), done.stderr
