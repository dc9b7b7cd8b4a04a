"""How people spell what a GEMM is made of: types, layouts and sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from diode_lut.domain.errors import ProblemError

if TYPE_CHECKING:
    import torch

_DTYPES = {
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "f16": "float16",
    "f32": "float32",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "half": "float16",
    "i8": "int8",
}

_SIZE = re.compile(r"(\d[\d_]{0,15})([km]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


OPS_OF_LAYERS = {
    "gemm": "mm, or bmm with a batch",
    "linear": "addmm, or mm without a bias",
    "matmul": "mm, or bmm with a batch",
    "nn.linear": "addmm, or mm without a bias",
}
"""What people call a GEMM, and the ops that Inductor makes of it."""

_QUALIFIED = re.compile(r"(torch\.(ops\.)?)?(aten(\.|::))?_?")


def op_of(text: str) -> str:
    """``MM``, ``aten.mm`` and ``torch.mm`` are ``mm``, and ``torch._int_mm`` is ``int_mm``.

    What is no text, in a file, stays as it is.
    """
    if not isinstance(text, str):
        return text
    return _QUALIFIED.sub("", text.casefold(), count=1).removesuffix(".default")


def dtype_of(text: str | torch.dtype) -> str:
    """``bf16``, ``BFloat16`` and ``torch.bfloat16`` are ``bfloat16``; what is no type stays as it is."""
    name = str(text).casefold().removeprefix("torch.")
    return _DTYPES.get(name, name)


def variant_of(text: str) -> str:
    """``row-bf16-fast`` is ``row-bfloat16-fast``; what is no text, in a file, stays as it is."""
    return "-".join(map(dtype_of, text.split("-"))) if isinstance(text, str) else text


def layout_of(text: str) -> str:
    """``NT`` is ``nt``; what is no text, in a file, stays as it is."""
    return text.casefold() if isinstance(text, str) else text


def size_of(text: str) -> int:
    """``1024``, ``1_024`` or ``1k``: k counts 1,024, m 1,024 times that; ProblemError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ProblemError(f"{text!r} is not a size (such as 1024, or 1k, which is the same)")
    return int(found[1].replace("_", "")) * _UNITS[found[2].casefold()]


def number_of(name: str, size: int | str) -> int:
    """A size that may be text; ProblemError, with the name of the size, for text that is none."""
    if not isinstance(size, str):
        return size
    try:
        return size_of(size)
    except ProblemError as error:
        raise ProblemError(f"{name}: {error}") from None
