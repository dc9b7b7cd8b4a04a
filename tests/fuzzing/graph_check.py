"""What becomes of a graph that is compiled and run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import diode_lut
from tests.fuzzing.bounded import ROUNDING
from tests.fuzzing.cases import GraphCase
from tests.fuzzing.graphs import Graph
from tests.fuzzing.operands import Sizes, filled
from tests.fuzzing.options import known_options
from tests.fuzzing.outcome import GuaranteeError, Outcome, check_timed, full_precision, outcome_of

EAGER_ERRORS = 4
"""Largest allowed error against float64, over the error of eager."""

ROUNDINGS = 8
"""Roundings of the largest value that are allowed as well, because eager's error may be small by luck."""

SHAKEN = 3
"""How often operands are rounded at random, and the results of that compared in float64.

Where large terms cancel, their roundings are more than those of the result, and eager's error may be small by luck.
"""

TF32 = 2.0**-10
"""Twice rounding to TF32, which eager need not use where it is allowed, as for a GEMM with one row."""


def executed_graph(case: GraphCase, device: str, directory: Path) -> Outcome:
    """The outcome of compiling a graph and running it at each of its sizes, compared with float64 and with eager."""
    graph = case.graph
    torch.manual_seed(case.number)
    with full_precision():
        try:
            runs = [_Run.of(graph, sizes, device) for sizes in (graph.sizes, *graph.again)]
        except Exception as error:  # noqa: BLE001 (whatever it is, it is not ours)
            return Outcome("void", f"PyTorch refuses: {error}")
        if not all(each.isfinite().all() for run in runs for each in run.eager):
            return Outcome("void", "eager is not finite")

        compiles = []

        def attempt() -> str:
            torch._dynamo.reset()
            torch.manual_seed(case.number)
            graphs = counters["stats"]["unique_graphs"]
            before = counters["inductor"]["select_algorithm_autotune"]
            overruns = _overruns()
            codes: list[str] = []
            with inductor_config.patch(_options(case)):
                compiled = _compiled(case, runs[0].tensors)
                for run in runs:
                    results, new = run_and_get_code(partial(_results, graph, compiled), run.tensors)
                    codes += new
                    run.check(results)
                    del results
            if _overruns() > overruns:
                raise GuaranteeError("a kernel wrote beside a tensor")
            check_timed(case, counters["inductor"]["select_algorithm_autotune"] - before)
            compiles.append(counters["stats"]["unique_graphs"] - graphs)
            return "\n".join(codes)

        outcome = outcome_of(case, torch.device(device).type, directory, attempt)
        if graph.bounds and compiles and compiles[0] > 1:
            with diode_lut.config.patch(policy="off"), suppress(Exception):  # which is not ours
                attempt()
            if compiles[-1] < compiles[0]:
                return Outcome("failed", f"{compiles[0]} compiles, and {compiles[-1]} without diode_lut")
        return outcome


def _options(case: GraphCase) -> dict[str, Any]:
    # Where Inductor would time fused kernels, it prices them instead.
    return {**known_options(case.options), "freezing": case.graph.frozen, "benchmark_epilogue_fusion": False}


def _compiled(case: GraphCase, tensors: list[torch.Tensor]) -> Callable[..., Any]:
    """The graph's function, to be compiled when called; frozen, it takes all but the first tensor from a module."""
    function = case.graph.function()
    compile_: Any = partial(torch.compile, mode=None if case.mode == "default" else case.mode)
    if not case.graph.frozen:
        return compile_(function)
    compiled = compile_(_Module(function, tensors[1:]).eval())
    return lambda first, *_: compiled(first)


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], constants: list[torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.constants = torch.nn.ParameterList(torch.nn.Parameter(each, requires_grad=False) for each in constants)

    def forward(self, first: torch.Tensor) -> Any:
        return self.function(first, *self.constants)


def _results(graph: Graph, function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the function returns, and all gradients if there are to be any; a tangent is the result itself."""
    if not graph.backward:
        with torch.no_grad():
            return list(function(*tensors))
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    outputs = [each for each in function(*leaves) if each.requires_grad]
    gradients = torch.autograd.grad(outputs, leaves, [each.detach().tanh() for each in outputs], allow_unused=True)
    return [each.detach() for each in (*outputs, *gradients) if each is not None]


class _Run(NamedTuple):
    """What a compiled function is called with, the memory of that, and what it must give."""

    tensors: list[torch.Tensor]
    before: list[torch.Tensor]
    exact: list[torch.Tensor]
    eager: list[torch.Tensor]
    limits: list[float]

    @classmethod
    def of(cls, graph: Graph, sizes: Sizes, device: str) -> _Run:
        tensors = []
        for place, (spec, scale) in enumerate(zip(graph.inputs(sizes), graph.scales, strict=True)):
            tensor = filled(spec, device, scale)
            bounds = graph.bounds_of(place)
            for dimension in spec.dynamic:
                if dimension in bounds:
                    low, high = bounds[dimension]
                    torch._dynamo.mark_dynamic(tensor, dimension, min=low, max=high)
                else:
                    torch._dynamo.maybe_mark_dynamic(tensor, dimension)
            tensors.append(tensor)
        before = [_memory(tensor).clone() for tensor in tensors]
        in_float64 = partial(_results, graph, graph.function(torch.float64))
        exact = in_float64([tensor.cpu().double() for tensor in tensors])
        eager = [each.cpu() for each in _results(graph, graph.function(), tensors)]
        shaken = [
            in_float64([_shaken(each, _rounding(each.dtype, graph.tf32), seed) for each in tensors])
            for seed in range(SHAKEN)
        ]
        limits = [_limit(*results, tf32=graph.tf32) for results in zip(exact, eager, *shaken, strict=True)]
        return cls(tensors, before, exact, eager, limits)

    def check(self, results: Sequence[torch.Tensor]) -> None:
        """GuaranteeError if a result is wrong, or an operand has changed."""
        if [each.shape for each in results] != [each.shape for each in self.exact]:
            raise GuaranteeError(f"the shapes are {[tuple(each.shape) for each in results]}")
        for place, (result, exact, eager, limit) in enumerate(
            zip(results, self.exact, self.eager, self.limits, strict=True)
        ):
            if result.dtype != eager.dtype:
                raise GuaranteeError(f"result {place} is {result.dtype}")
            if exact.numel() == 0:
                continue
            distance = (result.cpu().double() - exact).abs().max()
            if not distance <= limit:
                wrong = int((~((result.cpu().double() - exact).abs() <= limit)).sum())
                raise GuaranteeError(
                    f"wrong digits: result {place} is {distance:.3g} away, the limit is {limit:.3g}; "
                    f"{wrong} of {exact.numel()} elements"
                )
        if not all(torch.equal(_memory(tensor), old) for tensor, old in zip(self.tensors, self.before, strict=True)):
            raise GuaranteeError("an operand was written")


def _overruns() -> int:
    """How often something was written beside a tensor that is freed by now; only the interpreter's device counts."""
    if not hasattr(torch.ops.interpreter_device, "overruns"):
        return 0
    gc.collect()
    return int(torch.ops.interpreter_device.overruns())


def _shaken(tensor: torch.Tensor, rounding: float, seed: int) -> torch.Tensor:
    """The tensor in float64, each element rounded up or down at random."""
    exact = tensor.cpu().double()
    drawn = torch.rand(exact.shape, dtype=exact.dtype, generator=torch.Generator().manual_seed(seed))
    return exact * (1 + rounding * (2 * drawn - 1))


def _limit(exact: torch.Tensor, eager: torch.Tensor, *shaken: torch.Tensor, tf32: bool) -> float:
    error = max(float((each.double() - exact).abs().max()) for each in (eager, *shaken)) if exact.numel() else 0.0
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    return EAGER_ERRORS * error + ROUNDINGS * _rounding(eager.dtype, tf32) * largest + 1e-7


def _rounding(dtype: torch.dtype, tf32: bool) -> float:
    return TF32 if tf32 and dtype == torch.float32 else ROUNDING[dtype]


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's memory, those that are none of its elements included."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((elements,), (1,), 0).cpu().view(torch.uint8)
