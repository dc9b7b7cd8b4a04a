"""Arming the hook in a program without ``import diode_lut``.

``diode_lut.pth`` is installed beside the package. Python runs its line in every process, and without the variable
``DIODE_LUT`` nothing happens. ``sitecustomize.py`` does the same if this directory is in ``PYTHONPATH``, where the
commands ``run``, ``tune`` and ``compare`` put it. vLLM and SGLang call ``plugin``.
"""

from __future__ import annotations

from diode_lut.process import when_imported
from diode_lut.settings import autoregister


def plugin() -> None:
    """Complete the keys of vLLM's own cache. The import of diode_lut has armed the hook.

    By the entry points in pyproject.toml, vLLM and SGLang call this in each of their processes, once or more.
    """
    if autoregister():
        when_imported("vllm.compilation.compiler_interface", "diode_lut.hook.patches:install_in_vllm")
