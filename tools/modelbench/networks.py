"""Networks written out here, so that no other package is needed: MLPs, layers of Llama, a block of a UNet."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

Linear = Callable[[int, int], nn.Module]  # makes a linear layer without bias, of an input's and a result's width


class RecommenderMLP(nn.Module):
    """The two MLPs of DLRM with ReLU: the bottom one of the dense features, the top one of that and the embeddings."""

    def __init__(self, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.bottom = _layers(bottom, last=nn.ReLU())
        self.top = _layers(top, last=nn.Identity())

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        result: Tensor = self.top(torch.cat((self.bottom(dense), embeddings), dim=1))
        return result


def _layers(sizes: Sequence[int], last: nn.Module) -> nn.Sequential:
    linears = [nn.Linear(before, after) for before, after in pairwise(sizes)]
    layers = [layer for linear in linears[:-1] for layer in (linear, nn.ReLU())]
    return nn.Sequential(*layers, linears[-1], last)


class ManyLinears(nn.Module):
    """Linear layers of one input, ``count`` of them and all of another width, ``step`` apart: as many kernels."""

    def __init__(self, inputs: int, count: int, step: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, step * (index + 1), bias=False) for index in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.layers], dim=1)


def plain_linear(inputs: int, outputs: int) -> nn.Module:
    """In the type of its input."""
    return nn.Linear(inputs, outputs, bias=False)


class Adapted(nn.Module):
    """A linear layer without bias, with a low-rank adapter of ``rank`` beside it; 0 for none."""

    def __init__(self, inputs: int, outputs: int, rank: int, linear: Linear = plain_linear) -> None:
        super().__init__()
        self.linear = linear(inputs, outputs)
        self.down = nn.Linear(inputs, rank, bias=False) if rank else None
        self.up = nn.Linear(rank, outputs, bias=False) if rank else None

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x)
        return result if self.down is None or self.up is None else result + 2 * self.up(self.down(x))


class GatedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))``, each with an adapter of ``rank``."""

    def __init__(self, width: int, hidden: int, rank: int = 0, linear: Linear = plain_linear) -> None:
        super().__init__()
        self.gate, self.up = (Adapted(width, hidden, rank, linear) for _ in range(2))
        self.down = Adapted(hidden, width, rank, linear)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return result


class LlamaDecoder(nn.Module):
    """One token of each sequence through Llama's layers and vocabulary, the KV cache being full but for that token.

    The token's keys and values are written to the last place of the cache, which is one tensor for each layer.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        hidden: int,
        heads: tuple[int, int],
        layers: int,
        cache: int,
        linear: Linear = plain_linear,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(_DecoderLayer(width, hidden, heads, linear) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads[0]
        angles = (cache - 1) / 500_000 ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
        self.register_buffer("cosine", angles.cos().repeat(2))
        self.register_buffer("sine", angles.sin().repeat(2))

    def forward(self, tokens: Tensor, position: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        x = self.embedding(tokens)
        for layer, k, v in zip(self.layers, keys, values, strict=True):
            x = layer(x, position, k, v, self.cosine.to(x.dtype), self.sine.to(x.dtype))
        result: Tensor = self.head(self.norm(x))
        return result


class _DecoderLayer(nn.Module):
    def __init__(self, width: int, hidden: int, heads: tuple[int, int], linear: Linear) -> None:
        super().__init__()
        self.size = width // heads[0]
        self.q, self.o = (linear(width, width) for _ in range(2))
        self.k, self.v = (linear(width, heads[1] * self.size) for _ in range(2))
        self.mlp = GatedMLP(width, hidden, linear=linear)
        self.before, self.between = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def forward(
        self, x: Tensor, position: Tensor, keys: Tensor, values: Tensor, cosine: Tensor, sine: Tensor
    ) -> Tensor:
        normed = self.before(x)
        q, k, v = (_heads(linear(normed), self.size) for linear in (self.q, self.k, self.v))
        keys.index_copy_(2, position, _rotated(k, cosine, sine))
        values.index_copy_(2, position, v)
        seen = scaled_dot_product_attention(_rotated(q, cosine, sine), keys, values, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mlp(self.between(x))
        return result


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # on queries, keys, values of batch x heads x tokens x size


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each token sees those before it."""
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class LlamaLayers(nn.Module):
    """Llama's layers without its vocabulary: tokens x width, of one sequence, without positions.

    Projections that read the same input are one matmul, as servers have them. Layers take turns with ``attentions``.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        heads: tuple[int, int],
        layers: int,
        linear: Linear = plain_linear,
        attentions: Sequence[Attend] = (causal,),
    ) -> None:
        super().__init__()
        self.width = width
        self.layers = nn.ModuleList(
            _Layer(width, hidden, heads, linear, attentions[index % len(attentions)]) for index in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.norm(x)
        return result


class _Layer(nn.Module):
    def __init__(self, width: int, hidden: int, heads: tuple[int, int], linear: Linear, attend: Attend) -> None:
        super().__init__()
        self.size = width // heads[0]
        self.parts = [width, heads[1] * self.size, heads[1] * self.size]
        self.qkv, self.o = linear(width, sum(self.parts)), linear(width, width)
        self.gate_up, self.down = linear(width, 2 * hidden), linear(hidden, width)
        self.before, self.between = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads(part[None], self.size) for part in self.qkv(self.before(x)).split(self.parts, dim=-1))
        x = x + self.o(self.attend(q, k, v).transpose(1, 2).flatten(2)[0])
        gate, up = self.gate_up(self.between(x)).chunk(2, dim=-1)
        result: Tensor = x + self.down(silu(gate) * up)
        return result


class Float8Linear(nn.Module):
    """A linear layer in float8 with a scale for each row of its input, found at run time, and of its weight.

    This is how torchao calls the library. In float64, its input is rounded to float8 all the same.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight, scale = _in_float8(nn.Linear(inputs, outputs, bias=False).weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        rounded, scale = _in_float8(x.flatten(0, -2))
        if self.weight.dtype == torch.float64:
            result = (rounded.double() * scale) @ (self.weight * self.scale).t()
        else:
            weight, scales = self.weight.t(), (scale, self.scale.t())
            result = torch._scaled_mm(rounded, weight, *scales, out_dtype=x.dtype, use_fast_accum=True)
        return result.view(*x.shape[:-1], -1)


def _in_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a matrix as they are rounded to float8, and what each is to be multiplied with, in float32."""
    most = torch.finfo(torch.float8_e4m3fn).max
    wide = x if x.dtype == torch.float64 else x.float()
    scale = wide.abs().amax(1, keepdim=True).clamp(min=1e-12) / most
    return (wide / scale).clamp(-most, most).to(torch.float8_e4m3fn), scale


class FlexAttention(nn.Module):
    """Flex attention in which each token sees itself and those before it, of the last ``window`` if that is not None.

    Where it is not compiled, attention with the same mask.
    """

    def __init__(self, tokens: int, window: int | None) -> None:
        super().__init__()

        def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            before = query >= key
            return before if window is None else before & (query - key < window)

        device = torch.get_default_device()
        self.block_mask = create_block_mask(visible, None, None, tokens, tokens, device=device)
        self.mask = create_mask(visible, 1, 1, tokens, tokens, device=device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            result: Tensor = flex_attention(q, k, v, block_mask=self.block_mask, enable_gqa=True)
            return result
        return scaled_dot_product_attention(q, k, v, attn_mask=self.mask, enable_gqa=True)


def _heads(x: Tensor, size: int) -> Tensor:
    """Batch, heads, tokens, size."""
    return x.view(*x.shape[:-1], -1, size).transpose(1, 2)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine


class UNetBlock(nn.Module):
    """A residual block and a transformer block, as the UNet of Stable Diffusion has them at one resolution."""

    def __init__(self, channels: int, times: int, context: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(groups, channels) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(times, channels)
        self.enter, self.leave = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.transformer = _CrossAttending(channels, context, heads)

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        hidden = self.convolutions[0](silu(self.norms[0](x))) + self.time(silu(time))[:, :, None, None]
        x = x + self.convolutions[1](silu(self.norms[1](hidden)))
        tokens = self.enter(self.norms[2](x).flatten(2).transpose(1, 2))
        tokens = self.leave(self.transformer(tokens, context))
        result: Tensor = x + tokens.transpose(1, 2).reshape(x.shape)
        return result


class _CrossAttending(nn.Module):
    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.size = channels // heads
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.queries = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in range(2))
        self.keys = nn.ModuleList(nn.Linear(size, channels, bias=False) for size in (channels, context))
        self.values = nn.ModuleList(nn.Linear(size, channels, bias=False) for size in (channels, context))
        self.outputs = nn.ModuleList(nn.Linear(channels, channels) for _ in range(2))
        self.expand, self.reduce = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        normed = self.norms[0](x)
        x = x + self._attend(0, normed, normed)
        x = x + self._attend(1, self.norms[1](x), context)
        value, gate = self.expand(self.norms[2](x)).chunk(2, dim=-1)
        result: Tensor = x + self.reduce(value * gelu(gate))
        return result

    def _attend(self, index: int, x: Tensor, context: Tensor) -> Tensor:
        parts = (self.queries[index](x), self.keys[index](context), self.values[index](context))
        q, k, v = (_heads(part, self.size) for part in parts)
        seen = scaled_dot_product_attention(q, k, v)
        result: Tensor = self.outputs[index](seen.transpose(1, 2).flatten(2))
        return result
