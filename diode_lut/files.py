"""Writing files so that a reader sees the old bytes or the new ones, never half of them."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file with ``data``, or create it; the mode of an existing file stays as it is.

    A symbolic link stays one: the file that it points to is replaced. OSError leaves the old file untouched.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            _keep_mode(target, file.fileno())
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # nobody knows the temporary file
    finally:
        with suppress(OSError):
            temporary.unlink()


def _keep_mode(existing: Path, descriptor: int) -> None:
    try:
        mode = stat.S_IMODE(existing.stat().st_mode)
    except FileNotFoundError:
        return
    os.fchmod(descriptor, mode)
