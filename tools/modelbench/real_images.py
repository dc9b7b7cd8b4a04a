"""Programs with images: timm's inference benchmark and training, and the networks of diffusion with diffusers."""

from functools import partial
from typing import Any

import torch
from modelbench.real_programs import Given, Program, Run, inference, training
from torch import Tensor
from torch.nn.functional import cross_entropy


def classify(given: Given, name: str, batch: int, size: int) -> Run:
    """Inference as ``benchmark.py --precision bfloat16 --channels-last --torchcompile`` has it."""
    import timm

    def make() -> torch.nn.Module:
        model: torch.nn.Module = timm.create_model(name)
        for weight in model.parameters():
            if weight.dim() > 1 and not weight.any():  # as the last layer of some, which makes all results zero
                torch.nn.init.normal_(weight, std=0.02)
        return model

    model = given.made(make).eval().to(memory_format=torch.channels_last)
    images = given.normal(2 if given.tiny else batch, 3, size, size).contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(model)
    return inference(lambda: [compiled(images)])


def fit(given: Given, name: str, batch: int, size: int) -> Run:
    """Training with SGD and mixed precision."""
    import timm

    model = given.made(lambda: timm.create_model(name)).train().to(memory_format=torch.channels_last)
    batch = 4 if given.tiny else batch
    images = given.normal(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
    target = given.integers(1000, batch)
    compiled = torch.compile(model)

    def loss_of() -> Tensor:
        with given.autocast():
            return cross_entropy(compiled(images), target)

    return training(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loss_of)


def segment(given: Given) -> Run:
    """Each pixel's class by torchvision's DeepLab v3, for 8 images of 520 x 520."""
    from torchvision.models.segmentation import deeplabv3_resnet50

    make = partial(deeplabv3_resnet50, weights=None, weights_backbone=None, num_classes=21)
    model = given.made(make).eval().to(memory_format=torch.channels_last)
    batch, size = (1, 64) if given.tiny else (8, 520)
    images = given.normal(batch, 3, size, size).contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(model)
    return inference(lambda: [compiled(images)["out"]])


def denoise(given: Given, sizes: dict[str, Any], latent: int, context: int) -> Run:
    """One step of a diffusion's UNet, for two samples of guidance."""
    from diffusers import UNet2DConditionModel

    if given.tiny:
        sizes = {
            **sizes,
            "block_out_channels": tuple(32 * (number + 1) for number in range(len(sizes["block_out_channels"]))),
        }
        sizes["layers_per_block"] = 1
        latent = 16
    model = given.made(lambda: UNet2DConditionModel(sample_size=latent, **sizes)).eval()
    model.to(memory_format=torch.channels_last)
    model = torch.compile(model)
    sample = given.normal(2, 4, latent, latent).contiguous(memory_format=torch.channels_last)
    states = given.normal(2, 77, context)
    time = torch.tensor(500, device=given.device)
    more = {}
    if sizes.get("addition_embed_type"):
        more = {"text_embeds": given.normal(2, 1280), "time_ids": given.put(torch.ones(2, 6))}
    return inference(lambda: [model(sample, time, encoder_hidden_states=states, added_cond_kwargs=more).sample])


def transform(given: Given) -> Run:
    """One step of DiT-XL/2 for 256 x 256 images, batch 8."""
    from diffusers import DiTTransformer2DModel

    model = given.made(
        lambda: DiTTransformer2DModel(
            num_attention_heads=16,
            attention_head_dim=8 if given.tiny else 72,
            num_layers=1 if given.tiny else 28,
            in_channels=4,
            out_channels=8,
            sample_size=32,
            patch_size=2,
        )
    ).eval()
    compiled = torch.compile(model)
    batch = 2 if given.tiny else 8
    sample, labels = given.normal(batch, 4, 32, 32), given.integers(1000, batch)
    time = torch.full((batch,), 500, device=given.device)
    return inference(lambda: [compiled(sample, timestep=time, class_labels=labels).sample])


def decode(given: Given) -> Run:
    """The VAE of Stable Diffusion: an image of 512 x 512 from its latent."""
    from diffusers import AutoencoderKL

    widths = (32, 32, 64, 64) if given.tiny else (128, 256, 512, 512)
    model = given.made(
        lambda: AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=widths,
            layers_per_block=1 if given.tiny else 2,
            latent_channels=4,
        )
    ).eval()
    model.to(memory_format=torch.channels_last)
    model.decode = torch.compile(model.decode)
    latent = given.normal(1, 4, 8 if given.tiny else 64, 8 if given.tiny else 64)
    return inference(lambda: [model.decode(latent).sample])


_TIMM: dict[str, tuple[int, int]] = {
    "resnet50": (64, 224),
    "vit_base_patch16_224": (64, 224),
    "convnext_tiny": (64, 224),
    "swin_tiny_patch4_window7_224": (64, 224),
    "efficientnet_b0": (64, 224),
    "mixer_b16_224": (64, 224),
    "deit3_small_patch16_224": (64, 224),
    "regnety_032": (64, 224),
    "mobilenetv3_large_100": (128, 224),
    "beit_base_patch16_224": (64, 224),
    "caformer_s18": (64, 224),
    "levit_256": (128, 224),
    "eva02_small_patch14_224": (64, 224),
    "poolformer_s12": (64, 224),
    "vgg16_bn": (32, 224),
    "coatnet_0_rw_224": (64, 224),
    "resmlp_24_224": (64, 224),
    "xcit_tiny_12_p16_224": (64, 224),
    "davit_tiny": (64, 224),
    "gmlp_s16_224": (64, 224),
    "repvgg_b0": (64, 224),
    "efficientformer_l1": (64, 224),
    "hiera_tiny_224": (64, 224),
    "pvt_v2_b1": (64, 224),
}

_SD15: dict[str, Any] = {
    "block_out_channels": (320, 640, 1280, 1280),
    "layers_per_block": 2,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
    "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
}
_SDXL: dict[str, Any] = {
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


def _timm(name: str, batch: int, size: int) -> Program:
    start = partial(classify, name=name, batch=batch, size=size)
    return Program(f"{name}, {batch} images", start, torch.bfloat16, ("timm",))


def _fit(name: str, batch: int) -> Program:
    start = partial(fit, name=name, batch=batch, size=224)
    return Program(f"{name}, training, {batch} images", start, torch.float32, ("timm",))


IMAGES: dict[str, Program] = {
    "train-resnet50": _fit("resnet50", 32),
    "train-vit-small": _fit("vit_small_patch16_224", 32),
    **{f"timm-{name}": _timm(name, *sizes) for name, sizes in _TIMM.items()},
    "segment-deeplab": Program(
        "DeepLab v3 with ResNet-50, 8 images of 520 x 520", segment, torch.bfloat16, ("torchvision",)
    ),
    "unet-sd15": Program(
        "UNet of Stable Diffusion 1.5, 64 x 64",
        partial(denoise, sizes=_SD15, latent=64, context=768),
        torch.float16,
        ("diffusers",),
    ),
    "vae-decode": Program("VAE of Stable Diffusion, decode 512 x 512", decode, torch.bfloat16, ("diffusers",)),
    "dit-xl": Program("DiT-XL/2, 8 images of 256 x 256", transform, torch.bfloat16, ("diffusers",)),
    "unet-sdxl": Program(
        "UNet of Stable Diffusion XL, 128 x 128",
        partial(denoise, sizes=_SDXL, latent=128, context=2048),
        torch.float16,
        ("diffusers",),
    ),
}
