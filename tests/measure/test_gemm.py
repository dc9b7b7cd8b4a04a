import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from diode_lut.errors import CollectError
from diode_lut.measure.gemm import (
    Gemm,
    exact_result,
    function_of,
    make_gemm,
    make_operands,
    make_together,
    matmul_precision,
)
from diode_lut.problem import ALIGNS, FLOAT8, GEMMS, INT8, INTEGER, SCALED, VARIANTS, Problem, contiguous_align
from tests.strategies import kinds

SIZES = st.integers(2, 40)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    types = ("float16", "bfloat16", "float32", *FLOAT8, INT8)
    op, dtype, layout, variant = draw(kinds((*GEMMS, *SCALED, *INTEGER), dtypes=types))
    b = draw(st.integers(2, 4)) if op in ("bmm", "baddbmm") else 1
    align, m, n, k = draw(st.sampled_from(ALIGNS)), draw(SIZES), draw(SIZES), draw(SIZES)
    return Problem.checked(op, dtype, layout, align, b, m, n, k, variant=variant)


def operands(gemm: Gemm) -> tuple[torch.Tensor, torch.Tensor]:
    if len(gemm.arguments) > 3:  # scaled_mm
        return gemm.arguments[0], gemm.arguments[1]
    if gemm.frozen:
        return gemm.arguments[0], dict(gemm.function.named_parameters())["b"]  # type: ignore[attr-defined]
    return gemm.arguments[-2], gemm.arguments[-1]


@settings(max_examples=150)
@given(problem=problems())
def test_operands_have_exactly_the_layout_and_alignment(problem: Problem) -> None:
    """The unit stride is where the layout says, and all lines start at 16-byte boundaries just where align is 16."""
    a, b = operands(make_gemm(problem, "cpu"))
    batch = (problem.b,) if problem.op in ("bmm", "baddbmm") else ()
    assert a.shape == (*batch, problem.m, problem.k)
    assert b.shape == (*batch, problem.k, problem.n)
    assert "".join("n" if each.stride(-1) == 1 else "t" for each in (a, b)) == problem.layout
    steps = [step * each.element_size() for each in (a, b) for step in each.stride() if step != 1]
    assert all(step % 16 == 0 for step in steps) == (problem.align == 16)


@settings(max_examples=50)
@given(problem=problems())
def test_operands_are_packed_where_that_gives_the_alignment(problem: Problem) -> None:
    """No line is padded unless the alignment asks for it."""
    assume(problem.align == contiguous_align(problem.dtype, problem.layout, problem.m, problem.n, problem.k, problem.b))
    assert all(each.untyped_storage().nbytes() == each.nbytes for each in operands(make_gemm(problem, "cpu")))


@settings(max_examples=50)
@given(problem=problems())
def test_function_computes_the_gemm(problem: Problem) -> None:
    """Calling the function multiplies A and B, and adds what the op adds."""
    assume(problem.op not in SCALED)  # see below
    gemm = make_gemm(problem, "cpu")
    a, b = operands(gemm)
    expected = torch.matmul(a.double(), b.double())
    if problem.op == "addmm":
        expected += gemm.function.bias  # type: ignore[attr-defined]
    if problem.op == "baddbmm":
        expected += gemm.arguments[0]
    torch.testing.assert_close(gemm.function(*gemm.arguments).double(), expected, rtol=0.05, atol=0.3)


def test_operands_that_do_not_fit_are_one_line() -> None:
    """Operands larger than any memory are a CollectError that says so."""
    huge = Problem.checked("mm", "float32", "nn", 16, 1, 2**31 - 4, 4, 2**31 - 4)
    with pytest.raises(CollectError, match="no operands of this size: ") as caught:
        make_gemm(huge, "cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "precision"), [("tf32", "high"), ("float32", "highest"), ("bfloat16", "highest")])
def test_tf32_is_allowed_for_tf32_alone(dtype: str, precision: str) -> None:
    """The precision of GEMMs follows the dtype inside the block, and is afterwards what it was before."""
    before, matmul = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul
    matmul.allow_fp16_accumulation = True
    try:
        with matmul_precision(dtype):
            assert torch.get_float32_matmul_precision() == precision
            assert not matmul.allow_fp16_accumulation
        assert torch.get_float32_matmul_precision() == before
        assert matmul.allow_fp16_accumulation
    finally:
        matmul.allow_fp16_accumulation = False


@pytest.mark.parametrize("variant", VARIANTS["scaled_mm"])
def test_scaled_mm_is_what_float64_computes(variant: str) -> None:
    """The library's result is that of float64 but for the precision of its type, whatever is scaled and added."""
    if variant.startswith("row") and torch.__version__ < (2, 13):  # type: ignore[operator]  # as TorchVersion compares
        pytest.skip("before torch 2.13, a CPU scales whole tensors only")
    problem = Problem.of("scaled_mm", 48, 64, 80, dtype="float8_e4m3fn", layout="nt", variant=variant)
    tensors = make_operands(problem, "cpu")
    result = function_of(problem)(*tensors)
    assert str(result.dtype) == f"torch.{problem.result_dtype}"
    torch.testing.assert_close(result.double(), exact_result(problem, tensors), rtol=0.01, atol=0.01)


@pytest.mark.parametrize(("layout", "n", "k"), [("nn", 64, 64), ("nt", 72, 64), ("nt", 64, 72)])
def test_joined_float8_that_pytorch_refuses(layout: str, n: int, k: int) -> None:
    """Float8 is multiplied as ``nt``, and by multiples of 16 only."""
    problem = Problem.of("joined_mm", 4, n, k, dtype="float8_e4m3fn", layout=layout, variant="two")
    with pytest.raises(CollectError, match="PyTorch multiplies float8 only"):
        make_together(problem, "meta")
