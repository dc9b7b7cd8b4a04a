"""What becomes of a GEMM: lowered for a device that is not there, or compiled and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.utils import run_and_get_code

from tests.fake_cuda import Input, lower
from tests.fuzzing.bounded import Bounded, bounded
from tests.fuzzing.cases import Case
from tests.fuzzing.gemms import BATCHED, BIASES
from tests.fuzzing.operands import Sizes, elements, filled
from tests.fuzzing.outcome import GuaranteeError, Outcome, check_room, check_timed, full_precision, outcome_of

MOST_ELEMENTS = 2**25  # maximum elements of a tensor that is really made
MOST_WORK = {"cpu": 2**28, "cuda": 2**36}  # maximum multiplications of a GEMM that is computed, by device
NO_DEVICE = "not linked with support for cuda"  # PyTorch's, if a graph of Inductor's own would be tried out
SCALE = 1 / 4  # standard deviation of the operands' values: sums stay within float16


def lowered(case: Case, directory: Path, *, compiling: bool) -> Outcome:
    """The outcome on the device of ``fake_cuda``, down to code or, if ``compiling``, to what Triton makes of it."""
    inputs = case.gemm.inputs(case.gemm.sizes)
    function = case.gemm.function("cuda")

    def attempt() -> str:
        with _no_timing() as timed:
            code = lower(function, *inputs)
        check_timed(case, len(timed))
        if compiling:
            check_room(code, directory)
        return code.code

    maximum = {"max_autotune": case.mode.startswith("max-autotune"), "benchmark_epilogue_fusion": False}
    with inductor_config.patch(maximum):
        outcome = outcome_of(case, "cuda", directory, attempt)
    return outcome._replace(status="void") if NO_DEVICE in outcome.detail else outcome


def executed(case: Case, device: str, directory: Path) -> Outcome:
    """The outcome of compiling and running on a device, compared with float64."""
    gemm = case.gemm
    if not _fits(case, device):
        return Outcome("void", "too large")
    torch.manual_seed(case.number)
    function = gemm.function(device)
    runs = [_Run.of(case, sizes, device) for sizes in (gemm.sizes, gemm.again) if sizes is not None]
    with full_precision():
        try:
            if not all(run.expected.holds(function(*run.tensors)) for run in runs):
                return Outcome("void", "eager is outside the limits")
        except Exception as error:  # noqa: BLE001 (whatever it is, it is not ours)
            return Outcome("void", f"PyTorch refuses: {error}")

        def attempt() -> str:
            torch._dynamo.reset()
            before = counters["inductor"]["select_algorithm_autotune"]
            codes: list[str] = []
            with torch.no_grad(), inductor_config.patch(freezing=case.frozen):
                compiled = to_compile(function, runs[0].tensors, case.mode, case.frozen)
                for run in runs * (3 if case.mode == "reduce-overhead" else 1):
                    result, new = run_and_get_code(compiled, *run.tensors)
                    codes += new
                    run.check(result)
            check_timed(case, counters["inductor"]["select_algorithm_autotune"] - before)
            return "\n".join(codes)

        return outcome_of(case, device, directory, attempt)


def to_compile(
    function: Callable[..., Any], tensors: list[torch.Tensor], mode: str, frozen: bool
) -> Callable[..., Any]:
    """The function, to be compiled when it is called; frozen, it takes all but the first tensor from a module."""
    compile_: Any = partial(torch.compile, mode=None if mode == "default" else mode)
    if not frozen:
        return compile_(function)
    compiled = compile_(_Module(function, tensors[1:]).eval())
    return lambda first, *_: compiled(first)


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], constants: list[torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.constants = torch.nn.ParameterList(torch.nn.Parameter(each, False) for each in constants)

    def forward(self, first: torch.Tensor) -> Any:
        return self.function(first, *self.constants)


class _Run(NamedTuple):
    """What a compiled function is called with, and what it must give."""

    tensors: list[torch.Tensor]
    expected: Bounded

    @classmethod
    def of(cls, case: Case, sizes: Sizes, device: str) -> _Run:
        gemm = case.gemm
        tensors = [_tensor(spec, device, _scale(case, place)) for place, spec in enumerate(gemm.inputs(sizes))]
        return cls(tensors, bounded(gemm.compute, tensors, gemm.precision))

    def check(self, result: torch.Tensor) -> None:
        if result.shape != self.expected.shape:
            raise GuaranteeError(f"the result is {tuple(result.shape)}, not {tuple(self.expected.shape)}")
        if not self.expected.holds(result):
            raise GuaranteeError(f"wrong digits: {self.expected.excess(result):.3g} times the limit")


def _scale(case: Case, place: int) -> float:
    """How large an operand's values are; NaN for a bias that must not be read."""
    ignored = case.gemm.op in BIASES and case.gemm.beta == 0 and place == 0
    return float("nan") if ignored else SCALE


def _tensor(spec: Input, device: str, scale: float) -> torch.Tensor:
    tensor = filled(spec, device, scale)
    for dimension in spec.dynamic:
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    return tensor


def _fits(case: Case, device: str) -> bool:
    gemm = case.gemm
    sizes = gemm.sizes
    work = prod(sizes[dim] for dim in ("bmnk" if gemm.op in BATCHED else "mnk"))
    largest = max(map(elements, gemm.inputs(sizes)))
    return largest <= MOST_ELEMENTS and work <= MOST_WORK[device]


@contextmanager
def _no_timing() -> Iterator[list[str]]:
    """Has Inductor believe that its benchmarks brought no times; gives the names of what it wanted to time."""
    names: list[str] = []

    def nothing(_self: Any, name: str, *_: Any, **__: Any) -> dict[Any, float]:
        names.append(name)
        return {}

    with mock.patch.object(AlgorithmSelectorCache, "do_autotuning", nothing):
        yield names
