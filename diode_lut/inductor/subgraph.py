"""A candidate that is a graph of its own: whether that graph returns what the candidate promises.

Inductor decides on the strides of such a graph's result when it lowers the graph, after the candidate has been made.
Kernels that read the result go by the candidate's layout, so where the two differ, digits are wrong.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices
from torch._inductor.ir import get_symbolic_inputs
from torch._inductor.virtualized import V

_LOWERED_WITH = {"max_autotune": False, "max_autotune_gemm": False, "max_autotune_gemm_backends": "ATEN"}
"""The settings with which Inductor lowers such a graph."""


def returns_its_layout(caller: Any) -> bool:
    """Whether the graph of ``caller``, a SubgraphChoiceCaller, returns one tensor, in the caller's own layout.

    Device, dtype, sizes, strides and offset are compared. The graph is lowered once for that, without asking tables.
    """
    graph = V.graph.make_subgraph(caller.gm, caller.example_inputs, f"{caller.name}_layout")
    for symbol in get_symbolic_inputs(caller.input_nodes):
        graph.graph_inputs[symbol.name] = symbol
        graph.graph_input_names.append(symbol.name)
    with V.set_choices_handler(InductorChoices()), inductor_config.patch(_LOWERED_WITH), V.set_graph_handler(graph):
        graph.run(*caller.example_inputs)
    outputs = graph.graph_outputs
    return len(outputs) == 1 and bool(outputs[0].get_layout() == caller.layout)
