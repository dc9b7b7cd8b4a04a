"""Flex attention on the CUDA device that is not there, with every kind of mask and score modification."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._higher_order_ops.flex_attention import create_fw_bw_graph
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, noop_mask

from tests.fake_cuda import Input, Lowered, lower

Modification = Callable[..., Any]


def causal(b: Any, h: Any, m: Any, n: Any) -> Any:
    return m >= n


def causal_reversed(b: Any, h: Any, m: Any, n: Any) -> Any:
    return n <= m


def window(b: Any, h: Any, m: Any, n: Any) -> Any:
    return (m >= n) & (m - n <= 64)


def plain(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score


def soft_cap(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return torch.tanh(score / 20) * 20


OPTIONS = {
    **dict.fromkeys(("PRESCALE_QK", "ROWS_GUARANTEED_SAFE", "BLOCKS_ARE_CONTIGUOUS", "OUTPUT_MAX"), False),
    **dict.fromkeys(("WRITE_DQ", "OUTPUT_LOGSUMEXP"), True),
}
"""What PyTorch adds to kernel options."""


class Attention(NamedTuple):
    """An attention of (b, h, m, k), (b, h / g, n, k) and (b, h / g, n, v), perhaps with documents and a bias."""

    b: int = 1
    h: int = 4
    g: int = 1
    m: int = 512
    n: int = 512
    k: int = 64
    v: int = 64
    dtype: torch.dtype = torch.bfloat16
    mask: Modification | None = causal
    score: Modification = plain
    documents: bool = False
    bias: bool = False
    block: int = 128
    dynamic: bool = False

    def block_mask(self) -> BlockMask:
        """The mask's blocks, on the CPU."""
        mask = causal if self.documents else self.mask
        if mask is None:
            block_mask = create_block_mask(noop_mask, None, None, self.m, self.n, device="cpu")
            return BlockMask.from_kv_blocks(
                torch.zeros(1, 1, 1, dtype=torch.int32) + 1,
                torch.zeros(1, 1, 1, 1, dtype=torch.int32),
                BLOCK_SIZE=1 << 30,
                mask_mod=block_mask.mask_mod,
                seq_lengths=(self.m, self.n),
            )
        return create_block_mask(mask, None, None, self.m, self.n, device="cpu", BLOCK_SIZE=self.block)

    def inputs(self) -> list[Input]:
        """Queries, keys, values, documents, bias, and what the block mask consists of."""
        dynamic = (2,) if self.dynamic else ()
        shapes = (
            (self.b, self.h, self.m, self.k),
            (self.b, self.h // self.g, self.n, self.k),
            (self.b, self.h // self.g, self.n, self.v),
        )
        tensors = [each for each in self.block_mask().as_tuple() if isinstance(each, torch.Tensor)]
        return [
            *(Input(shape, self.dtype, dynamic=dynamic if place == 0 else ()) for place, shape in enumerate(shapes)),
            Input((max(self.m, self.n),), torch.int32),
            Input((self.h,), torch.float32),
            *(Input(tuple(each.shape), each.dtype) for each in tensors),
        ]

    def _masked(self, tensors: list[torch.Tensor], documents: torch.Tensor) -> tuple[Any, ...]:
        """The block mask as the operator takes it."""
        parts = iter(tensors)
        *rest, mask = (next(parts) if isinstance(part, torch.Tensor) else part for part in self.block_mask().as_tuple())
        del mask
        return (*rest, _same_document if self.documents else self.mask or noop_mask)

    def forward(self, options: dict[str, Any]) -> Callable[..., Any]:
        """The attention as a function of the inputs."""

        def function(q: Any, k: Any, v: Any, documents: Any, bias: Any, *parts: Any) -> Any:
            result, *_ = torch.ops.higher_order.flex_attention(
                q, k, v, _biased if self.bias else self.score, self._masked(list(parts), documents),
                1 / math.sqrt(self.k), options, (bias,) if self.bias else (), (documents,) if self.documents else (),
            )  # fmt: skip
            return result

        return function

    def backward(self, options: dict[str, Any]) -> Callable[..., Any]:
        """Its gradients as a function of the inputs."""

        def function(q: Any, k: Any, v: Any, documents: Any, bias: Any, *parts: Any) -> Any:
            indices = [torch.empty((), dtype=q.dtype, requires_grad=True)]  # autograd knows no device of that kind
            indices += [torch.empty((), dtype=torch.int32) for _ in range(4)]
            forward, joint = create_fw_bw_graph(self.score, tuple(indices), ())
            gradients = torch.ops.higher_order.flex_attention_backward(
                q, k, v, torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32), torch.empty_like(q),
                None, forward, joint, self._masked(list(parts), documents), 1 / math.sqrt(self.k), options, (),
                (documents,) if self.documents else (),
            )  # fmt: skip
            return gradients[:3]

        return function

    def lowered(self, *, backward: bool = False, **options: Any) -> Lowered:
        """What Inductor makes of it with these kernel options, inside ``fake_cuda``."""
        function = (self.backward if backward else self.forward)({**OPTIONS, **options})
        with mock.patch("torch._higher_order_ops.flex_attention._permute_strides", lambda out, _: out):
            return lower(function, *self.inputs())


def _same_document(b: Any, h: Any, m: Any, n: Any, documents: Any) -> Any:
    return documents[m] == documents[n]


def _biased(score: Any, b: Any, h: Any, m: Any, n: Any, bias: Any) -> Any:
    return score + bias[h]
