"""The configs that a model chooses from, and the check whether a config applies to a problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diode_lut.domain.ops import BATCHED, FLOAT8, OF_BYTES, WITHOUT_TENSOR_CORES
from diode_lut.domain.problem import Problem
from diode_lut.kernels.architecture import Architecture
from diode_lut.kernels.config import ATEN, Config
from diode_lut.model.features import Tiling

Flags = npt.NDArray[np.bool_]


class _AnySizes(NamedTuple):
    """All problems of an op and a dtype."""

    op: str
    dtype: str
    align: None = None
    m: None = None
    k: None = None
    g: None = None
    v: None = None


class Candidates:
    """The candidates of a model for one family of problems: those with a batch, or those without.

    ``numbers`` are the indices of ``configs`` among all candidates of the model. ``aten`` is the index of ``aten`` in
    ``configs``.
    """

    def __init__(self, configs: Sequence[Config], numbers: Sequence[int], architecture: Architecture) -> None:
        self.configs, self.numbers = tuple(configs), tuple(numbers)
        self.aten = self.configs.index(ATEN)
        self.tiling = Tiling(configs, architecture)
        self._architecture = architecture
        self._least_sizes = np.array([config.kernel.least_sizes(config.params) for config in configs], np.int64).T
        self._of_other_kernels = [
            (kernel, np.array([config.kernel is not kernel for config in configs]))
            for kernel in dict.fromkeys(config.kernel for config in configs)
        ]
        self._k_splits = np.array([config.k_split for config in configs], np.int64)
        self._block_k = np.array([config.tiles.block_k if config.kernel.tiled else 0 for config in configs], np.int64)
        self._launchable: dict[_AnySizes, Flags] = {}

    def _can_launch(self, problems: _AnySizes) -> Flags:
        """Per candidate: whether the architecture can launch it, whatever the sizes."""
        architecture = self._architecture
        return np.array(
            [
                problems.op in config.kernel.ops
                and config.kernel.runs_on(architecture)
                and not any(config.kernel.complaints(config.params, problems, architecture))
                for config in self.configs
            ]
        )

    def applicable(self, problem: Problem) -> Flags:
        """Per candidate: whether it can run on the problem, and its tile is not far larger than the problem."""
        problems = _AnySizes(problem.op, problem.dtype)
        if problems not in self._launchable:
            self._launchable[problems] = self._can_launch(problems)
        fits: Flags = self._launchable[problems] & (problem.k % self._k_splits == 0)
        rows = max(problem.m, self._architecture.matrix_rows) if problem.dtype in FLOAT8 else problem.m
        for least, size in zip(self._least_sizes, (rows, problem.n, problem.k), strict=True):
            fits &= least <= size
        if problem.dtype == WITHOUT_TENSOR_CORES:
            fits &= self._block_k < problem.k
        if problem.op in OF_BYTES:
            # Other blocks were slower than aten by over 3 % on 23 of 91 random layers in float8 on an H200.
            fits &= problem.k % np.maximum(self._block_k, 1) == 0
        for kernel, others in self._of_other_kernels:
            if not kernel.can_pay(problem):
                fits &= others
        return fits


def families(configs: Sequence[Config], architecture: Architecture) -> tuple[Candidates, Candidates]:
    """The candidates for problems without a batch, and those for problems with one."""
    return _family(configs, architecture, batched=False), _family(configs, architecture, batched=True)


def family_of(problem: Problem) -> int:
    """The index in ``families`` for the problem: 0 without a batch, 1 with one."""
    return int(problem.op in BATCHED)


def _family(configs: Sequence[Config], architecture: Architecture, *, batched: bool) -> Candidates:
    """The configs whose template computes an op with a batch, or an op without one."""
    numbers = [n for n, config in enumerate(configs) if any((op in BATCHED) == batched for op in config.kernel.ops)]
    return Candidates([configs[number] for number in numbers], numbers, architecture)
