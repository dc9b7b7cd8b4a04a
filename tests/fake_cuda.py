"""A CUDA device that is not there: Inductor lowers for it, Triton compiles for it, nothing runs."""

import contextlib
import hashlib
import re
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._dynamo.source import ConstantSource
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.utils import is_big_gpu
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.numbers import int_oo
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

H200 = SimpleNamespace(
    name="NVIDIA H200",
    gcnArchName="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    shared_memory_per_block_optin=232448,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    warp_size=32,
    total_memory=141 << 30,
    L2_cache_size=60 << 20,
)
"""The properties of an H200 that Inductor reads, as ``torch.cuda.get_device_properties`` gives them there."""

H100 = SimpleNamespace(**{**vars(H200), "name": "NVIDIA H100 80GB HBM3", "gcnArchName": "NVIDIA H100 80GB HBM3"})
"""The same of an H100, but for its memory."""

L4 = SimpleNamespace(
    **{
        **vars(H200),
        **dict.fromkeys(("name", "gcnArchName"), "NVIDIA L4"),
        "major": 8,
        "minor": 9,
        "multi_processor_count": 58,
        "shared_memory_per_block_optin": 101376,
        "max_threads_per_multi_processor": 1536,
        "total_memory": 24 << 30,
        "L2_cache_size": 48 << 20,
    }
)
"""The same of an L4, which has fewer SMs than Inductor wants for Triton's GEMMs."""

MI300X = SimpleNamespace(
    **{
        **{name: value for name, value in vars(H200).items() if name != "shared_memory_per_block_optin"},
        "name": "AMD Instinct MI300X",
        "gcnArchName": "gfx942:sramecc+:xnack-",
        "minor": 4,
        "multi_processor_count": 304,
        "shared_memory_per_block": 65536,
        "warp_size": 64,
        "total_memory": 192 << 30,
        "L2_cache_size": 4 << 20,
    }
)
"""The same of an MI300X, for a process in which ``torch.version.hip`` says that this is ROCm."""


def as_hardware(properties: Any) -> dict[str, Any]:
    """The hardware of a table for a CUDA device with these properties."""
    arch = f"sm_{properties.major}{properties.minor}"
    return {"name": properties.name, "arch": arch, "sm_count": properties.multi_processor_count}


@contextlib.contextmanager
def fake_cuda(properties: Any = H200) -> Iterator[None]:
    """PyTorch says that it has one CUDA device with these properties."""

    def get_properties(*_: Any, **__: Any) -> Any:
        return properties

    capability = (properties.major, properties.minor)
    with contextlib.ExitStack() as stack:
        for target, value in {
            "torch._inductor.scheduler.has_triton": lambda *_, **__: True,  # bound there if it was imported before
            "torch._inductor.fx_passes.pad_mm.has_triton": lambda *_, **__: True,
            "torch.cuda.get_device_properties": get_properties,
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.current_device": lambda: 0,
            "torch.cuda.device_count": lambda: 1,
            "torch.cuda.get_device_capability": lambda *_, **__: capability,
            "torch.cuda.is_tf32_supported": lambda *_, **__: True,
            "torch._inductor.utils.get_max_num_sms": lambda: properties.multi_processor_count,
            "torch._inductor.kernel.mm_grouped.get_gpu_shared_memory": lambda: properties.shared_memory_per_block_optin,
            "torch.utils._triton.triton_hash_with_backend": lambda: "fake",
            "torch.utils._triton.has_triton": lambda *_, **__: True,
            "torch.utils._triton.has_triton_tma_device": lambda: True,
            "torch.utils._triton.has_triton_stable_tma_api": lambda: True,
            "torch._subclasses.fake_tensor.init_gpu_context": lambda *_, **__: None,
        }.items():
            stack.enter_context(mock.patch(target, value))
        for owner, name in (
            (CudaInterface, "get_compute_capability"),
            (CudaInterface, "get_device_properties"),
            (CudaInterface.Worker, "get_device_properties"),
        ):
            value = (lambda *_, **__: 10 * capability[0] + capability[1]) if "capability" in name else get_properties
            stack.enter_context(mock.patch.object(owner, name, staticmethod(value)))
        for remembered in (DeviceProperties.create, is_big_gpu):
            remembered.cache_clear()
            stack.callback(remembered.cache_clear)
        yield


class Lowered(NamedTuple):
    """What Inductor made of a function: its wrapper code, and what that calls."""

    code: str

    @property
    def triton_templates(self) -> list[str]:
        """The sources of the kernels made from a Triton template."""
        return [source for source in self.triton_kernels if "triton_heuristics.template(" in source]

    @property
    def triton_kernels(self) -> list[str]:
        """The sources of all Triton kernels."""
        return re.findall(r"async_compile\.triton\('\w+', '''(.*?)'''", self.code, flags=re.DOTALL)

    @property
    def extern(self) -> list[str]:
        """The names of the library kernels that are called."""
        return re.findall(r"extern_kernels\.(\w+)\(", self.code)


class Input(NamedTuple):
    """A tensor on the fake device with ``dynamic`` dimensions, at most ``most``, or ``unbacked``."""

    shape: Sequence[int]
    dtype: torch.dtype = torch.bfloat16
    stride: Sequence[int] | None = None
    offset: int = 0
    dynamic: Sequence[int] = ()
    most: int | None = None
    unbacked: bool = False


def lower(
    function: Callable[..., Any],
    *inputs: Input,
    joint: bool = False,
    then: Callable[[torch.fx.Graph], object] = id,
    inference: bool = False,
) -> Lowered:
    """What Inductor makes of ``function`` for a fake CUDA device, down to code; call it inside ``fake_cuda``.

    ``joint`` says whether the passes over joint graphs come first, one of which pads operands. ``then`` is a pass after
    gradients, ``inference`` says that there are none.
    """
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    tensors = [_tensor(mode, index, spec) for index, spec in enumerate(inputs)]
    with mode:
        graph_module = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="real")(*tensors)
    graph_module.graph.eliminate_dead_code()
    if joint:
        with V.set_fake_mode(mode):
            joint_graph_passes(graph_module, torch.device("cpu"))  # which its patterns are traced on
    view_to_reshape(graph_module)
    then(graph_module.graph)
    graph = GraphLowering(graph_module, example_inputs=tensors, shape_env=shape_env, is_inference=inference)
    with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        graph.run(*tensors)
        code, *_ = graph.codegen()
    return Lowered(getattr(code, "value", code))


def _tensor(mode: FakeTensorMode, index: int, spec: Input) -> torch.Tensor:
    env = mode.shape_env
    assert env is not None
    shape: list[Any] = list(spec.shape)
    for dimension in spec.dynamic:
        if spec.unbacked:
            with env.ignore_fresh_unbacked_symbols():  # no node of the graph makes it
                shape[dimension] = size = env.create_unbacked_symint()
            env.constrain_symbol_range(size.node.expr, 0, int_oo if spec.most is None else spec.most)
            continue
        source = ConstantSource(f"_size_{index}_{dimension}")
        symbol = env.create_symbol(shape[dimension], source, dynamic_dim=DimDynamic.DYNAMIC)
        if spec.most is not None:
            env.constrain_symbol_range(symbol, 2, spec.most)
        shape[dimension] = env.create_symintnode(symbol, hint=shape[dimension], source=source)
    with mode:
        contiguous = torch.empty(shape, dtype=spec.dtype, device="cuda:0")
        if spec.stride is None and not spec.offset:
            return contiguous
        stride = spec.stride or contiguous.stride()
        empty = any(size == 0 for size in spec.shape)
        extent = 0 if empty else sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        storage = torch.empty(spec.offset + 1 + extent, dtype=spec.dtype, device="cuda:0")
        return storage.as_strided(shape, stride, spec.offset)


def autotuner_of(source: str, directory: Path) -> Any:
    """The object that an Inductor kernel's source makes, with the ``configs`` of which Inductor takes the fastest."""
    path = directory / f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:16]}.py"
    path.write_text(source, encoding="utf-8")
    (name,) = re.findall(r"^def (triton_\w+)\(", source, flags=re.MULTILINE)
    with mock.patch("torch._inductor.runtime.triton_helpers.set_driver_to_gpu"):  # which looks for a driver
        return runpy.run_path(str(path))[name]


def compile_triton(source: str, directory: Path, arch: int | str = 90, place: int = 0) -> Any:
    """The kernel that Triton itself makes of an Inductor kernel's source; no device is needed.

    It is for ``sm_<arch>``, or, if ``arch`` is text, for an AMD GPU with 64 threads in a warp. ``place`` is that of the
    config.

    Its ``metadata`` says how much shared memory the kernel takes, ``asm`` holds the machine code.
    """
    autotuner = autotuner_of(source, directory)
    config = autotuner.configs[place]
    meta = autotuner.triton_meta
    constants = {**meta["constants"], **config.kwargs}
    kernel = ASTSource(autotuner.fn, meta["signature"], constants, attrs=meta["configs"][0])
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    options |= {name: meta[name] for name in ("matrix_instr_nonkdim", "waves_per_eu", "kpack") if name in meta}
    target = GPUTarget("cuda", arch, 32) if isinstance(arch, int) else GPUTarget("hip", arch, 64)
    return triton.compile(kernel, target=target, options=options)
