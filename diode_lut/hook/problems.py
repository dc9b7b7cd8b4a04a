"""Read the problem of a matmul from the inputs of its lowering, its node in the graph, or the library's choice."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, cast

import sympy
import torch
from sympy.core.numbers import Integer, One, Zero
from torch._inductor.ir import ChoiceCaller, FixedLayout, ReinterpretView
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import permute
from torch._inductor.select_algorithm import ExternKernelCaller, realize_inputs
from torch._inductor.virtualized import V
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols, statically_known_true
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from diode_lut.decide.decide import Axis
from diode_lut.errors import ProblemError
from diode_lut.hook.snapshot import compile_range, snapshot
from diode_lut.hook.versions import KWARGS, TEMPLATE_OF_CLASS, TEMPLATE_OF_UID, UIDS, hint_of
from diode_lut.log import log
from diode_lut.problem import (
    DTYPES,
    FLOAT8,
    INT8,
    INTEGER,
    MAX_SIZE,
    NO_VARIANT,
    OP_SIZES,
    OPS,
    RESULT_DTYPES,
    RESULT_OF_INTEGERS,
    ROW_BYTES,
    SCALED,
    VARIANTS,
    Operand,
    Problem,
    Scaling,
)
from diode_lut.problem import problem_of as problem_from
from diode_lut.templates.config import ATEN, PADDED_OPS, Config, pad_multiple, padded

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: torch.float32 if name == "tf32" else getattr(torch, name) for name in (*DTYPES, RESULT_OF_INTEGERS)
}
"""PyTorch's data types by our names, for problems and for their results."""

_DTYPES = {kind: name for name, kind in TORCH_DTYPES.items() if name != "tf32"}

SIZES_CHANGE = "a size may change, and rows for the op say all sizes"
NO_RANGE = "a size is known only when the graph runs, and nothing bounds it"
"""Reasons why no table is asked about a problem."""


def problem_of(inputs: Any, op: str, *, fast: bool | None = None) -> Problem | None:
    """Return the problem of ``op`` with the KernelInputs ``inputs``, or None if tables have no such problems.

    It has hints in place of dynamic sizes, and Inductor's assumptions in place of unbacked sizes. ``axes`` returns the
    sizes that may change. Tables have no problems of mixed or unusual types, sizes of zero, matrices without a unit
    stride, or a reduced precision other than TF32. For scaled_mm, ``fast`` says whether accumulation is fast.
    """
    if op not in OPS or not isinstance(inputs, MMKernelInputs):
        return None
    variant = _variant_of(inputs, fast) if op in SCALED else NO_VARIANT
    dtype = _dtype_of(inputs, op)
    # Do not look at a bias: in torch 2.11 it may not be in memory yet, and then has no strides.
    nodes = inputs.mat1mat2()
    a, b = [node.get_layout() for node in nodes]
    shapes = a.size, a.stride, b.size, b.stride
    number = int if is_plain(chain(*shapes)) else hint
    size_a, stride_a, size_b, stride_b = [tuple(map(number, shape)) for shape in shapes]
    if dtype is None or variant is None:
        log.debug("%s with inputs of %s: no table has such problems", op, inputs.dtypes())
        return None
    try:
        problem = problem_from(op, dtype, Operand(size_a, stride_a), Operand(size_b, stride_b), variant)
    except ProblemError as error:
        log.debug("%s: %s: no table has such problems", op, error)
        return None
    return problem if all(map(stays_aligned, nodes)) else problem._replace(align=2)


def asked_about(problem: Problem, inputs: MMKernelInputs) -> Problem:
    """Return the problem for tables on a GPU: an addmm whose bias is more than a row is an mm with an epilogue.

    In tables the bias of an addmm is a row, which the library adds in its kernel. The library copies any other bias to
    the place of the result, and reads it there. This costs about as much as a second kernel for the bias. The epilogue
    is ``medium`` for a whole matrix, and ``light`` for a column.
    """
    if problem.op != "addmm":
        return problem
    bias = inputs.nodes()[0]
    sizes, strides = bias.get_size(), bias.maybe_get_stride() or ()  # in torch 2.11 it may not be in memory yet
    counts = [1 if step == 0 else size for size, step in zip_longest(sizes, strides)]
    if len(counts) < 2 or counts[0] == 1:
        return problem
    return problem._replace(op="mm", epilogue="light" if counts[1] == 1 and problem.n > 1 else "medium")


def why_left(problem: Problem, nodes: Sequence[Any]) -> str:
    """Return the reason not to ask tables about a problem with the operands ``nodes``, or an empty text."""
    sizes = [size for node in nodes for size in node.get_size()]
    if is_plain(sizes):
        return ""
    if problem.op in SCALED:
        return SIZES_CHANGE
    return NO_RANGE if lacks_a_range(V.graph.sizevars.shape_env, sizes) else ""


_PLAIN = frozenset({int, Integer, Zero, One})  # Types of plain numbers. Sympy's Zero and One are Integers, too


def is_plain(numbers: Iterable[Any]) -> bool:
    """Return whether all these sizes and strides are plain numbers, which do not change."""
    return _PLAIN.issuperset(map(type, numbers))


def hint(size: Any) -> int:
    """Return the value of a size or stride. If it may change, return its first value or Inductor's assumption."""
    expression = size.node.expr if isinstance(size, torch.SymInt) else size
    return V.graph.sizevars.optimization_hint(expression)


def stays_aligned(node: Any) -> bool:
    """Return whether a node's view, and each of its rows, starts on a 16-byte boundary for all values of sizes."""
    layout, graph = node.get_layout(), V.graph
    itemsize = layout.dtype.itemsize
    for step in layout.stride:
        if type(step) not in _PLAIN and not graph.sizevars.statically_known_multiple_of(step * itemsize, ROW_BYTES):
            return False
    offset = layout.offset
    if offset and not graph.sizevars.statically_known_multiple_of(offset * itemsize, ROW_BYTES):
        return False
    # Inductor checks the addresses of inputs on a GPU only, and calls all inputs on the CPU unaligned.
    return node.get_name() not in graph.unaligned_buffers or node.get_device().type == "cpu"


def operand_dtypes(dtype: str) -> tuple[torch.dtype, torch.dtype]:
    """Return the types of A and B in measurements of a dtype. For float8_e5m2, A alone has it, as gradients have."""
    second = "float8_e4m3fn" if dtype == "float8_e5m2" else dtype
    return TORCH_DTYPES[dtype], TORCH_DTYPES[second]


def dtype_of(kinds: set[torch.dtype], device_type: str | None) -> str | None:
    """Return the table's name of the type, if all inputs and the output have the same. None for others."""
    name = _DTYPES.get(next(iter(kinds))) if len(kinds) == 1 else None
    return snapshot().float32(device_type) if name == "float32" else name


def _dtype_of(inputs: MMKernelInputs, op: str) -> str | None:
    """Return the table's dtype of these inputs, or None for unknown types of operands or result."""
    if op in SCALED:  # the library does not multiply e5m2 by e5m2
        types = {_DTYPES.get(node.get_dtype()) for node in inputs.mat1mat2()}
        if types == {"float8_e4m3fn"}:
            return "float8_e4m3fn"
        return "float8_e5m2" if types == set(FLOAT8) else None
    if op in INTEGER:
        kinds = [*inputs.dtypes(), inputs.out_dtype()]
        return INT8 if [_DTYPES.get(each) for each in kinds] == [INT8, INT8, RESULT_OF_INTEGERS] else None
    return dtype_of({*inputs.dtypes(), inputs.out_dtype()}, inputs.device().type)


def _variant_of(inputs: MMKernelInputs, fast: bool | None) -> str | None:
    """Return the variant of a scaled_mm. None if tables lack its scales, such as scales of blocks, or its bias."""
    a, b, scale_a, scale_b, *bias = inputs.nodes()
    (m, _), (_, n) = a.get_size(), b.get_size()
    result, (sizes_a, sizes_b) = _DTYPES.get(inputs.out_dtype()), (scale_a.get_size(), scale_b.get_size())
    if fast is None or result not in RESULT_DTYPES or len(sizes_a) != len(sizes_b):
        return None
    if any(_DTYPES.get(scale.get_dtype()) != "float32" for scale in (scale_a, scale_b)):
        return None
    if any(each.get_dtype() != inputs.out_dtype() or list(each.get_size()) != [n] for each in bias):
        return None

    def is_one(sizes: Sequence[Any]) -> bool:
        return len(sizes) in (0, 2) and all(size == 1 for size in sizes)

    def is_vector(scale: Any, sizes: list[Any]) -> bool:  # without gaps, because the TMA template ignores strides
        layout = scale.get_layout()
        return list(scale.get_size()) == sizes and all(
            length == 1 or step == 1 for length, step in zip(layout.size, layout.stride, strict=True)
        )

    per = "tensor" if is_one(sizes_a) and is_one(sizes_b) else "row"
    if per == "row" and not (is_vector(scale_a, [m, 1]) and is_vector(scale_b, [1, n])):
        return None
    variant = str(Scaling(per, result, bool(bias), fast))
    return variant if variant in VARIANTS["scaled_mm"] else None


def axes(inputs: MMKernelInputs, op: str) -> tuple[Axis, ...]:
    """Return the axes of a problem with these inputs that may change."""
    a, b = (node.get_size() for node in inputs.mat1mat2())
    if is_plain((*a, *b)):
        return ()
    return _axes_of(op, tuple(a), tuple(b), V.graph.sizevars.shape_env)


def axes_of_tensors(op: str, a: torch.Tensor, b: torch.Tensor) -> tuple[Axis, ...]:
    """Return the axes of a problem with these fake tensors that may change."""
    env = next((size.node.shape_env for size in (*a.shape, *b.shape) if isinstance(size, torch.SymInt)), None)
    return () if env is None else _axes_of(op, tuple(a.shape), tuple(b.shape), env)


def _axes_of(op: str, a: tuple[Any, ...], b: tuple[Any, ...], env: ShapeEnv) -> tuple[Axis, ...]:
    """Return an axis for each expression, such as a batch times a length. Equal sizes share it."""
    sizes: Mapping[str, Any] = {"m": a[-2], "n": b[-1], "k": a[-1], "b": a[0]}
    fields: dict[Any, list[str]] = defaultdict(list)
    for name in OP_SIZES[op]:
        size = sizes[name]
        expression = env.simplify(sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size))
        if not expression.is_number:
            fields[expression].append(name)
    return tuple(axis_of(tuple(names), expression, env) for expression, names in fields.items())


def axis_of(names: tuple[str, ...], expression: sympy.Expr, env: ShapeEnv) -> Axis:
    """Return the axis of the fields ``names``, which all have the size ``expression``."""
    bounds = _range(env, expression)
    low = int(bounds.lower) if bounds.lower.is_Integer else 1
    high = int(bounds.upper) if bounds.upper.is_Integer and bounds.upper <= MAX_SIZE else None
    return Axis(names, min(max(low, 1), MAX_SIZE), high)


_LEAST_ASSUMED = 2  # the least value that PyTorch assumes a symbol to have
_NO_BOUND = sys.maxsize - 1  # PyTorch bounds the number of elements that a mask selects so, if it knows no bound


def lacks_a_range(env: ShapeEnv, sizes: Iterable[Any]) -> bool:
    """Return whether a size is known only when the graph runs, and has no upper bound."""
    symbols = free_unbacked_symbols([env.simplify(sympy.sympify(size)) for size in sizes])
    uppers = [_range(env, symbol).upper for symbol in symbols]
    return any(not upper.is_Integer or upper >= _NO_BOUND for upper in uppers)


def _range(env: ShapeEnv, expression: sympy.Expr) -> ValueRanges[Any]:
    """Return the range of an expression, according to bounds, checks, guards and the serving engine."""
    said = [each for each, holds in env.axioms.items() if holds is sympy.true and isinstance(each, sympy.Le)]
    most = [each.rhs for each in said if each.lhs == expression and each.rhs.is_Integer]
    least = [each.lhs for each in said if each.rhs == expression and each.lhs.is_Integer]
    checked = ValueRanges(max(least, default=-int_oo), min(most, default=int_oo))
    bounds = _narrowed(env.bound_sympy(expression), checked)
    tokens = compile_range()
    if tokens is None or len(expression.free_symbols) != 1:
        return bounds
    (symbol,) = expression.free_symbols
    served = bound_sympy(expression, {symbol: ValueRanges(*tokens)})
    narrowed = _narrowed(bounds, served)
    # PyTorch assumes that no symbol is 1, but vLLM calls a graph with a single token, too.
    has_one = tokens[0] == 1 and env.bound_sympy(symbol).lower == _LEAST_ASSUMED
    return ValueRanges(served.lower, narrowed.upper) if has_one else narrowed


def _narrowed(bounds: ValueRanges[Any], within: ValueRanges[Any]) -> ValueRanges[Any]:
    return bounds & within if within.lower <= bounds.upper and bounds.lower <= within.upper else bounds


OP_OF_TARGET = {getattr(torch.ops.aten, op).default: op for op in PADDED_OPS}  # of matmuls that Inductor may pad

_PAD = torch.ops.aten.constant_pad_nd.default


def problem_of_tensors(op: str, a: Any, b: Any, bias: Any = None, variant: str = NO_VARIANT) -> Problem | None:
    """Return the problem of multiplying fake tensors, or None if tables have no such problems."""
    dtype = dtype_of({tensor.dtype for tensor in (a, b, bias) if tensor is not None}, a.device.type)
    operands = []
    for tensor in (a, b):
        found = [hint_of(number) for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
        numbers = [number for number in found if number is not None]
        rank = tensor.dim()
        if dtype is None or len(numbers) < len(found):  # some numbers have no hint
            return None
        operands.append(Operand(tuple(numbers[:rank]), tuple(numbers[rank:-1]), numbers[-1]))
    first, second = operands
    try:
        problem = problem_from(op, str(dtype), first, second, variant)
    except ProblemError:
        return None
    steps = [step for tensor in (a, b) for step in tensor.stride() if isinstance(step, torch.SymInt)]
    aligned = all(statically_known_true(step * a.dtype.itemsize % ROW_BYTES == 0) for step in steps)
    return problem if aligned else problem._replace(align=2)


def problem_of_node(node: Node, op: str) -> tuple[Problem | None, Any, Any]:
    """Return the problem of a matmul in the graph, or None if tables have no such problems, and fake A and B."""
    *bias, a, b = node.args[: 3 if op.startswith(("add", "badd")) else 2]
    tensors = values_of((a, b, *bias))
    return (None, None, None) if tensors is None else (problem_of_tensors(op, *tensors), *tensors[:2])


def values_of(nodes: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the fake tensors of nodes, or None if a node has none."""
    values = tuple(node.meta.get("val") if isinstance(node, Node) else None for node in nodes)
    return values if all(isinstance(value, torch.Tensor) for value in values) else None


def unpadded(node: Node | None, op: str) -> Problem | None:
    """Return the problem before ``pad_mm`` padded its operands, or None if it did not."""
    if node is None or OP_OF_TARGET.get(node.target) != op:
        return None
    *bias, a, b = node.args[: 3 if op == "addmm" else 2]
    (a, m, k), (b, same_k, n) = _source(a), _source(b)
    if k != same_k or not (m or n or k):
        return None
    tensors = values_of((a, b, *bias))
    problem = None if tensors is None else problem_of_tensors(op, *tensors)
    return problem if problem is not None and _is_inductors(problem, (m, n, k), tensors or ()) else None


def _source(operand: Any) -> tuple[Any, int, int]:
    """Return the operand before padding, and the numbers of rows and columns that padding adds at the end."""
    if not isinstance(operand, Node) or operand.target is not _PAD:
        return operand, 0, 0
    source, pads, *value = (*operand.args, *operand.kwargs.values())
    before, after = cast("list[Any]", pads)[::2], cast("list[Any]", pads)[1::2]  # of each dimension, the last one first
    if any(before) or any(after[2:]) or any(value):
        return operand, 0, 0
    columns, rows = (*after, 0)[:2]
    return source, rows, columns


def _is_inductors(problem: Problem, added: tuple[int, int, int], tensors: Sequence[Any]) -> bool:
    """Return whether padding adds to M, N and K as much as Inductor's. That adds nothing to a size that may change."""
    a, b, *_ = tensors
    wanted = padded(problem, pad_multiple(problem.dtype))
    growths = (wanted.m - problem.m, wanted.n - problem.n, wanted.k - problem.k)
    sizes = (a.shape[-2], b.shape[-1], a.shape[-1])
    each = zip(added, sizes, growths, strict=True)
    return all(count == (growth if isinstance(size, int) else 0) for count, size, growth in each)


MARK = "diode_lut"  # The annotation of our choices with their config. Inductor must use no others
MKL_LINEAR, ONEDNN_LINEAR = "_mkl_linear", "_linear_pointwise"  # Inductor's names of choices for a frozen weight

_OP_OF_UID = {uid: op for op, uids in UIDS[ATEN.template].items() for uid in uids}


def config_of(choice: ChoiceCaller) -> Config | None:
    """Return the config of ``choice``, or None if no config can express it.

    None stands for CUTLASS, Composable Kernel, ``contiguous_mm``, Blackwell's and other templates outside of
    ``TEMPLATES``, and for values of tunables that a config cannot have.
    """
    ours: Config | None = choice.annotations.get(MARK)
    if ours is not None:
        return ours
    ktc = choice.annotations.get("ktc")
    if ktc is not None:
        template = TEMPLATE_OF_UID.get(ktc.template.uid)
        if template is None:
            return None
        given = ktc.params.to_kwargs()
        values = {name: int(given[kwarg]) for name, kwarg in KWARGS[template].items() if given.get(kwarg) is not None}
        try:
            return Config.from_json({"template": template, **values})
        except ProblemError:
            return None
    # C++ choices come in a wrapper that passes attributes on, so look at the class of their template. Its subclasses
    # are other ops (grouped, quantised), so compare the name.
    template = TEMPLATE_OF_CLASS.get(type(getattr(choice, "template", None)).__name__)
    if template is not None:
        return Config(template)
    return ATEN if is_packed_linear(choice) else None


def is_packed_linear(choice: ChoiceCaller) -> bool:
    """Return whether ``choice`` is a matmul with a frozen weight on the CPU: a call of MKL or oneDNN.

    oneDNN's binary form adds another matrix, and has no scalars among its arguments.
    """
    return isinstance(choice, ExternKernelCaller) and (
        choice.name == MKL_LINEAR or (choice.name == ONEDNN_LINEAR and "scalars" in choice.kwargs)
    )


def aten_of(choices: list[ChoiceCaller]) -> ChoiceCaller | None:
    """Return the choice that calls the library, as PyTorch does without Inductor: cuBLAS, MKL, oneDNN."""
    return next((choice for choice in choices if config_of(choice) == ATEN), None)


def problem_of_aten(aten: ChoiceCaller) -> tuple[Problem | None, tuple[Axis, ...]]:
    """Return the problem of the library's choice, and its sizes that may change.

    The problem is None if tables have no such problems. A packed linear is x (M, K) times a frozen weight (N, K). Only
    oneDNN's form has a bias. Its weight has no strides, and counts as column-major, as in ``nn.Linear``.
    """
    op, fast = "mm", None
    ktc = aten.annotations.get("ktc")
    if ktc is not None:
        inputs, op, fast = ktc.inputs, _OP_OF_UID[ktc.template.uid], ktc.params.to_kwargs().get("use_fast_accum")
    else:
        x, *others = aten.input_nodes
        x = realize_inputs(x)  # type: ignore[no-untyped-call]  # until then, it may have no strides
        if aten.name == MKL_LINEAR:
            inputs, others = MMKernelInputs([x, permute(others[-1], [1, 0])]), []
        else:
            n, k = others[0].get_size()
            layout = FixedLayout(x.get_device_or_error(), others[0].get_dtype(), [k, n], [1, k])
            inputs = MMKernelInputs([x, ReinterpretView(data=others[0], layout=layout)])
    problem = problem_of(inputs, op, fast=fast)
    if problem is None:
        return None, ()
    changing = axes(inputs, op)
    return (problem._replace(op="addmm") if ktc is None and len(others) > 1 else problem), changing
