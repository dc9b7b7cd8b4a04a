"""NVIDIA's analytic heuristics as a chooser, a stop-gap for GPUs without measurements.

The package ``nvidia-matmul-heuristics`` has NVIDIA's own licence, and needs no GPU. It ranks Triton's configs, but does
not tell whether the library is faster. Most often the library is. With the setting ``policy="verify"``, Inductor times
the first config against it.
"""

from __future__ import annotations

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
"""NVIDIA's letters for the types of operands, sums and result. Full float32 has no tensor cores, and no letters."""

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

_ASKED = 32  # number of configs to ask for. Each is replaced by a sweep's config with the nearest stages, or dropped
_lock = Lock()  # held while the library works: its objects are for a single thread at a time


@in_forked_children
def _free_lock() -> None:
    """Renew the lock: its owner is not in the forked process."""
    global _lock
    _lock = Lock()


def nvidia(problem: Problem, hardware: Hardware) -> list[Config]:
    """Return NVIDIA's configs for a GEMM, best first, or none. SettingError if the package is missing."""
    known, precision = known_gpu(hardware.name), _PRECISIONS.get(problem.dtype)
    if known is None or not known.same_arch(hardware) or precision is None or problem.op not in MATMULS:
        return []
    gpu = next((theirs for ours, theirs in _GPUS.items() if known.called(ours)), None)
    if gpu is None:
        return []
    template = TEMPLATES[pointer_gemm(problem.op)]
    with _lock:
        library, interface = _library(gpu)
        layout = library.boolsToNvMatmulHeuristicsLayout(*(letter == "t" for letter in problem.layout))
        asked = interface.makeNvMatmulHeuristicsProblem(problem.m, problem.n, problem.k, layout, problem.b)
        kernels = [found["kernel"] for found in interface.get(asked, _ASKED, precision)]
    tried = [Tiles.of(params) for params in template.search(problem, hardware)]
    configs: dict[Config, None] = {}
    for kernel in kernels:
        warps = (kernel.cta_tile_m // kernel.warp_tile_m) * (kernel.cta_tile_n // kernel.warp_tile_n)
        wanted = Tiles(kernel.cta_tile_m, kernel.cta_tile_n, kernel.cta_tile_k, GROUP_M, kernel.stages, warps)
        alike = [tiles for tiles in tried if tiles._replace(num_stages=wanted.num_stages) == wanted]
        if kernel.split_k == 1 and alike:
            nearest = min(alike, key=lambda tiles: abs(tiles.num_stages - wanted.num_stages))
            configs[Config(template.name, tuple(nearest))] = None
    return list(configs)


def digest() -> str:
    """Return the package's version, as the digest for ``register_chooser``. SettingError if it is missing."""
    try:
        return f"{_PACKAGE} {version(_PACKAGE)}"
    except PackageNotFoundError:
        raise _missing() from None


def _missing() -> SettingError:
    return SettingError(f"NVIDIA's heuristics need {_PACKAGE}: {install_command('heuristics')}")


@cache
def _library(gpu: str) -> tuple[Any, Any]:
    """Return NVIDIA's library, and its interface for a GPU by NVIDIA's name."""
    try:
        library: Any = import_module("nvMatmulHeuristics")
    except BROKEN_IMPORT as error:
        raise _missing() from error
    interface = library.NvMatmulHeuristicsInterfaceEx(
        backend=library.NvMatmulHeuristicsTarget.TRITON,
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=library.NvMatmulHeuristicsNvidiaGpu[gpu],
    )
    return library, interface
