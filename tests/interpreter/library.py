"""The device's library: device.cpp, compiled once for the installed PyTorch, which must be imported after it."""

import ctypes
import hashlib
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")

OPTIONS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-DAT_PER_OPERATOR_HEADERS")


class UnavailableError(Exception):
    """Why there can be no such device here."""


class NoCompilerError(UnavailableError):
    """What would be easy to mend."""


def load() -> None:
    """Turn this process's "cuda" into the device, and have Triton interpret; before torch is imported, once for all."""
    os.environ["TRITON_INTERPRET"] = "1"  # Triton's own functions, such as tl.sum, become interpreted at its import
    if _loaded:
        return
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already: load the interpreter's device first, in a process of its own")
    _loaded.append(ctypes.CDLL(str(built_library()), mode=ctypes.RTLD_GLOBAL))


_loaded: list[ctypes.CDLL] = []


def built_library() -> Path:
    """The compiled device, made if no earlier call has; UnavailableError where it cannot be."""
    torch = _torch_directory()
    version = runpy.run_path(str(torch / "version.py"))
    if version["cuda"] or version["hip"]:
        raise UnavailableError(f"PyTorch {version['__version__']} has a GPU device of its own: install its CPU build")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise NoCompilerError("there is no C++ compiler: install g++")
    command = [compiler, *OPTIONS, str(SOURCE), *_torch_options(torch)]
    built = _cache() / f"{_digest(version['__version__'], command)}.so"
    if not built.exists():
        _compile(command, built)
    return built


def _torch_directory() -> Path:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _torch_options(torch: Path) -> list[str]:
    includes = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
    libraries = torch / "lib"
    linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu"]
    return [*(f"-I{path}" for path in includes), *linked]


def _cache() -> Path:
    """Outside the repository, so that clones share it and ``git status`` stays empty."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(root) / "diode_lut" / "interpreter"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _digest(version: str, command: list[str]) -> str:
    """Names what the library depends on: the source, PyTorch's version, and how it is compiled."""
    parts = [SOURCE.read_text(encoding="utf-8"), version, *command]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _compile(command: list[str], built: Path) -> None:
    """Compile into a temporary file and rename that: other processes may do so at the same time."""
    handle, partial = tempfile.mkstemp(dir=built.parent, suffix=".partial")
    os.close(handle)
    try:
        done = subprocess.run([*command, "-o", partial], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{SOURCE.name} does not compile with the installed PyTorch:\n{done.stderr}")
        Path(partial).replace(built)
    finally:
        Path(partial).unlink(missing_ok=True)
