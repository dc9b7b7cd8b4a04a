"""What a kernel template is. Each module beside this one says all there is to know about one family of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from diode_lut.hardware import Hardware
from diode_lut.problem import Problem, Scaling
from diode_lut.templates.architecture import Architecture

Params = tuple[int, ...]
"""The values of a template's tunables, in the order of its ``parameters``."""


class Parameter(NamedTuple):
    """One tunable of a template: its name, the text that ``str(config)`` writes before it, and its allowed values.

    ``values`` is a range where every integer in it is allowed, a tuple where only those are. ``title`` and ``meaning``
    are for the schema. A tunable with a ``default`` is optional: a config that has this value does not mention it.
    A default outside ``values`` cannot be written: the kernel's own value is meant. ``architectures`` is how the names
    of the architectures begin that have the tunable. ``option`` says whether Triton's compiler takes it as an
    option; 0 leaves it to the compiler.
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
        """Whether kernels for the architecture have the tunable."""
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
"""Any kernel that takes packed operands can have it."""


class Covered(Protocol):
    """The problems that a row covers; None stands for any."""

    @property
    def op(self) -> str | None:
        """One of OPS."""

    @property
    def dtype(self) -> str | None:
        """One of DTYPES."""

    @property
    def align(self) -> int | None:
        """One of ALIGNS."""

    @property
    def k(self) -> tuple[int, int] | None:
        """The smallest and the largest K."""

    @property
    def m(self) -> tuple[int, int] | None:
        """The smallest and the largest M."""

    @property
    def g(self) -> tuple[int, int] | None:
        """The smallest and the largest number of query heads that share keys."""

    @property
    def v(self) -> tuple[int, int] | None:
        """The smallest and the largest head dimension of values."""


_LEAST_BLOCK = 16
"""Blocks have at least this many elements along each dimension."""


class Heads(NamedTuple):
    """Head dimensions of queries and keys, and of values, as blocks have them: powers of two.

    ``rows`` counts the queries of all heads that share keys, which decoding has in one block.
    """

    k: int
    v: int
    rows: int

    @classmethod
    def of(cls, k: int, v: int, queries: int) -> Heads:
        """The blocks for head dimensions, and for this number of queries of all heads that share keys."""
        return cls(_rounded(k), _rounded(v), _rounded(queries))

    @classmethod
    def of_problem(cls, problem: Problem) -> Heads:
        """The blocks for an attention."""
        return cls.of(problem.k, problem.v, problem.m * problem.g)

    @classmethod
    def least(cls, covered: Covered) -> Heads:
        """The blocks for the smallest heads that a row covers."""
        k, v, m, g = (1 if sizes is None else min(sizes) for sizes in (covered.k, covered.v, covered.m, covered.g))
        return cls.of(k, v, m * g)


def _rounded(size: int) -> int:
    """The next power of two, at least _LEAST_BLOCK."""
    return max(_LEAST_BLOCK, 1 << (size - 1).bit_length())


class Complaint(NamedTuple):
    """Why a config cannot be launched, and the field of the config that is wrong; empty if no single one is."""

    reason: str
    field: str = ""


@dataclass(frozen=True)
class Template:
    """One kernel template: its name in tables, the ops that it computes, and its tunables.

    ``parameters`` are in the order in which ``Config.params`` holds their values, the optional ones last. ``about``
    says in a sentence what the kernel is, for the schema.
    """

    name: str
    ops: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    about: str = ""

    tiled = False
    """Whether it is one Triton kernel whose tunables are blocks, stages and warps."""
    tma = False
    """Whether it loads its operands through tensor descriptors."""
    many_sms = False
    """Whether Inductor has it only on GPUs with many SMs."""
    stand_in = ""
    """The kernel of ``compilation`` that has its blocks and its pipeline; empty if there is none."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tunables."""
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def required(self) -> tuple[Parameter, ...]:
        """The tunables that every config has."""
        return tuple(parameter for parameter in self.parameters if parameter.default is None)

    def params(self, values: Mapping[str, int]) -> Params:
        """The values of the tunables by name as ``Config.params`` has them: without defaults at the end."""
        params = [values.get(each.name, each.default) for each in self.parameters]
        while params and params[-1] == self.parameters[len(params) - 1].default:
            params.pop()
        return tuple(value for value in params if value is not None)

    def values(self, params: Params) -> dict[str, int]:
        """The values of all tunables by name, defaults included, of a config with these ``Config.params``."""
        defaults = {each.name: each.default for each in self.parameters if each.default is not None}
        return {**defaults, **dict(zip(self.names, params, strict=False))}

    def runs_on(self, architecture: Architecture) -> bool:
        """Whether there is such a kernel for an architecture, whatever the tunables."""
        return architecture.gpu

    def constants(self, layout: str) -> str:
        """The sizes that must be constants for Inductor to make the kernel that was timed: some of ``mnk``."""
        del layout
        return ""

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """What keeps a config from being launched, whichever of the covered problems is asked for."""
        del covered
        for parameter, value in zip(self.parameters, params, strict=False):
            if value != parameter.default and not parameter.is_known_to(architecture):
                reason = f"{architecture.name} has no such tunable (what has it: {parameter.architectures}...)"
                yield Complaint(reason, parameter.name)

    def faults_on(
        self, problem: Problem, params: Params, architecture: Architecture, shared_memory: int | None = None
    ) -> Iterator[Complaint]:
        """What keeps a config from being launched for one problem, as far as that depends on more than ``complaints``.

        ``shared_memory`` is the device's in bytes, if it is known.
        """
        del problem, params, architecture, shared_memory
        return iter(())

    def suits(self, params: Params, problem: Problem, architecture: Architecture) -> bool:
        """Whether a sweep may try a config on a problem."""
        del params, problem, architecture
        return True

    def can_pay(self, problem: Problem) -> bool:
        """Whether the kernel can be the fastest on a problem, whatever the tunables."""
        del problem
        return True

    def variations(self, params: Params, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """What the final stage tries besides a config that was the fastest in a sweep."""
        del params, problem, hardware
        return iter(())

    def heads(self, covered: Covered) -> Heads | None:
        """The heads for which ``stand_in`` is compiled; None for templates that are not of attention."""
        del covered
        return None

    def blocks(self, params: Params, heads: Heads | None) -> dict[str, int]:
        """The constants of ``stand_in`` that are blocks or groups of blocks."""
        del heads
        tunables = zip(self.names, params, strict=False)
        return {name.upper(): value for name, value in tunables if name.startswith(("block_", "group_"))}

    def search(self, problem: Problem, hardware: Hardware) -> Iterator[Params]:
        """What a sweep tries on a problem of one of its ops."""
        del problem, hardware
        return iter(())

    def least_sizes(self, params: Params) -> tuple[int, int, int]:
        """The least M, N and K that the config is not out of proportion to."""
        del params
        return 1, 1, 1

    def k_split(self, params: Params) -> int:
        """Into how many parts K is cut."""
        del params
        return 1


BLOCKS = (16, 32, 64, 128, 256)
SMALLEST_BLOCK = BLOCKS[0]
"""A GEMM of any size may use it."""

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
"""The tunables that every Triton GEMM has, in the order of the fields of Tiles."""

GROUP_M = 8
"""The group that a sweep and other tools' configs have; the final stage of ``collect`` tries others for the best."""

BLOCKS_K_OF_BYTES = (32, 64, 128, 256)
"""Matrix instructions take 32 elements of a byte, float8 and int8, along K."""

PRECISE_BLOCK_K = 128
"""Elements of float8 along K that tensor cores may add before the sum is added to one in float32, as libraries do."""


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
        """The tiles of a config, without its optional tunables."""
        return cls._make(params[: len(cls._fields)])


def accumulator_registers(tiles: Tiles, warp_size: int = 32) -> int:
    """Registers of 4 bytes that one thread needs for the accumulator."""
    return -(-tiles.block_m * tiles.block_n // (warp_size * tiles.num_warps))


def registers(tiles: Tiles, architecture: Architecture) -> int | None:
    """Registers that one thread may have, of which the accumulator must leave some; None where that is not known."""
    if architecture.registers_per_thread is None or architecture.registers_per_block is None:
        return None
    threads = architecture.warp_size * tiles.num_warps
    return min(architecture.registers_per_thread, architecture.registers_per_block // threads)


def is_precise(block_k: int, variant: str) -> bool:
    """Whether blocks of float8 can have ``block_k`` elements along K, and accumulate as the variant demands."""
    return block_k in BLOCKS_K_OF_BYTES and (Scaling.of(variant).fast or block_k <= PRECISE_BLOCK_K)


def text(tiles: Tiles) -> str:
    """As configs write them: ``128x128x64 g8 s4 w8``."""
    return "".join(f"{parameter.letter}{value}" for parameter, value in zip(TILES, tiles, strict=True))
