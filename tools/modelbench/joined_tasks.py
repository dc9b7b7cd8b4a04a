"""Matmuls that share their input, of few rows, and of 1x1 convolutions: sizes of public models, and kernels to try."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import torch
from modelbench.joined_kernels import BLOCK, Spec
from torch import Tensor, nn

Blocks = tuple[int, int, int, int, int, int]  # BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, stages and warps
NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "bfloat16"}  # TF32 has configs of bfloat16
CONFIGS = 6  # of a kernel for a problem

SIBLINGS = {
    "Llama 1B q, k, v": ((2048, 512, 512), 2048, False),
    "Llama 8B q, k, v": ((4096, 1024, 1024), 4096, False),
    "Qwen 0.5B q, k, v": ((896, 128, 128), 896, True),
    "BERT-base q, k, v": ((768, 768, 768), 768, True),
    "Llama 8B gate, up": ((14336, 14336), 4096, False),
    "Llama 70B/8 q, k, v": ((1024, 128, 128), 8192, False),
    "Llama 1B gate, up": ((8192, 8192), 2048, False),
    "Qwen 0.5B gate, up": ((4864, 4864), 896, False),
    "Llama 3B q, k, v": ((3072, 1024, 1024), 3072, False),
    "Gemma 2B q, k, v": ((2048, 1024, 1024), 2304, False),
    "Qwen 7B q, k, v": ((3584, 512, 512), 3584, True),
    "Llama 70B/8 gate, up": ((3584, 3584), 8192, False),
    "Gemma 2B gate, up": ((9216, 9216), 2304, False),
    "Llama 3B gate, up": ((8192, 8192), 3072, False),
    "Qwen 7B gate, up": ((18944, 18944), 3584, False),
    "Whisper small q, k, v": ((768, 768, 768), 768, True),
    "ViT-B q, k, v": ((768, 768, 768), 768, True),
}
"""Widths of the weights, K, and whether there are biases. BERT, Whisper and ViT have the same sizes: measured once."""

FEW = {
    "Llama 8B o": (4096, 4096),
    "Llama 8B k": (1024, 4096),
    "Llama 8B down": (4096, 14336),
    "Llama 8B gate": (14336, 4096),
    "Qwen 0.5B gate": (4864, 896),
    "BERT-base up": (3072, 768),
    "Qwen 0.5B down": (896, 4864),
    "Llama 8B gate and up": (28672, 4096),
    "BERT-base q": (768, 768),
    "Qwen 0.5B vocabulary": (151936, 896),
    "BERT-base vocabulary": (30522, 768),
    "Qwen 0.5B q": (896, 896),
    "Llama 8B q, k, v": (6144, 4096),
}
"""N and K."""

DEEP: tuple[Blocks, ...] = (
    (16, 32, 128, 8, 8, 4), (16, 16, 256, 8, 8, 4), (16, 64, 128, 8, 6, 4),
    (16, 32, 256, 8, 6, 4), (16, 16, 128, 8, 8, 2), (16, 128, 64, 8, 8, 4),
)  # fmt: skip
SPLIT: tuple[tuple[Blocks, int], ...] = (
    ((16, 64, 128, 8, 4, 4), 4), ((16, 32, 128, 8, 5, 4), 2), ((16, 64, 128, 8, 4, 4), 8), ((16, 128, 64, 8, 5, 4), 8),
)  # fmt: skip
LARGE: tuple[Blocks, ...] = (
    (128, 128, 64, 8, 3, 8), (128, 64, 64, 8, 3, 4), (64, 64, 64, 8, 3, 4), (128, 256, 64, 8, 3, 8),
    (128, 32, 32, 8, 4, 4),
)  # fmt: skip
SMALL: tuple[Blocks, ...] = (
    (16, 64, 128, 8, 4, 4), (16, 32, 128, 8, 4, 4), (32, 32, 64, 8, 4, 4), (16, 16, 128, 8, 4, 2),
    (64, 64, 64, 8, 3, 4),
)  # fmt: skip
REDUCTIONS = ((1, 1024, 1, 4), (1, 2048, 1, 4), (2, 1024, 3, 4), (4, 512, 1, 4), (4, 512, 3, 8), (8, 256, 1, 4))
"""Columns, elements of K, stages and warps; columns times elements are divided by M's half."""

UNET = {
    (64, 320, 320): 10,
    (32, 640, 640): 10,
    (16, 1280, 1280): 10,
    (8, 1280, 1280): 2,
    (32, 320, 640): 1,
    (16, 640, 1280): 1,
    (8, 2560, 1280): 3,
    (16, 2560, 1280): 2,
    (16, 1920, 1280): 1,
    (32, 1920, 640): 1,
    (32, 1280, 640): 1,
    (32, 960, 640): 1,
    (64, 960, 320): 1,
    (64, 640, 320): 2,
}
"""Size of the image, channels before and after, and number of the 1x1 convolutions of Stable Diffusion 1.5's UNet."""

NETS = ("resnet50", "efficientnet_b0", "convnext_tiny", "mobilenet_v3_large", "fpn", "unet")


class Candidate(NamedTuple):
    """Kernels of one config: those of a group compete. The last may add up what the first leaves."""

    group: str
    config: str
    specs: tuple[Spec, ...]
    grids: tuple[tuple[int, int, int], ...]


class Task(NamedTuple):
    """A line of the results: its kind, name and sizes, more fields of the line, and the kernels that compete."""

    kind: str
    name: str
    sizes: tuple[Any, ...]
    about: Mapping[str, Any]
    candidates: tuple[Candidate, ...]

    @property
    def key(self) -> str:
        """What the results call it."""
        return f"{self.kind}: {self.name}"


def blocks_for(op: str, m: int, n: int, k: int, dtype: str, count: int) -> list[Blocks]:
    """The first configs of Inductor's plain template in the shipped model's ranking."""
    from diode_lut.decide.catalog import find_path, open_file
    from diode_lut.problem import Problem

    model: Any = open_file(find_path("nvidia-h100.mlp"))
    times: dict[Any, float] = {}
    for rows in (m, 16384, 4096):  # fewer, where the model has not learnt as many
        problem = Problem.of(op, min(m, rows), n, k, dtype=NAMES[dtype], layout="nt", align=16)
        times = times or dict(model.times(problem, padding=False))
    best = [each.params[:6] for each in sorted(times, key=times.__getitem__) if each.template == "triton_mm"]
    best = best or list(LARGE if m > 64 else SMALL)
    if dtype == "fp32":
        best = [(a, b, max(c // 2, 16), *rest) for a, b, c, *rest in best]
    return list(dict.fromkeys(best))[:count]


def cdiv(a: int, b: int) -> int:
    """Divide, rounding up."""
    return -(-a // b)


def matmul(
    group: str, blocks: Blocks, m: int, ns: Sequence[int], k: int, *,
    dtype: str = "bf16", extra: int = 0, split: int = 1, pdl: int = 0,
) -> Candidate:  # fmt: skip
    """The kernel for one to three B, and that which adds up the parts if K is split."""
    bm, bn, bk, group_m, stages, warps = blocks
    types = (dtype,) * 4 + ("fp32" if split > 1 else dtype,) * 3 + (dtype,) * 3
    sizes = (m, *ns, *(0,) * (3 - len(ns)), k, extra, split, pdl, bm, bn, bk, group_m)
    specs = [Spec("matmul", types, sizes, warps, stages, pdl > 0)]
    grids = [(cdiv(m, bm) * sum(cdiv(n, bn) for n in ns), split, 1)]
    if split > 1:
        specs.append(Spec("add_parts", ("fp32", dtype), (m * ns[0], split, pdl, BLOCK), pdl=pdl > 0))
        grids.append((cdiv(m * ns[0], BLOCK), 1, 1))
    text = f"{bm}x{bn}x{bk} g{group_m} s{stages} w{warps}" + (f" split {split}" if split > 1 else "")
    return Candidate(group, text + (f" pdl{pdl}" if pdl else ""), tuple(specs), tuple(grids))


def pointwise(kernel: str, count: int, dtype: str, *constants: int) -> Candidate:
    """A kernel over ``constants[0]`` elements, with ``count`` pointers."""
    spec = Spec(kernel, (dtype,) * count, (*constants, BLOCK))
    return Candidate(kernel, "", (spec,), ((cdiv(constants[0], BLOCK), 1, 1),))


def siblings(m: int, names: Sequence[str], count: int) -> Iterator[Task]:
    """Tasks of M rows."""
    measured: set[tuple[Any, ...]] = set()
    for name in names:
        ns, k, bias = SIBLINGS[name]
        if (ns, k, bias) in measured:
            continue
        measured.add((ns, k, bias))
        op, extra, found = "addmm" if bias else "mm", int(bias), []
        for n in dict.fromkeys(ns):
            found += [
                matmul(f"apart {n}", each, m, [n], k, extra=extra) for each in blocks_for(op, m, n, k, "bf16", count)
            ]
        for each in blocks_for(op, m, sum(ns), k, "bf16", count):
            found += [
                matmul("copied", each, m, [sum(ns)], k, extra=extra),
                matmul("joined", each, m, ns, k, extra=extra),
            ]
        if len(ns) == 2:
            wide = [(a, b // 2, *rest) for a, b, *rest in blocks_for(op, m, sum(ns), k, "bf16", 2 * count) if b >= 32]
            for a, b, c, g, s, w in dict.fromkeys(wide[:count]):
                spec = Spec("gated", ("bf16",) * 4, (m, ns[0], k, a, b, c, g), w, s)
                grid = (cdiv(m, a) * cdiv(ns[0], b), 1, 1)
                found.append(Candidate("gated", f"{a}x{b}x{c} g{g} s{s} w{w}", (spec,), (grid,)))
            found.append(pointwise("silu_times", 3, "bf16", m * ns[0]))
        yield Task("siblings", f"{name}, {m}", (m, ns, k, bias), {"layer": name, "m": m}, tuple(found))


def few(m: int, names: Sequence[str], count: int) -> Iterator[Task]:
    """Tasks of M rows."""
    for name in names:
        n, k = FEW[name]
        found = [matmul("mm", each, m, [n], k) for each in blocks_for("mm", m, n, k, "bf16", count)]
        for split in (2, 4, 8, 16):
            if k % (8 * split) == 0:
                spec = Spec("add_parts", ("fp32", "bf16"), (m * n, split, 0, BLOCK))
                found.append(Candidate("decompose_k", f"split {split}", (spec,), ((cdiv(m * n, BLOCK), 1, 1),)))
        for pdl in (0, 1, 2):
            label = f" pdl{pdl}" if pdl else ""
            found += [matmul("deep" + label, each, m, [n], k, pdl=pdl) for each in DEEP[:count]]
            if pdl < 2:
                found += [matmul("split" + label, each, m, [n], k, split=s, pdl=pdl) for each, s in SPLIT[:count]]
            if m <= 8 and pdl != 1:
                for x, r, stages, warps in REDUCTIONS[:count]:
                    r = max(r // max(m // 2, 1), 128)
                    types, sizes = ("bf16",) * 3, (m, n, k, pdl, x, r, stages)
                    spec = Spec("reduction", types, sizes, warps, 1, pdl > 0)
                    text = f"x{x} r{r} s{stages} w{warps}"
                    found.append(Candidate("reduction" + label, text, (spec,), ((cdiv(n, x), 1, 1),)))
        yield Task("few", f"{name}, {m}", (m, n, k), {"layer": name, "m": m}, tuple(found))


def convolutions(dtype: str, batch: int, nets: Mapping[str, Counter[Any]], count: int) -> Iterator[Task]:
    """Tasks for the 1x1 convolutions of networks, each size once."""
    by_size: dict[tuple[int, ...], dict[str, int]] = defaultdict(dict)
    for net, layers in nets.items():
        for (h, w, c, o), number in layers.items():
            images = 1 if batch == 1 else {"fpn": 2, "unet": 8}.get(net, batch)
            by_size[images, h, w, c, o][net] = number
    for (images, h, w, c, o), numbers in by_size.items():
        rows, found = images * h * w, []
        for each in blocks_for("mm", rows, o, c, dtype, count):
            found += [
                matmul(group, each, rows, [o], c, dtype=dtype, extra=extra)
                for group, extra in (("mm", 0), ("fused", 2))
            ]
        found.append(pointwise("scale_relu", 4, dtype, rows * o, o, 1))
        about = {"dtype": dtype, "batch": batch, "nets": numbers}
        yield Task(
            "convolution", f"{dtype} {images} x {c} to {o}, {h} x {w}", (dtype, images, h, w, c, o), about, tuple(found)
        )


def network(name: str) -> nn.Module:
    """A network of torchvision or timm, ResNet-50 with a feature pyramid and a head, or the smallest of two layers."""
    if name == "tiny":
        return nn.Sequential(nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 1))
    if name == "fpn":
        from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
        from torchvision.models.detection.retinanet import RetinaNetHead

        return _Detector(resnet_fpn_backbone(backbone_name="resnet50", weights=None), RetinaNetHead(256, 9, 91))
    if name == "convnext_tiny":
        import timm

        module: nn.Module = timm.create_model(name, conv_mlp=True)
        return module
    import torchvision

    other: nn.Module = getattr(torchvision.models, name)(weights=None)
    return other


class _Detector(nn.Module):
    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> Any:
        return tuple(self.head(list(self.backbone(x).values())).values())


def image(name: str, batch: int) -> tuple[int, int, int, int]:
    """The shape of a network's input."""
    return {"fpn": (min(batch, 2), 3, 800, 1216), "tiny": (2, 16, 6, 6)}.get(name, (batch, 3, 224, 224))


def layers_of(name: str) -> Counter[Any]:
    """Height, width and channels before and after of 1x1 convolutions, and how often they are there."""
    if name == "unet":
        return Counter({(size, size, before, after): number for (size, before, after), number in UNET.items()})
    found: Counter[Any] = Counter()

    def note(layer: Any, inputs: Any, _: Any) -> None:
        if layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.groups == 1:
            found[(*inputs[0].shape[2:], layer.in_channels, layer.out_channels)] += 1

    with torch.device("meta"), torch.no_grad():
        module = network(name).eval()
        for each in module.modules():
            if isinstance(each, nn.Conv2d):
                each.register_forward_hook(note)
        module(torch.empty(image(name, 1)))
    return found


def tasks_of(kinds: Sequence[str], *, tiny: bool) -> Iterator[Task]:
    """All tasks, the most telling first; kinds take turns."""
    if tiny:
        SIBLINGS.clear()
        SIBLINGS.update({"tiny three": ((48, 16, 16), 64, True), "tiny two": ((32, 32), 40, False)})
        FEW.clear()
        FEW.update({"tiny": (48, 64)})
    nets: dict[str, Counter[Any]] = {}
    for name in (("tiny",) if tiny else NETS) if "convolution" in kinds else ():
        try:
            nets[name] = layers_of(name)
        except Exception as error:  # noqa: BLE001, PERF203 - a package that is not there, or is broken
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    count, rows = (2, (5,)) if tiny else (CONFIGS, (16, 1, 64, 4, 256, 1024, 4096, 8192))
    by_kind = {
        "siblings": chain.from_iterable(siblings(m, list(SIBLINGS), count) for m in rows),
        "few": chain.from_iterable(few(m, list(FEW), count) for m in ((2,) if tiny else (1, 16, 4, 8, 2))),
        "convolution": chain.from_iterable(
            convolutions(dtype, batch, nets, count - 1)
            for dtype, batch in ([("fp32", 2)] if tiny else [("bf16", 32), ("bf16", 1), ("fp32", 32), ("fp16", 32)])
        ),
    }
    yield from filter(None, chain.from_iterable(zip_longest(*(by_kind[kind] for kind in kinds if kind in by_kind))))
