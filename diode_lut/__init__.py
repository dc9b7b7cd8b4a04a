"""Tuned kernels for torch.compile, from tables that people can read.

Importing this package is all it takes: as soon as Inductor is imported too, matrix products get the kernels that the
tables name. The names below are imported when they are first used.
"""

from __future__ import annotations

import atexit
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from diode_lut.post_import import when_imported
from diode_lut.settings import autoregister, config

if TYPE_CHECKING:
    from diode_lut.catalog import TableFile as TableFile
    from diode_lut.errors import DiodeLutError as DiodeLutError
    from diode_lut.errors import MissError as MissError
    from diode_lut.kernels.config import Config as Config
    from diode_lut.problem import Hardware as Hardware
    from diode_lut.problem import Problem as Problem
    from diode_lut.runtime import explain as explain
    from diode_lut.runtime import get_detected_hardware as get_detected_hardware
    from diode_lut.runtime import list_available_tables as list_available_tables
    from diode_lut.runtime import register_table as register_table
    from diode_lut.runtime import select as select
    from diode_lut.runtime import set_log_level as set_log_level
    from diode_lut.selector import Decision as Decision
    from diode_lut.statistics import get_prediction_stats as get_prediction_stats
    from diode_lut.statistics import profile_predictions as profile_predictions

__version__ = "0.1.0"

_EXPORTS = {
    "Config": "diode_lut.kernels.config",
    "Decision": "diode_lut.selector",
    "DiodeLutError": "diode_lut.errors",
    "MissError": "diode_lut.errors",
    "Hardware": "diode_lut.problem",
    "Problem": "diode_lut.problem",
    "TableFile": "diode_lut.catalog",
    "explain": "diode_lut.runtime",
    "get_detected_hardware": "diode_lut.runtime",
    "get_prediction_stats": "diode_lut.statistics",
    "list_available_tables": "diode_lut.runtime",
    "profile_predictions": "diode_lut.statistics",
    "register_table": "diode_lut.runtime",
    "select": "diode_lut.runtime",
    "set_log_level": "diode_lut.runtime",
}

__all__ = ["__version__", "config", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _write_receipt(process: int) -> None:
    """At exit; ``process`` is the one that imported this."""
    if config.receipt is not None:
        from diode_lut.receipt.at_exit import write_receipt

        write_receipt(process)


atexit.register(_write_receipt, os.getpid())
if autoregister():
    when_imported("torch._inductor.config", "diode_lut.inductor.install:install")
