"""Compile QuACK's kernels, in a process of its own: ``python -m diode_lut.hook.quack_kernels``.

Importing PyTorch, QuACK and CUTLASS's Python takes seconds, and compiling a kernel takes three. No GPU is used. The
names are those of ``hook.quack``. Each kernel becomes a shared library. Several such processes may write into a
directory.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from select import select
from typing import Any
from unittest.mock import patch

os.environ |= {"QUACK_ARCH": "90", "CUTE_DSL_ARCH": "sm_90a", "CUDA_VISIBLE_DEVICES": ""}

import torch

from diode_lut.files import write_atomically


def _as_it_is(function: Any = None, *, recompile_limit: Any = None, **_: Any) -> Any:  # noqa: ARG001 (QuACK asks)
    """Return a function, or a decorator that does so, with a parameter of ``torch.compile`` that QuACK asks for."""
    return function or _as_it_is


# QuACK compiles functions for other GPUs when it is imported, and so would import Dynamo and Inductor for seconds.
with patch("torch.compile", _as_it_is), patch("torch.compiler.disable", _as_it_is):
    import quack.cache
    from cutlass import Float32
    from cutlass._mlir.dialects import arith
    from quack.activation import gelu_erf, gelu_tanh_approx, silu
    from quack.epilogue.frontend import gemm_epilogue
    from quack.epilogue.ops import RowVecLoad

InKernel = Any
"""An element of a tile, or a GEMM of QuACK, with types of CUTLASS's Python."""


def _after(work: Callable[[InKernel], InKernel]) -> dict[str, InKernel]:
    """Return QuACK's GEMMs with an activation of the product, without and with a bias."""

    def plain(acc: InKernel) -> dict[str, InKernel]:
        return {"D": work(acc)}

    def biased(acc: InKernel, bias: InKernel) -> dict[str, InKernel]:
        return {"D": work(acc + bias)}

    return {"": gemm_epilogue()(plain), "bias_": gemm_epilogue(ops={"bias": RowVecLoad("bias")})(biased)}


def _with(work: Callable[[InKernel, InKernel], InKernel]) -> dict[str, InKernel]:
    """Return QuACK's GEMMs with work on the product and another M x N tensor, without and with a bias."""

    def plain(acc: InKernel, c: InKernel) -> dict[str, InKernel]:
        return {"D": work(acc, c)}

    def biased(acc: InKernel, bias: InKernel, c: InKernel) -> dict[str, InKernel]:
        return {"D": work(acc + bias, c)}

    return {"": gemm_epilogue()(plain), "bias_": gemm_epilogue(ops={"bias": RowVecLoad("bias")})(biased)}


def _relu(product: InKernel) -> InKernel:
    """Return the larger of a product and 0, and NaN for NaN. QuACK's own relu returns 0 for NaN."""
    return Float32(arith.maximumf(product.ir_value(), Float32(0.0).ir_value()))


def _add(product: InKernel, c: InKernel) -> InKernel:
    return product + c


def _swiglu(product: InKernel, gate: InKernel) -> InKernel:
    return silu(gate) * product


def _geglu(product: InKernel, gate: InKernel) -> InKernel:
    return gelu_tanh_approx(gate) * product


_WORK = {
    "relu": _after(_relu),
    "gelu": _after(gelu_erf),
    "gelu_tanh": _after(gelu_tanh_approx),
    "add": _with(_add),
    "swiglu": _with(_swiglu),
    "geglu": _with(_geglu),
}

EPILOGUES: dict[str, InKernel] = {f"{bias}{name}": gemms[bias] for name, gemms in _WORK.items() for bias in gemms}
"""QuACK's GEMMs by their names in ``hook.quack``. QuACK reads the source of these functions."""


def main() -> None:
    """Compile the libraries that lines of stdin name: the library's path, a tab, and the path of a file for an error.

    End when no line has come for a while, or stdin is closed.
    """
    with get_context("fork").Pool(min(_MOST_AT_ONCE, os.cpu_count() or 1)) as pool:
        while select([sys.stdin], [], [], _WAITS_S)[0]:
            text = os.read(sys.stdin.fileno(), 1 << 16).decode()
            for line in text.splitlines():
                pool.apply_async(provide, line.split("\t"))
            if not text:
                break
        pool.close()
        pool.join()


_MOST_AT_ONCE = 16
_WAITS_S = 60.0


def provide(library: str, failed: str) -> None:
    """Compile a kernel, unless another process does so or has done so. Write an error into the file ``failed``."""
    compiled = Path(library)
    path = compiled.with_suffix("")
    try:
        path.mkdir(exist_ok=True)
        lock = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # no file system has to have locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not compiled.exists():
                _compile(compiled, path)
        finally:
            os.close(lock)
    except Exception as error:
        write_atomically(Path(failed), repr(error)[:1000].encode(), durable=False)


def _compile(path: Path, own: Path) -> None:
    """Compile one kernel for bfloat16 and any sizes, in a directory of its own, and link it."""
    work, tile, cluster, *flags = path.stem.split("-")
    tile_m, tile_n, cluster_m, cluster_n = map(int, (*tile.split("x"), *cluster.split("x")))
    x, w, c, out = (torch.empty(256, 256, dtype=torch.bfloat16) for _ in range(4))
    kernel = EPILOGUES[work]
    rows = {"bias": torch.empty(1, 256, dtype=torch.bfloat16)} if "bias" in kernel.operand_names else {}
    with tempfile.TemporaryDirectory(dir=own) as scratch:
        quack.cache.CACHE_ENABLED, quack.cache.CACHE_DIR = True, scratch
        with patch("quack.gemm_runtime.host.get_max_active_clusters", lambda *_, **__: 1):
            kernel.gemm(
                *(x, w.t(), out, c if "c" in kernel.operand_names else None),
                epi_args=rows,
                b_kn=True,
                tile_M=tile_m,
                tile_N=tile_n,
                cluster_M=cluster_m,
                cluster_N=cluster_n,
                pingpong="pingpong" in flags,
                swap_ab="swap" in flags,
                _launch=False,
            )
        (compiled,) = Path(scratch).rglob("*.o")
        linked = Path(scratch) / "linked"
        compiler = shlex.split(os.environ.get("CXX") or "g++")
        subprocess.run([*compiler, "-shared", "-o", linked, compiled], check=True)  # noqa: S603 (the user's compiler)
        linked.replace(path)


if __name__ == "__main__":
    main()
