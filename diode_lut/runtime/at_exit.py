"""When a process writes its receipt, and to which file.

A process alone writes exactly the file that the setting names. A rank of several (``WORLD_SIZE`` above 1) puts its
``RANK`` before the suffix. A process that another one forked, or started with multiprocessing, puts its process number
there, and so does one that finds that another process has written the file since it asked for the first time. Where the
name has ``%p``, the process number is put there, and nowhere else.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from diode_lut.domain.printable import printable
from diode_lut.io.files import write_atomically
from diode_lut.io.locks import alone_in
from diode_lut.io.signals import signals_held
from diode_lut.receipt.receipt import Receipt
from diode_lut.settings import config

log = logging.getLogger(__name__)

_MAX_RANK_DIGITS = 20
"""How many digits a rank may have."""

_before: dict[Path, os.stat_result | None] = {}
"""What lay at the destination when this process asked for the first time."""


def arm(own_receipt: Callable[[], Receipt]) -> None:
    """To be called when this process asks for the first time; ``own_receipt`` gives its receipt at exit."""
    if config.receipt is not None:
        with suppress(OSError):  # write_receipt warns of it
            path = _destination(Path(config.receipt), child=_multiprocess_child())
            _before[path] = _look(path)
    if _multiprocess_child():
        from multiprocessing.util import Finalize

        # Before Python 3.13, such a process does not run what atexit has.
        Finalize(None, _write_from_child, (own_receipt,), exitpriority=0)


def write_receipt(importer: int, own_receipt: Callable[[], Receipt]) -> None:
    """Write this process's receipt, if it has one to write; what goes wrong is one warning.

    ``importer`` is the number of the process that imported diode_lut: this one, unless it was forked since. Signals
    wait, such as a second SIGTERM for a process that ends because of the first.
    """
    if importer != os.getpid() or _multiprocess_child():
        _write_from_child(own_receipt)
    else:
        with signals_held():
            _write(own_receipt, child=False)


@cache  # a spawned process ends in both ways
def _write_from_child(own_receipt: Callable[[], Receipt]) -> None:
    with signals_held():
        _write(own_receipt, child=True)


def _write(own_receipt: Callable[[], Receipt], *, child: bool) -> None:
    if config.receipt is None:
        return
    from diode_lut.receipt.write import receipt_bytes

    receipt = own_receipt()
    asked = any(device.calls or device.no_choice for device in receipt.devices.values())
    try:
        path = _destination(Path(config.receipt), child=child)
        if asked or (not child and _wants_empty(path)):
            with alone_in(path.parent):
                write_atomically(_free(path), receipt_bytes(receipt))
    except OSError as error:
        name = printable(str(error.filename or config.receipt))
        log.warning("%s: the receipt cannot be written: %s", name, error.strerror)


def _destination(path: Path, *, child: bool) -> Path:
    """Where to write; OSError if the setting names no file."""
    if path.name in ("", "..") or "\0" in str(path) or path.is_dir():
        raise OSError(errno.EINVAL, "not the name of a file (DIODE_LUT_RECEIPT, or config.receipt)", str(path))
    if "%p" in path.name:
        return path.with_name(path.name.replace("%p", str(os.getpid())))
    if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ:
        path = _numbered(path, _rank(os.environ["RANK"]))
    return _numbered(path, str(os.getpid())) if child else path


def _rank(text: str) -> str:
    """The rank, which becomes part of a name; if it is not a number, the process's number."""
    return text if text.isascii() and text.isdecimal() and len(text) <= _MAX_RANK_DIGITS else str(os.getpid())


def _numbered(path: Path, number: str) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _free(path: Path) -> Path:
    """The path, or one with this process's number if another process has written to the path in the meantime."""
    if path in _before and not _same(_before[path], _look(path)):
        return _numbered(path, str(os.getpid()))
    return path


def _look(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        return path.stat()
    return None


def _same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    if one is None or other is None:
        return one is other
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
    return all(getattr(one, field) == getattr(other, field) for field in fields)


def _wants_empty(path: Path) -> bool:
    """Whether a process that asked nothing writes a receipt: only if it has torch, and never over another receipt."""
    program = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    inductors_worker = "_inductor" in Path(program).parts
    return "torch" in sys.modules and not inductors_worker and not path.exists()


def _multiprocess_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
