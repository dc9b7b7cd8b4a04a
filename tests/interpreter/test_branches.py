"""Kernels for parts of a dynamic size's range, on the device on which Triton's interpreter executes kernels."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.forks import ROOT, Forks
from tests.interpreter.conftest import found_for
from tests.interpreter.test_device import ROUNDING
from tests.programs.branch import BLOCKS, FUSED, SHAPES, SIZES, WAYS, sizes_of
from tests.sampled import sampled

PROGRAM = ROOT / "tests" / "programs" / "branch.py"


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run tests/programs/branch.py in a process of its own, and return its findings."""
    return found_for(request, "branch.py")


@pytest.mark.parametrize(
    "case",
    sampled(
        (f"{op} triton" for op in SHAPES), "mm silu triton", "addmm triton", "bmm triton", "linear of any batch triton"
    ),
)
def test_each_size_runs_its_kernel(found: dict[str, Any], case: str) -> None:
    """One compile serves all sizes, each with the kernel of its row, and all results are right to within rounding."""
    each = found[case]
    assert each["error"] < 4 * ROUNDING["torch.float32"]
    sizes = sizes_of(case.removesuffix(" triton"), library=False)
    expected = {str(m): [BLOCKS[0] if m < 9 else BLOCKS[1] if m < 33 else BLOCKS[2]] for m in sizes}
    assert (each["compiles"], each["blocks"]) == (1, expected)


@pytest.mark.parametrize(
    "case", sampled((f"{op} library" for op in SHAPES if op not in FUSED), "mm library", "baddbmm library")
)
def test_the_library_runs_where_it_is_best(found: dict[str, Any], case: str) -> None:
    """The library is called for the sizes at which it is the best, kernels run for the others."""
    each = found[case]
    assert each["error"] < 4 * ROUNDING["torch.float32"]
    expected = {str(m): [] if m < 9 else [BLOCKS[1] if m < 33 else BLOCKS[2]] for m in SIZES}
    assert (each["compiles"], each["blocks"]) == (1, expected)


@pytest.mark.parametrize(
    "case", sampled((f"{op} library" for op in FUSED), "addmm relu library", "linear gelu of any batch library")
)
def test_the_library_before_pointwise_work(found: dict[str, Any], case: str) -> None:
    """Where the library is the best for some sizes and pointwise work follows, results are right."""
    each = found[case]
    assert (each["error"] < 4 * ROUNDING["torch.float32"], each["compiles"]) == (True, 1)


def test_a_graph_that_is_compiled_as_sglang_does(found: dict[str, Any]) -> None:
    """A number of tokens that may change, without bounds, has the kernel of each size in a single compile."""
    case = found["sglang"]
    assert case["error"] < 4 * ROUNDING["torch.float32"]
    expected = {str(m): [] if m < 9 else [BLOCKS[1] if m < 33 else BLOCKS[2]] for m in SIZES}
    assert (case["compiles"], case["blocks"]) == (1, expected)


@pytest.mark.parametrize("way", WAYS)
def test_however_a_size_becomes_dynamic(found: dict[str, Any], way: str) -> None:
    """Without bounds, each size runs its kernel, and a compile more is only what PyTorch makes one of by itself.

    That is the first size of a program that says nothing, and a specialization. In the graph of a specialization all
    sizes may change, so that it gets what is safe for all. The hint that overrides that of the first size decides
    nothing.
    """
    case = found[way]
    assert case["error"] < 4 * ROUNDING["torch.float32"]
    expected = {str(m): [] if m < 9 else [BLOCKS[1] if m < 33 else BLOCKS[2]] for m in SIZES}
    if way == "specialize_on":
        expected["20"] = []
    assert (case["compiles"], case["blocks"]) == (2 if way in ("a second size", "specialize_on") else 1, expected)


@pytest.mark.slow
def test_a_process_gets_the_branches_of_another(with_device: Forks, tmp_path: Path) -> None:
    """A graph with several kernels has the same ones in every process, whichever size comes first."""
    cases = []
    for first in (("16", "100"), ("100", "16")):
        done = with_device.run(str(PROGRAM), str(tmp_path), *first, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        cases.append(json.loads(done.stdout.splitlines()[-1]))
    assert [[case[op]["cached"] for op in ("mm", "mm silu")] for case in cases] == [[0, 0], [1, 1]]
    for case in cases:
        for op, small in (("mm", []), ("mm silu", [BLOCKS[0]])):
            expected = {str(m): small if m < 9 else [BLOCKS[1] if m < 33 else BLOCKS[2]] for m in (16, 100, *SIZES)}
            assert case[op]["error"] < 4 * ROUNDING["torch.float32"]
            assert case[op]["compiles"] == 1
            assert expected.items() >= case[op]["blocks"].items()


def test_an_artifact_runs_the_kernel_of_each_size(found: dict[str, Any]) -> None:
    """So do artifacts of standalone_compile, which servers save, although Inductor runs all kernels to compile them."""
    case = found["artifact"]
    assert case["error"] < 4 * ROUNDING["torch.float32"]
    expected = {str(m): [] if m < 9 else [BLOCKS[1] if m < 33 else BLOCKS[2]] for m in SIZES}
    assert (case["compiles"], case["blocks"]) == (1, expected)
