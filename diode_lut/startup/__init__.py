"""What arms the hook in a program that does not mention diode_lut.

``diode_lut.pth`` is installed beside the package. Python runs its line in every process, and without the variable
``DIODE_LUT`` nothing happens. ``sitecustomize.py`` does the same where this directory is in ``PYTHONPATH``, where the
commands ``run``, ``tune`` and ``compare`` put it. vLLM and SGLang call ``plugin``.
"""

from __future__ import annotations

from diode_lut.process import when_imported
from diode_lut.settings import autoregister


def plugin() -> None:
    """What vLLM and SGLang call in each of their processes, once or more, by the entry points in pyproject.toml.

    The import of diode_lut has armed the hook.
    """
    if autoregister():
        when_imported("vllm.compilation.compiler_interface", "diode_lut.hook.install:complete_factors")
