"""Compile QuACK's kernels, in a process of its own: ``python -m diode_lut.hook.quack_kernels DIRECTORY NAME...``.

Importing QuACK and CUTLASS's Python takes seconds, and compiling a kernel takes one to three. No GPU is used. The names
are those of ``hook.quack``. Each kernel becomes a shared library in the directory, in which others may write, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ |= {"QUACK_ARCH": "90", "CUTE_DSL_ARCH": "sm_90a", "CUDA_VISIBLE_DEVICES": ""}

import quack.cache
import torch
from quack.activation import gelu_erf, gelu_tanh_approx, relu, silu
from quack.epilogue.frontend import gemm_epilogue
from quack.epilogue.ops import RowVecLoad

Outputs = dict[str, Any]


def _relu(acc: Any) -> Outputs:
    return {"D": relu(acc)}


def _gelu(acc: Any) -> Outputs:
    return {"D": gelu_erf(acc)}


def _gelu_tanh(acc: Any) -> Outputs:
    return {"D": gelu_tanh_approx(acc)}


def _add(acc: Any, c: Any) -> Outputs:
    return {"D": acc + c}


def _swiglu(acc: Any, c: Any) -> Outputs:
    return {"D": silu(c) * acc}


def _geglu(acc: Any, c: Any) -> Outputs:
    return {"D": gelu_tanh_approx(c) * acc}


def _bias_relu(acc: Any, bias: Any) -> Outputs:
    return {"D": relu(acc + bias)}


def _bias_gelu(acc: Any, bias: Any) -> Outputs:
    return {"D": gelu_erf(acc + bias)}


def _bias_gelu_tanh(acc: Any, bias: Any) -> Outputs:
    return {"D": gelu_tanh_approx(acc + bias)}


def _bias_add(acc: Any, bias: Any, c: Any) -> Outputs:
    return {"D": acc + bias + c}


def _bias_swiglu(acc: Any, bias: Any, c: Any) -> Outputs:
    return {"D": silu(c) * (acc + bias)}


def _bias_geglu(acc: Any, bias: Any, c: Any) -> Outputs:
    return {"D": gelu_tanh_approx(c) * (acc + bias)}


_PLAIN: tuple[Callable[..., Outputs], ...] = (_relu, _gelu, _gelu_tanh, _add, _swiglu, _geglu)
_BIASED: tuple[Callable[..., Outputs], ...] = (
    *(_bias_relu, _bias_gelu, _bias_gelu_tanh, _bias_add, _bias_swiglu, _bias_geglu),
)

EPILOGUES: dict[str, Any] = {
    **{function.__name__[1:]: gemm_epilogue()(function) for function in _PLAIN},
    **{function.__name__[1:]: gemm_epilogue(ops={"bias": RowVecLoad("bias")})(function) for function in _BIASED},
}
"""QuACK's GEMMs by their work; QuACK reads the source of these functions, and finds them by this module's names."""


def main() -> None:
    """Compile all kernels at once. Exit with an error if one of them failed."""
    directory, *names = sys.argv[1:]
    with get_context("fork").Pool(min(len(names), os.cpu_count() or 1)) as pool:
        pool.starmap(compile_kernel, [(name, Path(directory)) for name in names])


def compile_kernel(name: str, directory: Path) -> None:
    """Compile one kernel for bfloat16 and any sizes, unless another process has done so, and link it."""
    work, tile, cluster, *flags = name.split("-")
    tile_m, tile_n, cluster_m, cluster_n = map(int, (*tile.split("x"), *cluster.split("x")))
    x, w, c, out = (torch.empty(256, 256, dtype=torch.bfloat16) for _ in range(4))
    kernel = EPILOGUES[work]
    rows = {"bias": torch.empty(1, 256, dtype=torch.bfloat16)} if "bias" in kernel.operand_names else {}
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
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
        subprocess.run(  # noqa: S603 (the user's compiler)
            [os.environ.get("CXX", "g++"), "-shared", "-o", linked, compiled], check=True
        )
        linked.replace(directory / f"{name}.so")


if __name__ == "__main__":
    from diode_lut.hook import quack_kernels  # under its own name, by which QuACK imports the functions

    quack_kernels.main()
