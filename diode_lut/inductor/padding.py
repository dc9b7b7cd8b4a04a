"""Padding: whether Inductor pads the operands of a matmul, and which kernel then multiplies the padded ones.

Inductor decides on padding in its ``pad_mm`` pass, by a benchmark, long before it asks for kernels. Here a table or a
model decides instead: the operands are padded if the first config that can run has a ``pad``. Inductor asks later for
the kernel of the padded matmul. That is recognized by the nodes that pad its operands, and runs the config that had
them padded. Only the graph is looked at, not what was decided before: two compiles of the same graph decide alike, and
may share an entry of Inductor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V
from torch.fx import Node

from diode_lut.domain.problem import Problem
from diode_lut.inductor.answer import in_force, is_big_enough
from diode_lut.inductor.dynamic import axes_of_tensors
from diode_lut.inductor.problems import asked_about, axes, problem_of, problem_of_tensors, why_left
from diode_lut.inductor.snapshot import InductorSnapshot, snapshot
from diode_lut.kernels.architecture import Architecture, architecture
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.padding import PADDED_OPS, needed_pad, pad_multiple, padded
from diode_lut.selection.samples import Axis
from diode_lut.selection.selector import Decision

_OPS = {getattr(torch.ops.aten, op).default: op for op in PADDED_OPS}
_PAD = torch.ops.aten.constant_pad_nd.default


def is_answered_with_padding(match: Any, mat1: Any, mat2: Any, op: Any, bias: Any) -> bool | None:
    """Whether a table or model has the operands of a matmul padded; None where Inductor should find out by itself.

    That is so where no config of the answer has a ``pad``: whoever gave it has not compared with padded operands. But
    where sizes may change, Inductor's benchmark would decide for all of them by the first ones, so there a matmul for
    which kernels faster than aten are known keeps its operands as they are.

    A match of several matmuls is a matmul with those of its gradients, which Inductor pads together or not at all. If
    there is an answer for any of them, the result is False: Inductor then asks about each alone. Nothing is recorded,
    because Inductor will ask for the kernel, too.
    """
    if not in_force() or not snapshot().settings.pad or inductor_config.force_shape_pad:
        return None
    matmuls = [node for node in match.nodes if node.target in _OPS]
    if len(matmuls) > 1:
        return False if any(_is_answered(node) for node in matmuls) else None
    problem = problem_of_tensors(op.__name__, mat1, mat2, bias)
    if problem is None:
        return None
    changing = axes_of_tensors(problem.op, mat1, mat2)
    decision = snapshot().consider(problem, mat1.device, padding=True, axes=changing)
    if not _has_compared(decision):
        return False if changing and _gains_as_it_is(decision, mat1.device, changing) else None
    return _first_pad(decision, mat1.device) > 1 and _stay_aligned(mat1, mat2)


def _gains_as_it_is(decision: Decision, device: torch.device, changing: tuple[Axis, ...]) -> bool:
    """Whether a matmul without padding gets kernels that are faster than aten, for all sizes or for parts of them."""
    if not decision.configs:
        return False
    return decision.configs[0] != ATEN or bool(snapshot().pieces(decision.problem, device, changing, library=True))


def _has_compared(decision: Decision) -> bool:
    return any(config.pad > 1 for config in (*decision.configs, *decision.left_out))


def decide(now: InductorSnapshot, inputs: Any, op: str, *, fast: bool | None = None) -> tuple[Decision | None, int]:
    """The compile's decision about a matmul with these KernelInputs, and the number of elements they are padded to.

    ``fast`` says whether a scaled_mm accumulates fast; None for other ops.

    Where sizes may change, it is the decision over all of them. Padding leaves such sizes as they are.

    If the graph pads the operands, and would be answered with that padding, the decision is about the matmul without
    it. Else an addmm with more than a row as its bias is an mm with an epilogue, as ``asked_about`` has it. None if
    tables have no such problems, or none is asked, which is recorded.
    """
    device = inputs.device()
    unpadded = _unpadded(V.graph.current_node, op) if now.settings.pad else None
    if unpadded is not None:
        changing = axes(inputs, op)
        pad = _first_pad(now.consider(unpadded, device, padding=True, axes=changing), device)
        if pad > 1:
            return now.decide(unpadded, device, padding=True, axes=changing), pad
    problem = problem_of(inputs, op, fast=fast)
    if problem is None:
        return None, 1
    why = why_left(problem, inputs.mat1mat2())
    if why:
        now.record_no_choice(problem, device, why)
        return None, 1
    asked = asked_about(problem, inputs) if now.settings.epilogues else problem
    return now.decide(asked, device, padding=False, axes=axes(inputs, op)), 1


def followed(decision: Decision, pad: int, inputs: Any, op: str) -> Problem | None:
    """The problem that pointwise work may follow, where a matmul with these KernelInputs was decided with ``pad``.

    That of padded operands is a problem of its own, whose rows are aligned. None where the result is cut to its size
    before anything follows, and for padded operands with sizes that may change.
    """
    if pad == 1:
        return decision.problem
    problem = None if axes(inputs, op) else problem_of(inputs, op)
    if problem is None or (problem.m, problem.n) != (decision.problem.m, decision.problem.n):
        return None
    return asked_about(problem, inputs)


def _is_answered(matmul: Node) -> bool:
    *bias, a, b = matmul.args[: 3 if _OPS[matmul.target] == "addmm" else 2]
    tensors = _values((a, b, *bias))
    problem = None if tensors is None else problem_of_tensors(_OPS[matmul.target], *tensors)
    if problem is None or tensors is None:
        return False
    changing = axes_of_tensors(problem.op, *tensors[:2])
    return bool(snapshot().consider(problem, tensors[0].device, padding=True, axes=changing).configs)


def _first_pad(decision: Decision, device: torch.device) -> int:
    """What the first config that can run on the device has its operands padded to; 1 if it does not, or none can."""
    named = decision.configs[:1] if decision.only_first else decision.configs
    candidates = [config for config in named if is_big_enough(device, decision, config)]
    arch = architecture(decision.hardware.arch)
    pads = ((config, needed_pad(decision.problem, config.pad)) for config in candidates)
    return next((pad for config, pad in pads if _can_run(config, pad, decision.problem, arch)), 1)


def _can_run(config: Config, pad: int, problem: Problem, arch: Architecture) -> bool:
    """Whether the config can run on operands of the problem, padded to multiples of ``pad``.

    That is so as far as it can be known before there are operands.
    """
    if pad not in (1, pad_multiple(problem.dtype)):
        return False
    problem = padded(problem, pad)
    covered = _Covered(problem.op, problem.dtype, problem.align, (problem.k, problem.k))
    kernel = config.kernel
    return (
        problem.op in kernel.ops and kernel.runs_on(arch) and not any(kernel.complaints(config.params, covered, arch))
    )


class _Covered(NamedTuple):
    """One problem as what a row covers."""

    op: str
    dtype: str
    align: int
    k: tuple[int, int]
    m: None = None
    g: None = None
    v: None = None


def _stay_aligned(a: Any, b: Any) -> bool:
    """Whether no row has a size that may change: Inductor does not pad these."""
    return all(isinstance(tensor.shape[-1], int) for tensor in (a, b))


def _unpadded(node: Node | None, op: str) -> Problem | None:
    """The problem before its operands were padded, as ``pad_mm`` pads; None if they are not padded so."""
    if node is None or _OPS.get(node.target) != op:
        return None
    *bias, a, b = node.args[: 3 if op == "addmm" else 2]
    (a, m, k), (b, same_k, n) = _source(a), _source(b)
    if k != same_k or not (m or n or k):
        return None
    tensors = _values((a, b, *bias))
    if tensors is None:
        return None
    problem = problem_of_tensors(op, *tensors)
    return problem if problem is not None and _is_inductors(problem, (m, n, k), tensors) else None


def _is_inductors(problem: Problem, added: tuple[int, int, int], tensors: Sequence[Any]) -> bool:
    """Whether M, N and K grow by what Inductor adds. To a size that may change, that is nothing."""
    a, b, *_ = tensors
    wanted = padded(problem, pad_multiple(problem.dtype))
    growths = (wanted.m - problem.m, wanted.n - problem.n, wanted.k - problem.k)
    sizes = (a.shape[-2], b.shape[-1], a.shape[-1])
    return all(
        count == (growth if isinstance(size, int) else 0)
        for count, size, growth in zip(added, sizes, growths, strict=True)
    )


def _source(operand: Any) -> tuple[Any, int, int]:
    """What ``operand`` was before padding, and the number of rows and columns of zeros that were added at its end."""
    if not isinstance(operand, Node) or operand.target is not _PAD:
        return operand, 0, 0
    source, pads, *value = (*operand.args, *operand.kwargs.values())
    before, after = cast("list[Any]", pads)[::2], cast("list[Any]", pads)[1::2]  # of each dimension, the last one first
    if any(before) or any(after[2:]) or any(value):
        return operand, 0, 0
    columns, rows = (*after, 0)[:2]
    return source, rows, columns


def _values(nodes: Sequence[Any]) -> tuple[Any, ...] | None:
    """The fake tensors that graph nodes stand for; None if one has none."""
    values = tuple(node.meta.get("val") if isinstance(node, Node) else None for node in nodes)
    return values if all(isinstance(value, torch.Tensor) for value in values) else None
