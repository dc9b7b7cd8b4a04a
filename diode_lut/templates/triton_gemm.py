"""Inductor's Triton GEMMs: a kernel each, whose tunables are blocks, pipeline stages and warps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from diode_lut.hardware import Architecture, Hardware, architecture
from diode_lut.problem import (
    FLOAT8,
    GROUPED,
    ITEMSIZES,
    ROW_BYTES,
    WITHOUT_TENSOR_CORES,
    Problem,
    Scaling,
    least_itemsize,
    letters,
)
from diode_lut.templates.template import (
    BLOCKS,
    BLOCKS_K_OF_BYTES,
    GROUP_M,
    PAD,
    SMALLEST_BLOCK,
    TILES,
    Complaint,
    Covered,
    Heads,
    Parameter,
    Params,
    Template,
    Tiles,
    fitting,
    is_precise,
    register_complaints,
    text,
)

ROCM = (
    Parameter(
        "matrix_instr_nonkdim",
        " mfma",
        (0, 4, 16, 32),
        "Matrix instruction",
        "AMD GPUs only. Rows and columns that one matrix instruction computes; 0 lets Triton choose. Left out, 16.",
        default=16,
        architectures="gfx",
        option=True,
    ),
    Parameter(
        "waves_per_eu",
        " waves",
        range(9),
        "Waves per execution unit",
        "AMD GPUs only. Number of waves on an execution unit for which Triton saves registers; 0 leaves it to Triton. "
        "Left out, 0.",
        default=0,
        architectures="gfx",
        option=True,
    ),
    Parameter(
        "kpack",
        " kpack",
        (1, 2),
        "K pack",
        "AMD GPUs only. Number of steps along K that are packed in one load from shared memory. Left out, Inductor's "
        "own value.",
        default=0,
        architectures="gfx",
        option=True,
    ),
)
"""The tunables of Triton's compiler for AMD GPUs, with Inductor's defaults."""

PARAMETERS = (*TILES, PAD, *ROCM)

_OF_BYTES = ("scaled_mm", "int_mm")  # the ops whose elements are bytes
_BARRIERS = 128  # bytes that Inductor adds to a kernel's blocks. On NVIDIA GPUs, Triton uses up to 64 of them
_OTHER_GROUPS = (1, 4, 16)  # the groups the final stage tries besides GROUP_M

_OTHER_COMPILER_OPTIONS = (("waves_per_eu", 2), ("matrix_instr_nonkdim", 32), ("kpack", 1))
"""The options the final stage tries on AMD GPUs, one at a time. Inductor's own are 0 waves, 16 rows and most often 2
steps."""

_TMA_ROWS = 64  # from this number of rows on, tensor descriptors save more than their set-up costs

_STAGES_OF_BLOCK_K = {16: (3,), 32: (3, 5), 64: (3, 4, 5), 128: (2, 3, 4), 256: (2,)}
_STAGES_OF_BYTES = {block_k: _STAGES_OF_BLOCK_K[block_k // 2] for block_k in BLOCKS_K_OF_BYTES}

_FEW_ROWS, _LONG_ROW, _MORE_STAGES = 128, 128, (6, 8)
"""With up to 128 rows a GEMM waits for its loads of B. More stages hide that, of blocks with 128 bytes or more of K.

On an H200 the best kernel with more stages was faster than the best with fewer: with 16 to 128 rows by 6 % in geometric
mean of 132 scaled_mm with scales of rows (at most 23 %), and by 1.5 % of 44 mm in bfloat16 (at most 16 %).
"""

_WIDE_ROWS = 128  # with more bytes along K, a block of a large GEMM only takes shared memory from stages
_LARGE_AREA = 128 * 256  # the largest block whose accumulator fits in the registers of eight warps
ONE_KERNEL = 16 * 32
"""The area of blocks up to which Inductor makes the same kernel with 2 warps and more: a warp for 256 elements."""

_WARPS = ((ONE_KERNEL, (2,)), (32 * 32, (2, 4)), (64 * 128 - 1, (4,)), (128 * 128, (4, 8)), (_LARGE_AREA, (8,)))
"""Warps to try, by the largest area of a block."""

_FULL_WAVES, _MEDIUM_AREA = 8, 64 * 64  # so many waves of such blocks fill a GPU: smaller blocks only lose there


@dataclass(frozen=True)
class TritonGemm(Template):
    """A Triton kernel that loads its operands with pointers."""

    tiled = True
    many_sms = True
    stand_in = "gemm"

    def constants(self, layout: str) -> str:
        """Return N and K, and M if A is column-major.

        From constants, Inductor and Triton derive that blocks divide K, how many steps there are along K, and which
        elements of A, B and C are next to each other. On an H100, kernels with such a size as an argument took up to
        1.47 times as long. The batch, or M of a row-major A, made no difference.
        """
        of_a, _ = letters(layout)
        return "nk" if of_a == "n" else "mnk"

    def shared_memory(self, tiles: Tiles, op: str, itemsize: int, architecture: Architecture) -> int:
        """Return the bytes of shared memory for stages of A and B, and for barriers. The result takes no more."""
        stage = itemsize * tiles.block_k * (tiles.block_m + tiles.block_n)
        blocks = stage * architecture.stages_in_memory(tiles.num_stages)
        barriers = _BARRIERS if architecture.triton == "cuda" else 0
        return blocks + blocks * architecture.padding_permille // 1000 + barriers

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about registers, shared memory, and a matrix instruction larger than a block."""
        yield from super().complaints(params, covered, architecture)
        tiles, instruction = Tiles.of(params), self.values(params)["matrix_instr_nonkdim"]
        if instruction and (tiles.block_m % instruction or tiles.block_n % instruction):
            reason = f"{instruction} divides no block of {tiles.block_m}x{tiles.block_n}"
            yield Complaint(reason, "matrix_instr_nonkdim")
        yield from register_complaints(tiles, architecture)
        if covered.op in _OF_BYTES and tiles.block_k not in BLOCKS_K_OF_BYTES:
            allowed = ", ".join(map(str, BLOCKS_K_OF_BYTES))
            yield Complaint(f"{tiles.block_k} is too little for {covered.op} (allowed: {allowed})", "block_k")
        itemsize = least_itemsize(covered.op, covered.dtype)
        memory = self.shared_memory(tiles, covered.op or self.ops[0], itemsize, architecture)
        yield from self.memory_faults(f"{self.name} {text(tiles)} needs", memory, architecture)

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield blocks in proportion to the problem, with stages and warps they can use.

        In float8, blocks of a matrix instruction's rows are tried on fewer rows, too: with 4 to 32 rows on an H200 they
        were 7 % faster than smaller ones in geometric mean of 96 scaled_mm with scales of rows (at most 49 %). In other
        types they gained nothing.

        Left out are blocks far larger than the problem or far too small for a large one, more stages than there are
        steps along K, a single step without tensor cores, and warps with too little or too much to do.
        """
        large = problem.b * problem.m * problem.n >= _FULL_WAVES * hardware.sm_count * _MEDIUM_AREA
        itemsize = ITEMSIZES[problem.dtype]
        rows = architecture(hardware.arch).matrix_rows if problem.dtype in FLOAT8 else SMALLEST_BLOCK
        for block_m, block_n in product(sorted({*fitting(problem.m), rows}), fitting(problem.n)):
            area = block_m * block_n
            if area > _LARGE_AREA or (large and area < _MEDIUM_AREA and min(problem.m, problem.n) >= 64):
                continue
            all_warps = next(warps for most, warps in _WARPS if area <= most)
            for block_k, stages in _depths(problem):
                if area >= _MEDIUM_AREA and block_k * itemsize > 2 * _WIDE_ROWS:
                    continue
                if problem.dtype == WITHOUT_TENSOR_CORES and problem.k <= block_k:
                    continue
                if problem.op == "scaled_mm" and not is_precise(block_k, problem.variant):
                    continue
                for warps in all_warps:
                    yield Tiles(block_m, block_n, block_k, GROUP_M, stages, warps)

    def variations(self, params: Params, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield other orders of tiles, unless all are computed at once, and on AMD other options, one at a time."""
        tiles = Tiles.of(params)
        rows, columns = -(-problem.m // tiles.block_m), -(-problem.n // tiles.block_n)
        if rows * columns * problem.b > hardware.sm_count:
            others = (tiles._replace(group_m=group) for group in _OTHER_GROUPS if group < rows)
            yield from ((*each, *params[len(each) :]) for each in others)
        if architecture(hardware.arch).triton == "hip":
            values = self.values(params)
            yield from (self.params({**values, name: value}) for name, value in _OTHER_COMPILER_OPTIONS)

    def least_sizes(self, params: Params) -> tuple[int, int, int]:
        """Return the least sizes for which blocks are less than twice as large as the problem."""
        block_m, block_n, block_k, *_ = Tiles.of(params)
        m, n, k = (1 if each <= SMALLEST_BLOCK else each // 2 + 1 for each in (block_m, block_n, block_k))
        return m, n, k


@dataclass(frozen=True)
class PersistentTma(TritonGemm):
    """A Triton kernel with one program a multiprocessor, which loads its operands through tensor descriptors."""

    tma = True
    stand_in = "persistent_tma_gemm"

    def constants(self, layout: str) -> str:
        """Return none: the kernel makes tensor descriptors when it starts, from constants or from arguments."""
        return ""

    def runs_on(self, architecture: Architecture) -> bool:
        return architecture.gpu and architecture.tma

    def shared_memory(self, tiles: Tiles, op: str, itemsize: int, architecture: Architecture) -> int:
        """Add the padded block of the result. It is in float32 before a bias or a scale, else in the inputs' type."""
        item = 4 if op in ("addmm", "scaled_mm") else itemsize
        block = item * tiles.block_m * (tiles.block_n + 16 // item)
        return super().shared_memory(tiles, op, itemsize, architecture) + block

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain as the base class, and about operands that tensor descriptors cannot describe."""
        yield from super().complaints(params, covered, architecture)
        if Tiles.of(params).num_warps == 2:
            yield Complaint("Inductor makes no kernels with TMA and 2 warps", "num_warps")
        itemsize = least_itemsize(covered.op, covered.dtype)
        if covered.align == 2 and self.values(params)["pad"] * itemsize % ROW_BYTES:
            yield Complaint(f"{self.name} needs an align of 16", "template")

    def can_pay(self, problem: Problem) -> bool:
        return problem.align == 16 and problem.m >= _TMA_ROWS

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield large blocks on aligned problems with enough rows. scaled_mm has no such kernel with a bias."""
        if problem.variant and Scaling.of(problem.variant).bias:
            return
        if self.can_pay(problem):
            for params in super().search(problem, hardware):
                tiles = Tiles.of(params)
                if tiles.block_m * tiles.block_n >= _MEDIUM_AREA and tiles.block_k >= 64 and tiles.num_stages != 5:
                    yield tiles


def _depths(problem: Problem) -> Iterator[tuple[int, int]]:
    """Yield block sizes along K, with as many stages as there are steps, at least the fewest."""
    itemsize = ITEMSIZES[problem.dtype]
    shortest = BLOCKS_K_OF_BYTES[0] if itemsize == 1 else BLOCKS[0]
    for block_k, stages in (_STAGES_OF_BYTES if itemsize == 1 else _STAGES_OF_BLOCK_K).items():
        if (block_k == BLOCKS[0] and problem.k > BLOCKS[0]) or block_k >= 2 * max(problem.k, shortest):
            continue
        if problem.m <= _FEW_ROWS and itemsize <= 2 and block_k * itemsize >= _LONG_ROW:
            stages = (*stages, *_MORE_STAGES)
        steps = -(-problem.k // block_k)
        yield from ((block_k, each) for each in stages if each == stages[0] or each <= steps + 1)


_ABOUT = "A Triton kernel that computes C in tiles, and loads its operands with pointers."

TRITON_MM = TritonGemm("triton_mm", ("mm", "addmm", "scaled_mm", "int_mm"), PARAMETERS, _ABOUT, masks_rows=True)
TRITON_BMM = TritonGemm("triton_bmm", ("bmm", "baddbmm"), PARAMETERS, _ABOUT)
TRITON_MM_PERSISTENT_TMA = PersistentTma(
    "triton_mm_persistent_tma",
    ("mm", "addmm", "scaled_mm"),
    PARAMETERS,
    "A Triton kernel that computes C in tiles, with one program on each multiprocessor, and loads its operands through "
    "tensor descriptors.",
)

_GROUPED_BARRIERS = 128  # maximum bytes of shared memory besides tiles
_FROM_MEMORY = 64  # from this number of rows of a block, the tensor cores of sm_90 read operands from shared memory
_FEW, _MANY = 32, 128  # Rows of a group. Up to _FEW, all time goes into reading B. From _MANY, small tiles only lose


@dataclass(frozen=True)
class GroupedMm(Template):
    """A Triton kernel for grouped matmuls."""

    tma = True
    many_sms = True
    stand_in = "persistent_tma_gemm"

    def runs_on(self, architecture: Architecture) -> bool:
        return architecture.triton == "cuda" and architecture.tma

    def tiles(self, params: Params) -> Tiles:
        """Return the tunables as a GEMM's, with tiles in groups of one."""
        block_m, block_n, block_k, stages, warps = params
        return Tiles(block_m, block_n, block_k, 1, stages, warps)

    def shared_memory(self, params: Params, itemsize: int) -> int:
        """Return the most bytes of shared memory that the kernel takes. Operands in registers save a stage."""
        tiles = self.tiles(params)
        stages = max(1, tiles.num_stages - (tiles.block_m < _FROM_MEMORY))
        return itemsize * tiles.block_k * (tiles.block_m + tiles.block_n) * stages + _GROUPED_BARRIERS

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about registers, shared memory, and rows that tensor descriptors cannot describe."""
        yield from super().complaints(params, covered, architecture)
        if covered.align == 2:
            yield Complaint(f"{self.name} needs an align of 16", "template")
        yield from self._faults(params, least_itemsize(self.ops[0], covered.dtype), architecture)

    def faults_on(self, problem: Problem, params: Params, architecture: Architecture) -> Iterator[Complaint]:
        return self._faults(params, ITEMSIZES[problem.dtype], architecture)

    def _faults(self, params: Params, itemsize: int, architecture: Architecture) -> Iterator[Complaint]:
        yield from register_complaints(self.tiles(params), architecture)
        yield from self.memory_faults("its blocks need", self.shared_memory(params, itemsize), architecture)

    def blocks(self, params: Params, heads: Heads | None) -> dict[str, int]:
        """Return the blocks, with tiles in groups of one."""
        return {**super().blocks(params, heads), "GROUP_M": 1}

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield blocks in proportion to the rows of a group, with few stages and with as many as fit."""
        memory, itemsize = architecture(hardware.arch).shared_memory, ITEMSIZES[problem.dtype]
        rows = -(-problem.m // problem.b)  # on average
        blocks_m = (64, 128) if rows >= _MANY else (32, 64, 128) if rows > 32 else (32, 64) if rows > 16 else (16, 32)
        pipelines = (3, 4, 6) if problem.m <= _FEW * problem.b else (3, 4)
        for block_m, block_n in product(blocks_m, (64, 128, 256)):
            area = block_m * block_n
            if rows >= _MANY and area < 64 * 128:
                continue
            all_warps = (8,) if area >= _LARGE_AREA else (4, 8) if area >= 128 * 128 else (4,)
            for block_k in (64, 128, 256) if block_m <= _FEW else (64, 128):
                if block_n * block_k >= 256 * 256:
                    continue
                needed = {
                    each: self.shared_memory((block_m, block_n, block_k, each, 4), itemsize) for each in pipelines
                }
                fitting = [each for each in pipelines if memory is None or needed[each] <= memory]
                for stages, warps in product(fitting[-2:], all_warps):
                    yield block_m, block_n, block_k, stages, warps


TRITON_GROUPED_MM = GroupedMm(
    "triton_grouped_mm",
    GROUPED,
    tuple(parameter for parameter in TILES if parameter.name != "group_m"),
    "A Triton kernel for grouped matmuls, with one program on each multiprocessor, which loads its operands through "
    "tensor descriptors.",
)
