"""Where the data that diode_lut ships with lies."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def tables_directory() -> Path:
    """The directory of the shipped tables."""
    return _directory("tables")


def schemas_directory() -> Path:
    """The directory of the JSON Schemas."""
    return _directory("schemas")


def _directory(name: str) -> Path:
    """Inside the package once it is installed, next to it in a checkout."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
