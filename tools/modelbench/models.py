"""The models: random weights, fixed shapes, and for each a ``tiny`` version that any CPU compiles in seconds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from modelbench.networks import (
    FlexAttention,
    Float8Linear,
    GatedMLP,
    Linear,
    LlamaDecoder,
    LlamaLayers,
    ManyLinears,
    RecommenderMLP,
    UNetBlock,
    plain_linear,
)
from modelbench.small import MLP, ActorCritic, AutoInt, CrossNetwork, DotsRecommender, Radiance, Towers
from torch import Tensor, nn

SEED = 0


@dataclass
class Workload:
    """A module and its inputs; ``training`` if the gradients of its result, a loss, are computed too."""

    module: nn.Module
    inputs: tuple[Any, ...]
    training: bool = False

    def step(self, module: Callable[..., Any]) -> tuple[Tensor, ...]:
        """One step of ``module``, which may be compiled: its result, or the loss and all gradients."""
        if not self.training:
            with torch.no_grad():
                return (module(*self.inputs),)
        loss = module(*self.inputs)
        return (loss.detach(), *torch.autograd.grad(loss, [*self.module.parameters()]))

    def in_float64(self) -> Workload:
        """The same model, with the same weights and inputs."""
        return Workload(copy.deepcopy(self.module).double(), _in_float64(self.inputs), self.training)


def _in_float64(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_in_float64, value))
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


class Model(NamedTuple):
    """A model of the benchmark.

    ``about`` describes it in a phrase, ``make`` makes it in normal or in ``tiny`` size, ``needs`` names the packages
    that this takes. Its tensors are of ``dtype``.
    """

    about: str
    make: Callable[[bool], Workload]
    needs: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16

    def missing(self) -> list[str]:
        """The packages that are not installed here."""
        return [name for name in self.needs if find_spec(name) is None]


def build(name: str, device: str, tiny: bool) -> Workload:
    """The model, the same in each process."""
    torch.manual_seed(SEED)
    model = (MODELS | ON_REQUEST)[name]
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(model.dtype)
        with torch.device(device):
            workload = model.make(tiny)
    finally:
        torch.set_default_dtype(before)
    workload.module.requires_grad_(workload.training).train(workload.training)
    return workload


class _Picked(nn.Module):
    """A module of transformers as one that returns a single tensor: of its output, what ``pick`` takes."""

    def __init__(self, module: nn.Module, pick: Callable[[Any], Tensor], **options: Any) -> None:
        super().__init__()
        self.module, self._pick, self._options = module, pick, options

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(("input_ids", "labels"), inputs, strict=False))
        return self._pick(self.module(**named, **self._options))


class _Loss(nn.Module):
    """The loss of a module that says how likely a click is; the last input says whether there was one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        *known, clicked = inputs
        return nn.functional.binary_cross_entropy_with_logits(self.module(*known), clicked)


def _bert_options(tiny: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if tiny:
        options |= {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        options |= {"intermediate_size": 64, "max_position_embeddings": 16}
    return options


def _bert(tiny: bool) -> Workload:
    from transformers import BertConfig, BertModel

    config = BertConfig(**_bert_options(tiny))
    model = BertModel(config, add_pooling_layer=False)
    return Workload(_Picked(model, lambda output: output.last_hidden_state), (_tokens(config, tiny, 16, 384),))


def _bert_training(tiny: bool) -> Workload:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**_bert_options(tiny))
    inputs = (_tokens(config, tiny, 16, 384), _tokens(config, tiny, 16, 384))
    return Workload(_Picked(BertForMaskedLM(config), lambda output: output.loss), inputs, training=True)


def _gpt2(tiny: bool) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = (
        GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=97, n_positions=16) if tiny else GPT2Config(n_layer=2)
    )
    model = _Picked(GPT2LMHeadModel(config), lambda output: output.logits, use_cache=False)
    return Workload(model, (_tokens(config, tiny, 4, 512),))


def _llama_prefill(tiny: bool) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    options: dict[str, Any] = {"vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336}
    options |= {"num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8}
    if tiny:
        options |= {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
        options |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**options, max_position_embeddings=8192)
    model = _Picked(LlamaForCausalLM(config), lambda output: output.logits, use_cache=False, logits_to_keep=1)
    return Workload(model, (_tokens(config, tiny, 1, 2048),))


def _tokens(config: Any, tiny: bool, batch: int, length: int) -> Tensor:
    return torch.randint(config.vocab_size, (2, 8) if tiny else (batch, length))


def _llama_decode(tiny: bool, sequences: int = 16, linear: Linear = plain_linear) -> Workload:
    vocabulary, width, hidden, heads, layers = (99, 32, 64, (4, 2), 1) if tiny else (128_256, 4096, 14_336, (32, 8), 4)
    batch, cache = (2, 8) if tiny else (sequences, 1024)
    shape = (batch, heads[1], cache, width // heads[0])
    keys, values = (tuple(torch.randn(shape) for _ in range(layers)) for _ in range(2))
    model = LlamaDecoder(vocabulary, width, hidden, heads, layers, cache, linear)
    tokens, position = torch.randint(vocabulary, (batch, 1)), torch.tensor([cache - 1])
    return Workload(model, (tokens, position, keys, values))


_Sizes = tuple[int, int, tuple[int, int]]  # the width, that of the MLP, and the heads of queries and of keys


def _llama_layers(
    tiny: bool, tokens: int, layers: int, sizes: _Sizes = (4096, 14_336, (32, 8)), **options: Any
) -> Workload:
    width, hidden, heads = (64, 128, (4, 2)) if tiny else sizes
    model = LlamaLayers(width, hidden, heads, 1 if tiny else layers, **options)
    return Workload(model, (torch.randn(tokens, width),))


def _llama_float8(tiny: bool) -> Workload:
    return _llama_layers(tiny, 32 if tiny else 2048, 2, linear=Float8Linear)


def _llama_float8_few(tiny: bool) -> Workload:
    return _llama_layers(tiny, 16, 2, linear=Float8Linear)


def _llama_flex(tiny: bool) -> Workload:
    tokens, window = (256, 128) if tiny else (4096, 1024)
    attentions = [FlexAttention(tokens, window), FlexAttention(tokens, None)]
    return _llama_layers(tiny, tokens, 2, attentions=attentions[:1] if tiny else attentions)


def _vit(tiny: bool) -> Workload:
    from timm.models.vision_transformer import VisionTransformer

    options = {"img_size": 32, "embed_dim": 32, "depth": 1, "num_heads": 2} if tiny else {}
    return Workload(VisionTransformer(**options), (torch.randn(*((2, 3, 32, 32) if tiny else (32, 3, 224, 224))),))


def _swin(tiny: bool) -> Workload:
    from timm.models.swin_transformer import SwinTransformer

    options: dict[str, Any] = {"depths": (2, 2, 6, 2), "embed_dim": 96, "num_heads": (3, 6, 12, 24)}
    if tiny:
        options = {"img_size": 32, "depths": (2,), "embed_dim": 16, "num_heads": (2,), "window_size": 4}
    return Workload(SwinTransformer(**options), (torch.randn(*((2, 3, 32, 32) if tiny else (32, 3, 224, 224))),))


def _timm(tiny: bool, name: str, images: int) -> Workload:
    """A network of convolutions, channels last."""
    import timm

    size = (2, 3, 32, 32) if tiny else (images, 3, 224, 224)
    model = timm.create_model(name).to(memory_format=torch.channels_last)
    return Workload(model, (torch.randn(size).to(memory_format=torch.channels_last),))


def _dlrm(tiny: bool) -> Workload:
    bottom, top = ((5, 16, 8), (32, 16, 1)) if tiny else ((13, 512, 256, 128), (1024, 1024, 512, 256, 1))
    batch = 16 if tiny else 4096
    inputs = torch.randn(batch, bottom[0]), torch.randn(batch, top[0] - bottom[-1])
    return Workload(RecommenderMLP(bottom, top), inputs)


def _dlrm_training(tiny: bool) -> Workload:
    inference = _dlrm(tiny)
    clicked = torch.randint(2, (inference.inputs[0].shape[0], 1)).to(torch.get_default_dtype())
    return Workload(_Loss(inference.module), (*inference.inputs, clicked), training=True)


def _gated_mlp(tiny: bool, rank: int = 0) -> Workload:
    rows, width, hidden = (8, 17, 29) if tiny else (2048, 1000, 2731)
    return Workload(GatedMLP(width, hidden, rank), (torch.randn(rows, width),))


def _adapted_mlp(tiny: bool) -> Workload:
    return _gated_mlp(tiny, rank=4 if tiny else 16)


def _many(tiny: bool) -> Workload:
    rows, width, count = (8, 16, 3) if tiny else (2048, 64, 32)
    return Workload(ManyLinears(width, count, 16 if tiny else 64), (torch.randn(rows, width),))


def _unet(tiny: bool) -> Workload:
    if tiny:
        block, (batch, channels, times, length, context, size) = UNetBlock(16, 24, 12, 2, 4), (2, 16, 24, 5, 12, 4)
    else:
        block, (batch, channels, times, length, context, size) = (
            UNetBlock(640, 1280, 768, 8, 32),
            (8, 640, 1280, 77, 768, 32),
        )
    inputs = torch.randn(batch, channels, size, size), torch.randn(batch, times), torch.randn(batch, length, context)
    return Workload(block, inputs)


def _small(make: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Callable[[bool], Workload]:
    """A small model of random inputs, of which the tiny version has few rows."""

    def workload(tiny: bool) -> Workload:
        return Workload(make(), tuple(torch.randn(min(rows, 8) if tiny else rows, *shape) for rows, *shape in shapes))

    return workload


MODELS = {
    "bert": Model("BERT-base, 16 x 384 tokens", _bert, ("transformers",)),
    "bert-training": Model("BERT-base, loss and gradients, 16 x 384 tokens", _bert_training, ("transformers",)),
    "vit": Model("ViT-B/16, 32 images", _vit, ("timm", "torchvision")),
    "swin": Model("Swin-T, 32 images", _swin, ("timm", "torchvision")),
    "gpt2": Model("GPT-2, 2 layers and vocabulary, 4 x 512 tokens", _gpt2, ("transformers",)),
    "llama-prefill": Model("Llama 3 8B, 4 layers, prefill of 2,048 tokens", _llama_prefill, ("transformers",)),
    "llama-decode": Model("Llama 3 8B, 4 layers, one token of 16 sequences", _llama_decode),
    **{
        f"llama-decode-{count}": Model(
            f"Llama 3 8B, 4 layers, one token of {count} sequence{'s' if count > 1 else ''}",
            partial(_llama_decode, sequences=count),
        )
        for count in (1, 8, 64)
    },
    "llama-fp8": Model("Llama 3 8B in float8, 2 layers, 2,048 tokens", _llama_float8),
    "llama-fp8-few": Model("Llama 3 8B in float8, 2 layers, 16 tokens", _llama_float8_few),
    "llama-flex": Model("Llama 3 8B, flex attention, window of 1,024 and causal, 4,096 tokens", _llama_flex),
    "unet": Model("UNet block with attention, 8 x 640 x 32 x 32", _unet),
    "gated-mlp": Model("gated MLP, 2,048 x 1000, hidden 2731", _gated_mlp),
    "adapted-mlp": Model("gated MLP with adapters of rank 16", _adapted_mlp),
    "linears": Model("32 linear layers of different widths, 2,048 x 64", _many),
    "dlrm": Model("DLRM's MLPs, batch 4,096", _dlrm),
    "dlrm-training": Model("DLRM's MLPs, loss and gradients, batch 4,096", _dlrm_training),
}
"""By their names on the command line."""

ON_REQUEST = {
    **{
        f"llama-decode-{count}-{name}": Model(
            f"Llama 3 8B in {name}, 4 layers, one token of {count} sequence{'s' if count > 1 else ''}",
            partial(_llama_decode, sequences=count, linear=linear),
            dtype=dtype,
        )
        for name, linear, dtype in (
            ("float16", plain_linear, torch.float16),
            ("float8", Float8Linear, torch.bfloat16),
        )
        for count in (1, 8, 16, 64)
    },
    **{
        f"{name}-layers-{tokens}": Model(
            f"{about}, 8 layers, {tokens} token{'s' if tokens > 1 else ''}",
            partial(_llama_layers, tokens=tokens, layers=8, sizes=sizes),
        )
        for name, about, sizes in (
            ("smollm2", "SmolLM2 360M", (960, 2560, (15, 5))),
            ("tinyllama", "TinyLlama 1.1B", (2048, 5632, (32, 4))),
            ("llama2", "Llama 2 13B", (5120, 13_824, (40, 40))),
        )
        for tokens in (1, 2, 4)
    },
    **{
        f"{name}-{images}": Model(
            f"{about}, {images} images, float16",
            partial(_timm, name=name, images=images),
            ("timm", "torchvision"),
            torch.float16,
        )
        for name, about in (("resnet50", "ResNet-50"), ("efficientnet_b0", "EfficientNet-B0"))
        for images in (8, 64)
    },
    "autoint": Model(
        "AutoInt, 39 features of width 16, batch 4,096",
        _small(lambda: AutoInt(39, 16, 2, 32, 3, (400, 400, 400)), (4096, 39, 16)),
    ),
    "dlrm-dots": Model(
        "DLRM with dot products, batch 8,192",
        _small(lambda: DotsRecommender(13, 26, 128, (512, 256), (1024, 1024, 512, 256)), (8192, 13), (8192, 26, 128)),
    ),
    "dcn": Model("DCN v2, batch 8,192", _small(lambda: CrossNetwork(429, 3, (768, 768)), (8192, 429))),
    "nerf": Model("radiance field, 65,536 points", _small(lambda: Radiance(63, 27, 256), (65_536, 63), (65_536, 27))),
    "sdf": Model(
        "signed distances, 65,536 points",
        _small(lambda: MLP(39, [512] * 7, 257, skips=(4,), smooth=True), (65_536, 39)),
    ),
    "actor": Model("actor and critic, batch 4,096", _small(lambda: ActorCritic(376, (256, 256), 17), (4096, 376))),
    "towers": Model(
        "two towers, 4,096 users and 8,192 items",
        _small(lambda: Towers(300, 500, (512, 256), 64), (4096, 300), (8192, 500)),
    ),
    "mlp": Model("MLP of 784, 500, 250 and 10, batch 2,048", _small(lambda: MLP(784, (500, 250), 10), (2048, 784))),
}
"""Models that are timed when they are asked for.

They show float16, float8 and layers that no table has, and small ones show compile times.
"""
