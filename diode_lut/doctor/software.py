"""What doctor looks at first: PyTorch, the hook in it, and its caches."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from diode_lut.doctor.finding import Finding, fine, note, wrong
from diode_lut.errors import BROKEN_IMPORT
from diode_lut.settings import autoregister

OLDEST, NEWEST = (2, 11), (2, 15)
"""The versions of PyTorch that the hook was made for."""


def software() -> Iterator[Finding]:
    """PyTorch and Triton."""
    try:
        import torch
    except BROKEN_IMPORT as error:
        remedy = "pip install diode-lut[torch]; tables can be read, checked, edited and built without"
        yield wrong("torch", f"cannot be imported ({error}), so there is nothing to hook into", remedy)
        return
    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if OLDEST <= version <= NEWEST:
        yield fine("torch", torch.__version__)
    else:
        known = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
        yield wrong("torch", f"{torch.__version__} is none that the hook was made for", f"install torch {known}")
    yield _triton(needed=torch.cuda.is_available())


def _triton(*, needed: bool) -> Finding:
    if find_spec("triton"):
        try:
            return fine("triton", str(import_module("triton").__version__))
        except BROKEN_IMPORT as error:
            return wrong("triton", f"cannot be imported ({error})", "install it again, or remove it")
    if needed:
        return wrong("triton", "is not installed, so no Triton kernel can be made", "pip install triton")
    return note("triton", "is not installed; on a CPU it is not needed")


def hook() -> Iterator[Finding]:
    """Whether Inductor asks us, and whom else."""
    if sys.modules.get("torch") is None:  # software() has tried
        return
    if not autoregister():
        yield wrong("hook", "is off by DIODE_LUT_AUTOREGISTER", "unset DIODE_LUT_AUTOREGISTER")
        return

    try:
        from diode_lut.inductor import health

        missing = health.what_is_missing()
    except BROKEN_IMPORT as error:
        yield wrong("hook", f"Inductor cannot be imported ({error})", "install torch and triton again")
        return
    if missing:
        yield wrong("hook", "; ".join(missing), "see the warnings above: this Inductor has no place for the hook")
        return
    below = health.below()
    yield fine("hook", "is installed, and first in line" + (f", before {below}" if below else ""))
    fault = health.cache_fault()
    if fault:
        remedy = "set TORCHINDUCTOR_FORCE_DISABLE_CACHES=1, and report it with the version of torch"
        yield wrong("caches", fault, remedy)
    else:
        yield fine("caches", "the keys of Inductor's caches change with the answers, and only then")
