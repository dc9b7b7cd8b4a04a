"""GEMMs in Triton with the blocks and the pipeline of Inductor's templates. They are compiled, but never run.

Compiling Inductor's own kernels takes a device; compiling these does not. A test compares the shared memory that both
need.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _place(tile, M: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The row and column of a tile, counted in blocks; tiles are ordered in groups of GROUP_M rows."""
    width = GROUP_M * tl.cdiv(N, BLOCK_N)
    group = tile // width
    height = min(tl.cdiv(M, BLOCK_M) - group * GROUP_M, GROUP_M)
    return group * GROUP_M + tile % height, (tile % width) // height


@triton.jit
def gemm(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    A_ROW_MAJOR: tl.constexpr,
    B_ROW_MAJOR: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One tile for each program, loaded through pointers; a batch would only add an offset."""
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
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    A_ROW_MAJOR: tl.constexpr,
    B_ROW_MAJOR: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Many tiles for each program, loaded through tensor descriptors."""
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
