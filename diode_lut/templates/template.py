"""The base of kernel templates, and the templates without blocks. Each other module has a family of templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from diode_lut.hardware import Architecture, Hardware
from diode_lut.problem import ATTENTION, GENERATED, GROUPED, MATMULS, TOGETHER, Problem, Scaling, rounded_up

Params = tuple[int, ...]  # the values of a template's tunables, in the order of its ``parameters``


class Parameter(NamedTuple):
    """A tunable of a template: its name, the text ``str(config)`` writes before it, and its allowed values.

    ``values`` is a tuple, or a range of integers. ``title`` and ``meaning`` are for the schema. A tunable with a
    ``default`` is optional, and a config with this value does not mention it. A default outside ``values`` stands for
    the kernel's own value, and cannot be written. Architectures whose names begin with ``architectures`` have the
    tunable. ``option`` says whether it is an option of Triton's compiler. As an option, 0 leaves it to the compiler.
    """

    name: str
    letter: str
    values: tuple[int, ...] | range
    title: str
    meaning: str
    default: int | None = None
    architectures: str = ""
    option: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values as text, for messages."""
        if isinstance(self.values, range):
            return f"{self.values[0]} to {self.values[-1]}"
        return ", ".join(map(str, self.values))

    def is_known_to(self, architecture: Architecture) -> bool:
        """Return whether kernels for the architecture have the tunable."""
        return architecture.name.startswith(self.architectures)


PAD = Parameter(
    "pad",
    " pad",
    (1, 2, 4, 8, 16, 32, 64, 128),
    "Padding",
    "M, N and K are padded to multiples of this number of elements, by copies of the operands, before the kernel runs. "
    "Left out, 1: nothing is padded.",
    default=1,
)
"""A tunable of kernels that take packed operands."""


class Covered(Protocol):
    """The problems of a row. Sizes are pairs of the smallest and the largest. None stands for any value."""

    @property
    def op(self) -> str | None: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def align(self) -> int | None: ...
    @property
    def k(self) -> tuple[int, int] | None: ...
    @property
    def m(self) -> tuple[int, int] | None: ...
    @property
    def r(self) -> tuple[int, int] | None: ...
    @property
    def g(self) -> tuple[int, int] | None: ...
    @property
    def v(self) -> tuple[int, int] | None: ...


class SomeProblems(NamedTuple):
    """The problems of an op and a dtype, in the form of a row's. Sizes that are not given may be any."""

    op: str
    dtype: str
    align: int | None = None
    k: tuple[int, int] | None = None
    m: tuple[int, int] | None = None
    g: tuple[int, int] | None = None
    v: tuple[int, int] | None = None
    r: tuple[int, int] | None = None


_LEAST_BLOCK = 16  # minimum elements of a block along each dimension


class Heads(NamedTuple):
    """Head dimensions of blocks: powers of two. ``rows`` counts the queries of all heads that share keys."""

    k: int
    v: int
    rows: int

    @classmethod
    def of(cls, k: int, v: int, queries: int) -> Heads:
        """Return the blocks for head dimensions, and for this number of queries of all heads that share keys."""
        return cls(*(max(_LEAST_BLOCK, rounded_up(size)) for size in (k, v, queries)))


class Complaint(NamedTuple):
    """The reason why a config cannot be launched, and the field at fault. It is empty if several fields may be."""

    reason: str
    field: str = ""


@dataclass(frozen=True)
class Template:
    """A kernel template: its name in tables, the ops it computes, and its tunables.

    ``parameters`` are in the order in which ``Config.params`` holds their values, the optional ones last. ``about``
    describes the kernel in a sentence, for the schema. ``on_gpus`` and ``on_cpus`` say where there is such a kernel,
    and ``alone`` whether a sweep tries it without tunables. ``masks_rows`` says whether its small blocks mask rows that
    A has not.
    """

    name: str
    ops: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    about: str = ""
    on_gpus: bool = True
    on_cpus: bool = False
    alone: bool = False
    masks_rows: bool = False

    tiled = False  # whether it is a single Triton kernel with TILES as tunables
    tma = False  # whether it loads its operands through tensor descriptors
    few_rows = False  # whether it is the project's own kernel for few rows
    many_sms = False  # whether Inductor offers it on GPUs with many SMs only
    stand_in = ""  # the kernel in ``stand_ins.py`` with its blocks and its pipeline, or empty

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tunables."""
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def required(self) -> tuple[Parameter, ...]:
        """The tunables every config has."""
        return tuple(parameter for parameter in self.parameters if parameter.default is None)

    @cached_property
    def _defaults(self) -> dict[str, int]:
        """The values of the optional tunables."""
        return {each.name: each.default for each in self.parameters if each.default is not None}

    def params(self, values: Mapping[str, int]) -> Params:
        """Return the values of the tunables as ``Config.params`` has them: without defaults at the end."""
        params = [values.get(each.name, each.default) for each in self.parameters]
        while params and params[-1] == self.parameters[len(params) - 1].default:
            params.pop()
        return tuple(value for value in params if value is not None)

    def values(self, params: Params) -> dict[str, int]:
        """Return the values of all tunables by name, defaults included, of a config with these ``Config.params``."""
        return {**self._defaults, **dict(zip(self.names, params, strict=False))}

    def runs_on(self, architecture: Architecture) -> bool:
        """Return whether an architecture has such a kernel, with any tunables."""
        return self.on_gpus if architecture.gpu else self.on_cpus

    def constants(self, layout: str) -> str:
        """Return the sizes, of ``mnk``, that are constants in the timed kernel and speed it up."""
        return ""

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Yield reasons why a config cannot be launched for any of the covered problems."""
        for parameter, value in zip(self.parameters, params, strict=False):
            if value != parameter.default and not parameter.is_known_to(architecture):
                reason = f"{architecture.name} has no such tunable (only {parameter.architectures}... has)"
                yield Complaint(reason, parameter.name)

    def faults_on(self, problem: Problem, params: Params, architecture: Architecture) -> Iterator[Complaint]:
        """Yield reasons besides ``complaints`` why a config cannot be launched for a problem.

        ``architecture`` may have the shared memory of a device.
        """
        return iter(())

    def memory_faults(self, needing: str, memory: int, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about this many bytes of shared memory, if the architecture is known to have fewer."""
        allowed = architecture.shared_memory
        if allowed is not None and memory > allowed:
            yield Complaint(f"{needing} {memory} bytes of shared memory ({architecture.name} has {allowed})")

    def suits(self, params: Params, problem: Problem, architecture: Architecture) -> bool:
        """Return whether a sweep may try a config on a problem, because nothing speaks against launching it."""
        return next(self.faults_on(problem, params, architecture), None) is None

    def can_pay(self, problem: Problem) -> bool:
        """Return whether the kernel can be the fastest on a problem, with any tunables."""
        return True

    def variations(self, params: Params, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield params that the final stage tries besides a sweep's fastest config."""
        return iter(())

    def heads(self, covered: Covered) -> Heads | None:
        """Return the heads for which ``stand_in`` is compiled, or None if the template is not of attention."""
        return None

    def blocks(self, params: Params, heads: Heads | None) -> dict[str, int]:
        """Return the constants of ``stand_in`` that are blocks or groups of blocks."""
        tunables = zip(self.names, params, strict=False)
        return {name.upper(): value for name, value in tunables if name.startswith(("block_", "group_"))}

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield the params a sweep tries on a problem of its ops."""
        return iter([()] if self.alone else [])

    def least_sizes(self, params: Params) -> tuple[int, int, int]:
        """Return the least M, N and K for which the config is in proportion."""
        return 1, 1, 1

    def k_split(self, params: Params) -> int:
        """Return the number of parts into which K is cut."""
        return 1


BLOCKS = (16, 32, 64, 128, 256)
SMALLEST_BLOCK = BLOCKS[0]  # a GEMM of any size may use it


def fitting(size: int, blocks: tuple[int, ...] = BLOCKS) -> list[int]:
    """Return blocks up to the first that covers the whole size."""
    return [block for block in blocks if block < 2 * max(size, blocks[0])]


TILES = (
    Parameter("block_m", "", BLOCKS, "Block M", "Rows of C that one program computes."),
    Parameter("block_n", "x", BLOCKS, "Block N", "Columns of C that one program computes."),
    Parameter("block_k", "x", BLOCKS, "Block K", "Elements of K that one step of the program's loop takes."),
    Parameter("group_m", " g", range(1, 65), "Group M", "Rows of tiles that run next to each other, for the cache."),
    Parameter("num_stages", " s", range(1, 9), "Stages", "Depth of the software pipeline.", option=True),
    Parameter(
        "num_warps",
        " w",
        (1, 2, 4, 8, 16),
        "Warps",
        "Groups of threads in one program (32 threads each on NVIDIA GPUs).",
        option=True,
    ),
)
"""The tunables every Triton GEMM has, in the order of the fields of Tiles."""

GROUP_M = 8  # the group in a sweep and in other tools' configs. The final stage of ``collect`` tries others
BLOCKS_K_OF_BYTES = (32, 64, 128, 256)  # matrix instructions take 32 elements of a byte, float8 and int8, along K
PRECISE_BLOCK_K = 128  # elements of float8 along K that tensor cores may add before they add the sum in float32


class Tiles(NamedTuple):
    """The tunables: blocks in elements, rows of blocks in a group, depth of the pipeline, warps of 32 threads."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    num_stages: int
    num_warps: int

    @classmethod
    def of(cls, params: Params) -> Tiles:
        """Return the tiles of a config, without its optional tunables."""
        return cls._make(params[: len(cls._fields)])


def accumulator_registers(tiles: Tiles, warp_size: int = 32) -> int:
    """Return the registers of 4 bytes that a thread needs for the accumulator."""
    return -(-tiles.block_m * tiles.block_n // (warp_size * tiles.num_warps))


def registers(num_warps: int, architecture: Architecture) -> int | None:
    """Return the registers of 4 bytes that a thread may have, or None if unknown."""
    if architecture.registers_per_thread is None or architecture.registers_per_block is None:
        return None
    threads = architecture.warp_size * num_warps
    return min(architecture.registers_per_thread, architecture.registers_per_block // threads)


def register_complaints(tiles: Tiles, architecture: Architecture) -> Iterator[Complaint]:
    """Complain about an accumulator that leaves a thread no other registers."""
    needed, limit = accumulator_registers(tiles, architecture.warp_size), registers(tiles.num_warps, architecture)
    if limit is not None and needed >= limit:
        reason = f"{tiles.num_warps} do not go with a block of {tiles.block_m}x{tiles.block_n}"
        yield Complaint(f"{reason}: {needed} registers a thread (allowed: {limit - 1})", "num_warps")


def is_precise(block_k: int, variant: str) -> bool:
    """Return whether float8 can have blocks of ``block_k``, and then accumulates as exactly as the variant demands."""
    return block_k in BLOCKS_K_OF_BYTES and (Scaling.of(variant).fast or block_k <= PRECISE_BLOCK_K)


def text(tiles: Tiles) -> str:
    """Return tiles as configs write them: ``128x128x64 g8 s4 w8``."""
    return "".join(f"{parameter.letter}{value}" for parameter, value in zip(TILES, tiles, strict=True))


LIBRARY = Template(
    *("aten", (*MATMULS, *GROUPED), (PAD,), "The library that PyTorch calls: cuBLAS, rocBLAS, oneDNN."),
    on_cpus=True,
    alone=True,
)
"""The library that PyTorch calls without Inductor's help. It runs everywhere, and is the baseline."""

DEFAULT_CONFIG = Template(
    "default",
    (*ATTENTION, *TOGETHER, *GENERATED),
    about="The config that Inductor takes for flex attention, or tries first for a kernel that it generates. Matmuls "
    "that could be joined stay apart, and work after a matmul is left to the matmul's own rows.",
    alone=True,
)
"""Inductor's own choice, with which attention, joined matmuls and generated kernels are compared."""

CPP_GEMM = Template(
    *("cpp_gemm", ("mm", "addmm", "bmm", "baddbmm"), (), "Inductor's C++ template, on CPUs. It has no tunables."),
    on_gpus=False,
    on_cpus=True,
)
"""Inductor's C++ template, which chooses its blocks itself."""

_LONG_K = 8  # from this many times M and N on, K can be worth cutting: tiles are too few to fill the device
_LEAST_PART = 128  # minimum elements along K of a part
_SPLITS = (2, 4, 8, 16, 32, 64, 128)  # the numbers of parts a sweep tries


@dataclass(frozen=True)
class DecomposeK(Template):
    """A batch of products of parts, and their sum. ``k_split`` counts the parts."""

    many_sms = True

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain if no K of the row can be cut into equal parts."""
        yield from super().complaints(params, covered, architecture)
        if covered.k is None:
            return
        split, (low, high) = self.k_split(params), covered.k
        if high // split * split < low:
            text = str(low) if low == high else f"{low} to {high}"
            yield Complaint(f"{split} divides no k of the row ({text})", "k_split")

    def can_pay(self, problem: Problem) -> bool:
        return problem.k >= _LONG_K * max(problem.m, problem.n)

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """Yield splits into equal parts that are not short, if K is long."""
        if self.can_pay(problem):
            yield from ((s,) for s in _SPLITS if problem.k % s == 0 and problem.k // s >= _LEAST_PART)

    def least_sizes(self, params: Params) -> tuple[int, int, int]:
        """Return the sizes from which parts are not short."""
        return 1, 1, _LEAST_PART * self.k_split(params)

    def k_split(self, params: Params) -> int:
        return params[0]


DECOMPOSE_K = DecomposeK(
    "decompose_k",
    ("mm",),
    (Parameter("k_split", "", range(2, 4097), "K split", "Number of parts."),),
    "K is cut into parts, which are multiplied as a batch and then summed.",
)
