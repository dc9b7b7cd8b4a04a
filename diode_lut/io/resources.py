"""The directories of the data that diode_lut ships with, and the digest of its code."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

_PACKAGE = _CODE = Path(__file__).resolve().parent.parent


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


@cache
def code_digest() -> str:
    """A digest of this package's code, wherever it lies; takes 10 ms once. OSError if it cannot be read.

    Compiled copies that Python keeps do not count, but they do where they are all there is.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in _CODE.rglob("*.py*") if path.parent.name != "__pycache__" and path.is_file()):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_CODE).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def _directory(name: str) -> Path:
    """Inside the package once it is installed, next to it in a checkout."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
