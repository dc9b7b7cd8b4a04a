"""The features of a problem and of each candidate config: one definition for training and for inference.

Sizes are features as logarithms to base 2. Arrays have a row per feature and a column per candidate. Features are the
same on every machine to the last bit, so they use ``log2`` of this module instead of NumPy's or Python's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from diode_lut.hardware import Architecture
from diode_lut.problem import (
    BATCHED,
    EPILOGUES,
    FLOAT8,
    INT8,
    ITEMSIZES,
    NO_EPILOGUE,
    OF_BYTES,
    SCALED,
    WITHOUT_TENSOR_CORES,
    Problem,
    Scaling,
    letters,
)
from diode_lut.templates.config import ATEN, Config
from diode_lut.templates.template import SomeProblems, Tiles
from diode_lut.templates.together import MAX_FEW_ROWS, FewRows

Floats = npt.NDArray[np.floating[Any]]

VERSION = 6  # of the network's inputs and outputs. A weights file has this version and the same feature names
MAX_SCORE = 10.0  # cap on the magnitude of log(expected time / time of aten), so that times are finite and not zero

_LIBRARY_TILES = ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128))
"""M x N tiles of the library's kernels. How well a problem divides into them tells how fast the library is."""

_TILE_MULTIPLE = 64  # most tile sizes are multiples of this number of elements
_LOAD_BYTES = 16  # of a thread's widest load. Rows with less alignment need narrower loads, and other kernels

_CLASSES = tuple(name for name in EPILOGUES if name != NO_EPILOGUE)

EPILOGUE_FEATURES = tuple(f"epilogue_{name}" for name in _CLASSES)  # all are 0 without an epilogue

OF_BYTES_FEATURES = ("float8", "int8", "row_scales")
"""The last features of a problem. All are 0 for GEMMS, and networks for GEMMS alone are trained without them."""

PROBLEM_FEATURES = (
    *("log_b", "log_m", "log_n", "log_k", "log_flops", "log_bytes", "log_intensity"),
    *("log_outputs", "log_shorter", "log_longer", "bias", "batched", "float16", "float32", "tf32"),
    *("a_transposed", "b_transposed", "aligned"),
    *(f"{size}_multiple_of_{_TILE_MULTIPLE}" for size in "mnk"),
    *(f"log_{matrix}_vector" for matrix in "abc"),
    *(f"{name}_{m}x{n}" for m, n in _LIBRARY_TILES for name in ("log_waves", "wave_fill", "tile_fill")),
    *EPILOGUE_FEATURES,
    *OF_BYTES_FEATURES,
)
CONFIG_FEATURES = (
    *("aten", "tiled", "tma", "decompose_k", "log_block_m", "log_block_n", "log_block_k", "log_group_m"),
    *("num_stages", "log_num_warps", "log_tile", "log_tile_per_thread", "log_k_split"),
)
JOINT_FEATURES = (
    *("log_tiles", "log_tile_rows", "log_tile_columns", "log_steps", "log_waves", "log_rounds_times_steps"),
    *("log_shared_memory", "log_loaded", "log_computed", "log_resident_warps", "log_loaded_in_rounds", "log_loads"),
    *("wave_fill", "tile_wave_fill", "row_fill", "column_fill", "step_fill", "occupancy", "pipeline_fill", "even_k"),
)

_LOGARITHM_COUNT = 12  # Number of joint features in logarithms. They are first

_SERIES = tuple(2.8853900817779268 / power for power in range(1, 11, 2))
"""Coefficients of x, x^3, x^5, ... in the series of log2((1 + x) / (1 - x)); the first is 2 / log(2)."""

_OTHER_REGISTERS = 40  # estimated registers of a thread besides the accumulators


def log2(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return logarithms to base 2 with an error below 2e-9, and of powers of two without an error.

    Only operations defined to the last bit by IEEE 754 are used. NumPy's and Python's logarithms depend on the
    processor and on the C library.
    """
    mantissas, exponents = np.frexp(np.asarray(values, np.float64))
    doubled = mantissas < math.sqrt(0.5)
    mantissas += mantissas * doubled
    ratios = (mantissas - 1) / (mantissas + 1)
    squares = ratios * ratios
    series = squares * _SERIES[-1]
    for coefficient in _SERIES[-2:0:-1]:
        series += coefficient
        series *= squares
    series += _SERIES[0]
    series *= ratios
    series += exponents - doubled
    return np.asarray(series)


def exp(scores: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return e to the power of the scores, rounded to 4 digits, up to MAX_SCORE, where NumPy is exact in float32."""
    capped = np.clip(np.round(np.asarray(scores, np.float64), 4), -MAX_SCORE, MAX_SCORE)
    return np.asarray(np.exp(capped), np.float32)


def problem_features(problem: Problem, sm_count: int) -> Floats:
    """Return PROBLEM_FEATURES of the problem, as a column."""
    b, m, n, k = problem.sizes
    scaling = Scaling.of(problem.variant) if problem.op in SCALED else None
    flops, data = problem.operations, problem.nbytes
    tiles = [-(-m // rows) * -(-n // columns) * b for rows, columns in _LIBRARY_TILES]
    waves = [count / sm_count for count in tiles]
    sizes = (b, m, n, k, flops, data, flops / data, b * m * n, min(m, n), max(m, n))
    logarithms = iter(log2((*sizes, *vectors(problem), *waves)).tolist())
    values: list[float] = [*islice(logarithms, len(sizes))]
    biased = problem.op in ("addmm", "baddbmm") or (scaling is not None and scaling.bias)
    values += [biased, problem.op in BATCHED]
    values += [problem.dtype == dtype for dtype in ("float16", "float32", "tf32")]
    values += [letter == "t" for letter in letters(problem.layout)]
    values += [problem.align == 16]
    values += [size % _TILE_MULTIPLE == 0 for size in (m, n, k)]
    values += islice(logarithms, 3)
    for (rows, columns), count, wave in zip(_LIBRARY_TILES, tiles, waves, strict=True):
        values += [next(logarithms), wave / math.ceil(wave), b * m * n / (count * rows * columns)]
    values += [problem.epilogue == name for name in _CLASSES]
    values += [problem.dtype in FLOAT8, problem.dtype == INT8, scaling is not None and scaling.per == "row"]
    return np.array(values, np.float32)[:, None]


def vectors(problem: Problem) -> tuple[int, int, int]:
    """Return the alignment in bytes, up to 16, of the rows of A, B and C, as their lengths imply it."""
    itemsize = ITEMSIZES[problem.dtype]
    letter_a, letter_b = letters(problem.layout)
    row_a, row_b = problem.m if letter_a == "t" else problem.k, problem.k if letter_b == "t" else problem.n
    a, b, c = (math.gcd(size * itemsize, _LOAD_BYTES) for size in (row_a, row_b, problem.n))
    return a, b, c


def config_features(configs: Sequence[Config]) -> Floats:
    """Return CONFIG_FEATURES, a column per config."""
    rows = []
    for config in configs:
        kernel, tiles = config.kernel, tiles_of(config)
        flags = [config == ATEN, kernel.tiled, kernel.tma, config.k_split > 1]
        if tiles is None:
            rows.append([*flags, *[0.0] * (len(CONFIG_FEATURES) - len(flags) - 1), *log2([config.k_split])])
            continue
        block_m, block_n, block_k, group_m, num_stages, num_warps = tiles
        tile = block_m * block_n
        logarithms = log2((block_m, block_n, block_k, group_m, num_warps, tile, tile / num_warps, config.k_split))
        rows.append([*flags, *logarithms[:4], num_stages, *logarithms[4:]])
    return np.array(rows, np.float32).T


def tiles_of(config: Config) -> Tiles | None:
    """Return the tiles of a config, for few rows those for as many rows as possible, or None if it has no tiles."""
    if config.kernel.tiled:
        return config.tiles
    return config.kernel.tiles(config.params, MAX_FEW_ROWS) if isinstance(config.kernel, FewRows) else None


class Tiling:
    """The candidates with tiles, which come first, and what their joint features need besides the problem's sizes."""

    def __init__(self, configs: Sequence[Config], architecture: Architecture) -> None:
        tiled = [tiles for tiles in map(tiles_of, configs) if tiles is not None]
        assert all(map(tiles_of, configs[: len(tiled)])), "candidates with tiles come first"
        self.candidates, self.count = len(configs), len(tiled)
        columns = np.array(tiled, np.float32).reshape(-1, 6).T
        self.block_m, self.block_n, self.block_k, _, self.stages, self.warps = columns
        self.tile, self.edges = self.block_m * self.block_n, self.block_m + self.block_n
        self.threads = architecture.warp_size * self.warps
        self.moved = np.stack((self.block_m, self.block_n)) * (self.block_k / self.threads)
        self.held = self.stages * self.edges * self.block_k
        # By itemsize, how many tiles a multiprocessor works on at once: an estimate, 1 if the limits are unknown
        self.occupancies = dict.fromkeys(ITEMSIZES.values(), np.ones(self.count, np.float32))
        if (
            architecture.shared_memory is not None
            and architecture.warps_per_multiprocessor is not None
            and architecture.registers_per_block is not None
            and architecture.registers_per_thread is not None
        ):
            per_tile = _OTHER_REGISTERS + 1.2 * self.tile / self.threads
            registers = np.minimum(architecture.registers_per_thread, per_tile)
            by_warps = architecture.warps_per_multiprocessor // self.warps
            by_registers = architecture.registers_per_block // (self.threads * registers)
            for itemsize in self.occupancies:
                limits = architecture.shared_memory // (self.held * itemsize), by_warps, by_registers
                self.occupancies[itemsize] = np.maximum(1, np.minimum.reduce(limits)).astype(np.float32)

    def features(self, problem: Problem, sm_count: int) -> Floats:
        """Return JOINT_FEATURES, a column per candidate, with zeros for other candidates than tiled ones."""
        features = np.zeros((len(JOINT_FEATURES), self.candidates), np.float32)
        out = features[:, : self.count]
        b, m, n, k = problem.sizes
        itemsize = ITEMSIZES[problem.dtype]
        occupancy = self.occupancies[itemsize]
        parts = np.array([[m], [n], [k]], np.float32) / (self.block_m, self.block_n, self.block_k)
        whole = np.ceil(parts)
        rows, columns, steps = whole
        tiles = rows * columns * np.float32(b)
        waves = tiles / np.float32(sm_count)
        rounds = waves / occupancy
        whole_waves, whole_rounds = np.ceil(waves), np.ceil(rounds)
        out[0:4] = tiles, rows, columns, steps
        out[4] = rounds
        np.multiply(whole_rounds, steps, out=out[5])
        np.multiply(self.held, np.float32(itemsize), out=out[6])
        np.multiply(tiles, self.edges * np.float32(k), out=out[7])
        np.multiply(whole_waves, self.tile * np.float32(k), out=out[8])
        np.multiply(np.minimum(occupancy, whole_waves), self.warps, out=out[9])
        np.multiply(out[5], self.edges * self.block_k * occupancy, out=out[10])
        a_vector, b_vector, _ = vectors(problem)
        np.add(self.moved[0] * (itemsize / a_vector), self.moved[1] * (itemsize / b_vector), out=out[11])
        out[:_LOGARITHM_COUNT] = log2(out[:_LOGARITHM_COUNT])
        out[12], out[13] = rounds / whole_rounds, waves / whole_waves
        out[14:17] = parts / whole
        out[17] = occupancy
        out[18] = np.minimum(steps / self.stages, 2)
        out[19] = parts[2] == steps
        return features


Flags = npt.NDArray[np.bool_]


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
        self._block_k = np.array([tiles.block_k if tiles else 0 for tiles in map(tiles_of, configs)], np.int64)
        self._launchable: dict[SomeProblems, Flags] = {}

    def applicable(self, problem: Problem) -> Flags:
        """Return for each candidate whether it can run on the problem, and is in proportion to it."""
        problems, architecture = SomeProblems(problem.op, problem.dtype), self._architecture
        if problems not in self._launchable:
            self._launchable[problems] = np.array(
                [
                    problems.op in config.kernel.ops
                    and config.kernel.runs_on(architecture)
                    and not any(config.kernel.complaints(config.params, problems, architecture))
                    for config in self.configs
                ]
            )
        fits: Flags = self._launchable[problems] & (problem.k % self._k_splits == 0)
        rows = max(problem.m, architecture.matrix_rows) if problem.dtype in FLOAT8 else problem.m
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
    """Return the candidates for problems without a batch, and those for problems with a batch."""

    def family(*, batched: bool) -> Candidates:
        numbers = [n for n, config in enumerate(configs) if any((op in BATCHED) == batched for op in config.kernel.ops)]
        return Candidates([configs[number] for number in numbers], numbers, architecture)

    return family(batched=False), family(batched=True)


def family_of(problem: Problem) -> int:
    """Return the index in ``families`` for the problem: 0 without a batch, 1 with a batch."""
    return int(problem.op in BATCHED)
