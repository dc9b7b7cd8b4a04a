"""Inductor's inputs of a matmul as a Problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

import torch
from sympy.core.numbers import Integer, One, Zero
from torch._inductor.ir import Buffer, ChoiceCaller, FixedLayout, Layout, ReinterpretView
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import permute
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.select_algorithm import ExternKernelCaller, realize_inputs
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import statically_known_true

from diode_lut.decide.dynamic import Axis
from diode_lut.errors import ProblemError
from diode_lut.hook.answer import CannotRun
from diode_lut.hook.snapshot import axes_of, lacks_a_range, snapshot
from diode_lut.hook.versions import KWARGS, TEMPLATE_OF_CLASS, TEMPLATE_OF_UID, UIDS, hint_of
from diode_lut.problem import (
    FLOAT8,
    INT8,
    INTEGER,
    NO_EPILOGUE,
    NO_VARIANT,
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
from diode_lut.process import log
from diode_lut.templates.config import ATEN, Config

TORCH_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "tf32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    RESULT_OF_INTEGERS: torch.int32,
}
"""Our names of data types as PyTorch's: those of problems, and those of their results."""


def operand_dtypes(dtype: str) -> tuple[torch.dtype, torch.dtype]:
    """The types of A and B that problems of a dtype are measured with: of float8_e5m2, A has it, as gradients do."""
    second = "float8_e4m3fn" if dtype == "float8_e5m2" else dtype
    return TORCH_DTYPES[dtype], TORCH_DTYPES[second]


_DTYPES = {kind: name for name, kind in TORCH_DTYPES.items() if name != "tf32"}
_PLAIN = frozenset({int, Integer, Zero, One})
"""The types of sizes and strides that are plain numbers; sympy's Zero and One are Integers, too."""


def is_plain(numbers: Iterable[Any]) -> bool:
    """Whether all of these sizes and strides are plain numbers, none of which may change."""
    return _PLAIN.issuperset(map(type, numbers))


def problem_of(inputs: Any, op: str, *, fast: bool | None = None) -> Problem | None:
    """The problem of ``op`` with ``inputs``, its KernelInputs; None if tables have no such problems.

    Dynamic sizes have their hints in it, and unbacked ones those that Inductor assumes; ``axes`` says which these are.
    There is no problem for mixed or unusual types, sizes of zero, matrices with no unit stride, and reduced precision
    that is neither TF32 nor off. scaled_mm needs to know ``fast``, whether accumulation is.
    """
    if op not in OPS or not isinstance(inputs, MMKernelInputs):
        return None
    scaled = op in SCALED
    variant = _variant_of(inputs, fast) if scaled else NO_VARIANT
    dtype = _dtype_of(inputs, op)
    numbers = _numbers(inputs)
    if dtype is None or variant is None:
        log.debug("%s with inputs of %s: no table has such problems", op, inputs.dtypes())
        return None
    try:
        a, b = map(Operand, *numbers)
        problem = problem_from(op, dtype, a, b, variant)
    except ProblemError as error:
        log.debug("%s: %s: no table has such problems", op, error)
        return None
    return problem if all(map(stays_aligned, inputs.mat1mat2())) else problem._replace(align=2)


def asked_about(problem: Problem, inputs: MMKernelInputs) -> Problem:
    """The problem that tables are asked about on a GPU: an addmm with more than a row as its bias is an mm.

    Of a row, the library takes care in its own kernel, and that is what an addmm is in tables. Any other bias it copies
    to where the result will be, and then reads that. This costs about what a second kernel would that adds it, which is
    an epilogue: ``medium`` for a whole matrix, ``light`` for a column.
    """
    if problem.op != "addmm":
        return problem
    bias = inputs.nodes()[0]
    sizes, strides = bias.get_size(), bias.maybe_get_stride() or ()  # in torch 2.11 it may not be in memory yet
    counts = [1 if step == 0 else size for size, step in zip_longest(sizes, strides)]
    if len(counts) < 2 or counts[0] == 1:
        return problem
    return problem._replace(op="mm", epilogue="light" if counts[1] == 1 and problem.n > 1 else "medium")


def _dtype_of(inputs: MMKernelInputs, op: str) -> str | None:
    """The dtype that tables have for these inputs; None for types, or a result, that they do not know."""
    if op in SCALED:
        return _float8_of(inputs)
    if op in INTEGER:
        types = [*inputs.dtypes(), inputs.out_dtype()]
        return INT8 if [_DTYPES.get(each) for each in types] == [INT8, INT8, RESULT_OF_INTEGERS] else None
    return dtype_of({*inputs.dtypes(), inputs.out_dtype()}, inputs.device().type)


def _float8_of(inputs: MMKernelInputs) -> str | None:
    """The dtype that tables have for A and B in float8; None for a pair of types that the library does not multiply."""
    types = {_DTYPES.get(node.get_dtype()) for node in inputs.mat1mat2()}
    if types == {"float8_e4m3fn"}:
        return "float8_e4m3fn"
    return "float8_e5m2" if types == set(FLOAT8) else None


def _variant_of(inputs: MMKernelInputs, fast: bool | None) -> str | None:
    """The variant of a scaled_mm; None for other scales, such as of blocks, and other biases."""
    a, b, scale_a, scale_b, *bias = inputs.nodes()
    (m, _), (_, n) = a.get_size(), b.get_size()
    result = _DTYPES.get(inputs.out_dtype())
    if fast is None or result not in RESULT_DTYPES:
        return None
    if any(_DTYPES.get(scale.get_dtype()) != "float32" for scale in (scale_a, scale_b)):
        return None
    if any(each.get_dtype() != inputs.out_dtype() or list(each.get_size()) != [n] for each in bias):
        return None
    if len(scale_a.get_size()) != len(scale_b.get_size()):
        return None
    per = "tensor" if _is_one(scale_a) and _is_one(scale_b) else "row"
    if per == "row" and not (_is_vector(scale_a, [m, 1]) and _is_vector(scale_b, [1, n])):
        return None
    variant = str(Scaling(per, result, bool(bias), fast))
    return variant if variant in VARIANTS["scaled_mm"] else None


def _is_one(scale: Any) -> bool:
    """Whether it is a single number, of as many dimensions as templates take."""
    return len(scale.get_size()) in (0, 2) and all(size == 1 for size in scale.get_size())


def _is_vector(scale: Any, size: list[Any]) -> bool:
    """Whether it has this size and no gaps: the TMA template reads it as if it had none."""
    layout = scale.get_layout()
    if list(scale.get_size()) != size:
        return False
    return all(length == 1 or step == 1 for length, step in zip(layout.size, layout.stride, strict=True))


def axes(inputs: MMKernelInputs, op: str) -> tuple[Axis, ...]:
    """The axes along which a problem with these inputs may change; empty if none may."""
    a, b = (node.get_size() for node in inputs.mat1mat2())
    if is_plain((*a, *b)):
        return ()
    return axes_of(op, tuple(a), tuple(b), V.graph.sizevars.shape_env)


_Numbers = tuple[tuple[int, ...], ...]


def hint(size: Any) -> int:
    """The value of a size or a stride; where it may change, the first that it had, or one that Inductor assumes."""
    expression = size.node.expr if isinstance(size, torch.SymInt) else size
    return V.graph.sizevars.optimization_hint(expression)


def why_left(problem: Problem, nodes: Sequence[Any]) -> str:
    """Why no table is asked about a problem whose operands are ``nodes``; empty if one is."""
    sizes = [size for node in nodes for size in node.get_size()]
    if is_plain(sizes):
        return ""
    if problem.op in SCALED:
        return SIZES_CHANGE
    return NO_RANGE if lacks_a_range(V.graph.sizevars.shape_env, sizes) else ""


SIZES_CHANGE = "a size may change, and rows for the op say all sizes"
NO_RANGE = "a size is known only when the graph runs, and nothing bounds it"


def _numbers(inputs: MMKernelInputs) -> tuple[_Numbers, _Numbers]:
    """Shapes and strides of A and B, as hints where they are dynamic.

    A bias is not looked at: in torch 2.11 it may not be in memory yet, and then has no strides.
    """
    layouts = [node.get_layout() for node in inputs.mat1mat2()]
    shapes, strides = [layout.size for layout in layouts], [layout.stride for layout in layouts]
    if is_plain(chain(*shapes, *strides)):
        return tuple(tuple(map(int, shape)) for shape in shapes), tuple(tuple(map(int, s)) for s in strides)
    return tuple(tuple(map(hint, shape)) for shape in shapes), tuple(tuple(map(hint, s)) for s in strides)


def dtype_of(kinds: set[torch.dtype], device_type: str | None) -> str | None:
    """The table's name of the one type of all inputs and of the output; None if there is none."""
    name = _DTYPES.get(next(iter(kinds))) if len(kinds) == 1 else None
    return snapshot().float32(device_type) if name == "float32" else name


def problem_of_tensors(op: str, a: Any, b: Any, bias: Any = None) -> Problem | None:
    """The problem of multiplying fake tensors; None if tables have no such problems."""
    tensors = [tensor for tensor in (a, b, bias) if tensor is not None]
    dtype = dtype_of({tensor.dtype for tensor in tensors}, a.device.type)
    first, second = _operand(a), _operand(b)
    if dtype is None or first is None or second is None:
        return None
    try:
        problem = problem_from(op, dtype, first, second)
    except ProblemError:
        return None
    steps = [step for tensor in (a, b) for step in tensor.stride() if isinstance(step, torch.SymInt)]
    aligned = all(statically_known_true(step * a.dtype.itemsize % ROW_BYTES == 0) for step in steps)
    return problem if aligned else problem._replace(align=2)


def _operand(tensor: Any) -> Operand | None:
    """Sizes, strides and offset of a fake tensor, by their hints; None if some are not backed by any."""
    found = [hint_of(number) for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
    numbers = [number for number in found if number is not None]
    rank = tensor.dim()
    if len(numbers) < len(found):
        return None
    return Operand(tuple(numbers[:rank]), tuple(numbers[rank:-1]), numbers[-1])


def stays_aligned(node: Any) -> bool:
    """Whether what ``node`` views, and each of its rows, starts on a 16-byte boundary whatever sizes there will be."""
    layout, graph = node.get_layout(), V.graph
    itemsize = layout.dtype.itemsize
    for step in layout.stride:
        changes = type(step) not in _PLAIN
        if changes and not graph.sizevars.statically_known_multiple_of(step * itemsize, ROW_BYTES):
            return False
    offset = layout.offset
    if offset != 0 and not graph.sizevars.statically_known_multiple_of(offset * itemsize, ROW_BYTES):
        return False
    # Inductor looks at the addresses of inputs on a GPU only, and calls all other inputs unaligned.
    return node.get_name() not in graph.unaligned_buffers or node.get_device().type == "cpu"


_COSTS = {
    **dict.fromkeys(("exp", "exp2", "expm1", "sigmoid", "log", "log1p", "log2", "log10", "erf", "sin", "cos"), 1.0),
    **dict.fromkeys(("tanh", "pow", "asinh", "acosh", "atanh", "sinh", "cosh", "tan", "asin", "acos", "atan"), 2.5),
    **dict.fromkeys(("erfc", "erfinv", "lgamma", "digamma", "i0", "i1", "rand", "randn", "randint64"), 4.0),
}
"""The costs of pointwise ops in a Triton kernel, in reads of a tensor of the result's size; others cost nothing.

By the times of 13 epilogues behind 26 GEMMs on an H200.
"""

_MAX_MEDIUM = 2.0
"""Maximum cost of an epilogue of the class ``medium``."""

_WORD_BYTES = 4
"""Rows of a multiple of this are written to padded rows as fast as to others, by the times of 10,922 columns."""

_LIKE_VIEWS = (torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)
"""Ops that are views, although their schemas do not say so."""


def may_be_followed(node: torch.fx.Node | None) -> bool:
    """Whether pointwise work follows this node of Inductor's graph, directly or behind views."""
    waiting, seen = [node] if node is not None else [], set[torch.fx.Node]()
    while waiting:
        for user in waiting.pop().users:
            target = user.target
            if user in seen or not isinstance(target, torch._ops.OpOverload):
                continue
            seen.add(user)
            if torch.Tag.pointwise in target.tags or target is torch.ops.prims.convert_element_type.default:
                return True
            if target.is_view or target in _LIKE_VIEWS:
                waiting.append(user)
    return False


def epilogue_of(buffer: Buffer, nodes: Sequence[BaseSchedulerNode], bias: str = NO_EPILOGUE) -> str:
    """The class of the epilogue that these nodes are together, behind the matmul that writes ``buffer``.

    ``bias`` is the class of the epilogue that its bias alone is: ``medium`` for a matrix, which is read as well.
    """
    ops: Counter[str] = Counter()
    for node in nodes:
        ops.update(node._body.op_counts)  # type: ignore[attr-defined]
    tensors = len(tensors_read(buffer, nodes)) + (bias == "medium")
    cost = tensors + sum(_COSTS.get(op, 0.0) * count for op, count in ops.items())
    return "light" if cost == 0 else "medium" if cost <= _MAX_MEDIUM else "heavy"


def tensors_read(buffer: Buffer, nodes: Sequence[BaseSchedulerNode]) -> set[str]:
    """The names of what these nodes read besides ``buffer``, their matmul's result, and that is at least as large."""
    inside = {buffer.get_name(), *(name for node in nodes for name in node.get_buffer_names())}
    elements = V.graph.sizevars.optimization_hint(buffer.get_numel())
    return {
        dep.name
        for node in nodes
        for dep in node.read_writes.reads
        if dep.name not in inside and V.graph.sizevars.optimization_hint(dep.get_numel()) >= elements
    }


def moves_single_elements(buffer: Buffer, nodes: Sequence[BaseSchedulerNode]) -> bool:
    """Whether a matmul's kernel would read other tensors, or write what these nodes do, element by element.

    It reads so where rows are no multiples of 16 bytes. It writes so where rows are no multiples of 4 bytes and
    Inductor has padded them: consecutive elements are one thread's there, and not one warp's. On an H200, kernels with
    relu took 1.3 to 2.1 times as long as kernels that write packed rows of such a length.
    """
    layout = buffer.get_layout()
    if has_aligned_rows(layout):
        return False
    written = [V.graph.get_buffer(name).get_layout() for node in nodes for name in node.get_buffer_names()]
    padded = not all(each.is_contiguous() for each in written)
    return bool(tensors_read(buffer, nodes)) or (padded and not has_aligned_rows(layout, _WORD_BYTES))


def has_aligned_rows(layout: Layout, multiple: int = ROW_BYTES) -> bool:
    """Whether the length of a matrix's rows is a multiple of 16 bytes, or of another number; not if it is dynamic."""
    row = layout.size[-1] * layout.dtype.itemsize
    return V.graph.sizevars.statically_known_multiple_of(row, multiple)


MKL_LINEAR, ONEDNN_LINEAR = "_mkl_linear", "_linear_pointwise"
"""Inductor's names of the library calls for a matmul with a frozen weight."""

_OP_OF_UID = {uid: op for op, uids in UIDS[ATEN.template].items() for uid in uids}


def config_of(choice: ChoiceCaller) -> Config | None:
    """The config that ``choice`` runs, or None if no config can express it.

    That is so for CUTLASS, Composable Kernel, ``contiguous_mm``, Blackwell's and other templates that are not in
    ``TEMPLATES``, and for values of tunables that a config cannot have.
    """
    ktc = choice.annotations.get("ktc")
    if ktc is not None:
        return _from_params(ktc.template.uid, ktc.params.to_kwargs())
    # The C++ choices come inside a wrapper that passes attributes on, so their own class cannot be asked for. The
    # subclasses of their template are other ops (grouped, quantised).
    template = TEMPLATE_OF_CLASS.get(type(getattr(choice, "template", None)).__name__)
    if template is not None:
        return Config(template)
    return ATEN if is_packed_linear(choice) else None


def is_packed_linear(choice: ChoiceCaller) -> bool:
    """Whether ``choice`` is what a matmul with a frozen weight is on the CPU: a call of MKL or oneDNN.

    oneDNN's binary form, which adds another matrix, has no scalars among its arguments.
    """
    return isinstance(choice, ExternKernelCaller) and (
        choice.name == MKL_LINEAR or (choice.name == ONEDNN_LINEAR and "scalars" in choice.kwargs)
    )


def _from_params(uid: str, kwargs: dict[str, Any]) -> Config | None:
    template = TEMPLATE_OF_UID.get(uid)
    if template is None:
        return None
    values = {name: int(kwargs[kwarg]) for name, kwarg in KWARGS[template].items() if kwargs.get(kwarg) is not None}
    try:
        return Config.from_json({"template": template, **values})
    except ProblemError:
        return None


def problem_of_aten(aten: ChoiceCaller) -> tuple[Problem | None, tuple[Axis, ...]]:
    """The problem that the library's choice computes, and which of its sizes may change.

    The problem is None if tables have no such problems.
    """
    ktc = aten.annotations.get("ktc")
    if ktc is not None:
        op = _OP_OF_UID[ktc.template.uid]
        problem = problem_of(ktc.inputs, op, fast=ktc.params.to_kwargs().get("use_fast_accum"))
        return problem, () if problem is None else axes(ktc.inputs, op)
    return _linear_problem(aten)


def _linear_problem(aten: ChoiceCaller) -> tuple[Problem | None, tuple[Axis, ...]]:
    """That of a packed linear: x (M, K) times a frozen weight (N, K); a bias is in oneDNN's form only.

    oneDNN's weight has no strides to read any more. It counts as column-major, as ``nn.Linear`` has it.
    """
    x, *others = aten.input_nodes
    x = realize_inputs(x)  # type: ignore[no-untyped-call]  # it may still be what computes it, without strides
    if aten.name == MKL_LINEAR:
        inputs = MMKernelInputs([x, permute(others[-1], [1, 0])])
        problem = problem_of(inputs, "mm")
        return problem, () if problem is None else axes(inputs, "mm")
    n, k = others[0].get_size()
    layout = FixedLayout(x.get_device_or_error(), others[0].get_dtype(), [k, n], [1, k])
    weight = ReinterpretView(data=others[0], layout=layout)
    inputs = MMKernelInputs([x, weight])
    problem = problem_of(inputs, "mm")
    if problem is None:
        return None, ()
    return problem if len(others) == 1 else problem._replace(op="addmm"), axes(inputs, "mm")


def aten_of(choices: list[ChoiceCaller]) -> ChoiceCaller | None:
    """The choice that calls a library, as PyTorch does without Inductor: cuBLAS, MKL, oneDNN."""
    return next((choice for choice in choices if config_of(choice) == ATEN), None)


def offered(templates: Sequence[Any], name: str, op: str) -> list[Any]:
    """Those of Inductor's ``templates`` that are our template ``name`` for an op."""
    uids = UIDS[name].get(op, ())
    return [template for template in templates if template.uid in uids]


def library_choice(templates: Sequence[Any], op: str, ask: Callable[[list[Any]], list[ChoiceCaller]]) -> ChoiceCaller:
    """The library's choice for an op, or CannotRun; ``ask`` makes the choices of some of Inductor's ``templates``.

    Of addmm's two choices it is the one that keeps the bias a vector, for cuBLASLt's bias epilogue.
    """
    library = offered(templates, ATEN.template, op)
    choices = ask(library) if library else []
    if not choices:
        raise CannotRun("Inductor does not offer the library here")
    return next((choice for choice in choices if choice.name == "bias_addmm"), choices[0])
