"""Inductor's Triton kernels for flex attention: forward, backward, and forward for few queries.

Their tunables are blocks of queries and keys, pipeline stages and warps. Heads are processed whole: blocks are as wide
as the head dimensions, rounded up to powers of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from diode_lut.hardware import Architecture, Hardware
from diode_lut.problem import ITEMSIZES, Problem, least_itemsize
from diode_lut.templates.template import Complaint, Covered, Heads, Parameter, Params, Template, fitting, registers

BLOCKS = (16, 32, 64, 128)  # kernels check no ends of lengths that are multiples of 128, so no block may be larger

_STAGES = Parameter("num_stages", " s", range(1, 9), "Stages", "Depth of the software pipeline.", option=True)
_WARPS = Parameter("num_warps", " w", (1, 2, 4, 8, 16), "Warps", "Groups of threads in one program.", option=True)

_SPILLED = 2  # accumulators this many times as large as a thread's registers spill with every step
_NUMBERS = 8  # bytes that gradients read for each query besides its rows
_SINGLE = 4  # bytes of a number in float32
_BARRIERS = 128  # bytes of shared memory besides the blocks


@dataclass(frozen=True)
class Flex(Template):
    """A kernel for flex attention."""

    def shared_memory(self, params: Params, heads: Heads, itemsize: int, architecture: Architecture) -> int:
        """Return the most bytes of shared memory that the kernel takes. ``itemsize`` is in bytes.

        For sm_90, Triton's compiler takes exactly that for the loop, without barriers, if blocks have 64 queries or
        more and elements 2 bytes. For smaller blocks it takes less. To store a result, it takes up to the size of the
        result, and more with more warps.
        """
        raise NotImplementedError

    def accumulators(self, params: Params, heads: Heads) -> int:
        """Return the elements in float32 a program keeps in registers through its loop."""
        raise NotImplementedError

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about shared memory and registers for the smallest heads that are covered."""
        yield from super().complaints(params, covered, architecture)
        itemsize = least_itemsize(covered.op or self.ops[0], covered.dtype)
        yield from self.faults(params, self.heads(covered), itemsize, architecture)

    def faults(self, params: Params, heads: Heads, itemsize: int, architecture: Architecture) -> Iterator[Complaint]:
        """Yield faults of a config for these heads.

        In a sweep on an H200, the 863 configs that did not compile have faults, and the 4,592 others none.
        """
        needed, limit = self.registers(params, heads, architecture)
        if limit is not None and needed >= limit:
            reason = f"{self.values(params)['num_warps']} do not go with these blocks: {needed} registers a thread"
            yield Complaint(f"{reason} (allowed: {limit - 1})", "num_warps")
        memory, needing = self.shared_memory(params, heads, itemsize, architecture), f"heads of {heads.k} and {heads.v}"
        yield from self.memory_faults(f"{needing} elements need", memory, architecture)

    def heads(self, covered: Covered) -> Heads:
        """Return the blocks for the smallest heads a row covers."""
        k, v, m, g = (1 if sizes is None else min(sizes) for sizes in (covered.k, covered.v, covered.m, covered.g))
        return Heads.of(k, v, m * g)

    def faults_on(self, problem: Problem, params: Params, architecture: Architecture) -> Iterator[Complaint]:
        heads = Heads.of(problem.k, problem.v, problem.m * problem.g)
        return self.faults(params, heads, ITEMSIZES[problem.dtype], architecture)

    def registers(self, params: Params, heads: Heads, architecture: Architecture) -> tuple[int, int | None]:
        """Return the registers that a thread needs for accumulators, and from how many on a config is hopeless."""
        num_warps = self.values(params)["num_warps"]
        needed = -(-self.accumulators(params, heads) // (architecture.warp_size * num_warps))
        limit = registers(num_warps, architecture)
        return needed, None if limit is None else _SPILLED * limit


@dataclass(frozen=True)
class Forward(Flex):
    """A program computes ``block_m`` rows of the result, and takes ``block_n`` keys and values a step."""

    stand_in = "forward"

    def shared_memory(self, params: Params, heads: Heads, itemsize: int, architecture: Architecture) -> int:
        """Count the queries, and as many blocks of keys and values as there are stages, or later the result."""
        block_m, block_n, stages, _ = params
        loop = _loop_memory((block_m, block_n, stages), heads, itemsize, architecture)
        return max(loop, itemsize * block_m * heads.v)

    def accumulators(self, params: Params, heads: Heads) -> int:
        block_m, *_ = params
        return block_m * heads.v

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield the two largest blocks of queries the length fills, and the three of keys."""
        for block_m, block_n in product(fitting(problem.m, BLOCKS)[-2:], fitting(problem.n, BLOCKS)[-3:]):
            area = block_m * max(block_n, problem.v)  # elements of the largest block: neither too few nor too many
            all_warps = [warps for warps in (1, 2, 4, 8) if 512 <= area // warps <= 4096] or [4]
            for stages, warps in product((1, 2, 3, 4), all_warps):
                yield block_m, block_n, stages, warps


@dataclass(frozen=True)
class Backward(Flex):
    """Programs of two kinds: for gradients of keys and values (1), and for those of queries (2)."""

    stand_in = "backward"

    def shared_memory(self, params: Params, heads: Heads, itemsize: int, architecture: Architecture) -> int:
        """Count for the larger kind its rows, a step's rows for each stage, a block of scores, two numbers a query."""
        m1, n1, m2, n2, stages, _ = params
        depth = architecture.stages_in_memory(stages)
        both = heads.k + heads.v
        blocks = max(both * (rows + depth * step) + rows * step for rows, step in ((n1, m1), (m2, n2)))
        return itemsize * blocks + _NUMBERS * depth * max(m1, m2) + _BARRIERS

    def accumulators(self, params: Params, heads: Heads) -> int:
        """Count two gradients for the keys' kind, one for the queries'."""
        _, n1, m2, *_ = params
        return max(n1 * (heads.k + heads.v), m2 * heads.k)

    def faults(self, params: Params, heads: Heads, itemsize: int, architecture: Architecture) -> Iterator[Complaint]:
        """Complain as above, and about blocks that are no multiples of the blocks of their steps."""
        yield from super().faults(params, heads, itemsize, architecture)
        m1, n1, m2, n2, *_ = params
        if n1 % m1:
            yield Complaint(f"{n1} is no multiple of block_m1, which is {m1}", "block_n1")
        if m2 % n2:
            yield Complaint(f"{m2} is no multiple of block_n2, which is {n2}", "block_m2")

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield blocks of the second kind that mirror the first, as in Inductor's own search."""
        for step, rows in product((16, 32, 64), (16, 32, 64, 128)):
            if rows % step == 0 and rows < 2 * max(problem.n, 16) and step < 2 * max(problem.m, 16):
                for stages, warps in product((1, 2, 3, 4), (4, 8)):
                    yield step, rows, rows, step, stages, warps


@dataclass(frozen=True)
class Decoding(Flex):
    """A program computes all queries of a group of heads for a part of the keys, ``block_n`` of them a step."""

    stand_in = "forward"

    def blocks(self, params: Params, heads: Heads | None) -> dict[str, int]:
        """Return all queries as one block."""
        assert heads is not None
        return {**super().blocks(params, heads), "BLOCK_M": heads.rows}

    def shared_memory(self, params: Params, heads: Heads, itemsize: int, architecture: Architecture) -> int:
        """Count all queries, and a block of keys and values for each stage, or later the results in float32."""
        block_n, stages, _ = params
        loop = _loop_memory((heads.rows, block_n, stages), heads, itemsize, architecture)
        return max(loop, _SINGLE * heads.rows * heads.v)

    def accumulators(self, params: Params, heads: Heads) -> int:
        return heads.rows * heads.v

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield all blocks, stages and warps that are in proportion to each other."""
        for block_n, stages, warps in product(fitting(problem.n, BLOCKS), (1, 2, 3, 4, 5), (1, 2, 4, 8)):
            if warps <= max(2, block_n // 8):
                yield block_n, stages, warps


def _loop_memory(tile: tuple[int, int, int], heads: Heads, itemsize: int, architecture: Architecture) -> int:
    """Return the bytes of rows of queries and blocks of keys and values, and in float32 of scores."""
    rows, keys, stages = tile
    steps = architecture.stages_in_memory(stages) * keys * (heads.k + heads.v)
    scores = rows * keys if itemsize == _SINGLE else 0
    return itemsize * (rows * heads.k + steps + scores) + _BARRIERS


def _block(name: str, letter: str, meaning: str) -> Parameter:
    return Parameter(name, letter, BLOCKS, name.replace("_", " ").capitalize(), meaning)


TRITON_FLEX_ATTENTION = Forward(
    "triton_flex_attention",
    ("flex_attention",),
    (
        _block("block_m", "", "Queries that one program computes the results of."),
        _block("block_n", "x", "Keys and values that one step of the program's loop takes."),
        _STAGES,
        _WARPS,
    ),
    "Inductor's Triton kernel for flex attention.",
)
TRITON_FLEX_ATTENTION_BACKWARD = Backward(
    "triton_flex_attention_backward",
    ("flex_attention_backward",),
    (
        _block("block_m1", "", "Queries in a step of programs that compute gradients of keys and values."),
        _block("block_n1", "x", "Keys and values whose gradients one program computes."),
        _block("block_m2", " ", "Queries whose gradients one program computes."),
        _block("block_n2", "x", "Keys and values in a step of programs that compute gradients of queries."),
        _STAGES,
        _WARPS,
    ),
    "Inductor's Triton kernel for all gradients of flex attention.",
)
TRITON_FLEX_DECODING = Decoding(
    "triton_flex_decoding",
    ("flex_decoding",),
    (_block("block_n", "", "Keys and values that one step of the program's loop takes."), _STAGES, _WARPS),
    "Inductor's Triton kernel for flex attention with few queries, which cuts the keys into parts.",
)
