"""Sizes that may change: which of a problem's they are, and their ranges, without a guard and without their hints."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from diode_lut.domain.ops import MAX_SIZE, OP_SIZES
from diode_lut.selection.samples import Axis


def axes_of(op: str, a: tuple[Any, ...], b: tuple[Any, ...], env: ShapeEnv) -> tuple[Axis, ...]:
    """The axes along which the problem of ``op`` with operands of these shapes may change; empty if none may.

    Sizes that are one expression are one axis, such as a batch times a length.
    """
    sizes: Mapping[str, Any] = {"m": a[-2], "n": b[-1], "k": a[-1], "b": a[0]}
    fields: dict[Any, list[str]] = defaultdict(list)
    for name in OP_SIZES[op]:
        size = sizes[name]
        expression = env.simplify(sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size))
        if not expression.is_number:
            fields[expression].append(name)
    return tuple(Axis(tuple(names), *_bounds(env, expression)) for expression, names in fields.items())


def axes_of_tensors(op: str, a: torch.Tensor, b: torch.Tensor) -> tuple[Axis, ...]:
    """The same for fake tensors."""
    env = next((size.node.shape_env for size in (*a.shape, *b.shape) if isinstance(size, torch.SymInt)), None)
    return () if env is None else axes_of(op, tuple(a.shape), tuple(b.shape), env)


def lacks_a_range(env: ShapeEnv, sizes: Iterable[Any]) -> bool:
    """Whether one of these sizes is known only when the graph runs, and nothing says how large it may be."""
    symbols = free_unbacked_symbols([env.simplify(sympy.sympify(size)) for size in sizes])
    uppers = [_range(env, symbol).upper for symbol in symbols]
    return any(not upper.is_Integer or upper >= _NO_BOUND for upper in uppers)


_NO_BOUND = sys.maxsize - 1
"""PyTorch's upper bound of the number of elements that a mask selects, if it knows none."""


def _bounds(env: ShapeEnv, expression: sympy.Expr) -> tuple[int, int | None]:
    """The least and the largest value that a size can have; None for no largest."""
    bounds = _range(env, expression)
    low = int(bounds.lower) if bounds.lower.is_Integer else 1
    high = int(bounds.upper) if bounds.upper.is_Integer and bounds.upper <= MAX_SIZE else None
    return min(max(low, 1), MAX_SIZE), high


def _range(env: ShapeEnv, expression: sympy.Expr) -> ValueRanges[Any]:
    """The values of an expression, as far as bounds, checks and the serving engine say."""
    bounds = _narrowed(env.bound_sympy(expression), _checked(env, expression))
    tokens = compile_range()
    if tokens is None or len(expression.free_symbols) != 1:
        return bounds
    (symbol,) = expression.free_symbols
    return _narrowed(bounds, bound_sympy(expression, {symbol: ValueRanges(*tokens)}))


def _checked(env: ShapeEnv, expression: sympy.Expr) -> ValueRanges[Any]:
    """What ``torch._check``, or a guard, says of an expression of several symbols, whose own bounds do not tell."""
    said = [each for each, holds in env.axioms.items() if holds is sympy.true and isinstance(each, sympy.Le)]
    most = [each.rhs for each in said if each.lhs == expression and each.rhs.is_Integer]
    least = [each.lhs for each in said if each.rhs == expression and each.lhs.is_Integer]
    return ValueRanges(max(least, default=-int_oo), min(most, default=int_oo))


def _narrowed(bounds: ValueRanges[Any], within: ValueRanges[Any]) -> ValueRanges[Any]:
    return bounds & within if within.lower <= bounds.upper and bounds.lower <= within.upper else bounds


_CONTEXTS = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")
"""Where vLLM keeps the context of its passes, in its present releases and in earlier ones."""


def compile_range() -> tuple[int, int] | None:
    """The least and the largest number of tokens for which vLLM has this graph compiled; None where it says nothing.

    vLLM compiles one graph for several ranges, without bounds on the symbol that stands for the number of tokens. Only
    the context of its passes has the range.
    """
    module = next(filter(None, map(sys.modules.get, _CONTEXTS)), None)
    found = getattr(getattr(module, "_pass_context", None), "compile_range", None)
    low, high = getattr(found, "start", None), getattr(found, "end", None)
    return (low, high) if isinstance(low, int) and isinstance(high, int) and 0 < low <= high else None
