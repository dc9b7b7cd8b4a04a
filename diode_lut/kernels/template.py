"""What a kernel template is. Each module beside this one says all there is to know about one family of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import Architecture

Params = tuple[int, ...]
"""The values of a template's tunables, in the order of its ``parameters``."""


class Parameter(NamedTuple):
    """One tunable of a template: its name, the letter that ``str(config)`` writes before it, and its allowed values.

    ``values`` is a range where every integer in it is allowed, a tuple where only those are.
    """

    name: str
    letter: str
    values: tuple[int, ...] | range

    @property
    def allowed(self) -> str:
        """The allowed values as text, for messages."""
        if isinstance(self.values, range):
            return f"{self.values[0]} to {self.values[-1]}"
        return ", ".join(map(str, self.values))


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
        """The least and the largest K."""


class Complaint(NamedTuple):
    """Why a config cannot be launched, and the field of the config that is wrong; empty if no single one is."""

    reason: str
    field: str = ""


@dataclass(frozen=True)
class Template:
    """One kernel template: its name in tables, the ops that it computes, and its tunables.

    ``parameters`` are in the order in which ``Config.params`` holds their values.
    """

    name: str
    ops: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()

    tiled = False
    """Whether it is one Triton kernel whose tunables are blocks, stages and warps."""
    tma = False
    """Whether it loads its operands through tensor descriptors."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tunables."""
        return tuple(parameter.name for parameter in self.parameters)

    def runs_on(self, architecture: Architecture) -> bool:
        """Whether there is such a kernel for an architecture, whatever the tunables."""
        return architecture.gpu

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """What keeps a config from being launched, whichever of the covered problems is asked for."""
        del params, covered, architecture
        return iter(())

    def search(self, problem: Problem, sm_count: int) -> Iterator[Params]:
        """What a sweep tries on a problem of one of its ops, on a device with this number of multiprocessors."""
        del problem, sm_count
        return iter(())

    def least_sizes(self, params: Params) -> tuple[int, int, int]:
        """The least M, N and K that the config is not out of proportion to."""
        del params
        return 1, 1, 1

    def k_split(self, params: Params) -> int:
        """Into how many parts K is cut."""
        del params
        return 1
