"""Kernels to measure: products that share A, gated ones, few rows by reductions, and parts of K; compiled anywhere.

All sizes are constants, as in the kernels of Inductor's templates. ``compiled`` needs no GPU, so that other processes
can fill Triton's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.compiler import ASTSource
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _wait(b, rn, K: tl.constexpr, PDL: tl.constexpr):
    """Let the next kernel start, and wait for the one before. With PDL 2, weights are fetched into the L2 meanwhile."""
    if PDL > 0:
        gdc_launch_dependents()
    if PDL == 2:
        rk = tl.arange(0, 16) * 64
        for k in tl.static_range(0, K if K < 2048 else 2048, 1024):
            at = b + rn[:, None] * K + tl.minimum(rk + k, K - 1)[None, :]
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at.to(tl.int64)], tl.int32, is_pure=False, pack=1
            )
    if PDL > 0:
        gdc_wait()


@triton.jit
def matmul(
    a, b0, b1, b2, c0, c1, c2, d0, d1, d2,
    M: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, K: tl.constexpr,
    EXTRA: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Multiply A by one to three B, [N, K] in memory, each into its own C; the tile's column says by which B.

    A second axis of the grid has SPLIT parts of K, whose sums stay apart. EXTRA 1 adds biases d. EXTRA 2 multiplies by
    d0, adds d1, and replaces negative results by 0.
    """
    first: tl.constexpr = (N0 + BLOCK_N - 1) // BLOCK_N
    second: tl.constexpr = (N1 + BLOCK_N - 1) // BLOCK_N
    third: tl.constexpr = (N2 + BLOCK_N - 1) // BLOCK_N
    grid_m: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    even: tl.constexpr = N0 % BLOCK_N == 0 and N1 % BLOCK_N == 0 and N2 % BLOCK_N == 0
    total: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    pid = tl.program_id(0)
    width = GROUP_M * (first + second + third)
    group = pid // width
    height = min(grid_m - group * GROUP_M, GROUP_M)
    row = group * GROUP_M + pid % height
    tile = (pid % width) // height
    tl.assume(row >= 0)
    tl.assume(tile >= 0)
    if N1 == 0:
        b, c, d, column = b0, c0, d0, tile
    elif N2 == 0:
        if tile < first:
            b, c, d, column, own = b0, c0, d0, tile, tile * 0 + N0
        else:
            b, c, d, column, own = b1, c1, d1, tile - first, tile * 0 + N1
    else:
        if tile < first:
            b, c, d, column, own = b0, c0, d0, tile, tile * 0 + N0
        elif tile < first + second:
            b, c, d, column, own = b1, c1, d1, tile - first, tile * 0 + N1
        else:
            b, c, d, column, own = b2, c2, d2, tile - first - second, tile * 0 + N2
    n = N0 if (N1 == 0 or N1 == N0) and (N2 == 0 or N2 == N0) else own
    rm = row * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = column * BLOCK_N + tl.arange(0, BLOCK_N)
    am = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M) if M >= BLOCK_M else rm % M
    bn = tl.max_contiguous(tl.multiple_of(rn if even else rn % n, BLOCK_N), BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    _wait(b, bn, K, PDL)
    if SPLIT == 1:
        begin, end = 0, total
    else:
        begin = tl.program_id(1) * ((total + SPLIT - 1) // SPLIT)
        end = min(begin + (total + SPLIT - 1) // SPLIT, total)
        c += tl.program_id(1) * M * N0
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(begin, end):
        k = step * BLOCK_K + rk
        if K % BLOCK_K == 0:
            x = tl.load(a + am[:, None] * K + k[None, :])
            y = tl.load(b + k[:, None] + bn[None, :] * K)
        else:
            x = tl.load(a + am[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
            y = tl.load(b + k[:, None] + bn[None, :] * K, mask=k[:, None] < K, other=0.0)
        acc += tl.dot(x, y)
    rm = row * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = column * BLOCK_N + tl.arange(0, BLOCK_N)
    if EXTRA == 1:
        acc += tl.load(d + rn, mask=rn < n, other=0.0).to(tl.float32)[None, :]
    if EXTRA == 2:
        scale = tl.load(d0 + rn, mask=rn < n, other=0.0).to(tl.float32)
        shift = tl.load(d1 + rn, mask=rn < n, other=0.0).to(tl.float32)
        acc = tl.maximum(acc * scale[None, :] + shift[None, :], 0.0)
    mask = (rm[:, None] < M) & (rn[None, :] < n)
    tl.store(c + rm[:, None] * n + rn[None, :], acc.to(c.dtype.element_ty), mask)


@triton.jit
def gated(
    a, b0, b1, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr
):  # fmt: skip
    """Compute silu(A B0) * (A B1), both B [N, K] in memory."""
    pid = tl.program_id(0)
    width = GROUP_M * ((N + BLOCK_N - 1) // BLOCK_N)
    group = pid // width
    height = min((M + BLOCK_M - 1) // BLOCK_M - group * GROUP_M, GROUP_M)
    row = group * GROUP_M + pid % height
    column = (pid % width) // height
    rm = row * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = column * BLOCK_N + tl.arange(0, BLOCK_N)
    am = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M) if M >= BLOCK_M else rm % M
    bn = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range((K + BLOCK_K - 1) // BLOCK_K):
        k = step * BLOCK_K + rk
        at = k[:, None] + bn[None, :] * K
        if K % BLOCK_K == 0:
            x = tl.load(a + am[:, None] * K + k[None, :])
            gate += tl.dot(x, tl.load(b0 + at))
            up += tl.dot(x, tl.load(b1 + at))
        else:
            x = tl.load(a + am[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
            gate += tl.dot(x, tl.load(b0 + at, mask=k[:, None] < K, other=0.0))
            up += tl.dot(x, tl.load(b1 + at, mask=k[:, None] < K, other=0.0))
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    result = gate * tl.sigmoid(gate) * up
    tl.store(c + rm[:, None] * N + rn[None, :], result.to(c.dtype.element_ty), mask)


@triton.jit
def reduction(
    a,
    b,
    c,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    PDL: tl.constexpr,
    X: tl.constexpr,
    R: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Multiply as Inductor's reductions do: X columns and R of K at a time, added up at the end; M is a power of 2."""
    rx = tl.program_id(0) * X + tl.arange(0, X)
    rr = tl.arange(0, R)
    rm = tl.arange(0, M)
    _wait(b, tl.minimum(rx, N - 1), K, PDL)
    acc = tl.zeros((M, X, R), tl.float32)
    for r in tl.range(0, K, R, num_stages=STAGES):
        k = r + rr
        mask = (rx[:, None] < N) & (k[None, :] < K)
        y = tl.load(b + rx[:, None] * K + k[None, :], mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        x = tl.load(a + rm[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0).to(tl.float32)
        acc += x[:, None, :] * y[None, :, :]
    out = tl.sum(acc, 2)
    at = rm[:, None] * N + rx[None, :]
    tl.store(c + at, out.to(c.dtype.element_ty), mask=(rm[:, None] < M) & (rx[None, :] < N))


@triton.jit
def add_parts(parts, c, SIZE: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the parts that ``matmul`` leaves."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if PDL > 0:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        acc += tl.load(parts + part * SIZE + at, mask=at < SIZE, other=0.0)
    tl.store(c + at, acc.to(c.dtype.element_ty), mask=at < SIZE)


@triton.jit
def silu_times(x, y, c, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Compute silu(x) * y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at, mask=at < SIZE, other=0.0).to(tl.float32)
    right = tl.load(y + at, mask=at < SIZE, other=0.0).to(tl.float32)
    tl.store(c + at, (left * tl.sigmoid(left) * right).to(c.dtype.element_ty), mask=at < SIZE)


@triton.jit
def scale_relu(x, scale, shift, c, SIZE: tl.constexpr, N: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr):
    """Compute relu(x * scale + shift) with N scales, one for every INNER elements, as batch norm in inference."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = at // INNER % N
    value = tl.load(x + at, mask=at < SIZE, other=0.0).to(tl.float32)
    value = value * tl.load(scale + channel).to(tl.float32) + tl.load(shift + channel).to(tl.float32)
    tl.store(c + at, tl.maximum(value, 0.0).to(c.dtype.element_ty), mask=at < SIZE)


KERNELS = {each.__name__: each for each in (matmul, gated, reduction, add_parts, silu_times, scale_relu)}
BLOCK = 1024  # elements that a program of a pointwise kernel computes


class Spec(NamedTuple):
    """A kernel to compile: its name, types of its pointers, its constants, and options of Triton."""

    kernel: str
    types: tuple[str, ...]
    constants: tuple[int, ...]
    warps: int = 4
    stages: int = 1
    pdl: bool = False


@cache
def compiled(spec: Spec) -> Any:
    """The kernel for sm_90, from Triton's cache if it is there."""
    function = KERNELS[spec.kernel]
    names = function.arg_names
    pointers = names[: len(spec.types)]
    signature = {name: f"*{kind}" for name, kind in zip(pointers, spec.types, strict=True)}
    signature |= dict.fromkeys(names[len(pointers) :], "constexpr")
    constants = dict(zip(names[len(pointers) :], spec.constants, strict=True))
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(pointers))}
    source = ASTSource(function, signature, constants, aligned)
    options = {"num_warps": spec.warps, "num_stages": spec.stages}
    if spec.pdl:
        options["launch_pdl"] = True
    return triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 90, 32), options=options)


def compile_in_cache(spec: Spec) -> str:
    """Have Triton's cache hold the kernel; Triton's error, if it has one."""
    try:
        compiled(spec)
    except Exception as error:  # noqa: BLE001 - whatever Triton raises
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return ""


def launcher(spec: Spec, grid: tuple[int, int, int], *tensors: Any) -> Callable[[], object]:
    """A function that launches the kernel; the first call loads it."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return lambda: KERNELS[spec.kernel][grid](*tensors, *spec.constants)
    return lambda: compiled(spec)[grid](*tensors, *spec.constants)
