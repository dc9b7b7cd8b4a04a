"""Whole models with QuACK's kernels in turns with the same models without: ``python -m modelbench.quack_models``.

Each way compiles into empty caches of Inductor's, is captured in a CUDA graph, and its results are compared with
float64. QuACK's kernels are compiled before, unless ``--cold`` is given, with which the first compile has to wait for
them. Compare compile times of processes that compile one way each. Processes that share a ``--lock`` compile at the
same time, and take times one after the other.
"""

import argparse
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from modelbench import corpus, models
from modelbench.records import Record, append
from modelbench.timing import Errors, captured
from modelbench.worker import synchronize, warm_up
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import clear_caches

import diode_lut
from diode_lut.hook import quack
from diode_lut.measure.timing import Bench
from diode_lut.receipts import recorder

ROUNDS = 60
WAYS = ("default", "without", "with")  # default mode, the tables without QuACK, and with it

_LAYERS: Record = {"num_hidden_layers": 4, "use_cache": False}
_MINILM: Record = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536, "num_hidden_layers": 12}
_LLAMA: Record = {"hidden_size": 4096, "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8}
_GEMMA: Record = {"hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, "num_key_value_heads": 4}
_GEMMA_9B: Record = {
    "hidden_size": 3584,
    "intermediate_size": 14_336,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
_QWEN: Record = {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
_LLAMA_3B: Record = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
}
_LARGE: Record = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 6}


def _whisper() -> models.Workload:
    from transformers import WhisperConfig, WhisperModel

    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in _WHISPER.items()}
    config = WhisperConfig(d_model=768, **{**sizes, "encoder_layers": 12})
    return models.Workload(corpus._Named(WhisperModel(config).encoder, "input_features"), (torch.randn(4, 80, 3000),))


_WHISPER = {"layers": 1, "attention_heads": 12, "ffn_dim": 3072}

MAKERS: dict[str, Callable[[], models.Workload]] = {
    "ViT-B, 32 images": partial(models._vit, False),
    "BERT-base, 16 x 384": partial(models._bert, False),
    "DINOv2-S, 8 x 1370": partial(
        corpus._image_of_transformers, "dinov2", 8, 518, hidden_size=384, num_attention_heads=6, num_hidden_layers=12
    ),
    "MiniLM-L12, 64 x 128": partial(corpus._text, "bert", 64, 128, **_MINILM),
    "Whisper small encoder, 4 x 1500": _whisper,
    "Mixer-B/16, 32 images": partial(corpus._timm, "mixer_b16_224", 32),
    "Gemma 2 2B, 1024 tokens": partial(
        corpus._text, "gemma2", 1, 1024, head_dim=256, vocab_size=32_000, **_GEMMA, **_LAYERS
    ),
    "Llama 8B, 1024 tokens": partial(corpus._text, "llama", 1, 1024, vocab_size=32_000, **_LLAMA, **_LAYERS),
    "SigLIP-B, 32 images": partial(corpus._image_of_transformers, "siglip_vision_model", 32, 224, num_hidden_layers=6),
    "DeiT-S, 64 images": partial(
        corpus._image_of_transformers, "vit", 64, 224, **{**_MINILM, "num_attention_heads": 6}
    ),
    "T5-base encoder, 16 x 320": partial(
        corpus._text, "t5", 16, 320, num_layers=6, d_model=768, d_ff=3072, num_heads=12
    ),
    "RoBERTa-base, 10 x 500": partial(corpus._text, "roberta", 10, 500, num_hidden_layers=6),
    "GPT-2, 8 x 768": partial(corpus._text, "gpt2", 8, 768, n_layer=6, use_cache=False),
    "ModernBERT-base, 8 x 1024": partial(corpus._text, "modernbert", 8, 1024, num_hidden_layers=6),
    "Mistral 7B, 700 tokens": partial(corpus._text, "mistral", 1, 700, vocab_size=32_000, **_LLAMA, **_LAYERS),
    "Gemma 2 9B, 900 tokens": partial(
        corpus._text, "gemma2", 1, 900, head_dim=256, vocab_size=32_000, **_GEMMA_9B, **_LAYERS
    ),
    "Base ViT, 10 images": partial(corpus._image_of_transformers, "vit", 10, 224, num_hidden_layers=6),
    "Small BERT, 20 x 100": partial(corpus._text, "bert", 20, 100, **_MINILM),
    "Base BERT, 4 x 300": partial(corpus._text, "bert", 4, 300, num_hidden_layers=6),
    "Large SigLIP, 12 images": partial(corpus._image_of_transformers, "siglip_vision_model", 12, 224, **_LARGE),
    "Qwen2 1.5B, 600 tokens": partial(corpus._text, "qwen2", 1, 600, vocab_size=32_000, **_QWEN, **_LAYERS),
    "Llama 3.2 3B, 1500 tokens": partial(corpus._text, "llama", 1, 1500, vocab_size=32_000, **_LLAMA_3B, **_LAYERS),
    "Long Llama 8B, 3000 tokens": partial(corpus._text, "llama", 1, 3000, vocab_size=32_000, **_LLAMA, **_LAYERS),
}
"""By the names in modelbench.epilogues, as far as Llama 8B, and models whose GEMMs nobody measured."""


def build(name: str, device: str) -> models.Workload:
    """Make a model in bfloat16, the same in each process."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        workload = MAKERS[name]()
    torch.set_default_dtype(torch.float32)
    workload.module.requires_grad_(False).eval()
    return workload


def measure(
    name: str, ways: Sequence[str], device: str, caches: Path, *, cold: bool, alone: Callable[[], None]
) -> Record:
    """Compile a model in all ways, and time them: medians of microseconds, and relative errors against float64."""
    workload = build(name, device)
    record: Record = {"model": name, "first_s": {}, "again_s": {}, "host_us": {}, "fused": {}}
    graphs, results, kept = [], [], []
    pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
    known = quack.directory()
    for way in ways:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches / way)
        os.environ["TRITON_CACHE_DIR"] = str(caches / way / "triton")
        if way == "with" and not cold:
            shutil.copytree(known, quack.directory(), dirs_exist_ok=True)
        quack.kernel.cache_clear()
        quack._prepared.cache_clear()
        without = mock.patch.object(quack, "versions", tuple if way == "without" else quack.versions)
        settings = {"policy": "off"} if way == "default" else {}
        with diode_lut.config.patch(**settings), without, recorder.collecting() as collected:
            for turn in ("first_s", "again_s"):
                torch._dynamo.reset()
                clear_caches()
                if cold and way == "with":
                    quack.start()  # as when a program that imports Inductor at its first compile has no kernel yet
                began = time.perf_counter()
                step = partial(workload.step, torch.compile(workload.module, dynamic=False))
                result = step()
                synchronize(device)
                record[turn][way] = round(time.perf_counter() - began, 2)
        hits = [hit for found in collected.devices.values() for hit in found.hits if hit.problem.op == "fused_mm"]
        record["fused"][way] = {str(hit.problem): hit.configs[0] for hit in hits}
        if device == "cuda":
            began = time.perf_counter()
            for _ in range(10):
                step()
            record["host_us"][way] = round((time.perf_counter() - began) * 1e5)
            synchronize(device)
            graph, result = captured(step, pool)
            graphs.append(graph)
            kept += PyCodeCache.modules
        results.append(result)
    alone()
    if device == "cuda":
        rounds = Bench().rounds([graph.replay for graph in graphs] * 2, ROUNDS)
        times = [round(median(row) / 1e3, 2) for row in rounds.T.tolist()]
        record["us"] = {way: times[number :: len(ways)] for number, way in enumerate(ways)}
        record["device"] = torch.cuda.get_device_name(0)
    errors = Errors(workload)
    for number, way in enumerate(ways):
        if device == "cuda":
            graphs[number].replay()
            synchronize(device)
        errors.add(way, results[number])
    record["errors"] = {way: error[0] for way, error in errors.by_label.items()}
    return record


def main() -> None:
    """Measure the models, and append a line for each to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="", help="the beginnings of their names, by default all")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--caches", type=Path, default=Path("/tmp/quack-models"))
    parser.add_argument("--lock", type=Path, default=Path("/tmp/quack-models.lock"))
    parser.add_argument("--cold", action="store_true", help="have the first compile wait for QuACK's kernels")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    warm_up()
    with arguments.lock.open("w") as file:
        for name in [each for each in MAKERS if each.startswith(tuple(arguments.models.split(",")))]:
            fcntl.flock(file, fcntl.LOCK_SH)

            def alone() -> None:
                fcntl.flock(file, fcntl.LOCK_UN)
                fcntl.flock(file, fcntl.LOCK_EX)

            caches = arguments.caches / str(os.getpid()) / name.split(",")[0].replace(" ", "-")
            record = measure(name, arguments.ways.split(","), device, caches, cold=arguments.cold, alone=alone)
            fcntl.flock(file, fcntl.LOCK_UN)
            append(arguments.out, record)
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
