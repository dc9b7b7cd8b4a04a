"""Programs with models of transformers: generating, embedding, encoding, and training."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from modelbench.real_programs import Given, Program, Run, inference, training
from torch import Tensor
from torch.nn.functional import normalize

Sizes = dict[str, Any]

NEEDS = ("transformers",)


def model_of(given: Given, kind: str, sizes: Sizes, auto: str = "AutoModel") -> Any:
    """A model of this kind, with random weights, by one of the library's classes for any kind."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **{**sizes, **(_TINY.get(kind, {}) if given.tiny else {})})
    return given.made(lambda: getattr(transformers, auto).from_config(config))


_TINY_LAYERS: Sizes = {"num_hidden_layers": 1, "vocab_size": 512}
_TINY_DECODER: Sizes = {
    **_TINY_LAYERS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_TINY: dict[str, Sizes] = {
    **dict.fromkeys(("bert", "mpnet", "roberta", "deberta-v2", "esm"), _TINY_LAYERS),
    "modernbert": {**_TINY_LAYERS, "pad_token_id": 0},
    **dict.fromkeys(("llama", "qwen2", "qwen3"), _TINY_DECODER),
    "gpt2": {"n_layer": 1, "n_embd": 64, "n_head": 4, "vocab_size": 512},
    "t5": {"num_layers": 1, "vocab_size": 512},
    "distilbert": {"n_layers": 1, "vocab_size": 512},
    "whisper": {"encoder_layers": 1, "decoder_layers": 1, "vocab_size": 512, "pad_token_id": 0},
    "wav2vec2": {"num_hidden_layers": 1},
    "siglip_vision_model": {"num_hidden_layers": 1, "image_size": 56},
    "clip": {"text_config": {"num_hidden_layers": 1}, "vision_config": {"num_hidden_layers": 1, "image_size": 64}},
    "dinov2": {"num_hidden_layers": 1},
}


def _llama(width: int, hidden: int, heads: int, kv: int, layers: int, **more: Any) -> Sizes:
    return {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "num_hidden_layers": layers,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        **more,
    }


_LLAMA_1B = _llama(2048, 8192, 32, 8, 16, head_dim=64, vocab_size=128_256)
_QWEN_05B = _llama(896, 4864, 14, 2, 24, vocab_size=151_936)
_QWEN3_06B = _llama(1024, 3072, 16, 8, 28, head_dim=128, vocab_size=151_936)


def generate(given: Given, kind: str, sizes: Sizes, batch: int, prompt: int, new: int) -> Run:
    """Greedy text with a static cache, which the library compiles by itself."""
    if given.tiny:
        prompt, new = 8, 4
    model = model_of(given, kind, sizes, "AutoModelForCausalLM").eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    tokens = given.integers(500, batch, prompt)
    forced = given.integers(500, new).tolist()
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    options = {"max_new_tokens": new, "do_sample": False, "cache_implementation": "static"}

    def step() -> Tensor:
        result: Tensor = model.generate(**inputs, **options)
        return result

    def results() -> list[Tensor]:
        found = model.generate(
            **inputs,
            **options,
            prefix_allowed_tokens_fn=lambda _, before: [forced[len(before) - prompt]],
            return_dict_in_generate=True,
            output_logits=True,
        )
        return [logits[:, :2048] for logits in found.logits]

    return Run(step, results)


def embed(given: Given, kind: str, sizes: Sizes, lengths: Sequence[int], batch: int = 64, **options: Any) -> Run:
    """Embeddings of sentences: a batch for each of ``lengths``, which is its longest sentence."""
    if given.tiny:
        lengths, batch = lengths[:2], 4
    model = torch.compile(model_of(given, kind, sizes).eval(), **options)
    batches = []
    for length in lengths:
        tokens = given.integers(500, batch, length) + 2
        ends = torch.randint(max(length // 2, 1), length + 1, (batch, 1), device=given.device)
        ends[0] = length
        mask = (torch.arange(length, device=given.device) < ends).long()
        batches.append({"input_ids": tokens * mask, "attention_mask": mask})

    def encode(inputs: dict[str, Tensor]) -> Tensor:
        states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
        return normalize((states * mask).sum(1) / mask.sum(1))

    return inference(lambda: [encode(inputs) for inputs in batches])


def encode(given: Given, kind: str, sizes: Sizes, batch: int, length: int, *, padded: bool = False) -> Run:
    """The states of tokens, of sentences of one length or padded to it."""
    if given.tiny:
        batch, length = 2, 16
    model = torch.compile(model_of(given, kind, sizes).eval())
    tokens = given.integers(30, batch, length) + 3
    inputs = {"input_ids": tokens}
    if padded:
        ends = torch.randint(length // 2, length + 1, (batch, 1), device=given.device)
        inputs["attention_mask"] = (torch.arange(length, device=given.device) < ends).long()
    extra = {"decoder_input_ids": tokens[:, : length // 4]} if kind == "t5" else {}
    return inference(lambda: [model(**inputs, **extra).last_hidden_state])


def transcribe(given: Given) -> Run:
    """Whisper small on 30 seconds of sound: the encoder, and the decoder on a text that is given."""
    model = torch.compile(model_of(given, "whisper", _WHISPER, "AutoModelForSpeechSeq2Seq").eval())
    batch, length = (1, 8) if given.tiny else (8, 64)
    sound, tokens = given.normal(batch, 80, 3000), given.integers(500, batch, length)
    return inference(lambda: [model(input_features=sound, decoder_input_ids=tokens).logits[..., :2048]])


_WHISPER: Sizes = {
    "d_model": 768,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
}


def listen(given: Given) -> Run:
    """wav2vec 2.0 base on 10 seconds of sound."""
    model = torch.compile(model_of(given, "wav2vec2", {}).eval())
    sound = given.normal(1, 4000) if given.tiny else given.normal(8, 160_000)
    return inference(lambda: [model(input_values=sound).last_hidden_state])


def see(given: Given, kind: str, sizes: Sizes, batch: int, size: int) -> Run:
    """The states of image patches."""
    batch = 2 if given.tiny else batch
    model = model_of(given, kind, sizes).eval()
    size = getattr(model.config, "image_size", size) if given.tiny else size
    compiled, pixels = torch.compile(model), given.normal(batch, 3, size, size)
    return inference(lambda: [compiled(pixel_values=pixels).last_hidden_state])


def match(given: Given) -> Run:
    """CLIP: both towers, and how well 32 images and 64 texts match."""
    sizes = {"vision_config": {"patch_size": 16}, "text_config": {"bos_token_id": 0, "eos_token_id": 1}}
    model = model_of(given, "clip", sizes).eval()
    images, texts = (2, 2) if given.tiny else (32, 64)
    size = model.config.vision_config.image_size
    tokens, pixels = given.integers(500, texts, 77) + 2, given.normal(images, 3, size, size)
    tokens[:, -1] = 1
    compiled = torch.compile(model)

    def step() -> list[Tensor]:
        found = compiled(input_ids=tokens, pixel_values=pixels, attention_mask=torch.ones_like(tokens))
        return [found.image_embeds, found.text_embeds]

    return inference(step)


def see_patches(given: Given) -> Run:
    """The vision encoder of Qwen2-VL on four images."""
    from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

    config = Qwen2VLVisionConfig(hidden_size=1536, depth=1 if given.tiny else 16, embed_dim=1280, num_heads=16)
    model = given.made(lambda: Qwen2VisionTransformerPretrainedModel._from_config(config)).eval()
    side = 4 if given.tiny else 32
    grid = torch.tensor([[1, side, side]] * 4, device=given.device)
    patches = given.normal(4 * side * side, 3 * 2 * 14 * 14)
    compiled = torch.compile(model)

    def step() -> list[Tensor]:
        found = compiled(patches, grid_thw=grid)
        return [found if isinstance(found, Tensor) else found.last_hidden_state]

    return inference(step)


def train(
    given: Given, kind: str, auto: str, sizes: Sizes, batch: int, length: int, labels: Callable[[Tensor], Tensor]
) -> Run:
    """Steps as Trainer does them: AdamW, mixed precision, and gradients that are clipped."""
    if given.tiny:
        batch, length = 2, 16
    model = model_of(given, kind, sizes, auto).train()
    compiled = torch.compile(model)
    tokens = given.integers(500, batch, length)
    target = labels(tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=given.device == "cuda")

    def loss_of() -> Tensor:
        with given.autocast():
            loss: Tensor = compiled(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=target).loss
        return loss

    return training(model, optimizer, loss_of, clip=True)


_NO_DROPOUT: Sizes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def adapt(given: Given) -> Run:
    """LoRA of Llama 3.2 1B with peft: AdamW on adapters of rank 16 in all layers."""
    from peft import LoraConfig, get_peft_model

    model = model_of(given, "llama", _LLAMA_1B, "AutoModelForCausalLM").train()
    model.config.use_cache = False
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted: Any = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=names, lora_dropout=0.0))
    batch, length = (1, 16) if given.tiny else (4, 512)
    tokens = given.integers(500, batch, length)
    compiled = torch.compile(adapted)
    weights = [weight for weight in adapted.parameters() if weight.requires_grad]
    return training(
        adapted, torch.optim.AdamW(weights, lr=1e-4), lambda: compiled(input_ids=tokens, labels=tokens).loss
    )


_MINILM: Sizes = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "num_hidden_layers": 6}
_BGE: Sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12}
_MIXED = (24, 33, 47, 64, 85, 110, 128, 200)
_ALIKE = (128,) * 8


def _text(about: str, start: Callable[..., Run], *arguments: Any, dtype: torch.dtype = torch.bfloat16) -> Program:
    return Program(about, partial(_called, start=start, arguments=arguments), dtype, NEEDS)


def _called(given: Given, start: Callable[..., Run], arguments: Sequence[Any]) -> Run:
    return start(given, *arguments)


def _embedding(about: str, kind: str, sizes: Sizes, lengths: Sequence[int], **options: Any) -> Program:
    start = partial(embed, kind=kind, sizes=sizes, lengths=lengths, **options)
    return Program(about, start, torch.bfloat16, NEEDS)


TEXTS: dict[str, Program] = {
    "embed-minilm": _embedding(
        "MiniLM-L6 embeddings, 8 batches of 64, lengths 24 to 200, dynamic", "bert", _MINILM, _MIXED, dynamic=True
    ),
    "embed-minilm-alike": _embedding(
        "MiniLM-L6 embeddings, 8 batches of 64 x 128, dynamic", "bert", _MINILM, _ALIKE, dynamic=True
    ),
    "embed-minilm-static": _embedding("MiniLM-L6 embeddings, 8 batches of 64 x 128", "bert", _MINILM, _ALIKE),
    "generate-llama-1b": _text(
        "Llama 3.2 1B, generate 32 tokens, static cache", generate, "llama", _LLAMA_1B, 1, 128, 32
    ),
    "train-bert": _text(
        "BERT-base, steps of Trainer, 32 x 128 tokens",
        train,
        "bert",
        "AutoModelForMaskedLM",
        _NO_DROPOUT,
        32,
        128,
        torch.clone,
        dtype=torch.float32,
    ),
    "embed-mpnet": _embedding(
        "MPNet embeddings, 8 batches of 64, lengths 24 to 200, dynamic", "mpnet", {}, _MIXED, dynamic=True
    ),
    "embed-bge": _embedding(
        "BGE-base embeddings, 8 batches of 64, lengths 24 to 200, dynamic", "bert", _BGE, _MIXED, dynamic=True
    ),
    "whisper": _text("Whisper small, 8 x 30 s of sound, 64 tokens", transcribe),
    "siglip": _text(
        "SigLIP so400m, 16 images of 384 x 384",
        see,
        "siglip_vision_model",
        {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "image_size": 384,
        },
        16,
        384,
    ),
    "qwen2-vl": _text("Qwen2-VL's vision encoder, 16 layers, 4 images of 448 x 448", see_patches),
    "clip": _text("CLIP B/16, 32 images and 64 texts", match),
    "generate-qwen-0.5b": _text(
        "Qwen2.5 0.5B, generate 32 tokens for 8 prompts, static cache", generate, "qwen2", _QWEN_05B, 8, 64, 32
    ),
    "lora-llama-1b": Program(
        "Llama 3.2 1B, LoRA with peft, 4 x 512 tokens", adapt, torch.bfloat16, ("transformers", "peft")
    ),
    "encode-esm": _text(
        "ESM-2 150M, 8 proteins padded to 512",
        encode,
        "esm",
        {
            "hidden_size": 640,
            "num_attention_heads": 20,
            "intermediate_size": 2560,
            "num_hidden_layers": 30,
            "vocab_size": 33,
            "pad_token_id": 1,
            "mask_token_id": 32,
            "position_embedding_type": "rotary",
            "token_dropout": False,
        },
        8,
        512,
    ),
    "encode-modernbert": _text(
        "ModernBERT-base, 16 x 512 tokens, padded", partial(encode, padded=True), "modernbert", {}, 16, 512
    ),
    "encode-deberta": _text("DeBERTa v3 base, 16 x 256 tokens", encode, "deberta-v2", _BGE, 16, 256),
    "encode-t5": _text(
        "T5 base, 16 x 256 tokens and 64 after them",
        encode,
        "t5",
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
        16,
        256,
    ),
    "encode-distilbert": _text("DistilBERT, 64 x 128 tokens", encode, "distilbert", {}, 64, 128),
    "train-gpt2": _text(
        "GPT-2 small, steps of AdamW, 8 x 512 tokens",
        train,
        "gpt2",
        "AutoModelForCausalLM",
        {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        8,
        512,
        torch.clone,
        dtype=torch.float32,
    ),
    "train-roberta": _text(
        "RoBERTa-base, classification, 32 x 128 tokens",
        train,
        "roberta",
        "AutoModelForSequenceClassification",
        _NO_DROPOUT,
        32,
        128,
        lambda tokens: tokens[:, 0] % 2,
        dtype=torch.float32,
    ),
    "wav2vec2": _text("wav2vec 2.0 base, 8 x 10 s of sound", listen),
    "generate-qwen3-0.6b": _text(
        "Qwen3 0.6B, generate 32 tokens for 32 prompts, static cache", generate, "qwen3", _QWEN3_06B, 32, 64, 32
    ),
    "dinov2": _text("DINOv2 base, 32 images", see, "dinov2", {"image_size": 224}, 32, 224),
}
