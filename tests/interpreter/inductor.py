"""What PyTorch and Inductor need on the device besides the device: the Python side of CUDA, and benchmarks."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any
from unittest import mock

import torch
import torch._inductor.kernel.conv
from torch._inductor import config
from torch._inductor.runtime.benchmarking import Benchmarker, InductorBenchmarker, TritonBenchmarker
from torch._inductor.runtime.hints import TRITON_MAX_BLOCK
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.select_algorithm import AlgorithmSelectorCache

MOST_ELEMENTS = 2**13  # of a block, where the device chooses: numpy takes hardly longer for many elements
PARTS = 4  # of the work of a kernel that would have a part for each SM


@contextmanager
def patched_inductor() -> Iterator[None]:
    """Generated code finds what it calls, and nothing is compiled by Triton, timed, or kept for other processes."""
    with ExitStack() as stack:
        for target, value in _CUDA.items():
            stack.enter_context(mock.patch(target, value, create=True))
        for owner, name, value in (
            (CachingAutotuner, "precompile", lambda *_, **__: None),
            (CachingAutotuner, "run", _with_large_blocks(CachingAutotuner.run)),
            (AlgorithmSelectorCache, "do_autotuning", _choose_by_chance),
            *((each, "benchmark_gpu", _time_by_chance) for each in _BENCHMARKERS if "benchmark_gpu" in vars(each)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        # Caches of graphs do not know that kernels are interpreted: other processes would be served them.
        stack.enter_context(config.patch(fx_graph_cache=False))
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        yield


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _convolution(image: torch.Tensor, weight: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """The host's, whose memory format is the host's choice."""
    result = torch.convolution(image, weight, *arguments, **options)
    return result.contiguous(memory_format=_format_of_convolution(image, weight))


def _format_of_convolution(image: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.memory_format:
    """Channels last if an operand is, as cuDNN has it."""
    last = any(
        each.is_contiguous(memory_format=torch.channels_last) and not each.is_contiguous()
        for each in (image, weight)
        if each.dim() == 4
    )
    return torch.channels_last if last else torch.contiguous_format


_CUDA: dict[str, Callable[..., Any]] = {
    # Generated code allocates with the first and asks for a stream with the second; a CPU build has neither.
    "torch._C._dynamo.guards._empty_strided_cuda": _empty_strided,
    "torch._C._cuda_getCurrentRawStream": lambda *_: 0,
    # It enters a device guard around all it does. There is one device, and it is always current.
    "torch.cuda._exchange_device": lambda *_: 0,
    "torch.cuda._maybe_exchange_device": lambda *_: 0,
    "torch.cuda.set_device": lambda *_: None,
    # Dynamo saves and restores the random state around tracing. The device's generator is the CPU's.
    "torch.cuda.get_rng_state": lambda *_: torch.get_rng_state(),
    "torch.cuda.set_rng_state": lambda *_: None,
    # Whatever uses CUDA for the first time initializes it, which a CPU build refuses.
    "torch.cuda._lazy_init": lambda: None,
    # It asks of each convolution which library computes it.
    "torch._C._conv_determine_backend_memory_format": _format_of_convolution,
    "torch._inductor.select_algorithm.extern_kernels.convolution": _convolution,
    # All work is done when a call returns.
    "torch.cuda.synchronize": lambda *_: None,
    # Kernels that share the work among all SMs have so many parts to interpret.
    "torch._inductor.utils.get_max_num_sms": lambda: PARTS,
    "torch._inductor.kernel.flex.flex_decoding.get_split_k": lambda *_: PARTS,
}

_BENCHMARKERS = (Benchmarker, TritonBenchmarker, InductorBenchmarker)


def _with_large_blocks(run: Callable[..., Any]) -> Callable[..., Any]:
    """Launching that interprets with large blocks.

    An interpreted kernel takes the first of Inductor's configs, often one row at a time: minutes instead of seconds.
    Any power of two is right. Templates keep the blocks that were chosen for them.
    """

    def enlarged(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.size_hints, dict) and "RSPLIT_SIZE" not in self.inductor_meta:
            _enlarge(self.configs[0].kwargs, self.size_hints)
        return run(self, *args, **kwargs)

    return enlarged


def _enlarge(blocks: dict[str, int], hints: dict[str, int]) -> None:
    """Double the blocks of what is not reduced until they cover the tensor or are large enough."""
    whole = [size for name, size in hints.items() if name.startswith("r") and f"{name.upper()}BLOCK" not in blocks]
    elements = prod(whole) * prod(size for name, size in blocks.items() if name.endswith("BLOCK"))
    for name in ("x", "y", "z"):
        block = f"{name.upper()}BLOCK"
        most = min(hints.get(name, 1), TRITON_MAX_BLOCK[name.upper()])  # a multiple of the latter has no mask
        while block in blocks and blocks[block] < most and elements < MOST_ELEMENTS:
            blocks[block] *= 2
            elements *= 2


def _choose_by_chance(
    _self: Any, name: str, _nodes: Any, _layout: Any, _inputs: Any, key: str, choices: Any, *_: Any, **__: Any
) -> Any:
    """Times for choices that nothing has compiled: any of them can turn out the best, the same one each time."""
    return {choice: _chance(f"{name} {key} {number}") for number, choice in enumerate(choices)}


def _time_by_chance(_self: Any, function: Callable[[], Any], *_: Any, **__: Any) -> float:
    """A time for anything that Inductor would like to run for its time, such as padding."""
    return _chance(function.__qualname__ if hasattr(function, "__qualname__") else "")


def _chance(text: str) -> float:
    """A time in milliseconds, drawn from what is timed and the seed of the generator."""
    return 1.0 + zlib.crc32(f"{torch.initial_seed()} {text}".encode()) / 2**32
