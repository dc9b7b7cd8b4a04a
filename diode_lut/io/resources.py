"""The directories of the data that diode_lut ships with, and of the user's own."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def tables_directory() -> Path:
    """The directory of the shipped tables."""
    return _directory("tables")


def own_directory() -> Path | None:
    """The directory of the user's own configuration, ``$XDG_CONFIG_HOME/diode_lut``; None if the user has no home."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):  # noqa: PTH117 (these raise nothing)
        config = os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(config, "diode_lut") if os.path.isabs(config) else None  # noqa: PTH117


def own_tables_directory() -> Path | None:
    """The directory of the user's own tables that need not be named: ``$XDG_CONFIG_HOME/diode_lut/tables``."""
    directory = own_directory()
    return None if directory is None else directory / "tables"


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
