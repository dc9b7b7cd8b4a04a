"""Tuned kernels for torch.compile, from tables that people can read.

Importing this package is all it takes: as soon as Inductor is imported too, matmuls get the kernels that the tables
name. The names below are imported when they are first used.
"""

from __future__ import annotations

import atexit
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from diode_lut.process import __version__, remember_code, when_imported
from diode_lut.settings import autoregister, config

if TYPE_CHECKING:
    from diode_lut.api import explain as explain
    from diode_lut.api import get_detected_hardware as get_detected_hardware
    from diode_lut.api import get_prediction_stats as get_prediction_stats
    from diode_lut.api import list_available_tables as list_available_tables
    from diode_lut.api import profile_predictions as profile_predictions
    from diode_lut.api import register_chooser as register_chooser
    from diode_lut.api import register_table as register_table
    from diode_lut.api import select as select
    from diode_lut.api import set_log_level as set_log_level
    from diode_lut.api import step as step
    from diode_lut.decide.catalog import TableFile as TableFile
    from diode_lut.decide.sources import Decision as Decision
    from diode_lut.errors import DiodeLutError as DiodeLutError
    from diode_lut.errors import MissError as MissError
    from diode_lut.hardware import Hardware as Hardware
    from diode_lut.problem import Problem as Problem
    from diode_lut.templates.config import Config as Config

_NAMES = {
    "diode_lut.api": (
        *("explain", "get_detected_hardware", "get_prediction_stats", "list_available_tables", "profile_predictions"),
        *("register_chooser", "register_table", "select", "set_log_level", "step"),
    ),
    "diode_lut.decide.catalog": ("TableFile",),
    "diode_lut.decide.sources": ("Decision",),
    "diode_lut.errors": ("DiodeLutError", "MissError"),
    "diode_lut.hardware": ("Hardware",),
    "diode_lut.problem": ("Problem",),
    "diode_lut.templates.config": ("Config",),
}
_EXPORTS = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", "config", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = globals()[name] = getattr(import_module(_EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _write_receipt() -> None:
    """Write the receipt when the process ends, if it asked for one and has imported torch.

    Without torch nothing was asked, and this imports nothing: after Ctrl-C, an import that defines a named tuple would
    make Python's exit code 1 instead of that of the signal.
    """
    if config.receipt is not None and _LOADED.intersection(sys.modules):
        try:
            from diode_lut.receipts.receipt_file import write_at_exit
            from diode_lut.receipts.recorder import own_receipt
        except ImportError:
            return  # what diode_lut needs is not installed here; the hook has warned of it
        write_at_exit(own_receipt)


_LOADED = {"torch", "diode_lut.receipts.recorder"}  # modules, one of which is imported if a receipt is due

atexit.register(_write_receipt)
if autoregister():
    remember_code()
    when_imported("torch._inductor.config", "diode_lut.hook.patches:install")
if "_DIODE_LUT_PROBE" in os.environ:  # `diode-lut compare` has started this program
    when_imported("torch._inductor.config", "diode_lut.hook.patches:install_probe")
if "_DIODE_LUT_KERNELS" in os.environ:  # `diode-lut tune` has started it
    when_imported("torch._inductor.config", "diode_lut.hook.patches:install_recording")
