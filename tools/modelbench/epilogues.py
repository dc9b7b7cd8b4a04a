"""GEMMs of well-known models with what follows them: their sizes, their operands, and the same in eager mode."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

Operands = dict[str, Tensor]
Function = Callable[..., tuple[Tensor, ...]]


class Gemm(NamedTuple):
    """A product of x (m, k) and the transposed w (n, k), with an epilogue, and a norm of the result.

    A norm that begins with "only" drops the result that it is computed from.
    """

    m: int
    n: int
    k: int
    epilogue: str = "none"
    norm: str = ""

    @property
    def plain(self) -> str:
        """The epilogue that leaves everything but the bias to another kernel."""
        return "bias" if self.epilogue.startswith("bias") else "none"

    @property
    def rows(self) -> int:
        """The number of rows of w."""
        return 2 * self.n if self.epilogue.startswith("joined") else self.n


def _encoder(rows: int, width: int, *, add: str = "bias-add", norm: str = "layer") -> dict[str, tuple[Gemm, int]]:
    return {
        "q, k, v": (Gemm(rows, width, width, "bias"), 3),
        "out": (Gemm(rows, width, width, add, norm), 1),
        "fc1": (Gemm(rows, 4 * width, width, "bias-gelu"), 1),
        "fc2": (Gemm(rows, width, 4 * width, add, norm), 1),
    }


def _decoder(
    rows: int, width: int, q: int, kv: int, hidden: int, gate: str, add: str = "none", norm: str = ""
) -> dict[str, tuple[Gemm, int]]:
    return {
        "q": (Gemm(rows, q, width), 1),
        "k, v": (Gemm(rows, kv, width), 2),
        "out": (Gemm(rows, width, q, add, norm), 1),
        "gate": (Gemm(rows, hidden, width), 1),
        "up": (Gemm(rows, hidden, width, f"{gate}-gate"), 1),
        "down": (Gemm(rows, width, hidden, add, norm), 1),
        "gate and up joined": (Gemm(rows, hidden, width, f"joined-{gate}"), 0),
    }


MODELS: dict[str, dict[str, tuple[Gemm, int]]] = {
    "ViT-B, 32 images": _encoder(32 * 197, 768),
    "BERT-base, 16 x 384": _encoder(16 * 384, 768, norm="only layer"),
    "DINOv2-S, 8 x 1370": _encoder(8 * 1370, 384, add="bias-scale-add"),
    "MiniLM-L12, 64 x 128": _encoder(64 * 128, 384, norm="only layer"),
    "Gemma 2 2B, 1024 tokens": _decoder(1024, 2304, 2048, 1024, 9216, "gelu"),
    "Llama 8B, 1024 tokens": _decoder(1024, 4096, 4096, 1024, 14336, "silu", "add", "rms"),
    "Whisper small encoder, 4 x 1500": _encoder(4 * 1500, 768),
    "Mixer-B/16, 32 images": {
        "tokens 1": (Gemm(32 * 768, 384, 196, "bias-gelu"), 1),
        "tokens 2": (Gemm(32 * 768, 196, 384, "bias"), 1),
        "fc1": (Gemm(32 * 196, 3072, 768, "bias-gelu"), 1),
        "fc2": (Gemm(32 * 196, 768, 3072, "bias-add", "layer"), 1),
    },
    "other activations": {
        "none": (Gemm(32 * 197, 3072, 768), 0),
        "tanh": (Gemm(32 * 197, 3072, 768, "bias-gelu-tanh"), 0),
        "relu": (Gemm(32 * 197, 3072, 768, "bias-relu"), 0),
    },
}
"""By model, the GEMMs of a layer, each with its number in the layer. Those with 0 stand for themselves."""


def epilogue(name: str, y: Tensor, o: Operands) -> Tensor:
    """Compute the epilogue of ``y``, which has the bias already."""
    half = y.shape[-1] // 2
    silu, gelu = functional.silu, partial(functional.gelu, approximate="tanh")
    return {
        "none": lambda: y,
        "bias": lambda: y,
        "bias-gelu": lambda: functional.gelu(y),
        "bias-gelu-tanh": lambda: gelu(y),
        "bias-relu": lambda: torch.relu(y),
        "add": lambda: o["c"] + y,
        "bias-add": lambda: o["c"] + y,
        "bias-scale-add": lambda: o["c"] + y * o["scale"],
        "silu-gate": lambda: silu(o["c"]) * y,
        "gelu-gate": lambda: gelu(o["c"]) * y,
        "joined-silu": lambda: silu(y[:, :half]) * y[:, half:],
        "joined-gelu": lambda: gelu(y[:, :half]) * y[:, half:],
    }[name]()


def norm(name: str, s: Tensor, o: Operands) -> tuple[Tensor, ...]:
    """Return ``s`` and its norm, or the one of them that is needed."""
    if not name:
        return (s,)
    if name.endswith("layer"):
        normed = functional.layer_norm(s, s.shape[-1:], o["gamma"], o["beta"])
    else:
        wide = s if s.dtype == torch.float64 else s.float()
        normed = o["gamma"] * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(s.dtype)
    return (normed,) if name.startswith("only") else (s, normed)


def functions(gemm: Gemm) -> tuple[Function, Function, Function]:
    """Return functions of operands ``o``: all of it, what follows the plain GEMM ``y``, and the norm of ``s``."""

    def rest(y: Tensor, o: Operands) -> tuple[Tensor, ...]:
        return norm(gemm.norm, epilogue(gemm.epilogue, y, o), o)

    def whole(o: Operands) -> tuple[Tensor, ...]:
        return rest(functional.linear(o["x"], o["w"], o.get("bias")), o)

    def normed(s: Tensor, o: Operands) -> tuple[Tensor, ...]:
        return norm(gemm.norm, s, o)

    return whole, rest, normed


def operands(gemm: Gemm, device: str) -> Operands:
    """Draw operands, and reserve space for results: ``out``, and ``y`` of the plain GEMM.

    ``from x`` and ``from c`` are copies from which a kernel before the GEMM writes x and c. ``turns`` has the rows of
    gate and up in turns.
    """
    m, n, k = gemm.m, gemm.n, gemm.k
    randn = partial(torch.randn, device=device, dtype=torch.bfloat16)
    o = {"x": randn(m, k), "w": randn(gemm.rows, k) / k**0.5}
    if gemm.plain == "bias":
        o["bias"] = randn(n)
    if "add" in gemm.epilogue or "-gate" in gemm.epilogue:
        o["c"] = randn(m, n)
    if "scale" in gemm.epilogue:
        o["scale"] = randn(n)
    if gemm.norm:
        o |= {"gamma": randn(n), "beta": randn(n)}
    if gemm.rows != n:
        o["turns"] = o["w"].unflatten(0, (2, n)).transpose(0, 1).reshape(2 * n, k).contiguous()
    o |= {"out": randn(m, n), "y": randn(m, gemm.rows), "from x": o["x"].clone()}
    if "-gate" in gemm.epilogue:
        o["from c"] = o["c"].clone()
    return o
