"""What could go wrong between a row and a result on a real GPU, a test each; tools/guards.py lists all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code
from torch.utils.cpp_extension import CUDA_HOME

import diode_lut
from tests.gpu.gemms import ATEN, BMM, MM, TMA, TOLERANCE, assert_blocks, benchmarks, check, error, random, triton
from tests.programs.grouped_mm import CONFIG as GROUPED

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cold")]

Rows = Callable[..., None]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def precision() -> Iterator[None]:
    """Puts float32's precision back."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_fused_epilogue_has_its_shared_memory(rows: Rows) -> None:
    """A kernel that nearly fills the shared memory still launches with everything fused that comes after it."""
    config = triton("triton_mm", 32, 256, 128, stages=3, warps=8)
    rows({"configs": [config]})

    def function(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, bias)) + other

    assert_blocks(check(function, random(512, 1024), random(2048, 1024), random(2048), random(512, 2048)), config)


def test_batch_over_65535(rows: Rows) -> None:
    """A batch that is too large for a dimension of the launch grid is computed all the same."""
    rows({"configs": [BMM]})
    check(torch.bmm, random(70_000, 16, 16), random(70_000, 16, 16))


@pytest.mark.parametrize("empty", ["b", "m", "n", "k"])
def test_zero_sizes(empty: str, rows: Rows) -> None:
    """A GEMM with an empty operand or an empty result gives what eager gives."""
    rows({"configs": [BMM]})
    sizes = {"b": 4, "m": 64, "n": 32, "k": 16, empty: 0}
    a, b = random(sizes["b"], sizes["m"], sizes["k"]), random(sizes["b"], sizes["k"], sizes["n"])
    assert torch.equal(torch.compile(torch.bmm)(a, b), torch.bmm(a, b))


@pytest.mark.parametrize("config", [MM, TMA], ids=["mm", "tma"])
def test_unbacked_size(config: dict[str, Any], rows: Rows) -> None:
    """A row's kernel serves sizes that only the data tell, and zero is one of them."""
    rows({"op": "mm", "configs": [config]})
    mask, x, w = torch.arange(512, device="cuda") % 3 == 0, random(512, 256), random(256, 128)

    def function(mask: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x[mask] @ w

    compiled = torch.compile(function, fullgraph=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), diode_lut.profile_predictions() as counts:
        result, nothing = compiled(mask, x, w), compiled(torch.zeros_like(mask), x, w)
    assert error(result, x[mask].double() @ w.double()) < 8e-3
    assert nothing.shape == (0, 128)
    assert counts.hits["user"] == 1


def test_tma_of_an_address_that_is_unaligned_later(rows: Rows) -> None:
    """A tensor descriptor is never made for an address that is no multiple of 16 bytes, whenever it comes."""
    rows({"configs": [TMA]})
    compiled = torch.compile(torch.mm)
    memory, b = random(512 * 1024 + 1), random(1024, 256)
    for start in (0, 1):
        a = memory[start : start + 512 * 1024].view(512, 1024)
        assert error(compiled(a, b), a.double() @ b.double()) < 8e-3


@pytest.mark.parametrize("start", [1, 8])
def test_tma_of_a_view(start: int, rows: Rows) -> None:
    """Nor for a view that begins between such addresses."""
    rows({"configs": [TMA, MM]})

    def function(memory: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(memory.as_strided((512, 1024), (1024, 1), start), b)

    check(function, random(513, 1024), random(1024, 256))


def test_tma_of_one_column(rows: Rows) -> None:
    """A matrix with a single column is one that a tensor descriptor can describe."""
    rows({"configs": [TMA]})
    assert_blocks(check(lambda a, b: a @ b.t(), random(512, 1024), random(1, 1024)), TMA)


def test_tma_of_rows_that_are_unaligned_later(rows: Rows) -> None:
    """Nor for rows that do not start on such addresses, where a size may change."""
    rows({"configs": [TMA, MM]})
    compiled = torch.compile(torch.mm, dynamic=True)
    for k in (1024, 1023):
        a, b = random(512, k), random(k, 256)
        assert error(compiled(a, b), a.double() @ b.double()) < 8e-3


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("name", ["high", "medium", "allow_tf32"])
def test_precision_switches(name: str, rows: Rows) -> None:
    """However TF32 is allowed, rows for float32 no longer answer, and those for tf32 do."""
    other = triton("triton_mm", 32, 32, 32)
    rows({"dtype": "tf32", "configs": [MM]}, {"dtype": "float32", "configs": [other]})
    a, b = random(512, 1024, dtype=torch.float32), random(1024, 512, dtype=torch.float32)
    assert_blocks(check(torch.mm, a, b), other)
    torch._dynamo.reset()
    if name == "allow_tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    else:
        torch.set_float32_matmul_precision(name)
    assert_blocks(check(torch.mm, a, b, tolerance=2e-3), MM)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_reduced_precision_reduction(name: str, rows: Rows) -> None:
    """A row's kernel adds up in float32, whether or not the library may do with less."""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    rows({"configs": [MM]})
    matmul, switch = torch.backends.cuda.matmul, f"allow_{name}_reduced_precision_reduction"
    before = getattr(matmul, switch)
    try:
        for allowed in (False, True):
            setattr(matmul, switch, allowed)
            torch._dynamo.reset()
            assert_blocks(check(torch.mm, random(64, 8192, dtype=dtype), random(8192, 128, dtype=dtype)), MM)
    finally:
        setattr(matmul, switch, before)


def test_autocast(rows: Rows) -> None:
    """Under autocast the rows for the type that GEMMs are cast to answer."""
    rows({"dtype": "float16", "configs": [MM]})

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return x @ w

    x, w = random(512, 1024, dtype=torch.float32), random(1024, 256, dtype=torch.float32)
    assert_blocks(check(function, x, w), MM)


def test_deterministic_mode(rows: Rows) -> None:
    """In deterministic mode rows answer as always, and two runs give the same bits."""
    rows({"configs": [MM]})
    a, b = random(512, 1024), random(1024, 2048)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        compiled = torch.compile(torch.mm)
        first, codes = run_and_get_code(compiled, a, b)
        assert torch.equal(first, compiled(a, b))
    finally:
        torch.use_deterministic_algorithms(False)
    assert_blocks("\n".join(codes), MM)
    assert error(first, a.double() @ b.double()) < 8e-3


def test_freezing(rows: Rows) -> None:
    """A GEMM with frozen weights gets the row's kernel."""
    rows({"configs": [MM]})
    model, x = torch.nn.Linear(1024, 256, device="cuda", dtype=torch.float16).eval(), random(512, 1024).half()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        result, codes = run_and_get_code(torch.compile(model), x)
    assert_blocks("\n".join(codes), MM)
    assert error(result, model.double()(x.double())) < 1e-3


@pytest.mark.skipif(CUDA_HOME is None, reason="no CUDA toolkit for AOTInductor")
def test_aot_inductor(tmp_path: Path, table_file: Callable[..., Path]) -> None:
    """AOTInductor packs the first config that it can: not one that is made of several kernels."""
    row = {"configs": [{"template": "decompose_k", "k_split": 16}, MM]}
    without = packed(tmp_path, table_file, row, DIODE_LUT_POLICY="off")
    if without.returncode:
        pytest.skip(f"AOTInductor fails here by itself: {without.stderr[-200:]}")
    done = packed(tmp_path, table_file, row)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["error"] < 1e-3, report["template"]) == (True, True)
    assert not json.loads(without.stdout.splitlines()[-1])["template"]


def packed(
    tmp_path: Path, table_file: Callable[..., Path], row: dict[str, Any], **environment: str
) -> subprocess.CompletedProcess[str]:
    """AOTInductor in a process of its own, as it runs code that it made inside it."""
    return in_own_process(
        ["package_linear.py", str(tmp_path / "model.pt2")], tmp_path / "cache", table_file, row, **environment
    )


def in_own_process(
    command: list[str], cache: Path, table_file: Callable[..., Path], row: dict[str, Any], **environment: str
) -> subprocess.CompletedProcess[str]:
    """One of the programs for tests, with the row in a table of the user's own and an empty cache."""
    found = diode_lut.get_detected_hardware()
    hardware = {"name": found.name, "arch": found.arch, "sm_count": found.sm_count}
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "DIODE_LUT_TABLES": str(table_file("own.json", row, hardware=hardware)),
        **environment,
    }
    program = str(ROOT / "tests" / "programs" / command[0])
    return subprocess.run([sys.executable, program, *command[1:]], env=variables, capture_output=True, text=True)


@pytest.mark.parametrize("settings", [{}, {"padding_stride_threshold": 0}, {"comprehensive_padding": False}], ids=str)
def test_parts_of_k_where_results_are_padded(settings: dict[str, Any], rows: Rows) -> None:
    """A GEMM that a row cuts along K is right where Inductor pads results, whatever reads it."""
    rows({"configs": [{"template": "decompose_k", "k_split": 8}]})
    with inductor_config.patch({"pad_outputs": True, **settings}):
        for n in (99, 1100):
            for function in (torch.mm, lambda a, b: (a @ b) * 2, lambda a, b: (a @ b).t().relu()):
                torch._dynamo.reset()
                check(function, random(24, 1024), random(1024, n))


def test_two_threads_at_once(rows: Rows) -> None:
    """Threads that compile at the same time each get the kernels of their own GEMMs."""
    rows({"op": "mm", "configs": [MM]}, {"op": "bmm", "configs": [BMM]})
    together = threading.Barrier(2)

    # PyTorch tells functions apart by name and line: what it takes for one, with other sizes, it makes dynamic
    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b)

    def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b)

    left, right = (random(512, 1024), random(4, 128, 64)), (random(1024, 256), random(4, 64, 256))

    def compile_one(function: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        together.wait()
        return torch.compile(function)(a, b)

    def compile_both() -> list[torch.Tensor]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(compile_one, (mm, bmm), left, right))

    results, codes = run_and_get_code(compile_both)  # it is the process that records code, not the thread
    for result, a, b in zip(results, left, right, strict=True):
        assert error(result, a.double() @ b.double()) < TOLERANCE[result.dtype]
    for config in (MM, BMM):
        assert any(f"BLOCK_M : tl.constexpr = {config['block_m']}\n" in code for code in codes)


def test_tensor_descriptors_in_another_thread(rows: Rows) -> None:
    """What one thread has compiled and called, another can call, though Triton keeps its allocator per thread."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor descriptors need sm_90")
    rows({"op": "mm", "configs": [TMA]}, {"op": "grouped_mm", "configs": [GROUPED]})
    ends = torch.tensor([20, 64], dtype=torch.int32, device="cuda")

    def function(a: torch.Tensor, b: torch.Tensor, experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a @ b, torch._grouped_mm(a, experts, ends)

    compiled = torch.compile(function)
    operands = [random(*shape, dtype=torch.bfloat16) for shape in ((64, 256), (256, 512), (2, 256, 128))]
    first, (code,) = run_and_get_code(compiled, *operands)
    assert len(re.findall(r"triton_tem_\w+\.run\(", code)) == 2
    compiled(*operands)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(compiled, *operands).result()
    assert all(map(torch.equal, first, second))


def test_subprocess_compile_workers(tmp_path: Path, table_file: Callable[..., Path]) -> None:
    """Where Inductor compiles in processes of its own, the row's kernel is compiled there, and right."""
    steps = json.dumps([{"settings": {}, "autograd_cache": False}])
    command, row = ["compile_often.py", "cuda", steps], {"op": "bmm", "configs": [BMM]}
    done = in_own_process(command, tmp_path / "cache", table_file, row, TORCHINDUCTOR_COMPILE_THREADS="4")
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout.splitlines()[-1])
    assert (report["library"], report["cached"]) == (False, False)
    assert report["error"] < 1e-3


def test_nothing_is_benchmarked_in_default_mode(rows: Rows) -> None:
    """Neither a hit nor a miss has a GEMM timed."""
    rows({"op": "mm", "configs": [triton("triton_mm", 256, 256, 128, stages=5, warps=8), MM, ATEN]})
    check(torch.mm, random(512, 1024), random(1024, 256))
    check(torch.bmm, random(4, 128, 64), random(4, 64, 256))
    assert benchmarks() == 0
