"""What Inductor itself makes of exported tables, and what we make of the files that it writes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.codecache import CacheBase
from torch._inductor.lookup_table.choices import LookupTableChoices
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

import diode_lut
from diode_lut.formats import read, write_table
from diode_lut.formats.content import Facts, Timings, exact_table
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.fake_cuda import Input, Lowered, compile_triton, lower
from tests.hook.test_hook import constants

H200 = Hardware("NVIDIA H200", "sm_90", 132)
MM = Config("triton_mm", (64, 32, 64, 4, 3, 4))
BMM = Config("triton_bmm", (32, 64, 64, 2, 2, 4))
TMA = Config("triton_mm_persistent_tma", (128, 64, 64, 8, 3, 4))

pytestmark = pytest.mark.usefixtures("h200")


def linear(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.t()


GEMMS: list[tuple[Problem, Config, Callable[..., Any], list[Input]]] = [
    (
        Problem.of("mm", 256, 304, 512, dtype="bfloat16", layout="nn"),
        MM,
        torch.mm,
        [Input((256, 512)), Input((512, 304))],
    ),
    (
        Problem.of("mm", 256, 304, 520, dtype="bfloat16", layout="nt"),
        MM,
        linear,
        [Input((256, 520)), Input((304, 520))],
    ),
    (
        Problem.of("addmm", 256, 304, 512, dtype="bfloat16", layout="nn"),
        MM,
        torch.addmm,
        [Input((304,)), Input((256, 512)), Input((512, 304))],
    ),
    (
        Problem.of("bmm", 256, 300, 500, dtype="bfloat16", layout="nn", b=4),
        BMM,
        torch.bmm,
        [Input((4, 256, 500)), Input((4, 500, 300))],
    ),
    (
        Problem.of("baddbmm", 256, 300, 512, dtype="bfloat16", layout="nn", b=4),
        BMM,
        torch.baddbmm,
        [Input((4, 256, 300)), Input((4, 256, 512)), Input((4, 512, 300))],
    ),
    (
        Problem.of("int_mm", 256, 304, 520, dtype="int8", layout="nt"),
        MM,
        lambda a, b: torch._int_mm(a, b.t()),
        [Input((256, 520), torch.int8), Input((304, 520), torch.int8)],
    ),
    (
        Problem.of("mm", 256, 304, 512, dtype="bfloat16", layout="nn"),
        TMA,
        torch.mm,
        [Input((256, 512)), Input((512, 304))],
    ),
    (
        Problem.of("mm", 16, 16, 65536, dtype="bfloat16", layout="nn"),
        Config("decompose_k", (32,)),
        torch.mm,
        [Input((16, 65536)), Input((65536, 16))],
    ),
]


class Upstream(LookupTableChoices):
    """Upstream's choices, which remember what they took from the table."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[dict[str, Any]] = []

    def _create_lookup_choices(self, *arguments: Any) -> Any:
        choices = super()._create_lookup_choices(*arguments)
        self.taken += [{"uid": each.template.uid, **each.params.to_kwargs()} for each in choices]
        return choices


@pytest.fixture
def timed() -> Iterator[None]:
    """Benchmarks say that the first choice takes half a millisecond, and each further one a tenth more."""

    def benchmark(choices: list[Any]) -> dict[Any, float]:
        return {choice: 0.5 + number / 10 for number, choice in enumerate(choices)}

    CacheBase.get_system.cache_clear()  # what is remembered of the device is from before there was one
    with (
        mock.patch("torch._inductor.select_algorithm._ALGORITHM_SELECTOR_CACHE", None),
        mock.patch.object(AlgorithmSelectorCache, "make_benchmark_fn", return_value=benchmark),
        mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", return_value=dict),
    ):
        yield
    CacheBase.get_system.cache_clear()


def lowered(choices: LookupTableChoices, function: Callable[..., Any], inputs: list[Input], **settings: Any) -> Lowered:
    """What upstream's choices make of the function under max-autotune, without our hook."""
    tma = {"triton.enable_persistent_tma_matmul": True}
    with (
        diode_lut.config.patch(policy="off"),
        V.set_choices_handler(choices),
        inductor_config.patch(max_autotune=True, benchmark_epilogue_fusion=False, **tma, **settings),
    ):
        return lower(function, *inputs)


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(("problem", "config", "function", "inputs"), GEMMS)
def test_upstream_uses_an_exported_table(
    problem: Problem, config: Config, function: Callable[..., Any], inputs: list[Input]
) -> None:
    """Upstream's own lookup finds the row under its key, and takes its config, with the right EVEN_K."""
    data, skipped = write_table("inductor-table", exact_table(H200, {problem: [config]}), [problem], Facts())
    assert not skipped
    choices = Upstream()
    with fresh_cache():
        lowered(choices, function, inputs, **{"lookup_table.table": json.loads(data)})
    (row,) = choices.taken
    if config.template == "decompose_k":
        assert row == {"uid": "decompose_k", "k_split": 32}
        return
    values = tuple(row[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps"))
    assert values == config.params
    assert row["EVEN_K"] is (problem.k % 64 == 0)
    assert row["ACC_TYPE"] == ("tl.int32" if problem.op == "int_mm" else "tl.float32")


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("number", [0, 1, 3])
def test_upstreams_kernel_compiles(number: int, tmp_path: Path) -> None:
    """Without ATen beside it, the exported config is the kernel that is generated, and Triton compiles it."""
    problem, config, function, inputs = GEMMS[number]
    data, _ = write_table("inductor-table", exact_table(H200, {problem: [config]}), [problem], Facts())
    with fresh_cache():
        made = lowered(LookupTableChoices(), function, inputs, **{"lookup_table.table": json.loads(data)})
    (kernel,) = made.triton_templates
    assert constants(kernel)["EVEN_K"] == str(problem.k % 64 == 0)
    assert compile_triton(kernel, tmp_path).metadata.shared > 0


@pytest.mark.usefixtures("timed")
def test_an_exported_table_has_all_that_2_11_needs() -> None:
    """Torch 2.11 takes nothing but the row: it names every argument that Inductor's own candidates have."""
    for problem, config, function, inputs in GEMMS:
        data, _ = write_table("inductor-table", exact_table(H200, {problem: [config]}), [problem], Facts())
        choices = Upstream()
        with fresh_cache():
            lowered(choices, function, inputs, **{"lookup_table.table": json.loads(data)})
        rows = [row for rows in json.loads(data).values() for row in rows]
        later = {"OUT_DTYPE", "tma_load_for_template_epilogue"}
        assert choices.taken[0].keys() - {"uid"} - later == rows[0].keys() - {"template_id"}


@pytest.mark.usefixtures("timed")
def test_inductors_cache_is_taken_over() -> None:
    """The files that Inductor leaves in its cache directory give the problems, the configs and the times."""
    for problem, _, function, inputs in GEMMS:
        with fresh_cache() as _, inductor_config.patch(fx_graph_cache=False):
            lowered(LookupTableChoices(), function, inputs)
            content, skipped = read("inductor-cache", Path(cache_dir()), Facts(H200))
        assert isinstance(content, Timings)
        assert not skipped
        (record,) = content.records
        assert record.problem == problem
        times = {timing.config: timing.ns for timing in record.timings}
        assert times[ATEN] == 500_000
        assert {config.template for config in times} > {"aten"}


@pytest.mark.usefixtures("timed")
def test_kernels_that_are_gone_are_counted(tmp_path: Path) -> None:
    """Without its source a kernel's config is unknown; what ATen took still counts."""
    problem, _, function, inputs = GEMMS[0]
    with fresh_cache():
        lowered(LookupTableChoices(), function, inputs)
        directory = Path(cache_dir())
        for source in directory.glob("*/*.py"):
            source.unlink()
        content, skipped = read("inductor-cache", directory, Facts(H200))
    assert isinstance(content, Timings)
    assert [(record.problem, len(record.timings)) for record in content.records] == [(problem, 1)]
    assert list(skipped) == ["kernels whose source is not in the directory any more"]


@pytest.mark.usefixtures("timed")
def test_printed_blocks_are_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inductor's log gives the same problems, configs and times as the files in its cache directory."""
    for problem, _, function, inputs in GEMMS:
        with fresh_cache(), inductor_config.patch(fx_graph_cache=False):
            lowered(LookupTableChoices(), function, inputs, autotune_num_choices_displayed=None)
            cached, _ = read("inductor-cache", Path(cache_dir()), Facts(H200))
        path = tmp_path / "log.txt"
        printed = capsys.readouterr().err
        path.write_text("".join(f"[rank0]: {line}\n" for line in ("Epoch 1", *printed.splitlines(), "Epoch 2")))
        content, skipped = read("autotune-log", path, Facts(H200))
        assert isinstance(content, Timings)
        assert isinstance(cached, Timings)
        assert not skipped
        (record,), (expected,) = content.records, cached.records
        assert record.problem == problem
        assert {timing.config: timing.ns for timing in record.timings} == {
            timing.config: pytest.approx(timing.ns) for timing in expected.timings
        }


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(
    ("size", "tf32", "said", "found"),
    [
        (512, True, None, "tf32"),
        (512, False, "tf32", "float32"),
        (8, False, "tf32", "tf32"),
        (8, False, "float32", "float32"),
        (8, False, None, None),
    ],
)
def test_printed_blocks_of_float32(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int, tf32: bool, said: str | None, found: str | None
) -> None:
    """A Triton kernel says whether TF32 is allowed, but for few rows it is not, whatever PyTorch's setting."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with fresh_cache():
            operands = [Input((size, 512), torch.float32), Input((512, 512), torch.float32)]
            lowered(LookupTableChoices(), torch.mm, operands)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    path = tmp_path / "log.txt"
    path.write_text(capsys.readouterr().err)
    content, skipped = read("autotune-log", path, Facts(H200, dtype=said))
    assert isinstance(content, Timings)
    assert [record.problem.dtype for record in content.records] == ([found] if found else [])
    assert any("whether it is TF32 (give --dtype" in reason for reason in skipped) is (found is None)
