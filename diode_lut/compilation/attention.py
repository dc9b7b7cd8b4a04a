"""Attention in Triton with the blocks and the pipeline of Inductor's kernels, under a causal mask. It is never run.

``steps`` says how many blocks are visited, and ``jumps`` how far apart they are, as in Inductor's block masks. Heads
are powers of two. A test compares the shared memory that these kernels and Inductor's need.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(matrix, rows, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    return tl.load(matrix + rows[:, None] * STRIDE + tl.arange(0, WIDTH)[None, :])


@triton.jit
def _columns(matrix, rows, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """The same, transposed."""
    return tl.load(matrix + rows[None, :] * STRIDE + tl.arange(0, WIDTH)[:, None])


@triton.jit
def _weights(scores, seen, sums):
    """Attention's weights, from scores and the logarithms of the sums of their exponentials."""
    return tl.math.exp2(tl.where(seen, scores, float("-inf")) - sums)


@triton.jit
def forward(
    q,
    k,
    v,
    out,
    steps,
    jumps,
    K: tl.constexpr,
    V: tl.constexpr,
    STRIDE_K: tl.constexpr,
    STRIDE_V: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A block of queries; decoding has those of all heads that share keys in its only one."""
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = _rows(q, rm, K, STRIDE_K)
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, V], tl.float32)
    start = tl.load(jumps)
    for step in range(tl.load(steps)):
        rn = start + tl.arange(0, BLOCK_N)
        scores = tl.dot(queries, tl.trans(_rows(k, rn, K, STRIDE_K)), input_precision=PRECISION)
        scores = tl.where(rm[:, None] >= rn[None, :], scores, float("-inf"))
        before, most = most, tl.maximum(most, tl.max(scores, 1))
        finite = tl.where(most == float("-inf"), 0.0, most)
        weights = tl.math.exp2(scores - finite[:, None])
        fading = tl.math.exp2(before - finite)
        total = total * fading + tl.sum(weights, 1)
        values = _rows(v, rn, V, STRIDE_V)
        acc = tl.dot(weights.to(values.dtype), values, acc * fading[:, None], input_precision=PRECISION)
        start += tl.load(jumps + step)
    tl.store(out + rm[:, None] * V + tl.arange(0, V)[None, :], (acc / total[:, None]).to(out.dtype.element_ty))


@triton.jit
def _gradients_of_queries(
    q, k, v, do, sums, delta, dq, steps, jumps,
    K: tl.constexpr, V: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    queries, gradient = _rows(q, rm, K, STRIDE_K), _rows(do, rm, V, STRIDE_V)
    sums_m, delta_m = tl.load(sums + rm), tl.load(delta + rm)
    acc = tl.zeros([BLOCK_M, K], tl.float32)
    start = tl.load(jumps)
    for step in range(tl.load(steps)):
        rn = start + tl.arange(0, BLOCK_N)
        keys = _columns(k, rn, K, STRIDE_K)
        scores = tl.dot(queries, keys, input_precision=PRECISION)
        weights = _weights(scores, rm[:, None] >= rn[None, :], sums_m[:, None])
        inner = tl.dot(gradient, _columns(v, rn, V, STRIDE_V), input_precision=PRECISION)
        of_scores = (weights * (inner - delta_m[:, None])).to(keys.dtype)
        acc += tl.dot(of_scores, tl.trans(keys), input_precision=PRECISION)
        start += tl.load(jumps + step)
    tl.store(dq + rm[:, None] * STRIDE_K + tl.arange(0, K)[None, :], acc.to(dq.dtype.element_ty))


@triton.jit
def _gradients_of_keys_and_values(
    q, k, v, do, sums, delta, dk, dv, steps, jumps,
    K: tl.constexpr, V: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    keys, values = _rows(k, rn, K, STRIDE_K), _rows(v, rn, V, STRIDE_V)
    of_keys, of_values = tl.zeros([BLOCK_N, K], tl.float32), tl.zeros([BLOCK_N, V], tl.float32)
    start = tl.load(jumps)
    for step in range(tl.load(steps)):
        rm = start + tl.arange(0, BLOCK_M)
        queries = _columns(q, rm, K, STRIDE_K)
        scores = tl.dot(keys, queries, input_precision=PRECISION)
        weights = _weights(scores, rm[None, :] >= rn[:, None], tl.load(sums + rm)[None, :])
        gradient = _rows(do, rm, V, STRIDE_V)
        of_values += tl.dot(weights.to(gradient.dtype), gradient, input_precision=PRECISION)
        inner = tl.dot(values, tl.trans(gradient), input_precision=PRECISION)
        of_scores = (weights * (inner - tl.load(delta + rm)[None, :])).to(queries.dtype)
        of_keys += tl.dot(of_scores, tl.trans(queries), input_precision=PRECISION)
        start += tl.load(jumps + step)
    tl.store(dk + rn[:, None] * STRIDE_K + tl.arange(0, K)[None, :], of_keys.to(dk.dtype.element_ty))
    tl.store(dv + rn[:, None] * STRIDE_V + tl.arange(0, V)[None, :], of_values.to(dv.dtype.element_ty))


@triton.jit
def backward(
    q, k, v, do, dq, dk, dv, sums, delta, steps, jumps,
    K: tl.constexpr, V: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr, BLOCK_M2: tl.constexpr, BLOCK_N2: tl.constexpr,
):  # fmt: skip
    """Programs of both kinds, as in one kernel of Inductor's."""
    if tl.program_id(1) == 0:
        _gradients_of_queries(
            q, k, v, do, sums, delta, dq, steps, jumps, K, V, STRIDE_K, STRIDE_V, PRECISION, BLOCK_M2, BLOCK_N2
        )
    else:
        _gradients_of_keys_and_values(
            q, k, v, do, sums, delta, dk, dv, steps, jumps, K, V, STRIDE_K, STRIDE_V, PRECISION, BLOCK_M1, BLOCK_N1
        )
