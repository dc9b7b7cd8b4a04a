"""Compute a matmul and all the pointwise work after it by one kernel of QuACK.

A pass over each graph runs after matmuls with the same A are joined. It finds an activation of a matmul, its sum with a
residual, and its product with an activated gate, if nothing else reads any step. It asks the tables about each, and
replaces all steps by a node if a row names a kernel. The node is lowered to a call of the operator of ``hook.quack``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch._inductor import config as inductor_config
from torch._inductor.ir import ExternKernel
from torch._inductor.lowering import fallback_handler
from torch._inductor.virtualized import V
from torch.fx import Graph, Node

from diode_lut.hardware import architecture
from diode_lut.hook import joined, quack
from diode_lut.hook.choices import in_force, is_on
from diode_lut.hook.epilogues import is_concatenated
from diode_lut.hook.joined import Product, takes_place
from diode_lut.hook.snapshot import InductorSnapshot
from diode_lut.problem import DOMAINS, FUSED, GATED, ROW_BYTES, Problem
from diode_lut.templates.config import DEFAULT, Config, templates_for

aten = torch.ops.aten

_MUL, _ADD = aten.mul.Tensor, aten.add.Tensor

_OF_PRODUCT: dict[Any, str] = {
    (aten.relu.default, "gate"): "relu",
    (_MUL, (_MUL, "gate", 0.5), (_ADD, (aten.erf.default, (_MUL, "gate", math.sqrt(0.5))), 1)): "gelu",
    joined.ACTIVATIONS["geglu"]: "gelu_tanh",
}
"""Activations of a product, which is ``gate`` in them, as Inductor decomposes them."""

_MOST_NODES = 16  # maximum number of nodes to look at after a matmul. The work has at most 12


class _Work(NamedTuple):
    """A matmul and the work after it: their problem, their result, the other tensor that is read, and all nodes."""

    product: Product
    problem: Problem
    result: Node
    other: Node | None
    inside: frozenset[Node]

    @property
    def bias(self) -> Node | None:
        return joined.operands_of(self.product.node).bias


def fuse(graph: Graph) -> None:
    """Put a node in the place of each matmul with work after it for which a row names a kernel.

    If there are rows for both, the matmul that multiplies by a gate also activates the gate, not the gate's own matmul.
    """
    now = None if torch.version.hip or not quack.versions() else in_force()
    if now is None or now.settings.policy == "verify" or not now.settings.epilogues:
        return
    if inductor_config.cpp_wrapper or V.aot_compilation or is_on("fx_wrapper") or is_on("emulate_precision_casts"):
        return
    products = [
        product for node in graph.nodes if (product := joined.product_of(node)) is not None and not product.axes
    ]
    found = [work for product in products for work in _works(product)]
    chosen: list[tuple[_Work, Config]] = []
    for work in sorted(found, key=lambda work: work.problem.variant not in GATED):
        if all(work.inside.isdisjoint(other.inside) for other, _ in chosen):
            config = _chosen(now, work)
            if config is not None:
                chosen.append((work, config))
    names = {quack.name_of(work.problem.variant, config, bias=work.bias is not None) for work, config in chosen}
    quack.compile_kernels(sorted(names))
    replaced: dict[Node, Node] = {}
    for work, config in chosen:
        replaced[work.result] = _replace(graph, work, replaced, config)


def _works(product: Product) -> Iterator[_Work]:
    """Yield the pointwise work after a matmul, if nothing else reads a step of it, and nothing is written meanwhile."""
    domain, y = DOMAINS[FUSED[0]], product.node
    if product.problem.dtype not in domain.dtypes or product.problem.layout not in domain.layouts:
        return
    *biases, _, _ = y.args
    if not all(_is_aligned(bias.meta["val"]) for bias in biases):  # type: ignore[union-attr]  # a node, as _OPS has it
        return
    near = [y]
    for node in near:
        near += [each for each in node.users if each.target in joined.ELEMENTWISE and each not in near]
        if len(near) > _MOST_NODES:
            break
    for result in near[1:]:
        if result.target in joined.RESHAPES:  # a view of the work's result
            continue
        inside = {y}
        variant, other = _OF_PRODUCT.get(joined.written(result, {y: "gate"}, inside)), None
        if variant is None:
            inside = {y, result}
            variant, other = _with_other(result, y, inside)
        if variant is None or not takes_place(result, y, inside) or is_concatenated(result):
            continue
        if any(node.is_impure(impure_random=False) for node in _between(y, result)):
            continue
        problem = product.problem._replace(op=FUSED[0], variant=variant)
        yield _Work(product, problem, result, other, frozenset(inside))


def _with_other(result: Node, y: Node, inside: set[Node]) -> tuple[str | None, Node | None]:
    """Return the variant and the other tensor of a sum or a product with ``y``, or None for other work."""
    read = [each for each in result.args if isinstance(each, Node)]
    if result.target not in (_ADD, _MUL) or result.kwargs or len(read) < 2:
        return None, None
    for own, other in (read, read[::-1]):
        steps: set[Node] = set()
        if joined.written(own, {y: "y"}, steps) != "y":
            continue
        inside |= steps
        if result.target is _ADD:
            return ("add", other) if _is_like(other, y, inside) else (None, None)
        gate = other
        while gate.target in joined.ELEMENTWISE:
            gate = gate.all_input_nodes[0]
        activated = joined.written(other, {gate: "gate"}, inside)
        variant = next((name for name in GATED if activated == joined.ACTIVATIONS[name]), None)
        return (variant, gate) if _is_like(gate, y, inside) else (None, None)
    return None, None


def _is_like(other: Node, y: Node, inside: set[Node]) -> bool:
    """Return whether another tensor, computed outside of ``inside``, is contiguous and like ``y``."""
    value, given = other.meta.get("val"), y.meta["val"]
    if other in inside or not isinstance(value, torch.Tensor):
        return False
    if value.dtype != given.dtype or value.device != given.device or not _is_aligned(value):
        return False
    if not all(isinstance(number, int) for number in (*value.shape, *value.stride())):  # comparisons would be guards
        return False
    return value.numel() == given.numel() and value.shape[-1] == given.shape[1] and value.is_contiguous()


def _is_aligned(value: torch.Tensor) -> bool:
    """Return whether a fake tensor starts at a multiple of 16 bytes of its memory, as kernels read it."""
    offset = value.storage_offset()
    return isinstance(offset, int) and offset * value.itemsize % ROW_BYTES == 0


def _between(first: Node, last: Node) -> Iterator[Node]:
    node = first.next
    while node is not last:
        if node.op == "call_function":
            yield node
        node = node.next


def _chosen(now: InductorSnapshot, work: _Work) -> Config | None:
    """Record and return the config of the tables that can run, or None if the parts get their own decisions."""
    value = work.product.node.meta["val"]
    if templates_for(architecture(now.hardware(value.device).arch), work.problem.op) == [DEFAULT.template]:
        return None
    decision = now.answers(work.problem, value.device, padding=False).decision
    config = joined.first_able(decision, work.problem, value)
    if config is None:
        now.record_apart(decision)
    if config in (None, DEFAULT):
        return None
    now.record_fusion(decision, config)
    return config


def _replace(graph: Graph, work: _Work, replaced: dict[Node, Node], config: Config) -> Node:
    """Put a node in the place of a matmul and the work after it. Return its view with the result's shape."""
    node, result, other = work.product.node, work.result, work.other
    with graph.inserting_before(result):
        if other is not None:
            other = graph.call_function(
                aten.reshape.default, (replaced.get(other, other), list(node.meta["val"].shape))
            )
            other.meta["val"] = node.meta["val"]
        a, b, bias, *_ = joined.operands_of(node)
        arguments = (a, b, bias, other, work.problem.variant, str(config))
        fused = graph.call_function(lower_fused, arguments)
        fused.meta.update({name: value for name, value in node.meta.items() if name != "tensor_meta"})
        shaped = graph.call_function(aten.reshape.default, (fused, list(result.meta["val"].shape)))
    shaped.meta.update(result.meta)
    result.replace_all_uses_with(shaped)
    joined.erase_unread(graph, result)
    return shaped


def lower_fused(a: Any, b: Any, bias: Any, c: Any, work: str, config: str) -> Any:
    """Lower a node to a call of the operator, with operands as the kernel reads them."""
    a, c = (each and ExternKernel.require_contiguous(each) for each in (a, c))
    b = ExternKernel.require_stride_order(b, [0, 1])
    operator = torch.ops.diode_lut.fused_mm.default
    call = fallback_handler(operator, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
    return call(a, b, bias, c, work, config)


lower_fused._inductor_lowering_function = True  # type: ignore[attr-defined]  # Inductor calls it with its own nodes
