"""What becomes of a graph that is compiled and run."""

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
from tests.fuzzing.check import to_compile
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
                compiled = to_compile(case.graph.function(), runs[0].tensors, case.mode, case.graph.frozen)
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
