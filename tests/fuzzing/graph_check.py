"""What becomes of a graph that is compiled and run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

import diode_lut
from tests.fuzzing.cases import GraphCase
from tests.fuzzing.graphs import Graph
from tests.fuzzing.operands import Sizes, filled
from tests.fuzzing.options import known_options
from tests.fuzzing.outcome import GuaranteeError, Outcome, check_timed, full_precision, outcome_of
from tests.fuzzing.runs import Run, overruns_so_far, results_of


def executed_graph(case: GraphCase, device: str, directory: Path) -> Outcome:
    """The outcome of compiling a graph and running it at each of its sizes, compared with float64 and with eager."""
    graph = case.graph
    torch.manual_seed(case.number)
    with full_precision():
        try:
            runs = [_run_of(graph, sizes, device) for sizes in (graph.sizes, *graph.again)]
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
            overruns = overruns_so_far()
            codes: list[str] = []
            with inductor_config.patch(_options(case)):
                compiled = _compiled(case, runs[0].tensors)
                for run in runs:
                    results, new = run_and_get_code(partial(results_of, compiled, backward=graph.backward), run.tensors)
                    codes += new
                    run.check(results)
                    del results
            if overruns_so_far() > overruns:
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


def _run_of(graph: Graph, sizes: Sizes, device: str) -> Run:
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
    return Run.of(tensors, graph.function(), graph.function(torch.float64), backward=graph.backward, tf32=graph.tf32)
