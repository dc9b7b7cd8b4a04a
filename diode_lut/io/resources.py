"""The directories of the data that diode_lut ships with, and of the user's own."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def tables_directory() -> Path:
    """The directory of the shipped tables."""
    return _directory("tables")


def own_directory() -> Path:
    """The directory of the user's own configuration: ``$XDG_CONFIG_HOME/diode_lut``."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(config if os.path.isabs(config) else os.path.expanduser("~/.config"), "diode_lut")  # noqa: PTH111, PTH117 (these raise nothing)


def own_tables_directory() -> Path:
    """The directory of the user's own tables that need not be named: ``$XDG_CONFIG_HOME/diode_lut/tables``."""
    return own_directory() / "tables"


def schemas_directory() -> Path:
    """The directory of the JSON Schemas."""
    return _directory("schemas")


def documents_directory() -> Path:
    """The directory of the documentation."""
    return _directory("docs")


def _directory(name: str) -> Path:
    """Inside the package once it is installed, next to it in a checkout."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
