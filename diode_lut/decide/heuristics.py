"""NVIDIA's analytic heuristics as a chooser, a stop-gap for GPUs that nobody has measured.

They come with the package ``nvidia-matmul-heuristics``, which has NVIDIA's own licence, and need no GPU. They rank
Triton's configs, but do not know whether the library is faster, as it most often is: the setting ``policy="verify"``
has Inductor time the first config against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any

from diode_lut.errors import BROKEN_IMPORT, SettingError, install_command
from diode_lut.hardware import Hardware, known_gpu
from diode_lut.problem import MATMULS, Problem
from diode_lut.process import in_forked_children
from diode_lut.templates.config import TEMPLATES, Config, pointer_gemm
from diode_lut.templates.template import GROUP_M, Tiles

_PACKAGE = "nvidia-matmul-heuristics"

_PRECISIONS = {"float16": "HSH", "bfloat16": "TST", "tf32": "SSS"}
"""NVIDIA's letters for the types of operands, sums and result; full float32 has no tensor cores, and none of these."""

_GPUS = {
    "A100": "A100_SXM_80GB",
    "A100 PCIe": "A100_PCIE_80GB",
    "A30": "A30_PCIE",
    "A10": "A10_PCIE",
    "A40": "A40_PCIE",
    "RTX A6000": "RTX_A6000",
    "RTX 3090": "RTX_3090",
    "L4": "L4",
    "L40": "L40",
    "L40S": "L40S",
    "RTX 6000 Ada": "RTX_6000_ADA",
    "RTX 4090": "RTX_4090",
    "H100": "H100_SXM",
    "H100 PCIe": "H100_PCIE",
    "H100 NVL": "H100_NVL",
    "H200": "H200_SXM",
    "GH200": "H200_SXM",
    "H20": "H20_SXM",
    "B200": "B200",
    "RTX 5090": "RTX_5090",
}
"""NVIDIA's names of GPUs, by a name in ``hardware.py``."""

_ASKED = 32
"""Number of configs that are asked for. Those that a sweep would try, with about as many stages, are taken."""

_lock = Lock()
"""The library's objects are for one thread at a time."""


@in_forked_children
def _free_lock() -> None:
    """The thread that was asking the library is not in the forked process."""
    global _lock
    _lock = Lock()


def nvidia(problem: Problem, hardware: Hardware) -> list[Config]:
    """NVIDIA's configs for a GEMM, best first; none for float32, attention, and GPUs that it has no name for.

    SettingError if the package is missing.
    """
    gpu, precision = _gpu(hardware), _PRECISIONS.get(problem.dtype)
    if gpu is None or precision is None or problem.op not in MATMULS:
        return []
    template = TEMPLATES[pointer_gemm(problem.op)]
    with _lock:
        interface = _interface(gpu)
        layout = _library().boolsToNvMatmulHeuristicsLayout(*(letter == "t" for letter in problem.layout))
        asked = interface.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout, problem.b)
        kernels = [found["kernel"] for found in interface.get(asked, _ASKED, precision)]
    tried = [Tiles.of(params) for params in template.search(problem, hardware)]
    nearest = (_nearest(_tiles(kernel), tried) for kernel in kernels if kernel.split_k == 1)
    return list(dict.fromkeys(Config(template.name, tuple(tiles)) for tiles in nearest if tiles is not None))


def digest() -> str:
    """What the answers depend on, for ``register_chooser``: the package's version. SettingError if it is missing."""
    try:
        return f"{_PACKAGE} {version(_PACKAGE)}"
    except PackageNotFoundError:
        raise _missing() from None


def _missing() -> SettingError:
    return SettingError(f"NVIDIA's heuristics need {_PACKAGE}: {install_command('heuristics')}")


@cache
def _library() -> Any:
    try:
        return import_module("nvMatmulHeuristics")
    except BROKEN_IMPORT as error:
        raise _missing() from error


@cache
def _interface(gpu: str) -> Any:
    library = _library()
    return library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget.TRITON,
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu],
    )


@cache
def _gpu(hardware: Hardware) -> str | None:
    """NVIDIA's name of a GPU that ``hardware.py`` knows."""
    known = known_gpu(hardware.name)
    if known is None or not known.same_arch(hardware):
        return None
    return next((theirs for ours, theirs in _GPUS.items() if known.called(ours)), None)


def _nearest(wanted: Tiles, tried: Sequence[Tiles]) -> Tiles | None:
    """That of the tiles which differ in their stages only, with the number nearest to what is wanted."""
    alike = [tiles for tiles in tried if tiles._replace(num_stages=wanted.num_stages) == wanted]
    return min(alike, key=lambda tiles: abs(tiles.num_stages - wanted.num_stages), default=None)


def _tiles(kernel: Any) -> Tiles:
    warps = (kernel.cta_tile_m // kernel.warp_tile_m) * (kernel.cta_tile_n // kernel.warp_tile_n)
    return Tiles(kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, GROUP_M, kernel.stages, warps)
