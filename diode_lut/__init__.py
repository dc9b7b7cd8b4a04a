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

from diode_lut.domain.version import __version__
from diode_lut.io.own_code import remember_code
from diode_lut.runtime.post_import import when_imported
from diode_lut.settings import autoregister, config

if TYPE_CHECKING:
    from diode_lut.domain.errors import DiodeLutError as DiodeLutError
    from diode_lut.domain.errors import MissError as MissError
    from diode_lut.domain.hardware import Hardware as Hardware
    from diode_lut.domain.problem import Problem as Problem
    from diode_lut.kernels.config import Config as Config
    from diode_lut.runtime.api import explain as explain
    from diode_lut.runtime.api import get_detected_hardware as get_detected_hardware
    from diode_lut.runtime.api import get_prediction_stats as get_prediction_stats
    from diode_lut.runtime.api import list_available_tables as list_available_tables
    from diode_lut.runtime.api import profile_predictions as profile_predictions
    from diode_lut.runtime.api import register_chooser as register_chooser
    from diode_lut.runtime.api import register_table as register_table
    from diode_lut.runtime.api import select as select
    from diode_lut.runtime.api import set_log_level as set_log_level
    from diode_lut.runtime.api import step as step
    from diode_lut.selection.catalog import TableFile as TableFile
    from diode_lut.selection.selector import Decision as Decision

_EXPORTS = {
    "Config": "diode_lut.kernels.config",
    "Decision": "diode_lut.selection.selector",
    "DiodeLutError": "diode_lut.domain.errors",
    "MissError": "diode_lut.domain.errors",
    "Hardware": "diode_lut.domain.hardware",
    "Problem": "diode_lut.domain.problem",
    "TableFile": "diode_lut.selection.catalog",
    "explain": "diode_lut.runtime.api",
    "get_detected_hardware": "diode_lut.runtime.api",
    "get_prediction_stats": "diode_lut.runtime.api",
    "list_available_tables": "diode_lut.runtime.api",
    "profile_predictions": "diode_lut.runtime.api",
    "register_chooser": "diode_lut.runtime.api",
    "register_table": "diode_lut.runtime.api",
    "select": "diode_lut.runtime.api",
    "set_log_level": "diode_lut.runtime.api",
    "step": "diode_lut.runtime.api",
}

__all__ = ["__version__", "config", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = globals()[name] = getattr(import_module(_EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _write_receipt() -> None:
    """At exit.

    Without torch nothing was asked. Then nothing is imported either: after Ctrl-C, an import that defines a named tuple
    makes Python's own exit code 1 instead of that of the signal.
    """
    if config.receipt is not None and _LOADED.intersection(sys.modules):
        try:
            from diode_lut.runtime.receipt_file import write_at_exit
            from diode_lut.runtime.recorder import own_receipt
        except ImportError:
            return  # what diode_lut needs is not installed here; the hook has warned of it
        write_at_exit(own_receipt)


_LOADED = {"torch", "diode_lut.runtime.recorder"}
"""The modules of which a process has imported one if it has a receipt to write."""

atexit.register(_write_receipt)
if autoregister():
    remember_code()
    when_imported("torch._inductor.config", "diode_lut.inductor.install:install")
if "_DIODE_LUT_PROBE" in os.environ:  # `diode-lut compare` has started this program
    when_imported("torch._inductor.config", "diode_lut.inductor.probe:begin")
