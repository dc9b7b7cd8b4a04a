"""Join matmuls with the same A: one kernel reads two or three B, without copying them.

A pass over each graph finds such matmuls, after Inductor's passes that leave the graph functional. It asks the tables
about each group, and replaces the group by a node if a row names a kernel. The node is lowered to that kernel, which
writes each result into a tensor of its own. So nothing else in the graph changes. The kernel also computes
``silu(gate) * up``, or the same with gelu, and nothing else is fused into it.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import Any, NamedTuple

import sympy
import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.lowering import empty_strided, lowerings
from torch._inductor.select_algorithm import TritonTemplateCaller, realize_inputs
from torch._inductor.virtualized import V
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from diode_lut.decide.decide import MAX_SIZE_SAMPLED, Axis
from diode_lut.decide.sources import Decision
from diode_lut.hook.choices import (
    allows_tf32,
    are_whole,
    fix_layout,
    in_force,
    is_on,
    require_fit,
    require_settings_of_timings,
    require_templates,
)
from diode_lut.hook.epilogues import ALONE, is_concatenated, may_be_followed
from diode_lut.hook.joined_kernel import joined_template, options_of
from diode_lut.hook.problems import axes_of_tensors, is_plain, problem_of_tensors, values_of
from diode_lut.hook.snapshot import CannotRun, InductorSnapshot, tried
from diode_lut.hook.switch import leave
from diode_lut.hook.wrapper import Branches
from diode_lut.problem import GATED, JOINED, JOINED_SCALINGS, NO_VARIANT, PRODUCTS, Problem
from diode_lut.templates.config import DEFAULT, Config

aten, prims = torch.ops.aten, torch.ops.prims

_OPS: dict[Any, str] = {aten.mm.default: "mm", aten.addmm.default: "addmm", aten._scaled_mm.default: "scaled_mm"}
_SETTINGS = {
    "alpha": 1,
    "beta": 1,
    "out_dtype": torch.bfloat16,
    "use_fast_accum": True,
    "bias": None,
    "scale_result": None,
}
"""The values of other arguments of addmm and scaled_mm with which they can be joined."""

RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
_VIEWS = RESHAPES | {
    *(aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.squeeze.dims, aten.expand.default, aten.slice.Tensor, aten.select.int, aten.alias.default),
}
CONVERT = prims.convert_element_type.default
_MOVABLE = _VIEWS | {CONVERT}  # ops that compute the same anywhere after their input
_NAMESPACES = {aten.name, prims.name}
_UNLIKE = {torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}  # no two of such ops compute the same
_FEW_ROWS = 64  # with more rows, matmuls before pointwise work stay apart, because their own kernels may fuse it


class MatmulNodes(NamedTuple):
    """The nodes that a matmul reads."""

    a: Node
    b: Node
    bias: Node | None = None
    scale_a: Node | None = None
    scale_b: Node | None = None

    @property
    def own(self) -> list[Node]:
        """All nodes but A and its scale, which all matmuls of a group share."""
        return [each for each in (self.b, self.bias, self.scale_b) if each is not None]


class Product(NamedTuple):
    """A matmul in the graph. If its M may change, ``axes`` has it with an upper bound."""

    node: Node
    problem: Problem
    axes: tuple[Axis, ...] = ()


Parts = tuple[tuple[int | None, str], ...]  # configs for parts of a size's range, each with its largest size, or None


class _Group(NamedTuple):
    """Matmuls with the same A, and their problem together. For a variant of GATED, ``result`` is replaced, too."""

    problem: Problem
    products: tuple[Product, ...]
    result: Node | None = None


def join(graph: Graph) -> None:
    """Put a node in the place of each group of matmuls for which a row names a kernel."""
    now = None if torch.version.hip else in_force()
    if now is None or now.settings.policy == "verify" or is_on("triton.native_matmul"):
        return
    if inductor_config.cpp_wrapper or V.aot_compilation or is_on("fx_wrapper"):
        return
    _join(graph, partial(_chosen, now), lower_joined)


def join_all(graph: Graph, config: Config) -> None:
    """Put a node for a kernel of ``config`` in the place of each group, to measure it. Its lowering may fail."""
    _join(graph, lambda group: None if group.products[0].axes else ((None, str(config)),), lower_measured)


def _join(graph: Graph, choose: Callable[[_Group], Parts | None], lower: Callable[..., Any]) -> None:
    places = {node: place for place, node in enumerate(graph.nodes)}
    chosen = [found for products in _with_the_same_a(graph) for found in _groups(products, places, choose)]
    for group, parts in chosen:
        _replace(graph, group, parts, lower)


def _with_the_same_a(graph: Graph) -> Iterator[list[Product]]:
    """Yield the matmuls with the same A between which nothing writes into a tensor."""
    found: dict[Any, list[Product]] = defaultdict(list)
    rounds = any(graph.find_nodes(op="call_function", target=aten._scaled_mm.default))
    first: dict[Any, Node] = {}  # the first nodes, by what they compute
    first_of: dict[Node, Node] = {}
    for node in graph.nodes:
        writes = node.op == "call_function" and node.is_impure(impure_random=False)
        if writes:
            yield from found.values()
            found.clear()
            first.clear()
            first_of.clear()
        product = product_of(node)
        if product is not None:
            where = node.meta["val"].device, str(node.meta.get("custom"))  # such as a stream
            a, _, _, scale_a, _ = operands_of(node)
            same = _identity((a, scale_a), first_of), where, product.problem._replace(op="", n=1)
            found[same].append(product)
        elif rounds and isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _NAMESPACES:
            if not _UNLIKE.isdisjoint(node.target.tags):
                continue
            computed = node.target, _identity((node.args, tuple(node.kwargs.items())), first_of)
            first_of[node] = first.setdefault(computed, node)
    yield from found.values()


def _identity(argument: Any, first_of: Mapping[Node, Node]) -> Any:
    """Return a value that is equal for equal computations.

    Each projection may read its own view of A, or round it to float8 on its own. ``first_of`` has the first node that
    computes the same as a node.
    """
    if isinstance(argument, Node):
        if isinstance(argument.meta.get("val"), torch.SymInt):
            return argument.meta["val"].node.expr
        if argument.op == "call_function" and argument.target in _MOVABLE:
            return argument.target, _identity((argument.args, tuple(argument.kwargs.items())), first_of)
        return first_of.get(argument, argument)
    if isinstance(argument, (list, tuple)):
        return tuple(_identity(each, first_of) for each in argument)
    return type(argument), str(argument)  # 1, 1.0 and True are not the same, nor are zeros of two signs


def product_of(node: Node) -> Product | None:
    """Return the matmul of a node, if it is on a GPU, tables have such problems, and no size but M may change."""
    op = _OPS.get(node.target)
    if op is None:
        return None
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given: dict[str, Any] = {each.name: each.default_value for each in schema}
    given |= dict(zip(given, node.args, strict=False)) | node.kwargs
    if any(given.get(name, value) != value for name, value in _SETTINGS.items()):
        return None
    operands = operands_of(node)
    tensors = values_of([each for each in operands if each is not None])
    if tensors is None or tensors[0].device.type != "cuda" or len({each.device for each in tensors}) > 1:
        return None
    a, b, *others = tensors
    biases, scales = ([], others) if op == "scaled_mm" else (others, [])
    # A comparison with a size that may change would be a guard
    numbers = [a.shape[1], *a.stride(), *(number for each in (b, *biases) for number in (*each.shape, *each.stride()))]
    if not all(isinstance(number, int) for number in numbers):
        return None
    for bias in biases:
        if bias.shape != (b.shape[1],) or bias.stride() != (1,):
            return None
    variant = _scaling(a, b, *scales) if scales else NO_VARIANT
    problem = None if variant is None else problem_of_tensors(op, a, b, next(iter(biases), None), variant)
    if problem is None or is_concatenated(node):
        return None
    axes = (axis._replace(high=axis.high or MAX_SIZE_SAMPLED) for axis in axes_of_tensors(op, a, b))
    return Product(node, problem, tuple(axes))


def operands_of(node: Node) -> MatmulNodes:
    """Return the present operands of a matmul. Joining other matmuls may have replaced them by new nodes."""
    if node.target is aten.addmm.default:
        bias, a, b = node.args[:3]
        return MatmulNodes(a, b, bias)  # type: ignore[arg-type]
    a, b, *scales = node.args[:4]
    return MatmulNodes(a, b, None, *scales)  # type: ignore[arg-type]


def _scaling(a: Any, b: Any, *scales: Any) -> str | None:
    """Return the variant of JOINED_SCALINGS for these scales, or None for scales of blocks or other types."""
    for variant, counts in zip(JOINED_SCALINGS, ((1, 1), (a.shape[0], b.shape[1])), strict=True):
        pairs = zip(scales, counts, strict=True)
        if all(scale.dtype == torch.float32 and statically_known_true(scale.numel() == n) for scale, n in pairs):
            return variant
    return None


def _groups(
    products: Sequence[Product], places: dict[Node, int], choose: Callable[[_Group], Parts | None]
) -> Iterator[tuple[_Group, Parts]]:
    """Yield the groups for which ``choose`` returns configs: gates with their ``up``, then two or three others."""

    def answered(
        members: tuple[Product, ...], variant: str, result: Node | None = None
    ) -> Iterator[tuple[_Group, Parts]]:
        columns = sum(member.problem.n for member in members)
        problem = members[0].problem._replace(op=JOINED[0], n=columns, variant=variant)
        group = _Group(problem, members, result)
        parts = choose(group)
        if parts is not None:
            yield group, parts

    left = list(products)
    for gate, up in [] if is_on("emulate_precision_casts") else permutations(products, 2):
        gated = _gated(gate.node, up.node) if gate in left and up in left else None
        if gated is not None and _are_ready((gate, up), places):
            for found in answered((gate, up), *gated):
                yield found
                left = [each for each in left if each not in (gate, up)]
    for variant in ("three", "two"):
        others = tuple(left[: PRODUCTS[variant]])
        if len(others) == PRODUCTS[variant] and _are_ready(others, places):
            rows = next((axis.high for axis in others[0].axes if axis.high is not None), others[0].problem.m)
            if rows <= _FEW_ROWS or not any(may_be_followed(each.node) for each in others):
                yield from answered(others, variant)
            return


def _are_ready(products: Sequence[Product], places: dict[Node, int]) -> bool:
    """Return whether all operands can be had before the first matmul. Then no matmul depends on another."""
    first = min(places[product.node] for product in products)
    return all(places[_origin(each)] < first for product in products for each in operands_of(product.node).own)


def _origin(node: Node) -> Node:
    """Return the node from which this one is computed by movable ops alone."""
    while node.op == "call_function" and node.target in _MOVABLE and len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    return node


_MUL, _ADD = aten.mul.Tensor, aten.add.Tensor
_CUBIC = (_ADD, "gate", (_MUL, (_MUL, (_MUL, "gate", "gate"), "gate"), 0.044715))
ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "swiglu": (aten.div.Tensor, "gate", (_ADD, (aten.exp.default, (aten.neg.default, "gate")), 1)),
    "geglu": (*(_MUL, (_MUL, "gate", 0.5)), (_ADD, (aten.tanh.default, (_MUL, _CUBIC, math.sqrt(2 / math.pi))), 1)),
}
"""The activations of GATED, as Inductor decomposes them in float32. ``gate`` is what they activate."""

STEPS = {
    *(_MUL, _ADD, aten.div.Tensor, aten.exp.default, aten.neg.default, aten.tanh.default, aten.erf.default),
    aten.relu.default,
}
ELEMENTWISE = STEPS | RESHAPES | {CONVERT}  # the work after a matmul may have these ops
_DEEPEST = 10  # steps from the result back to the gate, at most


def written(node: Any, leaves: dict[Node, str], inside: set[Node], depth: int = 0) -> Any:
    """Return the computation of a node from named ``leaves``, and add all nodes on the way to ``inside``.

    A step is a tuple of its op and its arguments, and a leaf is its name. Anything else is None.
    """
    if not isinstance(node, Node) or node in leaves:
        return leaves.get(node, node)
    inside.add(node)
    dtypes = (torch.float32, *(leaf.meta["val"].dtype for leaf in leaves))
    if node.target in RESHAPES or (node.target is CONVERT and node.args[1] in dtypes):
        return written(node.args[0], leaves, inside, depth)
    if node.target not in STEPS or node.kwargs or depth == _DEEPEST:
        return None
    return node.target, *(written(each, leaves, inside, depth + 1) for each in node.args)


def _gated(gate: Node, up: Node) -> tuple[str, Node] | None:
    """Return the variant and the node of ``activation(gate) * up``, if nothing else reads any of its steps."""
    for result in _ends(up):
        inside = {gate, up}
        product = written(result, {gate: "gate", up: "up"}, inside)
        for variant, activation in ACTIVATIONS.items():
            if product in ((_MUL, activation, "up"), (_MUL, "up", activation)) and takes_place(result, up, inside):
                return variant, result
    return None


def takes_place(result: Node, product: Node, inside: set[Node]) -> bool:
    """Return whether ``result`` has the elements of ``product``, and nothing else reads the nodes ``inside``."""
    value, given = result.meta["val"], product.meta["val"]
    same_size = value.shape[-1] == given.shape[1], value.numel() == given.numel()
    alike = value.dtype == given.dtype and all(map(statically_known_true, same_size))
    return alike and all(user in inside for node in inside if node is not result for user in node.users)


def _ends(up: Node) -> Iterator[Node]:
    """Yield the elementwise products that read the result of a matmul."""
    for user in up.users:
        if user.target is aten.mul.Tensor:
            yield user
        elif user.target in RESHAPES or user.target is CONVERT:
            yield from _ends(user)


def _chosen(now: InductorSnapshot, group: _Group) -> Parts | None:
    """Record and return the configs of the tables that can run, or None if the matmuls stay apart.

    With a dynamic size, matmuls are joined only if kernels are known to be faster for all sizes.
    """
    product, *_ = group.products
    result = product.node.meta["val"]
    answers = now.answers(group.problem, result.device, padding=False, axes=product.axes)
    pieces = answers.pieces(now.settings.dynamic_kernels, library=False)

    m, n = product.problem.m, product.problem.n
    layout = ir.FixedLayout(result.device, result.dtype, [m, n], [n, 1])
    chosen = list[tuple[int | None, Decision, Config]]()
    for high, decision in [(piece.high, piece.decision) for piece in pieces] or [(None, answers.decision)]:
        config = first_able(decision, group.problem, result, lambda: require_templates(layout))
        if config is None and not product.axes:
            now.record_apart(decision)
        if config in (None, DEFAULT):
            return None
        chosen.append((high, decision, config))
    for _, decision, config in chosen:
        now.record_fusion(decision, config)
    return tuple((high, str(config)) for high, _, config in chosen)


def first_able(
    decision: Decision, problem: Problem, result: torch.Tensor, require: Callable[[], None] = lambda: None
) -> Config | None:
    """Return the first config of a decision that can run, or None. ``require`` may raise CannotRun besides."""

    def check(config: Config) -> None:
        if config != DEFAULT:
            if problem.op not in config.kernel.ops:
                raise CannotRun(f"{config.template} is not for {problem.op}")
            require_settings_of_timings(config, result.dtype, result.device)
            require()
            require_fit(config, problem, result.device)

    return next((config for config, _ in tried(decision, check)), None)


def _replace(graph: Graph, group: _Group, parts: Parts, lower: Callable[..., Any]) -> None:
    """Put a node in the place of the matmuls, or of the whole computation of ``silu(gate) * up``."""
    nodes = [product.node for product in group.products]
    first, operands = min(nodes), list(map(operands_of, nodes))
    for read in dict.fromkeys(each for one in operands for each in one.own):
        chain = [read]  # with the movable nodes from which it is computed
        while chain[-1] is not _origin(read):
            chain += chain[-1].all_input_nodes
        for node in reversed(chain[:-1]):
            if not node < first:
                first.prepend(node)
    a, _, _, scale_a, _ = operands_of(first)
    bs, biases = [one.b for one in operands], [one.bias for one in operands]
    scales = [] if scale_a is None else [scale_a, *(one.scale_b for one in operands)]
    with graph.inserting_before(first):
        joined = graph.call_function(lower, (a, bs, biases, group.problem.variant, parts, scales))
        joined.meta.update({name: value for name, value in first.meta.items() if name != "tensor_meta"})
        if group.result is None:
            joined.meta["val"] = [node.meta["val"] for node in nodes]
            results = [graph.call_function(operator.getitem, (joined, i)) for i in range(len(nodes))]
    if group.result is None:
        for node, result in zip(nodes, results, strict=True):
            result.meta.update(node.meta)
            node.replace_all_uses_with(result)
            erase_unread(graph, node)
        return
    shape, up = None, nodes[1]
    while up is not group.result:
        (up,) = up.users
        shape = up.args[1] if up.target in RESHAPES else shape
    with graph.inserting_before(group.result):
        shaped = joined if shape is None else graph.call_function(aten.reshape.default, (joined, shape))
    shaped.meta.update(group.result.meta)
    group.result.replace_all_uses_with(shaped)
    erase_unread(graph, group.result)


def erase_unread(graph: Graph, result: Node) -> None:
    """Erase a node that nothing reads, and all nodes that were read by erased nodes alone."""
    unread = [result]
    while unread:
        node = unread.pop()
        inputs = node.all_input_nodes
        graph.erase_node(node)
        unread += [each for each in inputs if not each.users and each.op == "call_function"]


def lower_joined(
    a: Any, bs: Sequence[Any], biases: Sequence[Any], variant: str, parts: Parts, scales: Sequence[Any]
) -> Any:
    """Lower a node to the kernels of its configs. If that fails, lower it to the matmuls as they were."""
    try:
        return lower_measured(a, bs, biases, variant, parts, scales)
    except Exception as error:
        leave("joined matmuls", error)
    apart = []
    for b, bias, scale in zip(bs, biases, scales[1:] or biases, strict=True):  # without scales, ``scale`` is unused
        if scales:
            apart.append(lowerings[aten._scaled_mm.default](a, b, scales[0], scale, None, None, torch.bfloat16, True))
        else:
            apart.append(lowerings[aten.mm](a, b) if bias is None else lowerings[aten.addmm](bias, a, b))
    if variant not in GATED:
        return apart
    gate, up = (lowerings[CONVERT](each, torch.float32) for each in apart)

    def lowered(written: Any) -> Any:
        if not isinstance(written, tuple):
            return gate if written == "gate" else written
        return lowerings[written[0]](*map(lowered, written[1:]))

    return lowerings[CONVERT](lowerings[aten.mul](lowered(ACTIVATIONS[variant]), up), apart[0].get_dtype())


def lower_measured(
    a: Any, bs: Sequence[Any], biases: Sequence[Any], variant: str, parts: Parts, scales: Sequence[Any]
) -> Any:
    """Lower a node to the kernels of its configs. CannotRun if Inductor does not make all of them."""
    gated, count = variant in GATED, len(bs)
    given = [a, *bs, *(bias for bias in biases if bias is not None), *scales]
    nodes = list(realize_inputs(*given))  # type: ignore[no-untyped-call]
    for node in nodes:
        fix_layout(node)
    a, bs = nodes[0], nodes[1 : 1 + count]
    m, k = a.get_size()
    m = int(m) if is_plain([m]) else m
    columns = [int(b.get_size()[1]) for b in bs]
    strides = [tuple(b.get_stride()) for b in bs]
    device, dtype = a.get_device(), torch.bfloat16 if scales else a.get_dtype()
    bits = sum(1 << i for i, bias in enumerate(biases) if bias is not None)
    others = [] if gated else [empty_strided([m, n], None, dtype=dtype, device=device) for n in columns[1:]]
    template = joined_template(count, bits, gated=gated, scaled=bool(scales))
    layout = ir.FixedLayout(device, dtype, [m, columns[0]])
    kernels = []
    for high, written in parts:
        config = Config.parse(written)
        options = options_of(config, m, columns, int(k)) | {
            "BIASES": bits,
            "SAME_STRIDES": len(set(strides)) == 1,
            "ALLOW_TF32": allows_tf32(dtype),
            "MASKED": config.masks_rows and not are_whole(m, config.tiles.block_m),
        }
        if gated:
            tiles = options["TILES_N"] // count
            options |= {"AT_ONCE": count, "GATED": True, "GELU": variant == "geglu", "TILES_N": tiles}
        if scales:
            options |= {"SCALED": True, "SCALE_STEP": int(math.prod(map(int, nodes[-1].get_size())) > 1)}
        choice = template.generate((*nodes, *others), layout, mutated_inputs=others or None, **options)
        if not isinstance(choice, TritonTemplateCaller):
            raise CannotRun("Inductor makes no kernel of it")
        choice.allowed_prologue_inps = type(choice.allowed_prologue_inps)()
        kernels.append((high, choice))
    result = kernels[0][1].output_node()  # type: ignore[no-untyped-call]
    setattr(result.data.data, ALONE, Branches(sympy.sympify(m), tuple(kernels)) if len(kernels) > 1 else None)
    return result if gated else [result, *others]


for _lower in (lower_joined, lower_measured):
    _lower._inductor_lowering_function = True  # type: ignore[attr-defined]  # Inductor calls it with its own nodes
