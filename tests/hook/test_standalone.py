"""Kernels outside a compile, made for a fake CUDA device and compiled by Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from diode_lut.measure.gemm import Specialization, make_operands, matmul_precision, shares_kernels
from diode_lut.measure.kernels import Kernel, Lowering, Padding, lowering
from diode_lut.problem import Problem
from diode_lut.settings import config as settings
from diode_lut.templates.config import Config, pad_multiple
from tests.fake_cuda import compile_triton, fake_cuda

MM = Config("triton_mm", (64, 128, 64, 8, 3, 4))
BMM = Config("triton_bmm", (64, 64, 32, 8, 3, 4))
TMA = Config("triton_mm_persistent_tma", (128, 64, 64, 8, 3, 4))

KINDS = {
    "mm": (Problem.of("mm", 512, 1024, 768, dtype="bfloat16", layout="nt"), MM),
    "K left over": (Problem.of("mm", 500, 1000, 1000, dtype="float16", layout="nn"), MM),
    "odd sizes": (Problem.of("mm", 100, 77, 51, dtype="float16", layout="nn"), MM),
    "column-major A": (Problem.of("mm", 512, 128, 4096, dtype="bfloat16", layout="tn"), MM),
    "addmm": (Problem.of("addmm", 48, 1024, 768, dtype="float16", layout="nt"), MM),
    "tf32": (Problem.of("mm", 512, 1024, 768, dtype="tf32", layout="nn"), MM),
    "bmm": (Problem.of("bmm", 128, 64, 80, dtype="float16", layout="nt", b=12), BMM),
    "baddbmm": (Problem.of("baddbmm", 128, 64, 96, dtype="float32", layout="nn", b=3), BMM),
    "one step": (Problem.of("mm", 512, 1024, 40, dtype="float16", layout="nt"), MM),
    "one whole step": (Problem.of("bmm", 128, 64, 32, dtype="bfloat16", layout="tn", b=12), BMM),
    "one column": (Problem.of("addmm", 24, 1, 728, dtype="float16", layout="nt"), MM),
    "TMA": (Problem.of("mm", 4096, 1024, 768, dtype="bfloat16", layout="nt"), TMA),
    "TMA addmm": (Problem.of("addmm", 512, 4096, 1000, dtype="float16", layout="nt"), TMA),
}


@pytest.fixture(scope="module")
def here() -> Iterator[Lowering]:
    with fake_cuda(), lowering(torch.device("cuda", 0)) as made:
        yield made


def shared(here: Lowering, problem: Problem, config: Config) -> Kernel:
    kernel = here.specialized(Specialization.of(problem, config), config)
    assert kernel is not None
    return kernel


def fixed(here: Lowering, problem: Problem, config: Config) -> Kernel:
    kernel = here.for_problem(problem, config, make_operands(problem, "meta"))
    assert isinstance(kernel, Kernel)
    return kernel


def source(kernel: Kernel) -> str:
    return Path(kernel.caller.bmreq.module_path).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_kernel_does_what_the_fixed_one_does(here: Lowering, kind: str) -> None:
    """It has the same tunables, knows as well whether BLOCK_K divides K, and is launched on the same grid."""
    problem, config = KINDS[kind]
    one, other = shared(here, problem, config), fixed(here, problem, config)
    for text in (source(one), source(other)):
        assert f"BLOCK_K : tl.constexpr = {config.tiles.block_k}\n" in text
        if config != TMA:
            assert f"EVEN_K : tl.constexpr = {problem.k % config.tiles.block_k == 0}\n" in text
    assert [node.get_name()[:3] for node in other.caller.input_nodes] == ["arg"] * (3 if "add" in problem.op else 2)
    assert one.arguments_for(problem)[-3:] == other.arguments_for(problem)[-3:]
    assert len(other.arguments) == 0


@pytest.mark.parametrize("dtype", ["tf32", "float32"])
def test_kernels_have_tf32_as_the_dtype_says(here: Lowering, dtype: str) -> None:
    """Every kernel that is timed for tf32 has it, whatever Inductor knows of the sizes."""
    problem = Problem.of("mm", 8, 64, 128, dtype=dtype, layout="nt")
    with matmul_precision(dtype):
        for make in (shared, fixed):
            assert f"ALLOW_TF32 : tl.constexpr = {dtype == 'tf32'}\n" in source(make(here, problem, MM))


@pytest.mark.parametrize("k", [97, 40])
@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_a_shared_kernel_moves_data_as_the_fixed_one_does(here: Lowering, unit: int, k: int, tmp_path: Path) -> None:
    """Its loads and stores are as wide, whatever rows are aligned to, and pipelined where there is more than a step."""
    problem = Problem.of("mm", 512, unit * 125, unit * k, dtype="float16", layout="nt")
    one, other = (
        set(re.findall(r"\b(?:ld|st)\.global[.\w]*|\bcp\.async[.\w]*|0x\w+(?=, %r\d+;)", ptx))
        for ptx in (compile_triton(source(make(here, problem, MM)), tmp_path).asm["ptx"] for make in (shared, fixed))
    )
    assert one == other
    assert ("cp.async.commit_group" in one) is (unit > 1 and problem.k > MM.tiles.block_k)


@pytest.mark.parametrize("kind", KINDS)
def test_size_arguments_are_the_problems(here: Lowering, kind: str) -> None:
    """Put into the kernel's own expressions, the size arguments give the problem's sizes."""
    problem, config = KINDS[kind]
    kernel = shared(here, problem, config)
    values = {
        f"ks{number}": value for number, value in enumerate(kernel.arguments_for(problem)[: len(kernel.arguments)])
    }
    assert set(re.findall(r"\bks\d+\b", source(kernel))) == set(values)
    sizes = dict(re.findall(r"^    ([MNK]) = ([ks0-9* ]+)$", source(kernel), flags=re.MULTILINE))
    assert {name: eval(text, {}, values) for name, text in sizes.items()} == dict(
        zip("MNK", (problem.m, problem.n, problem.k), strict=True)
    )


def test_problems_that_differ_in_size_share_a_kernel(here: Lowering) -> None:
    """Only what the compiler must know tells specializations apart."""

    def specialization(m: int, n: int, k: int, layout: str = "nn", block_k: int = 64) -> Specialization:
        config = Config("triton_mm", (64, 64, block_k, 8, 3, 4))
        return Specialization.of(Problem.of("mm", m, n, k, dtype="float16", layout=layout), config)

    assert specialization(512, 1024, 768) == specialization(33, 64, 128)
    assert specialization(512, 1024, 768) != specialization(512, 1024, 768, "nt")
    assert specialization(512, 1024, 768) != specialization(512, 1024, 768, block_k=32)
    assert specialization(512, 1024, 768) != specialization(512, 1024, 800)
    for multiples in (1001, 1002), (1002, 1004), (1004, 1008):
        one, other = (specialization(512, n, 768) for n in multiples)
        assert one != other
        assert other != specialization(512, 768, multiples[0])
    assert specialization(512, 1008, 768) == specialization(512, 1024, 768)
    assert specialization(512, 1024, 72) == specialization(512, 1024, 88)
    assert specialization(512, 1024, 40) != specialization(512, 1024, 56)


@pytest.mark.parametrize(
    ("problem", "shares"),
    [
        (Problem.of("mm", 512, 1024, 768, dtype="float16", layout="nn"), True),
        (Problem.of("mm", 512, 1024, 768, dtype="float16", layout="nn", align=2), False),
        (Problem.of("bmm", 4, 4, 4, dtype="float16", layout="nn", b=65535), True),
        (Problem.of("bmm", 4, 4, 4, dtype="float16", layout="nn", b=65536), False),
        (Problem.of("mm", 2**16, 2**15, 8, dtype="float16", layout="nn"), False),
    ],
)
def test_what_can_share_kernels(problem: Problem, shares: bool) -> None:
    """Padded operands, enormous batches and tensors beyond 32-bit indices have kernels of their own only."""
    assert shares_kernels(problem) is shares


def test_what_cannot_be_launched_is_not_made(here: Lowering) -> None:
    """A config that needs more shared memory than there is, or TMA where it is not legal, gives no kernel."""
    problem = Problem.of("mm", 512, 1024, 768, dtype="bfloat16", layout="nn")
    odd = Problem.of("mm", 512, 1001, 768, dtype="bfloat16", layout="nn")
    too_large = Config("triton_mm", (256, 128, 128, 8, 5, 8))
    assert here.for_problem(problem, too_large, make_operands(problem, "meta")) is None
    for each, config in ((problem, too_large), (odd, TMA)):
        assert here.specialized(Specialization.of(each, config), config) is None


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_each_width_has_a_kernel_of_its_own(here: Lowering, op: str) -> None:
    """Problems that differ in N have code with their own N, although the hook would render it once for all."""
    for n in (512, 1024, 512):
        problem = Problem.of(op, 16, n, 4096, dtype="bfloat16", layout="nt")
        assert re.findall(r"^    N = (\d+)$", source(fixed(here, problem, MM)), flags=re.MULTILINE) == [str(n)]


def test_hook_is_off_meanwhile() -> None:
    """Whatever tables and models are there, they do not decide what is compiled to be measured."""
    with settings.patch(policy="pick"):
        with fake_cuda(), lowering(torch.device("cuda", 0)):
            assert settings.policy == "off"
        assert settings.policy == "pick"


@pytest.mark.parametrize("kind", ["K left over", "bmm", "TMA"])
def test_triton_compiles_it(here: Lowering, kind: str, tmp_path: Path) -> None:
    """The kernel compiles for the device, and needs no more shared memory than it has."""
    problem, config = KINDS[kind]
    for kernel in (shared(here, problem, config), fixed(here, problem, config)):
        assert 0 < compile_triton(source(kernel), tmp_path).metadata.shared <= 232448


@pytest.mark.parametrize(
    ("problem", "packed", "strides"),
    [
        (Problem.of("mm", 1000, 77, 51, dtype="bfloat16", layout="nt"), False, [(56, 1), (80, 1)]),
        (Problem.of("addmm", 2048, 1000, 2731, dtype="bfloat16", layout="nt"), False, [(2752, 1), (1000, 1)]),
        (Problem.of("addmm", 2048, 1000, 2731, dtype="bfloat16", layout="nt"), True, [(2736, 1), (1000, 1)]),
        (Problem.of("addmm", 64, 77, 64, dtype="bfloat16", layout="nt"), False, [(1,), (80, 1)]),
        (Problem.of("bmm", 96, 80, 51, dtype="float32", layout="tn", b=3), False, [(4992, 52, 1), (4160, 80, 1)]),
    ],
)
def test_copies_that_pad(problem: Problem, packed: bool, strides: list[tuple[int, ...]]) -> None:
    """Each operand that needs padding is copied by one kernel, to where the kernel of the padded problem reads it."""
    with fake_cuda(), lowering(torch.device("cuda", 0)) as made:
        padding = Padding(problem, pad_multiple(problem.dtype), make_operands(problem, "meta"), made.device, packed)
        copies = padding.copies
        assert [copy.stride() for copy in copies.outputs] == strides
        kernel = made.for_problem(
            padding.problem,
            BMM if problem.op == "bmm" else MM,
            padding.complete(make_operands(problem, "meta"), copies.outputs),
        )
        assert isinstance(kernel, Kernel)
        assert len(re.findall(r"async_compile\.triton\(", copies.code())) == len(strides)
    found = dict(re.findall(r"^    stride_(\w+) = (\d+)$", source(kernel), flags=re.MULTILINE))
    if len(copies.outputs[-2].shape) > 1:
        assert (int(found["am"]), int(found["ak"])) == copies.outputs[-2].stride()[-2:]
    assert (int(found["bk"]), int(found["bn"])) == copies.outputs[-1].stride()[-2:]


def test_the_library_on_padded_operands() -> None:
    """It is what Inductor compiles after its own padding: B keeps its layout, and the library reads the copies."""
    problem = Problem.of("addmm", 2048, 1000, 2731, dtype="bfloat16", layout="nt")
    with fake_cuda(), lowering(torch.device("cuda", 0)) as made:
        code = Padding(problem, 8, make_operands(problem, "meta"), made.device).library.code()
    assert len(re.findall(r"async_compile\.triton\(", code)) == 2
    assert "(2736, 1000), (1, 2752)" in code
    assert code.count("extern_kernels.addmm(") == 1
