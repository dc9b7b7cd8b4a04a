"""QuACK's kernels in this process, and the operator ``diode_lut::fused_mm``, which runs one.

``quack_kernels`` compiles a kernel in another process, into Inductor's cache directory, and this process links it,
without importing QuACK. A kernel is for any sizes, so that a machine compiles it once.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diode_lut.errors import let_pass
from diode_lut.log import warn_once
from diode_lut.templates.config import Config

_PACKAGES = ("quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi")


@cache
def versions() -> tuple[str, ...]:
    """Return the versions of QuACK and of what compiles and runs its kernels. Empty if one is not installed."""
    try:
        return tuple(map(version, _PACKAGES))
    except PackageNotFoundError:
        return ()


def name_of(work: str, config: Config, *, bias: bool) -> str:
    """Return the name of a kernel: its work, tile and cluster, and flags."""
    tile_m, tile_n, cluster_m, cluster_n, pingpong, swap_ab = config.params
    flags = "-pingpong" * pingpong + "-swap" * swap_ab
    return f"{'bias_' * bias}{work}-{tile_m}x{tile_n}-{cluster_m}x{cluster_n}{flags}"


def _directory() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    source = sha256(Path(__file__).with_name("quack_kernels.py").read_bytes()).hexdigest()
    directory = Path(cache_dir()) / "diode_lut" / "-".join((*versions(), source[:16]))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


_compiling: list[subprocess.Popen[str]] = []
_asked: set[Path] = set()
_told: dict[str, str] = {}
"""The process that compiles kernels, the libraries that it was asked for, and those it has told, with their errors."""


def start() -> None:
    """Start the process that compiles kernels, unless it runs, and do not wait for it: its imports take seconds."""
    if _compiling and _compiling[0].poll() is None:
        return
    command = [sys.executable, "-m", "diode_lut.hook.quack_kernels"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    _compiling[:] = [subprocess.Popen(command, **pipes, text=True)]  # type: ignore[call-overload]  # noqa: S603 (ours)
    _asked.clear()


def compile_kernels(names: Sequence[str]) -> None:
    """Have the kernels compiled that are not in the cache, and do not wait for them."""
    paths = [_directory() / f"{name}.so" for name in names]
    missing = [path for path in paths if path not in _asked and not path.exists()]
    if missing:
        start()
        stdin = _compiling[0].stdin
        assert stdin is not None
        stdin.write("".join(f"{path}\n" for path in missing))
        stdin.flush()
        _asked.update(missing)


@cache
def _kernel(name: str) -> Callable[..., None] | None:
    """Return a kernel, after waiting for it if it is being compiled. None, with a warning, if it cannot be had."""
    try:
        import tvm_ffi

        path = _directory() / f"{name}.so"
        compile_kernels([name])
        while path in _asked and str(path) not in _told:
            stdout = _compiling[0].stdout
            assert stdout is not None
            line = stdout.readline()
            if not line:
                raise RuntimeError("the process that compiles it has ended")
            told, _, error_there = line.rstrip("\n").partition("\t")
            _told[told] = error_there
        if _told.get(str(path)):
            raise RuntimeError(_told[str(path)])
        for library in (tvm_ffi.libinfo.find_libtvm_ffi(), _runtime()):
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        linked = ctypes.CDLL(str(path))
        address = ctypes.cast(getattr(linked, "__tvm_ffi_func"), ctypes.c_void_p).value
        function: Callable[..., None] = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=linked)
        return function
    except Exception as error:
        let_pass(error)
        warn_once(f"QuACK's kernel {name} cannot be had, and PyTorch's take its place: {error!r}")
        return None


def _runtime() -> str:
    """Return the path of the library that the kernels call, of the same CUDA as PyTorch if there are several."""
    cuda = str(torch.version.cuda).split(".")[0]
    for toolkit in (cuda, "13", "12"):
        try:
            files = distribution(f"nvidia-cutlass-dsl-libs-cu{toolkit}").files or []
        except PackageNotFoundError:
            continue
        for file in files:
            if file.name == "libcute_dsl_runtime.so" and "stubs" not in file.parts:
                return str(file.locate())
    raise FileNotFoundError("libcute_dsl_runtime.so")


def _fused_mm(a: Tensor, b: Tensor, bias: Tensor | None, c: Tensor | None, work: str, config: str) -> Tensor:
    kernel, swap_ab, scheduler = _launch(work, config, bias is not None, a.device)
    if kernel is None:
        return _apart(a, b, bias, c, work, config)
    out = a.new_empty((a.shape[0], b.shape[1]))
    rows = (None, None) if bias is None else (bias[None], None, None)
    kernel(*((b, a) if swap_ab else (a, b)), out, c, rows, scheduler, None, None, None)
    return out


@cache
def _launch(
    work: str, config: str, bias: bool, device: torch.device
) -> tuple[Callable[..., None] | None, int, tuple[int | None, ...]]:
    """Return the kernel, whether it takes A and B swapped, and the arguments of its scheduler."""
    parsed = Config.parse(config)
    _, _, cluster_m, cluster_n, _, swap_ab = parsed.params
    clusters = torch.cuda.get_device_properties(device).multi_processor_count // (cluster_m * cluster_n)
    return _kernel(name_of(work, parsed, bias=bias)), swap_ab, (clusters, None, _SWIZZLE, None, None, None)


_SWIZZLE = 8
"""Tiles in a group for the L2 cache, at most: QuACK's default."""


def _apart(a: Tensor, b: Tensor, bias: Tensor | None, c: Tensor | None, work: str, _config: str) -> Tensor:
    """Compute the same with PyTorch's kernels."""
    y = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    tanh = partial(functional.gelu, approximate="tanh")
    if c is not None:
        return c + y if work == "add" else (functional.silu if work == "swiglu" else tanh)(c) * y
    activations: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": functional.gelu}
    return activations.get(work, tanh)(y)


def _shape(a: Tensor, b: Tensor, *_: Any) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


def register(_module: Any) -> Callable[[], None]:
    """Define the operator, which a graph from a cache may call. Return a function to remove it.

    If there is a Hopper and no kernel is in the cache, the first may be needed soon: Inductor is being imported.
    """
    on_hopper = bool(versions()) and torch.cuda._initialized and torch.cuda.get_device_capability() == (9, 0)
    if on_hopper and not any(_directory().glob("*.so")):
        start()
    library: Any = torch.library.Library("diode_lut", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("fused_mm(Tensor a, Tensor b, Tensor? bias, Tensor? c, str work, str config) -> Tensor")
    for key, function in (("CUDA", _fused_mm), ("CPU", _apart), ("Meta", _shape)):
        library.impl("fused_mm", function, key)
    undo: Callable[[], None] = library._destroy
    return undo
