"""GEMMs and attention in Triton with the blocks and pipeline of Inductor's templates, compiled without a device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(tile, M: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return row and column of a tile, counted in blocks. Tiles are ordered in groups of GROUP_M rows."""
    width = GROUP_M * tl.cdiv(N, BLOCK_N)
    group = tile // width
    height = min(tl.cdiv(M, BLOCK_M) - group * GROUP_M, GROUP_M)
    return group * GROUP_M + tile % height, (tile % width) // height


@triton.jit
def gemm(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A_ROW_MAJOR: tl.constexpr, B_ROW_MAJOR: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """Compute a tile for each program, loaded through pointers. A batch would only add an offset."""
    stride_am: tl.constexpr = K if A_ROW_MAJOR else 1
    stride_ak: tl.constexpr = 1 if A_ROW_MAJOR else M
    stride_bk: tl.constexpr = N if B_ROW_MAJOR else 1
    stride_bn: tl.constexpr = 1 if B_ROW_MAJOR else K
    row, column = _place(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm = row * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = column * BLOCK_N + tl.arange(0, BLOCK_N)
    am = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    bn = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32 if c.dtype.element_ty == tl.int32 else tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        rk = step * BLOCK_K + tl.arange(0, BLOCK_K)
        x = a + am[:, None] * stride_am + rk[None, :] * stride_ak
        y = b + rk[:, None] * stride_bk + bn[None, :] * stride_bn
        if K % BLOCK_K == 0:
            acc += tl.dot(tl.load(x), tl.load(y), input_precision=PRECISION)
        else:
            left = tl.load(x, mask=rk[None, :] < K, other=0.0)
            right = tl.load(y, mask=rk[:, None] < K, other=0.0)
            acc += tl.dot(left, right, input_precision=PRECISION)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def persistent_tma_gemm(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A_ROW_MAJOR: tl.constexpr, B_ROW_MAJOR: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """Compute many tiles for each program, loaded through tensor descriptors."""
    a_tiles = tl.make_tensor_descriptor(
        a,
        shape=[M, K] if A_ROW_MAJOR else [K, M],
        strides=[K, 1] if A_ROW_MAJOR else [M, 1],
        block_shape=[BLOCK_M, BLOCK_K] if A_ROW_MAJOR else [BLOCK_K, BLOCK_M],
    )
    b_tiles = tl.make_tensor_descriptor(
        b,
        shape=[K, N] if B_ROW_MAJOR else [N, K],
        strides=[N, 1] if B_ROW_MAJOR else [K, 1],
        block_shape=[BLOCK_K, BLOCK_N] if B_ROW_MAJOR else [BLOCK_N, BLOCK_K],
    )
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), tl.num_programs(0)):
        row, column = _place(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        rm, rn = row * BLOCK_M, column * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in tl.range(0, K, BLOCK_K):
            x = a_tiles.load([rm, k] if A_ROW_MAJOR else [k, rm])
            y = b_tiles.load([k, rn] if B_ROW_MAJOR else [rn, k])
            acc += tl.dot(x if A_ROW_MAJOR else x.T, y if B_ROW_MAJOR else y.T, input_precision=PRECISION)
        cm = rm + tl.arange(0, BLOCK_M)
        cn = rn + tl.arange(0, BLOCK_N)
        result = acc.to(c.dtype.element_ty)
        tl.store(c + cm[:, None] * N + cn[None, :], result, mask=(cm[:, None] < M) & (cn[None, :] < N))


@triton.jit
def _rows(matrix, rows, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    return tl.load(matrix + rows[:, None] * STRIDE + tl.arange(0, WIDTH)[None, :])


@triton.jit
def _columns(matrix, rows, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """Load rows as columns."""
    return tl.load(matrix + rows[None, :] * STRIDE + tl.arange(0, WIDTH)[:, None])


@triton.jit
def _weights(scores, seen, sums):
    """Return attention's weights, from scores and the logarithms of the sums of their exponentials."""
    return tl.math.exp2(tl.where(seen, scores, float("-inf")) - sums)


@triton.jit
def forward(
    q, k, v, out, steps, jumps, K: tl.constexpr, V: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute a block of queries. Decoding has a single block for all heads that share keys."""
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
    """Run programs of both kinds, as in Inductor's single kernel."""
    if tl.program_id(1) == 0:
        _gradients_of_queries(
            q, k, v, do, sums, delta, dq, steps, jumps, K, V, STRIDE_K, STRIDE_V, PRECISION, BLOCK_M2, BLOCK_N2
        )
    else:
        _gradients_of_keys_and_values(
            q, k, v, do, sums, delta, dk, dv, steps, jumps, K, V, STRIDE_K, STRIDE_V, PRECISION, BLOCK_M1, BLOCK_N1
        )
