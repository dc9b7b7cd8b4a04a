"""Flex attention: answer Inductor from the tables, when it asks its handler for configs by head dimension and dtype.

The rest of the problem is read from the node in the graph: its tensors, and the graphs of its score and mask
modifications. No size is guarded. If a size may change, Inductor decides alone, and this is recorded.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from diode_lut.errors import ProblemError
from diode_lut.hook.choices import in_force, require_fit
from diode_lut.hook.problems import SIZES_CHANGE, dtype_of, hint
from diode_lut.hook.snapshot import CannotRun, autotuning, settled, tried
from diode_lut.problem import ITEMSIZES, Modifications, Operand, Problem
from diode_lut.templates.config import DEFAULT, Config

_NODES = {"flex_decoding": "flex_attention", **{op: op for op in ("flex_attention", "flex_attention_backward")}}
"""PyTorch's names of the higher-order operators, by op."""

_IGNORED = {"flex_attention": "bwd_", "flex_decoding": "bwd_", "flex_attention_backward": "fwd_"}
"""The beginnings of names of kernel options for the other direction, by op."""

_HARMLESS = frozenset(
    {
        *("BACKEND", "FORCE_USE_FLEX_ATTENTION", "PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS"),
        *("WRITE_DQ", "OUTPUT_LOGSUMEXP", "OUTPUT_MAX"),
    }
)
"""Kernel options that go with any config. If the user sets others, no table is asked."""

_USER_CHOOSES = "kernel_options choose blocks, stages or warps"

InductorConfigs = list[Any]  # Inductor's configs: objects with a field for each of our tunables


class Attention(NamedTuple):
    """One attention in a graph: its problem, the blocks of its sparse mask, and where it runs.

    ``why_left`` is the reason not to ask tables about it, or empty. If sizes may change, the problem has hints.
    """

    problem: Problem
    sparse_q: int
    sparse_kv: int
    device: torch.device
    why_left: str


def answer_attention(op: str, ask_base: Callable[[], InductorConfigs]) -> InductorConfigs | None:
    """Return Inductor's configs for the attention being lowered, or None if it should choose among its own."""
    now = in_force()
    asked = None if now is None else attention_of(V.graph.current_node, op)
    if now is None or asked is None:
        return None
    if asked.why_left:
        now.record_no_choice(asked.problem, asked.device, asked.why_left)
        return None
    decision = now.decide(asked.problem, asked.device, padding=False)
    with inductor_config.patch(max_autotune=False):
        own = ask_base()
    if len(own) != 1:
        raise CannotRun(f"Inductor has {len(own)} configs where one was expected")
    make, most = partial(_inductors, asked, own[0]), now.settings.top_k if autotuning() else 1
    return list(settled(now, decision, tried(decision, make), most, DEFAULT, make).values()) or None


def forced(op: str, config: Config, ask_base: Callable[[], InductorConfigs]) -> Any:
    """Return ``config`` as Inductor's, for the attention being lowered. CannotRun if it cannot run."""
    asked = attention_of(V.graph.current_node, op)
    if asked is None or asked.why_left:
        raise CannotRun("tables have no such problems")
    with inductor_config.patch(max_autotune=False):
        own, *_ = ask_base()
    return _inductors(asked, own, config)


def _inductors(asked: Attention, own: Any, config: Config) -> Any:
    """Return a copy of Inductor's config ``own`` with the tunables of ``config``. CannotRun if it cannot run.

    Each call makes a new object, because Inductor changes it.
    """
    if asked.problem.op not in config.kernel.ops:
        raise CannotRun(f"{config.template} is not for {asked.problem.op}")
    made = dataclasses.replace(own, **config.tunables)
    if config == DEFAULT and asked.problem.op == "flex_decoding":
        made.block_n = min(made.block_n, asked.sparse_kv)  # as Inductor does
    _require_divisors(made, asked)
    require_fit(config, asked.problem, asked.device)
    return made


def _require_divisors(made: Any, asked: Attention) -> None:
    """Raise CannotRun if the config's blocks do not divide the mask's. With a single such config, Inductor fails."""
    for name, block in vars(made).items():
        queries = name.startswith("block_m")
        sparse = asked.sparse_q if queries else asked.sparse_kv
        if name.startswith("block_") and sparse % block:
            blocked = "queries" if queries else "keys"
            raise CannotRun(f"a block of {block} {blocked} does not divide the mask's, of {sparse}")


def attention_of(node: Any, op: str) -> Attention | None:
    """Return the attention that a node computes, or None if tables have no such problems.

    They have none if types differ, if batches share keys, or if rows have gaps between elements.
    """
    operator_ = getattr(torch.ops.higher_order, _NODES[op])
    if getattr(node, "target", None) is not operator_:
        return None
    bound = signature(type(operator_).__call__).bind(operator_, *node.args, **node.kwargs)
    bound.apply_defaults()
    arguments: Mapping[str, Any] = bound.arguments  # by name, because releases have different ones
    query, key, value = (arguments[name].meta["val"] for name in ("query", "key", "value"))
    *_, sparse_q, sparse_kv, mask = arguments["block_mask"]
    sizes = (*query.shape, *key.shape, *value.shape, *query.stride(), *key.stride(), *value.stride())
    if query.device.type != "cuda":
        return None
    why_left = "" if all(type(size) is int for size in (*sizes, sparse_q, sparse_kv)) else SIZES_CHANGE
    harmless = _HARMLESS if query.dtype == torch.float32 else {*_HARMLESS, "FLOAT32_PRECISION"}
    options = (name for name in arguments["kernel_options"] if not name.startswith(_IGNORED[op]))
    if not harmless.issuperset(name.removeprefix("fwd_").removeprefix("bwd_") for name in options):
        why_left = _USER_CHOOSES

    def graph_of(modification: Any) -> torch.fx.Graph:
        module: Any = operator.attrgetter(str(modification.target))(modification.graph.owning_module)
        graph: torch.fx.Graph = module.graph
        return graph

    score = graph_of(arguments["score_mod"] if "score_mod" in arguments else arguments["fw_graph"])
    is_plain = _result(score) is _placeholders(score)[0]  # of ``score_mod(score, b, h, q_idx, kv_idx)``
    scores = "captured" if arguments["score_mod_other_buffers"] else "plain" if is_plain else "computed"
    variant = Modifications(mask_class(graph_of(mask), arguments["mask_mod_other_buffers"]), scores)
    dtype = dtype_of({query.dtype, key.dtype, value.dtype}, query.device.type)
    operands = [
        Operand(tuple(map(hint, each.shape)), tuple(map(hint, each.stride())), hint(each.storage_offset()))
        for each in (query, key, value)
    ]
    (b, h, m, k), (batches, shared, n, _), (*_, v) = (operand.sizes for operand in operands)
    if dtype is None or batches != b or any(operand.strides[-1] != 1 for operand in operands):
        return None
    align = 16 if all(operand.is_aligned(ITEMSIZES[dtype]) for operand in operands) else 2
    named: dict[str, Any] = {"b": b, "m": m, "n": n, "k": k, "h": h, "g": h // shared, "v": v}
    try:
        problem = Problem.checked(op, dtype, "nt", align, variant=str(variant), **named)
    except ProblemError:
        return None
    return Attention(problem, sparse_q, sparse_kv, query.device, why_left)


def mask_class(graph: torch.fx.Graph, buffers: Sequence[Any]) -> str:
    """Return the class of MASKS for the graph of ``mask_mod(b, h, q_idx, kv_idx)``."""
    if buffers:
        return "captured"
    *_, m, n = placeholders = _placeholders(graph)
    result = _result(graph)
    pending, seen = [result], set()
    while pending:  # ``new_ones`` reads an index for its device alone, not for its value
        each = pending.pop()
        if each in placeholders:
            break
        if each not in seen and each.target not in _MADE_FROM_SHAPES:
            seen.add(each)
            pending += each.all_input_nodes
    else:  # the mask depends on no index
        return "full"
    aten = torch.ops.aten
    causal = ((aten.ge.Tensor, (m, n)), (aten.le.Tensor, (n, m)))
    return "causal" if (result.target, tuple(result.args)) in causal else "computed"


def _placeholders(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return list(graph.find_nodes(op="placeholder"))


def _result(graph: torch.fx.Graph) -> Any:
    (output,) = graph.find_nodes(op="output")
    result = output.args[0]
    return result[0] if isinstance(result, (list, tuple)) else result


_MADE_FROM_SHAPES = (torch.ops.aten.new_ones.default, torch.ops.aten.full.default)
