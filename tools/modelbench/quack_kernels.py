"""GEMMs of the package quack-kernels for Hopper, with their epilogues. Compiling one needs no GPU, launching it does.

A kernel depends on its epilogue, its config and its dtypes, on no size. QuACK keeps it in ``QUACK_CACHE_DIR``, under a
hash that depends on this module's source, on the version of Python, and on the packages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

os.environ.setdefault("QUACK_ARCH", "90")
os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import torch
from quack.activation import geglu, gelu_erf, gelu_tanh_approx, relu, silu, swiglu
from quack.epilogue.frontend import gemm_epilogue
from quack.epilogue.math import unpack
from quack.epilogue.ops import RowVecLoad
from quack.gemm_config import get_all_configs
from torch import Tensor

Values = dict[str, Any]


def _none(acc: Any) -> Values:
    return {"D": acc}


def _bias(acc: Any, bias: Any) -> Values:
    return {"D": acc + bias}


def _bias_gelu(acc: Any, bias: Any) -> Values:
    return {"D": gelu_erf(acc + bias)}


def _bias_gelu_tanh(acc: Any, bias: Any) -> Values:
    return {"D": gelu_tanh_approx(acc + bias)}


def _bias_relu(acc: Any, bias: Any) -> Values:
    return {"D": relu(acc + bias)}


def _add(acc: Any, c: Any) -> Values:
    return {"D": acc + c}


def _bias_add(acc: Any, bias: Any, c: Any) -> Values:
    return {"D": acc + bias + c}


def _bias_scale_add(acc: Any, bias: Any, scale: Any, c: Any) -> Values:
    return {"D": (acc + bias) * scale + c}


def _silu_gate(acc: Any, c: Any) -> Values:
    return {"D": silu(c) * acc}


def _gelu_gate(acc: Any, c: Any) -> Values:
    return {"D": gelu_tanh_approx(c) * acc}


def _joined_silu(acc: Any) -> Values:
    gate, up = unpack(acc)
    return {"result": swiglu(gate, up)}


def _joined_gelu(acc: Any) -> Values:
    gate, up = unpack(acc)
    return {"result": geglu(gate, up)}


_FUNCTIONS = (_none, _bias, _bias_gelu, _bias_gelu_tanh, _bias_relu, _add, _bias_add, _bias_scale_add)
_ROWS = {name: RowVecLoad(name) for name in ("bias", "scale")}


def _rows(function: Callable[..., Values]) -> Values:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return {name: _ROWS[name] for name in names if name in _ROWS}


KERNELS: dict[str, Any] = {
    **{
        function.__name__[1:].replace("_", "-"): gemm_epilogue(ops=_rows(function))(function)
        for function in (*_FUNCTIONS, _silu_gate, _gelu_gate)
    },
    **{
        function.__name__[1:].replace("_", "-"): gemm_epilogue(outputs=("result",), mode="acc_pair")(function)
        for function in (_joined_silu, _joined_gelu)
    },
}
"""A kernel for each epilogue. Those whose names begin with "joined" take B with the rows of gate and up in turns."""


def configs(epilogue: str) -> dict[str, Values]:
    """Return all configs that QuACK tunes on SM90, by name, in its order, the default first."""
    found = {}
    for config in get_all_configs("gated" if epilogue.startswith("joined") else None):
        if config.device_capacity == 9:
            name = f"{config.tile_m}x{config.tile_n}-{config.cluster_m}x{config.cluster_n}"
            name += ("-pingpong" if config.pingpong else "") + ("-swap" if config.swap_ab else "")
            found[name] = {
                "tile_M": config.tile_m,
                "tile_N": config.tile_n,
                "cluster_M": config.cluster_m,
                "cluster_N": config.cluster_n,
                "pingpong": config.pingpong,
                "swap_ab": config.swap_ab,
                "max_swizzle_size": config.max_swizzle_size,
            }
    default = "128x192-2x1-pingpong"
    return {default: found[default], **found}


def launch(epilogue: str, config: Values, operands: Mapping[str, Tensor | None], out: Tensor, *, run: bool) -> None:
    """Compute ``x @ w.t()`` with an epilogue into ``out``, or compile the kernel only.

    ``operands`` has x, w, and those that the epilogue takes: bias and scale as vectors, c as a matrix like ``out``.
    """
    kernel, x, w = KERNELS[epilogue], operands["x"], operands["w"]
    assert x is not None
    assert w is not None
    named = {name: operands[name] for name in kernel.operand_names if name != "c"}
    arguments = {name: row[None] for name, row in named.items() if row is not None}
    c = operands["c"] if "c" in kernel.operand_names else None
    joined = epilogue.startswith("joined")
    if joined:
        arguments["result"] = out
    kernel.gemm(x, w.t(), None if joined else out, c, epi_args=arguments, b_kn=True, _launch=run, **config)


def compile_kernel(epilogue: str, config: Values) -> None:
    """Compile a kernel for bfloat16, unless the cache has it. A GPU is neither needed nor used."""
    n = 256
    operands: dict[str, Tensor | None] = {
        "x": torch.empty(256, 256),
        "w": torch.empty(n, 256),
        "c": torch.empty(256, n),
    }
    operands |= {"bias": torch.empty(n), "scale": torch.empty(n)}
    operands = {name: value.bfloat16() for name, value in operands.items() if value is not None}
    columns = n // 2 if epilogue.startswith("joined") else n
    with patch("quack.gemm_runtime.host.get_max_active_clusters", lambda *_, **__: 1):
        launch(epilogue, config, operands, torch.empty(256, columns).bfloat16(), run=False)
