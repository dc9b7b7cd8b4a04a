"""What a graph with Triton kernels takes to compile, and whose time that is: prints CPU time, without a GPU.

Run with ``make bench``. A graph of 32 different GEMMs is lowered for an H200 that is not there, and its code is
generated, with the library's kernels and with Triton's. A graph of 20 generated kernels is compiled with and without
the hook. Then Triton compiles a kernel of each of several tiles; its own time and that of NVIDIA's assembler, ptxas,
are apart. Inductor does that in a process for each core, so the time of a graph depends on their number, and on its
slowest kernel.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any
from unittest import mock

import torch
from bench_engine import show
from bench_hook import ROWS, TRITON, clock, generated_graph, row
from torch import Tensor
from torch._inductor.select_algorithm import TritonTemplate
from torch._inductor.utils import fresh_cache

import diode_lut
from tests.fake_cuda import Input, autotuner_of, compile_triton, fake_cuda, lower

GEMMS = 32
TIMES = 5  # how often the graph is lowered; the fastest counts

NAMES = ("template", "block_m", "block_n", "block_k", "num_stages", "num_warps")
TILES = (
    ("triton_mm", 16, 64, 128, 4, 4),
    ("triton_mm", 64, 64, 64, 3, 4),
    ("triton_mm", 64, 128, 64, 3, 4),
    ("triton_mm", 128, 128, 64, 3, 8),
    ("triton_mm", 128, 128, 64, 3, 4),
    ("triton_mm", 128, 256, 64, 4, 8),
    ("triton_mm_persistent_tma", 256, 128, 64, 3, 8),
)
"""NAMES of kernels that are frequent in the H200's table, or large."""


def main() -> None:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as name, fake_cuda():
        directory = Path(name)
        for kernels, config in ROWS.items():
            with diode_lut.config.patch(tables=(row(directory / f"{kernels}.json", config),), tiers=("user",)):
                whole, hook, inductor = min(_lowered() for _ in range(TIMES))
            show(f"{GEMMS} GEMMs with {kernels}, from graph to code", whole * 1e3, "ms")
            show("  of which the hook", (hook - inductor) * 1e3, "ms")
            show("  of which Inductor, when the hook has it make choices", inductor * 1e3, "ms")
        for about, enabled in (("without the hook", False), ("with shipped rows and model", True)):
            with diode_lut.config.patch(generated=enabled, tiers=("device", "model")):
                bench_generated(about, directory)
        for number, tile in enumerate(TILES):
            path = row(directory / f"{number}.json", TRITON | dict(zip(NAMES, tile, strict=True)))
            for epilogue in (None, torch.nn.functional.gelu):
                own, ptxas = compile_tile(path, epilogue, directory)
                about = "{} {}x{}x{} s{} w{}".format(*tile) + (" and gelu" if epilogue else "")
                show(f"{about}, Triton", own, "s")
                show(f"{about}, ptxas", ptxas, "s")


def _lowered() -> tuple[float, float, float]:
    """Seconds of CPU time for the whole, in the hook, and in Inductor's making of Triton choices within that."""
    torch._dynamo.reset()
    inputs = [Input((64 * (number // 2 + 1), 256)) if number % 2 else Input((256, 128)) for number in range(2 * GEMMS)]
    making = [0.0]
    generate = TritonTemplate.generate

    def timed(*arguments: Any, **keywords: Any) -> Any:
        started = time.thread_time()
        try:
            return generate(*arguments, **keywords)
        finally:
            making[0] += time.thread_time() - started

    def gemms(*matrices: Tensor) -> list[Tensor]:
        return [a @ b for b, a in zip(matrices[::2], matrices[1::2], strict=True)]

    with fresh_cache(), clock(now=time.thread_time) as calls, mock.patch.object(TritonTemplate, "generate", timed):
        started = time.thread_time()
        lower(gemms, *inputs)
        return time.thread_time() - started, sum(calls), making[0]


def bench_generated(about: str, directory: Path) -> None:
    """Compile a graph of generated kernels, each with all configs of which Inductor would benchmark the fastest."""
    generated_graph()  # what is imported and loaded once does not count
    wholes = []
    for _ in range(TIMES):
        started = time.thread_time()
        kernels = generated_graph().triton_kernels
        wholes.append(time.thread_time() - started)
    places = [(each, place) for each in kernels for place in range(len(autotuner_of(each, directory).configs))]
    with fresh_cache():
        compile_triton(kernels[0], directory)  # what Triton loads once does not count
    with fresh_cache():
        before = _cpu_time()
        for each, place in places:
            compile_triton(each, directory, place=place)
        own, ptxas = (after - earlier for after, earlier in zip(_cpu_time(), before, strict=True))
    show(f"{len(kernels)} generated kernels, {about}, from graph to code", min(wholes), "s")
    show(f"  their {len(places)} configs, Triton", own, "s")
    show(f"  their {len(places)} configs, ptxas", ptxas, "s")


def compile_tile(path: str, epilogue: Callable[[Tensor], Tensor] | None, directory: Path) -> tuple[float, float]:
    """Seconds of CPU time that Triton and ptxas take for a kernel of a table's only row."""

    def gemm(a: Tensor, b: Tensor) -> Tensor:
        return a @ b if epilogue is None else epilogue(a @ b)

    with diode_lut.config.patch(tables=(path,), tiers=("user",)), fresh_cache():
        (kernel,) = lower(gemm, Input((2048, 1024)), Input((1024, 4096))).triton_templates
        before = _cpu_time()
        compile_triton(kernel, directory)
        own, ptxas = (after - earlier for after, earlier in zip(_cpu_time(), before, strict=True))
    return own, ptxas


def _cpu_time() -> tuple[float, float]:
    """Seconds of this process, and of those that it has started and that have ended."""
    usages = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    own, children = (usage.ru_utime + usage.ru_stime for usage in usages)
    return own, children


if __name__ == "__main__":
    main()
