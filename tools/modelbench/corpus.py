"""Programs whose generated kernels are measured: models of transformers and timm, and pieces of models by hand.

Widths are those of the public models; most have one or two layers, because layers of one width have the same kernels.
Weights are random. Everything is in bfloat16, except where the name says otherwise.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from modelbench import public_models
from modelbench.models import MODELS, Workload, _Picked
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Make = Callable[[], Workload]


def build(name: str, device: str) -> Workload:
    """The program called ``name``, in evaluation mode unless it trains."""
    torch.manual_seed(0)
    dtype = torch.float32 if name.endswith("-fp32") else torch.float16 if name.endswith("-fp16") else torch.bfloat16
    torch.set_default_dtype(dtype)
    with torch.device(device):
        workload = (PROGRAMS.get(name) or KEPT_AWAY[name])()
    torch.set_default_dtype(torch.float32)
    workload.module.requires_grad_(workload.training).train(workload.training)
    return workload


def _text(kind: str, batch: int, length: int, *, training: bool = False, **options: Any) -> Workload:
    """A model of transformers by the name of its configuration; its encoder if it has a decoder too."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

    config = AutoConfig.for_model(kind, **options)
    tokens = torch.randint(min(config.vocab_size, 1000), (batch, length))
    if training:
        masked = kind in ("bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert")
        model = (AutoModelForMaskedLM if masked else AutoModelForCausalLM).from_config(config)
        return Workload(_Picked(model, lambda output: output.loss), (tokens, tokens), training=True)
    model = AutoModel.from_config(config)
    model = model.encoder if getattr(config, "is_encoder_decoder", False) and kind == "t5" else model
    return Workload(_Picked(model, lambda output: output.last_hidden_state), (tokens,))


class _Named(nn.Module):
    """A module that takes one tensor by a name, as one that takes it by place."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module, self._name = module, name

    def forward(self, tensor: Tensor) -> Tensor:
        return self.module(**{self._name: tensor}).last_hidden_state  # type: ignore[no-any-return]


def _image_of_transformers(kind: str, batch: int, size: int, **options: Any) -> Workload:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, image_size=[size, size] if kind == "yolos" else size, **options)
    return Workload(_Named(AutoModel.from_config(config), "pixel_values"), (torch.randn(batch, 3, size, size),))


def _whisper(batch: int, width: int, heads: int) -> Workload:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        d_model=width,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
    )
    return Workload(_Named(WhisperModel(config).encoder, "input_features"), (torch.randn(batch, 80, 3000),))


def _wav2vec(batch: int) -> Workload:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return Workload(
        _Named(Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=2)), "input_values"), (torch.randn(batch, 48_000),)
    )


class _Mean(nn.Module):
    """The mean of a module's result, as a loss."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs).float().square().mean()  # type: ignore[no-any-return]


def _timm(name: str, batch: int, size: int = 224, *, training: bool = False, **options: Any) -> Workload:
    import timm

    model = timm.create_model(name, pretrained=False, **options)
    image = torch.randn(batch, 3, size, size)
    return Workload(_Mean(model) if training else model, (image,), training=training)


def _detector() -> Workload:
    """ResNet-50 with a feature pyramid and a head, channels last; it needs torchvision."""
    from modelbench.joined_tasks import image, network

    model, inputs = network("fpn"), torch.randn(image("fpn", 2))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Workload(model, (inputs.to(memory_format=torch.channels_last),))


class _Function(nn.Module):
    """A function of tensors as a module; with ``learned`` its first argument is a parameter."""

    def __init__(self, function: Callable[..., Tensor], learned: Tensor | None = None) -> None:
        super().__init__()
        self._function = function
        self.learned = None if learned is None else nn.Parameter(learned)

    def forward(self, *inputs: Tensor) -> Any:
        return self._function(*inputs) if self.learned is None else self._function(self.learned, *inputs)


def _function(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Workload:
    return Workload(_Function(function), tuple(torch.randn(shape) for shape in shapes))


def _gradient(function: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Workload:
    """The function's sum of squares, with the gradient of its first argument."""
    first, *others = (torch.randn(shape) for shape in shapes)
    return Workload(_Mean(_Function(function, first)), tuple(others), training=True)


def _labels(function: Callable[..., Any], shape: tuple[int, ...], *, training: bool = False) -> Workload:
    """A loss of scores and labels."""
    labels = torch.randint(shape[-1], shape[:-1])
    if training:
        return Workload(_Function(function, torch.randn(shape)), (labels,), training=True)
    return Workload(_Function(function), (torch.randn(shape), labels))


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _residual_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, F.layer_norm(total, total.shape[-1:], weight, bias)


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.float() * 0.125 + torch.where(mask > 0, 0.0, -1e9), -1).to(scores.dtype)


def _rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 448
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def _int8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def _adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    m, v = torch.lerp(m, g, 0.1), v * 0.999 + 0.001 * g * g
    return p * 0.9999 - 1e-3 * m / (v.abs().sqrt() + 1e-8), m, v


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2).contiguous()


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().flatten(2) * 2


def _dropped(x: Tensor, y: Tensor) -> Tensor:
    return F.dropout(x, 0.1) + y


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int = 32) -> Tensor:
    return F.silu(F.group_norm(x, groups, weight, bias))


def _embedded(ids: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(ids, table), table.shape[-1:], weight, bias)


def _embedding(rows: int, width: int, batch: int, length: int) -> Workload:
    inputs = (torch.randint(rows, (batch, length)), torch.randn(rows, width), torch.randn(width), torch.randn(width))
    return Workload(_Function(_embedded), inputs)


_LLAMA: dict[str, Any] = {"vocab_size": 32_000, "num_hidden_layers": 2}
_layer_norm: Callable[..., Tensor] = lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)  # noqa: E731

PROGRAMS: dict[str, Make] = {
    "bert": partial(_text, "bert", 16, 384, num_hidden_layers=2),
    "bert-large": partial(
        _text, "bert", 8, 128, num_hidden_layers=2, hidden_size=1024, num_attention_heads=16, intermediate_size=4096
    ),
    "minilm": partial(
        _text, "bert", 64, 128, num_hidden_layers=2, hidden_size=384, num_attention_heads=12, intermediate_size=1536
    ),
    "bert-training": partial(_text, "bert", 16, 256, num_hidden_layers=1, training=True),
    "roberta": partial(_text, "roberta", 8, 200, num_hidden_layers=2),
    "distilbert": partial(_text, "distilbert", 32, 64, n_layers=2),
    "albert": partial(_text, "albert", 16, 256, num_hidden_layers=2, hidden_size=768, num_attention_heads=12),
    "electra": partial(_text, "electra", 32, 128, num_hidden_layers=2),
    "mpnet": partial(_text, "mpnet", 32, 128, num_hidden_layers=2),
    "deberta": partial(
        _text,
        "deberta-v2",
        8,
        256,
        num_hidden_layers=2,
        hidden_size=768,
        num_attention_heads=12,
        intermediate_size=3072,
    ),
    "modernbert": partial(_text, "modernbert", 8, 512, num_hidden_layers=3),
    "esm": partial(
        _text,
        "esm",
        8,
        350,
        vocab_size=33,
        num_hidden_layers=2,
        hidden_size=640,
        num_attention_heads=20,
        intermediate_size=2560,
        pad_token_id=1,
    ),
    "t5": partial(_text, "t5", 8, 512, num_layers=2, d_model=768, d_ff=3072, num_heads=12),
    "gpt2": partial(_text, "gpt2", 8, 512, n_layer=2),
    "gpt2-training": partial(_text, "gpt2", 8, 512, n_layer=1, training=True),
    "gpt2-medium": partial(_text, "gpt2", 4, 1024, n_layer=2, n_embd=1024, n_head=16),
    "opt": partial(_text, "opt", 4, 512, num_hidden_layers=2, hidden_size=2048, num_attention_heads=32, ffn_dim=8192),
    "pythia": partial(
        _text, "gpt_neox", 4, 512, num_hidden_layers=2, hidden_size=1024, num_attention_heads=16, intermediate_size=4096
    ),
    "bloom": partial(_text, "bloom", 4, 512, n_layer=2, hidden_size=1024, n_head=16),
    "llama-1b": partial(
        _text,
        "llama",
        1,
        2048,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=8,
        **_LLAMA,
    ),
    "llama-1b-training": partial(
        _text,
        "llama",
        2,
        512,
        hidden_size=2048,
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=8,
        training=True,
        vocab_size=32_000,
        num_hidden_layers=1,
    ),
    "llama-8b": partial(
        _text,
        "llama",
        1,
        1024,
        hidden_size=4096,
        intermediate_size=14_336,
        num_attention_heads=32,
        num_key_value_heads=8,
        **_LLAMA,
    ),
    "qwen2": partial(
        _text,
        "qwen2",
        1,
        777,
        hidden_size=896,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        **_LLAMA,
    ),
    "qwen3": partial(
        _text,
        "qwen3",
        4,
        512,
        hidden_size=1024,
        intermediate_size=3072,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        **_LLAMA,
    ),
    "gemma2": partial(
        _text,
        "gemma2",
        1,
        1024,
        hidden_size=2304,
        intermediate_size=9216,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        **_LLAMA,
    ),
    "phi": partial(_text, "phi", 2, 512, hidden_size=2048, intermediate_size=8192, num_attention_heads=32, **_LLAMA),
    "mistral": partial(
        _text,
        "mistral",
        2,
        1024,
        hidden_size=4096,
        intermediate_size=14_336,
        num_attention_heads=32,
        num_key_value_heads=8,
        **_LLAMA,
    ),
    "stablelm": partial(
        _text,
        "stablelm",
        2,
        777,
        hidden_size=2560,
        intermediate_size=6912,
        num_attention_heads=32,
        num_key_value_heads=32,
        **_LLAMA,
    ),
    "vit": partial(_image_of_transformers, "vit", 32, 224, num_hidden_layers=2),
    "dinov2": partial(
        _image_of_transformers, "dinov2", 8, 518, hidden_size=384, num_attention_heads=6, num_hidden_layers=2
    ),
    "beit": partial(_image_of_transformers, "beit", 16, 224, num_hidden_layers=2),
    "siglip": partial(_image_of_transformers, "siglip_vision_model", 16, 224, num_hidden_layers=2),
    "clip": partial(_image_of_transformers, "clip_vision_model", 32, 224, num_hidden_layers=2),
    "whisper": partial(_whisper, 4, 512, 8),
    "whisper-large": partial(_whisper, 1, 1280, 20),
    "wav2vec2": partial(_wav2vec, 4),
    "detector": _detector,
    **{
        f"timm-{name}": partial(_timm, name, batch, size)
        for name, batch, size in (
            ("resnet50", 64, 224),
            ("resnet18", 128, 224),
            ("efficientnet_b0", 64, 224),
            ("convnext_tiny", 32, 224),
            ("mobilenetv3_large_100", 128, 224),
            ("mixer_b16_224", 32, 224),
            ("regnety_032", 64, 224),
            ("densenet121", 32, 224),
            ("vit_small_patch16_224", 64, 224),
            ("swin_tiny_patch4_window7_224", 32, 224),
            ("maxvit_tiny_tf_224", 8, 224),
            ("poolformer_s12", 32, 224),
            ("levit_256", 64, 224),
            ("edgenext_small", 32, 256),
            ("xcit_tiny_12_p16_224", 32, 224),
            ("cait_xxs24_224", 16, 224),
            ("coat_lite_tiny", 32, 224),
            ("pvt_v2_b1", 32, 224),
            ("gmlp_s16_224", 32, 224),
            ("resmlp_12_224", 64, 224),
            ("fastvit_t8", 32, 256),
            ("hrnet_w18", 16, 224),
            ("dpn68", 32, 224),
            ("repvgg_a0", 64, 224),
            ("mobilevit_s", 32, 256),
        )
    },
    **{
        f"timm-{name}-training": partial(_timm, name, batch, training=True)
        for name, batch in (
            ("resnet18", 64),
            ("vit_small_patch16_224", 32),
            ("convnext_atto", 64),
            ("efficientnet_b0", 32),
            ("mobilenetv3_small_100", 64),
            ("mixer_s16_224", 32),
        )
    },
    **{f"bench-{name}": partial(MODELS[name].make, False) for name in MODELS if "flex" not in name},
    **{
        f"layer-norm-{rows}x{width}": partial(_function, _layer_norm, (rows, width), (width,), (width,))
        for rows, width in (
            (16384, 384),
            (6144, 768),
            (2800, 640),
            (4096, 1280),
            (2048, 4096),
            (512, 8192),
            (64, 1024),
            (100_000, 96),
            (65_536, 192),
            (333, 777),
        )
    },
    **{
        f"rms-norm-{rows}x{width}": partial(_function, _rms_norm, (rows, width), (width,))
        for rows, width in ((2048, 2048), (16, 4096), (1, 8192), (1024, 3584), (8192, 1536), (777, 896), (32_768, 128))
    },
    **{
        f"residual-norm-{rows}x{width}": partial(
            _function, _residual_norm, (rows, width), (rows, width), (width,), (width,)
        )
        for rows, width in ((16384, 384), (6144, 768), (1500, 1280), (4096, 2048))
    },
    **{
        f"layer-norm-gradient-{rows}x{width}": partial(_gradient, _layer_norm, (rows, width), (width,), (width,))
        for rows, width in ((8192, 768), (2048, 4096), (16_384, 320))
    },
    **{
        f"softmax-{'x'.join(map(str, shape))}": partial(_function, lambda x: torch.softmax(x, -1), shape)
        for shape in (
            (768, 128, 128),
            (160, 350, 350),
            (96, 512, 512),
            (12, 1024, 1024),
            (4096, 50_257),
            (65_536, 49),
            (128, 1000),
            (32, 8, 1500, 150),
            (8, 32_000),
        )
    },
    **{
        f"masked-softmax-{batch}x{heads}x{length}": partial(
            _function, _masked_softmax, (batch, heads, length, length), (batch, 1, 1, length)
        )
        for batch, heads, length in ((64, 12, 128), (8, 20, 350), (8, 12, 512), (16, 12, 384))
    },
    **{
        f"cross-entropy-{rows}x{classes}{'-training' * training}": partial(
            _labels, lambda x, y: F.cross_entropy(x.float(), y), (rows, classes), training=training
        )
        for rows, classes in ((4096, 32_000), (2048, 50_257), (256, 1000))
        for training in (False, True)
    },
    **{
        f"pointwise-{name}-{count}": partial(_function, function, *[(count,)] * arguments)
        for count in (5_000, 200_000, 4_194_304, 50_331_648)
        for name, function, arguments in (
            ("gelu", F.gelu, 1),
            ("add", lambda x, y: x + y, 2),
            ("silu-product", lambda x, y: F.silu(x) * y, 2),
            ("adamw", _adamw, 4),
            ("dropout", _dropped, 2),
        )
    },
    **{
        f"heads-{batch}x{length}x{width}": partial(_function, partial(_heads, heads=heads), (batch, length, width))
        for batch, length, width, heads in (
            (16, 384, 768, 12),
            (64, 128, 384, 12),
            (1, 2048, 4096, 32),
            (8, 350, 640, 20),
        )
    },
    **{
        f"joined-{'x'.join(map(str, shape))}": partial(_function, _joined, shape)
        for shape in ((16, 12, 384, 64), (8, 20, 350, 32), (32, 3, 3136, 32))
    },
    **{
        f"transposed-{'x'.join(map(str, shape))}": partial(
            _function, lambda x, y: x.transpose(1, 2) + y, shape, (shape[0], shape[2], shape[1])
        )
        for shape in ((64, 128, 384), (8, 3136, 96), (1, 4096, 4096), (32, 197, 768), (100, 77, 33))
    },
    **{
        f"column-sum-{rows}x{columns}": partial(_function, lambda x: x.float().sum(0), (rows, columns))
        for rows, columns in ((65_536, 256), (6144, 768), (2048, 14_336), (1_000_000, 8), (512, 50_000))
    },
    **{
        f"row-sum-{rows}x{columns}": partial(_function, lambda x: x.float().square().sum(-1), (rows, columns))
        for rows, columns in ((65_536, 256), (1024, 65_536), (1, 10_000_000), (100_000, 20), (300, 3000))
    },
    **{
        f"batch-norm-{batch}x{channels}x{size}": partial(
            _gradient,
            lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)),
            (batch, channels, size, size),
            (channels,),
            (channels,),
        )
        for batch, channels, size in ((32, 64, 112), (64, 256, 56), (64, 2048, 7))
    },
    **{
        f"group-norm-{batch}x{channels}x{size}": partial(
            _function, _group_norm, (batch, channels, size, size), (channels,), (channels,)
        )
        for batch, channels, size in ((2, 320, 64), (2, 1280, 16), (1, 512, 128), (8, 640, 32))
    },
    **{
        f"rotary-{'x'.join(map(str, shape))}": partial(_function, _rotary, shape, shape[-2:], shape[-2:])
        for shape in ((1, 32, 2048, 128), (16, 8, 1, 64), (4, 16, 777, 96))
    },
    **{
        f"{name}-{rows}x{width}": partial(_function, function, (rows, width))
        for name, function in (("float8", _quantized), ("int8", _int8))
        for rows, width in ((2048, 4096), (16, 14_336), (8192, 1536))
    },
    "embedding-768": partial(_embedding, 30_522, 768, 16, 384),
    "embedding-384": partial(_embedding, 30_522, 384, 64, 128),
    "upsample": partial(_function, lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest") * 2, (4, 320, 64, 64)),
    "pool": partial(_function, lambda x: F.avg_pool2d(x, 3, 2, 1) + F.max_pool2d(x, 3, 2, 1), (32, 128, 56, 56)),
    "argmax": partial(_function, lambda x: x.argmax(-1), (64, 128_256)),
    "cumsum": partial(_function, lambda x: x.float().cumsum(-1), (512, 2000)),
    "variance-fp32": partial(_function, lambda x: x.var(-1), (8192, 1111)),
    "log-sum-exp-fp32": partial(_function, lambda x: x.logsumexp(-1), (2048, 10_000)),
    "layer-norm-fp32": partial(_function, _layer_norm, (6144, 768), (768,), (768,)),
    "gelu-fp32": partial(_function, F.gelu, (6144, 3072)),
    "softmax-fp16": partial(_function, lambda x: torch.softmax(x, -1), (96, 512, 512)),
}


_WIDTHS = (
    *(32, 49, 64, 77, 96, 128, 144, 160, 192, 196, 197, 256, 320, 350, 384, 512, 576, 640, 768, 800, 896, 1000, 1024),
    *(1152, 1280, 1536, 1792, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 8192, 11_008, 14_336, 16_384, 32_000),
    *(50_257, 128_256),
)

_ONE_TENSOR: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log-softmax": lambda x: torch.log_softmax(x.float(), -1),
    "log-sum-exp": lambda x: x.float().logsumexp(-1),
    "variance": lambda x: x.float().var(-1),
    "maximum": lambda x: x.max(-1).values,
    "argmax": lambda x: x.argmax(-1),
    "normalized": lambda x: F.normalize(x.float(), dim=-1).to(x.dtype),
    "scaled-softmax": lambda x: torch.softmax(x.float() * 0.125 + torch.tanh(x.float()), -1).to(x.dtype),
    "float8": _quantized,
    "int8": _int8,
    "row-sum": lambda x: x.float().square().sum(-1),
    "column-sum": lambda x: x.float().sum(0),
    "column-variance": lambda x: torch.var_mean(x.float(), 0),
    "column-maximum": lambda x: x.abs().amax(0),
}
_WITH_WEIGHTS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "layer-norm": (_layer_norm, 1, 2),
    "rms-norm": (_rms_norm, 1, 1),
    "residual-norm": (_residual_norm, 2, 2),
    "residual-rms-norm": (lambda x, y, w: (x + y, _rms_norm(x + y, w)), 2, 1),
    "gated-rms-norm": (lambda x, y, w: _rms_norm(F.silu(x) * y, w), 2, 1),
    "rms-norm-float8": (lambda x, w: _quantized(_rms_norm(x, w)), 1, 1),
    "gelu-norm": (lambda x, w, b: _layer_norm(F.gelu(x), w, b), 1, 2),
    "softmax-product": (lambda x, y: torch.softmax(x.float() + y.float(), -1).to(x.dtype), 2, 0),
    "cosine": (lambda x, y: F.cosine_similarity(x.float(), y.float(), -1), 2, 0),
}
"""Each with the number of tensors of all rows, and of one row."""


def drawn(count: int, *, few_rows: bool = False) -> dict[str, Make]:
    """Reductions of one operation each, of sizes drawn at random; those of gradients have weights of one row.

    ``few_rows`` draws 1 to 128 rows, as in decoding.
    """
    draw = random.Random(2 if few_rows else 0)
    programs: dict[str, Make] = {}
    while len(programs) < count:
        width = draw.choice(_WIDTHS)
        rows = int(2 ** draw.uniform(0, 7.01)) if few_rows else int(2 ** draw.uniform(5, 17)) // 8 * 8
        if not (2**7 if few_rows else 2**18) <= rows * width <= (2**20 if few_rows else 2**26):
            continue
        suffix = draw.choice(("", "", "", "-fp32", "-fp16"))
        if draw.random() < 0.45:
            name = draw.choice(list(_ONE_TENSOR))
            make = partial(_function, _ONE_TENSOR[name], (rows, width))
        else:
            name = draw.choice(list(_WITH_WEIGHTS))
            function, tensors, weights = _WITH_WEIGHTS[name]
            shapes = (*[(rows, width)] * tensors, *[(width,)] * weights)
            gradient = draw.random() < 0.35 and name in ("layer-norm", "rms-norm", "gelu-norm", "softmax-product")
            name += "-gradient" * gradient
            make = partial(_gradient if gradient else _function, function, *shapes)
        programs[f"drawn-{name}-{rows}x{width}{suffix}"] = make
    return programs


def _layouts(*tensors: Tensor) -> Tensor:
    """Work on tensors of which every other one is transposed."""
    total = tensors[0]
    for number, tensor in enumerate(tensors[1:], 1):
        total = total * 0.5 + (tensor.transpose(1, 2) if number % 2 else tensor)
    return total


def _rotary_pairs(x: Tensor, y: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, ...]:
    """Rotary embedding of neighbours, as in GPT-J, and heads before positions."""
    pairs = (torch.stack((-each[..., 1::2], each[..., ::2]), -1).flatten(-2) for each in (x, y))
    return tuple(
        (each * cosine + turned * sine).transpose(1, 2).contiguous() for each, turned in zip((x, y), pairs, strict=True)
    )


_OF_LAYOUTS: dict[str, Callable[..., Any]] = {
    "layer-norm": lambda x, y: F.layer_norm(x.transpose(1, 2) + y, y.shape[-1:]),
    "residual-norm": lambda x, y: ((x.transpose(1, 2) + y), F.layer_norm(x.transpose(1, 2) + y, y.shape[-1:])),
    "softmax": lambda x, y: torch.softmax(x.transpose(1, 2).float() * 0.125 + y.float(), -1).to(y.dtype),
    "row-sum": lambda x, y: (x.transpose(1, 2).float() * y.float()).sum(-1),
    "maximum": lambda x, y: (x.transpose(1, 2) + y).amax(-1),
}


def drawn_layouts(count: int) -> dict[str, Make]:
    """Work that reads tensors along different dimensions: pointwise of many tensors, and reductions."""
    draw = random.Random(1)
    programs: dict[str, Make] = {}
    while len(programs) < count:
        width = draw.choice((16, 49, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 3072))
        length = draw.choice((49, 64, 128, 196, 256, 350, 512, 784, 1024, 1500, 2048, 3136, 4096))
        batch = 2 ** draw.randrange(8)
        if not 2**18 <= batch * width * length <= 2**25:
            continue
        across, along = (batch, width, length), (batch, length, width)
        kind, sizes = draw.random(), f"{batch}x{length}x{width}"
        if kind < 0.5:
            tensors = draw.randrange(2, 13)
            shapes = [across if number % 2 else along for number in range(tensors)]
            programs[f"drawn-layouts-{tensors}-{sizes}"] = partial(_function, _layouts, *shapes)
        elif kind < 0.6 and width % 64 == 0:
            heads, angles = (batch, length, width // 64, 64), (length, 1, 64)
            make = partial(_function, _rotary_pairs, heads, heads, angles, angles)
            programs[f"drawn-layouts-pairs-{sizes}"] = make
        elif kind >= 0.6:
            name = draw.choice(list(_OF_LAYOUTS))
            programs[f"drawn-layouts-{name}-{sizes}"] = partial(_function, _OF_LAYOUTS[name], across, along)
    return programs


PROGRAMS |= drawn(280) | drawn_layouts(160) | drawn(120, few_rows=True)


def _public(
    texts: Mapping[str, tuple[str, int, int, dict[str, Any]]],
    images: Mapping[str, tuple[str, int, int, dict[str, Any]]],
    timm: Mapping[str, tuple[int, int]],
) -> dict[str, Make]:
    return {
        **{
            name: partial(_text, kind, batch, tokens, training=name.endswith("-training"), **options)
            for name, (kind, batch, tokens, options) in texts.items()
        },
        **{
            name: partial(_image_of_transformers, kind, batch, size, **options)
            for name, (kind, batch, size, options) in images.items()
        },
        **{f"timm-{name}": partial(_timm, name, batch, size) for name, (batch, size) in timm.items()},
    }


PROGRAMS |= _public(public_models.TEXTS, public_models.IMAGES, public_models.TIMM)
PROGRAMS |= {
    f"timm-{name}-training": partial(_timm, name, batch, training=True)
    for name, batch in public_models.TIMM_TRAINING.items()
}

KEPT_AWAY = _public(public_models.TEXTS_AWAY, public_models.IMAGES_AWAY, public_models.TIMM_AWAY)
"""Programs that judge rows. Nothing that makes rows may see their kernels."""
