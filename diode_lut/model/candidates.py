"""The configs that a model chooses from, and which of them apply to a problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from diode_lut.architecture import GEMM_TEMPLATES, WITHOUT_TENSOR_CORES, shared_memory
from diode_lut.model.features import SHARED_MEMORY, Tiling, is_tiled
from diode_lut.problem import ATEN, BATCHED, ITEMSIZES, Config, Problem

_BATCHED_TEMPLATES = ("triton_bmm",)
_TMA = "triton_mm_persistent_tma"
_PLAIN_TEMPLATES = ("triton_mm", _TMA, "decompose_k")

_SMALLEST_TILE = 16
"""Elements along a side of a tile: it may be any size that fits."""

_LONG_K, _LEAST_PART = 8, 128
"""K is cut where it is so many times M and N, into parts no shorter than the second."""

_TMA_ROWS = 64
"""Tensor descriptors are for products with so many rows, at least."""

Flags = npt.NDArray[np.bool_]


class Candidates:
    """Those of a model for products with a batch, or those for products without.

    ``numbers`` are their places among all candidates of the model; ``aten`` is that of ``aten`` among ``configs``.
    Tiles far larger than a problem are no candidates for it, nor what needs more shared memory than there is.
    """

    def __init__(self, configs: Sequence[Config], numbers: Sequence[int]) -> None:
        self.configs, self.numbers = tuple(configs), tuple(numbers)
        self.aten = self.configs.index(ATEN)
        self.tiling = Tiling(configs)
        self._least = np.array([_least(config) for config in configs], np.int64).T
        self._tma = np.array([config.template == _TMA for config in configs])
        self._k_splits = np.array([_k_split(config) for config in configs], np.int64)
        self._block_k = np.array([config.params[2] if is_tiled(config) else 0 for config in configs], np.int64)
        self._for_any_op = self._k_splits == 1
        self._fitting: dict[tuple[str, int], Flags] = {}

    def _fits(self, op: str, itemsize: int) -> Flags:
        """Which of them have what they need in shared memory."""
        return np.array(
            [
                config.template not in GEMM_TEMPLATES or shared_memory(config, op, itemsize) <= SHARED_MEMORY
                for config in self.configs
            ]
        )

    def applicable(self, problem: Problem) -> Flags:
        """Which of them can run, and are not out of all proportion."""
        kind = problem.op, ITEMSIZES[problem.dtype]
        if kind not in self._fitting:
            self._fitting[kind] = self._fits(*kind)
        fits: Flags = self._fitting[kind] & (problem.k % self._k_splits == 0)
        for least, size in zip(self._least, problem[5:], strict=True):
            fits &= least <= size
        if problem.op != "mm" or problem.k < _LONG_K * max(problem.m, problem.n):
            fits &= self._for_any_op
        if problem.dtype == WITHOUT_TENSOR_CORES:
            fits &= self._block_k < problem.k
        if problem.align != 16 or problem.m < _TMA_ROWS:
            fits &= ~self._tma
        return fits


def families(configs: Sequence[Config]) -> tuple[Candidates, Candidates]:
    """The candidates for products without a batch, and those for products with one."""
    return _without(_BATCHED_TEMPLATES, configs), _without(_PLAIN_TEMPLATES, configs)


def family_of(problem: Problem) -> int:
    """Which of the two a problem needs."""
    return int(problem.op in BATCHED)


def _without(templates: tuple[str, ...], configs: Sequence[Config]) -> Candidates:
    numbers = [number for number, config in enumerate(configs) if config.template not in templates]
    return Candidates([configs[number] for number in numbers], numbers)


def _k_split(config: Config) -> int:
    return config.params[0] if config.template == "decompose_k" else 1


def _least(config: Config) -> list[int]:
    """The least m, n and k: tiles are less than twice as large."""
    if not is_tiled(config):
        return [1, 1, _LEAST_PART * _k_split(config) if _k_split(config) > 1 else 1]
    return [1 if block <= _SMALLEST_TILE else block // 2 + 1 for block in config.params[:3]]
