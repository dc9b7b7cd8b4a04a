"""What becomes of generated attention that is compiled and run."""

import math
from pathlib import Path
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.attention import Attention, Modification
from tests.fake_cuda import Input
from tests.fuzzing.attention import AttentionCase
from tests.fuzzing.op_check import executed_op
from tests.fuzzing.operands import filled
from tests.fuzzing.outcome import Outcome
from tests.fuzzing.runs import Run

DOCUMENT = 48  # positions in a document


def executed_attention(case: AttentionCase, device: str, directory: Path) -> Outcome:
    """The outcome of compiling it and running it, with its gradients if it has any."""
    attention = case.attention
    documents = (torch.arange(max(attention.m, attention.n), dtype=torch.int32) // DOCUMENT).to(device)
    mask = _mask(attention, documents)

    def function(q: Any, k: Any, v: Any, bias: Any) -> list[Any]:
        score = _biased(bias) if attention.bias else attention.score
        options: Any = case.options
        return [flex_attention(q, k, v, score, blocks, enable_gqa=attention.g > 1, kernel_options=options)]

    def run() -> Run:
        nonlocal blocks
        if mask is not None:
            sizes: Any = (attention.m, attention.n)
            blocks = create_block_mask(mask, None, None, *sizes, device=device, BLOCK_SIZE=attention.block)
        specs = attention.inputs()
        tensors = [filled(_dense(spec), device, 1.0) for spec in (*specs[:3], specs[4])]
        for dimension in specs[0].dynamic:
            torch._dynamo.maybe_mark_dynamic(tensors[0], dimension)
        return Run.of(tensors, function, lambda *each: [_exact(attention, *each)], backward=case.backward)

    blocks = None
    return executed_op(case, device, directory, function, run, backward=case.backward)


def _dense(spec: Input) -> Input:
    return spec._replace(stride=make_contiguous_strides_for(spec.shape))


def _mask(attention: Attention, documents: torch.Tensor) -> Modification | None:
    if not attention.documents:
        return attention.mask

    def same_document(b: Any, h: Any, m: Any, n: Any) -> Any:
        return documents[m] == documents[n]

    return same_document


def _biased(bias: torch.Tensor) -> Modification:
    def biased(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return score + bias[h]

    return biased


def _exact(attention: Attention, q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
    """The result on the CPU; zero for a query that sees no key."""
    g = attention.g
    scores = q @ k.repeat_interleave(g, 1).transpose(-1, -2) / math.sqrt(attention.k)
    scores = scores + bias[:, None, None] if attention.bias else attention.score(scores, 0, 0, 0, 0)
    mask = _mask(attention, torch.arange(max(attention.m, attention.n)) // DOCUMENT)
    places: list[Any] = [torch.arange(attention.m)[:, None], torch.arange(attention.n)[None]]
    seen = torch.ones(attention.m, attention.n, dtype=torch.bool) if mask is None else mask(0, 0, *places)
    some = seen.any(-1, keepdim=True)
    weights = scores.masked_fill(~seen, -math.inf).masked_fill(~some, 0.0).softmax(-1) * some
    result: torch.Tensor = weights @ v.repeat_interleave(g, 1)
    return result
