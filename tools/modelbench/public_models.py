"""Public models whose generated kernels are measured, beside those of corpus.py, and models that are kept away.

Models that are kept away judge rows: nothing that makes rows may see their kernels. Each text model has its kind in
transformers, batch, tokens and options; each image model its kind, batch, size and options; each model of timm its
batch and size.
"""

from typing import Any

Options = dict[str, Any]


def _decoder(width: int, hidden: int, heads: int, kv: int, **more: Any) -> Options:
    layers: Options = {"vocab_size": 32_000, "num_hidden_layers": 2, "pad_token_id": 0, **more}
    return {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **layers,
    }


def _encoder(width: int, heads: int, **more: Any) -> Options:
    sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width}
    return {**sizes, "num_hidden_layers": 2, **more}


_TWO: Options = {"num_hidden_layers": 2}
_BOTH: Options = {"encoder_layers": 2, "decoder_layers": 2}

TEXTS: dict[str, tuple[str, int, int, Options]] = {
    "rembert": ("rembert", 8, 256, _TWO),
    "big-bird": ("big_bird", 4, 512, {**_TWO, "attention_type": "original_full"}),
    "megatron": ("megatron-bert", 8, 256, _TWO),
    "ernie": ("ernie", 32, 64, _TWO),
    "codegen": ("codegen", 2, 512, {"n_layer": 2, "n_embd": 1024, "n_head": 16}),
    "bigcode": ("gpt_bigcode", 2, 1024, {"n_layer": 2, "n_embd": 2048, "n_head": 16}),
    "mpt": ("mpt", 2, 512, {"n_layers": 2, "d_model": 2048, "n_heads": 16}),
    "persimmon": ("persimmon", 1, 512, _decoder(4096, 16_384, 64, 64)),
    "olmo": ("olmo", 2, 1024, _decoder(2048, 8192, 16, 16)),
    "cohere": ("cohere", 1, 512, _decoder(4096, 11_008, 32, 32)),
    "glm": ("glm", 1, 777, _decoder(4096, 13_696, 32, 2, head_dim=128)),
    "granite": ("granite", 2, 512, _decoder(2048, 8192, 32, 8)),
    "nemotron": ("nemotron", 1, 1024, _decoder(3072, 9216, 24, 8, head_dim=128)),
    "smollm3": ("smollm3", 1, 2048, _decoder(2048, 11_008, 16, 4)),
    "exaone4": ("exaone4", 1, 512, _decoder(2048, 4096, 32, 8)),
    "helium": ("helium", 4, 128, _decoder(2560, 7040, 20, 20)),
    "xglm": ("xglm", 2, 512, {"num_layers": 2, "d_model": 1024, "attention_heads": 16, "vocab_size": 32_000}),
    "mbart": ("mbart", 4, 256, {**_BOTH, "d_model": 1024}),
    "ctrl": ("ctrl", 2, 256, {"n_layer": 2}),
    "openai-gpt": ("openai-gpt", 8, 256, {"n_layer": 2}),
    "roformer": ("roformer", 8, 256, _TWO),
    "splinter": ("splinter", 16, 128, _TWO),
    "mobilebert": ("mobilebert", 16, 128, {"num_hidden_layers": 3}),
    "gpt-neo": (
        "gpt_neo",
        4,
        512,
        {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "hidden_size": 1024, "num_heads": 16},
    ),
    "mixtral": ("mixtral", 1, 128, _decoder(1024, 3584, 16, 4)),
    "llama-8b-1": ("llama", 1, 1, _decoder(4096, 14_336, 32, 8)),
    "llama-8b-16": ("llama", 16, 1, _decoder(4096, 14_336, 32, 8)),
    "llama-3b-64": ("llama", 64, 1, _decoder(3072, 8192, 24, 8)),
    "llama-3b-4096": ("llama", 1, 4096, _decoder(3072, 8192, 24, 8)),
    "qwen2-7b": ("qwen2", 1, 2000, _decoder(3584, 18_944, 28, 4)),
    "bert-1x128": ("bert", 1, 128, _TWO),
    "bert-32x512": ("bert", 32, 512, _TWO),
    "bert-64x32": ("bert", 64, 32, _TWO),
    "minilm-32x256": ("bert", 32, 256, _encoder(384, 12)),
    "esm-large": ("esm", 4, 500, _encoder(1280, 20, vocab_size=33, pad_token_id=1)),
    "t5-large": ("t5", 4, 300, {"num_layers": 2, "d_model": 1024, "d_ff": 4096, "num_heads": 16}),
    "deberta-large": ("deberta-v2", 4, 128, _encoder(1024, 16)),
    "gpt2-xl": ("gpt2", 2, 512, {"n_layer": 2, "n_embd": 1600, "n_head": 25}),
    "roberta-training": ("roberta", 16, 128, {"num_hidden_layers": 1}),
    "distilbert-training": ("distilbert", 16, 128, {"n_layers": 1}),
    "qwen3-training": ("qwen3", 2, 512, _decoder(1024, 3072, 16, 8, head_dim=128)),
    "gemma2-training": ("gemma2", 2, 256, _decoder(1024, 4096, 8, 4, head_dim=256)),
}

IMAGES: dict[str, tuple[str, int, int, Options]] = {
    "convnextv2": ("convnextv2", 16, 224, {}),
    "ijepa": ("ijepa", 16, 224, _TWO),
    "vit-msn": ("vit_msn", 16, 224, _TWO),
    "deit": ("deit", 32, 224, _TWO),
    "cvt": ("cvt", 16, 224, {}),
    "mobilenet-v2": ("mobilenet_v2", 64, 224, {}),
    "bit": ("bit", 16, 224, {}),
    "glpn": ("glpn", 4, 480, {}),
    "dinov3": ("dinov3_vit", 8, 512, _TWO),
    "pvt": ("pvt", 16, 224, {}),
    "vit-large": ("vit", 8, 384, _encoder(1024, 16)),
    "dinov2-base": ("dinov2", 16, 224, _TWO),
    "siglip-large": ("siglip_vision_model", 4, 384, {**_encoder(1152, 16, patch_size=14), "intermediate_size": 4304}),
    "clip-large": ("clip_vision_model", 8, 336, _encoder(1024, 16, patch_size=14)),
}

TIMM: dict[str, tuple[int, int]] = {
    "crossvit_15_240": (16, 240),
    "volo_d1_224": (16, 224),
    "mvitv2_tiny": (16, 224),
    "twins_svt_small": (16, 224),
    "rexnet_100": (32, 224),
    "efficientformer_l1": (32, 224),
    "visformer_tiny": (32, 224),
    "gcvit_xxtiny": (16, 224),
    "nest_tiny": (16, 224),
    "pit_s_224": (32, 224),
    "mobilevitv2_100": (16, 256),
    "efficientvit_b0": (32, 224),
    "efficientvit_m2": (64, 224),
    "repvit_m1": (32, 224),
    "starnet_s1": (32, 224),
    "ese_vovnet19b_dw": (32, 224),
    "resnext50_32x4d": (32, 224),
    "seresnet50": (32, 224),
    "resnetv2_50": (32, 224),
    "mobilenetv4_conv_small": (64, 224),
    "xception41": (16, 299),
    "cspdarknet53": (16, 256),
    "dla34": (32, 224),
    "mnasnet_100": (64, 224),
    "skresnet18": (32, 224),
    "convit_tiny": (32, 224),
    "deit3_small_patch16_224": (32, 224),
    "hgnetv2_b0": (32, 224),
    "mambaout_tiny": (16, 224),
    "rdnet_tiny": (16, 224),
    "nextvit_small": (16, 224),
    "swiftformer_s": (16, 224),
    "shvit_s1": (32, 224),
    "convmixer_768_32": (4, 224),
    "vgg16_bn": (16, 224),
    "botnet26t_256": (16, 256),
    "halonet26t": (16, 256),
    "lambda_resnet26t": (16, 256),
    "convnext_base": (8, 288),
    "vit_base_patch32_224": (64, 224),
    "swin_base_patch4_window7_224": (8, 224),
    "regnetx_016": (32, 224),
}

TIMM_TRAINING: dict[str, int] = {"resnet50": 16, "deit3_small_patch16_224": 16, "regnety_004": 32}

TEXTS_AWAY: dict[str, tuple[str, int, int, Options]] = {
    "convbert": ("convbert", 16, 128, _TWO),
    "squeezebert": ("squeezebert", 32, 128, _TWO),
    "falcon": ("falcon", 2, 512, {**_TWO, "hidden_size": 2048, "num_attention_heads": 32}),
    "gptj": ("gptj", 2, 512, {"n_layer": 2, "n_embd": 2048, "n_head": 16}),
    "phi3": ("phi3", 1, 1024, _decoder(3072, 8192, 32, 32)),
    "gemma3": ("gemma3_text", 1, 1024, _decoder(1152, 6912, 4, 1, head_dim=256)),
    "olmo2": ("olmo2", 2, 512, _decoder(2048, 8192, 16, 16)),
    "starcoder2": ("starcoder2", 1, 1024, _decoder(3072, 12_288, 24, 2)),
    "bart": ("bart", 8, 256, {**_BOTH, "d_model": 768, "encoder_attention_heads": 12, "decoder_attention_heads": 12}),
    "olmo2-training": ("olmo2", 2, 512, {**_decoder(1024, 4096, 16, 16), "num_hidden_layers": 1}),
}

IMAGES_AWAY: dict[str, tuple[str, int, int, Options]] = {
    "segformer": ("segformer", 8, 512, {}),
    "yolos": ("yolos", 8, 512, _TWO),
}

TIMM_AWAY: dict[str, tuple[int, int]] = {
    "swinv2_tiny_window8_256": (16, 256),
    "eva02_small_patch14_224": (32, 224),
    "hiera_tiny_224": (16, 224),
    "tiny_vit_11m_224": (32, 224),
    "davit_tiny": (16, 224),
    "focalnet_tiny_srf": (16, 224),
    "caformer_s18": (16, 224),
    "inception_next_tiny": (16, 224),
    "ghostnetv2_100": (64, 224),
    "resnest50d": (32, 224),
    "dm_nfnet_f0": (16, 192),
}
