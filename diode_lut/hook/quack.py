"""QuACK's kernels in this process, and the operator ``diode_lut::fused_mm``, which runs them.

``quack_kernels`` compiles a kernel in another process, into Inductor's cache directory. This process links it, without
importing QuACK. A kernel is for any sizes, so that a machine compiles it once.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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

FAILED = ".failed"  # the suffix of a file beside a kernel's library, with the error if it cannot be compiled

_PACKAGES = ("quack-kernels", "nvidia-cutlass-dsl", "apache-tvm-ffi")


@cache
def versions() -> tuple[str, ...]:
    """Return the versions of QuACK and of the packages that compile and run its kernels, or none if one is missing."""
    try:
        return tuple(map(version, _PACKAGES))
    except PackageNotFoundError:
        return ()


def name_of(work: str, config: Config, *, bias: bool) -> str:
    """Return the name of a kernel: its work, tile and cluster, and flags."""
    tile_m, tile_n, cluster_m, cluster_n, pingpong, swap_ab = config.params
    flags = "-pingpong" * pingpong + "-swap" * swap_ab
    return f"{'bias_' * bias}{work}-{tile_m}x{tile_n}-{cluster_m}x{cluster_n}{flags}"


def directory() -> Path:
    """Return the directory of kernels for these versions in Inductor's cache, and make it."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    source = sha256(Path(__file__).with_name("quack_kernels.py").read_bytes()).hexdigest()
    found = Path(cache_dir()) / "diode_lut" / "-".join((*versions(), source[:16]))
    found.mkdir(parents=True, exist_ok=True)
    return found


_compiling: list[subprocess.Popen[str]] = []  # the process that compiles kernels, if it was started
_asked: set[Path] = set()  # the libraries for which it was asked

_COMPILER = "diode_lut.hook.quack_kernels"
_COMPILE_LIMIT_S = 120.0
_PAUSE_S = 0.01


def start() -> None:
    """Start the process that compiles kernels, unless it runs. Do not wait for its imports, which take seconds."""
    if not _compiling or _compiling[0].poll() is not None:
        for ended in _compiling:
            with suppress(OSError):
                ended.communicate()
        command = [sys.executable, "-m", _COMPILER]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
        quiet = subprocess.DEVNULL
        _compiling[:] = [
            subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)  # noqa: S603 (ours)
        ]


def compile_kernels(names: Sequence[str]) -> None:
    """Begin to compile the kernels that are not in the cache, without waiting for them."""
    paths = [directory() / f"{name}.so" for name in names]
    missing = [path for path in paths if path not in _asked and not path.exists()]
    if missing:
        for path in missing:
            path.with_suffix(FAILED).unlink(missing_ok=True)  # of an earlier process
        start()
        stdin = _compiling[0].stdin
        assert stdin is not None
        stdin.write("".join(f"{path}\t{path.with_suffix(FAILED)}\n" for path in missing))
        stdin.flush()
        _asked.update(missing)


def is_settled(name: str) -> bool:
    """Return whether compiling a kernel has ended or failed, so that ``kernel`` need not wait."""
    path = directory() / f"{name}.so"
    return path.exists() or path.with_suffix(FAILED).exists() or _compiling[0].poll() is not None


@cache
def kernel(name: str) -> Callable[..., None] | str:
    """Return a kernel, after waiting until it is compiled, or the reason why there is none."""
    try:
        path = directory() / f"{name}.so"
        with suppress(BrokenPipeError):  # the process has ended
            compile_kernels([name])
        latest = time.monotonic() + _COMPILE_LIMIT_S
        while not is_settled(name) and time.monotonic() < latest:
            time.sleep(_PAUSE_S)
        if path.with_suffix(FAILED).exists():
            return path.with_suffix(FAILED).read_text()
        if not path.exists():
            return f"QuACK compiles no kernel {name}; to see why: {sys.executable} -m {_COMPILER}"
        import tvm_ffi

        for library in (tvm_ffi.libinfo.find_libtvm_ffi(), runtime()):
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        linked = ctypes.CDLL(str(path))
        address = ctypes.cast(getattr(linked, "__tvm_ffi_func"), ctypes.c_void_p).value
        function: Callable[..., None] = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=linked)
        return function
    except Exception as error:
        let_pass(error)
        return repr(error)


def runtime() -> str:
    """Return the path of the library that kernels call, of PyTorch's CUDA if there are several.

    FileNotFoundError if there is none.
    """
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


def fused_mm(a: Tensor, b: Tensor, bias: Tensor | None, c: Tensor | None, work: str, config: str) -> Tensor:
    """Compute a matmul and the work after it with the kernel of a config. If that fails, use PyTorch's kernels."""
    try:
        return launch(a, b, bias, c, work, config)
    except Exception as error:
        let_pass(error)
        warn_once(f"PyTorch's kernels take the place of {config} for {work}: {error}")
        return apart(a, b, bias, c, work, config)


def launch(a: Tensor, b: Tensor, bias: Tensor | None, c: Tensor | None, work: str, config: str) -> Tensor:
    """Compute them with the kernel of a config. Raise RuntimeError without a kernel, or the kernel's own errors."""
    function, swap_ab, scheduler = _prepared(work, config, bias is not None, a.device)
    if isinstance(function, str):
        raise RuntimeError(function)
    out = a.new_empty((a.shape[0], b.shape[1]))
    rows = (None, None) if bias is None else (bias[None], None, None)
    function(*((b, a) if swap_ab else (a, b)), out, c, rows, scheduler, None, None, None)
    return out


@cache
def _prepared(
    work: str, config: str, bias: bool, device: torch.device
) -> tuple[Callable[..., None] | str, int, tuple[int | None, ...]]:
    """Return the kernel, whether it takes A and B swapped, and the arguments of its scheduler."""
    parsed = Config.parse(config)
    _, _, cluster_m, cluster_n, _, swap_ab = parsed.params
    clusters = torch.cuda.get_device_properties(device).multi_processor_count // (cluster_m * cluster_n)
    return kernel(name_of(work, parsed, bias=bias)), swap_ab, (clusters, None, _SWIZZLE, None, None, None)


_SWIZZLE = 8  # tiles in a group for the L2 cache, at most: QuACK's default


def apart(a: Tensor, b: Tensor, bias: Tensor | None, c: Tensor | None, work: str, _config: str = "") -> Tensor:
    """Compute them with PyTorch's kernels."""
    y = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    tanh = partial(functional.gelu, approximate="tanh")
    if c is not None:
        return c + y if work == "add" else (functional.silu if work == "swiglu" else tanh)(c) * y
    activations: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": functional.gelu}
    return activations.get(work, tanh)(y)


def register(_module: Any) -> Callable[[], None]:
    """Define the operator, which a graph from a cache may call. Return a function to remove it.

    Inductor is being imported, so kernels may be needed soon. With a Hopper, and no kernel in the cache, start the
    process that compiles them.
    """
    library: Any = torch.library.Library("diode_lut", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("fused_mm(Tensor a, Tensor b, Tensor? bias, Tensor? c, str work, str config) -> Tensor")
    kernels = {"CUDA": fused_mm, "CPU": apart, "Meta": lambda a, b, *_: a.new_empty((a.shape[0], b.shape[1]))}
    for key, function in kernels.items():
        library.impl("fused_mm", function, key)
    if versions() and torch.cuda._initialized and torch.cuda.get_device_capability() == (9, 0):
        with suppress(OSError):
            if not any(directory().glob("*.so")):
                start()
    undo: Callable[[], None] = library._destroy
    return undo
