"""Write the receipt of this process: when, and to which file.

A process writes its receipt after each graph, because it may be killed, may replace itself by another program, or may
end by ``os._exit``. It writes at exit as well. A process with torch then writes a receipt even if it asked nothing.

A process alone writes the very file in the setting. A rank of several (``WORLD_SIZE`` above 1) puts its ``RANK`` before
the suffix. A forked process, or a child of multiprocessing, puts its process number there. So does a process if another
has written the file since its own first question. If the name has ``%p``, the process number stands there, and nowhere
else. Process numbers come again, above all in containers. So a file of another process with the same number is not
replaced, and the name gets random digits too.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from diode_lut.errors import let_pass, printable
from diode_lut.files import alone_in, open_regular, write_atomically
from diode_lut.process import in_forked_children, is_forked, signals_held
from diode_lut.receipts import Receipt, receipt_bytes
from diode_lut.settings import config

log = logging.getLogger(__name__)

AFTER_RUN = "_DIODE_LUT_RECEIPT_AFTER_RUN"
"""The variable with the path of the receipt of ``diode-lut run``, empty if it writes none.

A process that outlives the program puts its own receipt there, because the directory in ``DIODE_LUT_RECEIPT`` is gone.
"""

_MAX_RANK_DIGITS = 20  # maximum number of digits of a rank
_BEGINNING_BYTES = 256  # the first bytes of a receipt have the field ``processes``
_FREE_S, _SHARE = 0.25, 0.02  # seconds, and share of the process' time, that writing after graphs may take


class _Written(NamedTuple):
    """A file from this process, its content, and its state afterwards."""

    path: Path
    content: bytes
    state: os.stat_result | None


_lock = threading.RLock()  # Held while the receipt is written. It is reentrant, because a signal handler may compile
_before: dict[Path, os.stat_result | None] = {}  # the state of each destination at the first question
_written: dict[Path, _Written] = {}  # the last receipt of this process for each destination
_began = time.monotonic()
_spent_s = 0.0  # the seconds spent on writing after graphs


def arm(own_receipt: Callable[[], Receipt]) -> None:
    """Prepare for the first question. ``own_receipt`` returns the receipt at exit."""
    if config.receipt is not None:
        with suppress(OSError):  # write_at_exit warns of it
            path, numbered = _destination()
            if not numbered:
                _before[path] = _look(path)
    if _multiprocess_child():
        from multiprocessing.util import Finalize

        # Before Python 3.13, such a process does not run what atexit has.
        Finalize(None, write_at_exit, (own_receipt,), exitpriority=0)


def write_after_graph(own_receipt: Callable[[], Receipt]) -> None:
    """Write the receipt so far, unless writing takes too much of the process's time, or fails."""
    global _spent_s
    start = time.monotonic()
    if config.receipt is None or _spent_s > _FREE_S + _SHARE * (start - _began):
        return
    try:
        _write(own_receipt, at_exit=False)
    except OSError as error:
        let_pass(error)
    _spent_s += time.monotonic() - start


def write_at_exit(own_receipt: Callable[[], Receipt]) -> None:
    """Write the receipt once if the setting asks for it, while signals wait. A failure is one warning."""
    if config.receipt is None:
        return
    with signals_held():
        try:
            try:
                _write(own_receipt, at_exit=True)
            except FileNotFoundError:
                _write(own_receipt, at_exit=True)  # `diode-lut run` has ended just now
        except OSError as error:
            name = printable(str(error.filename or config.receipt))
            log.warning("%s: the receipt cannot be written: %s", name, error.strerror)


def _write(own_receipt: Callable[[], Receipt], *, at_exit: bool) -> None:
    with _lock:
        path, numbered = _destination()
        receipt = own_receipt()
        asked = any(device.calls or device.no_choice or device.generated for device in receipt.devices.values())
        if path.name == "" or not (asked or (at_exit and not _is_child() and _wants_empty(path))):
            return
        content, last = receipt_bytes(receipt), _written.get(path)
        # Nobody else writes a file with our number: it needs no lock, which a stranger may hold.
        has_own_name = last is not None and (numbered or last.path != path)
        with nullcontext(enter_result=True) if has_own_name else alone_in(path.parent) as alone:
            if last is None or not _same(last.state, _look(last.path)):
                last = _Written(_free(path, numbered=numbered, alone=alone), b"", None)
            elif last.content == content:
                return
            written = b""
            try:
                write_atomically(last.path, content, durable=at_exit)
                written = content
            finally:  # a signal handler may raise after the file is there
                _written[path] = _Written(last.path, written, _look(last.path))


def _free(path: Path, *, numbered: bool, alone: bool) -> Path:
    """Return this path, or a similar one, that no other process has written or will choose since our first question."""
    number = str(os.getpid())
    if not numbered:
        _before.setdefault(path, _look(path))
        with suppress(FileNotFoundError), open_regular(path) as file:
            beginning = file.read(_BEGINNING_BYTES)
            if beginning and b'"processes"' not in beginning:
                raise OSError(errno.EEXIST, "holds something else, which is not replaced: name another file", str(path))
    if alone:
        for name in (path,) if numbered else (path, _numbered(path, number)):
            if _same(_before.get(name), _look(name)):
                return name
    return _numbered(path, _random_digits() if numbered else f"{number}.{_random_digits()}")


def _destination() -> tuple[Path, bool]:
    """Return where to write, if anywhere, and whether the process number is in the name. OSError for no file."""
    assert config.receipt is not None
    path = Path(config.receipt)
    if path.name in ("", "..") or "\0" in str(path) or path.is_dir():
        raise OSError(errno.EINVAL, "not the name of a file (DIODE_LUT_RECEIPT, or config.receipt)", str(path))
    number, after_run = str(os.getpid()), os.environ.get(AFTER_RUN)
    if after_run is not None and os.environ.get("DIODE_LUT_RECEIPT") == str(path) and not path.parent.exists():
        return _numbered(Path(after_run), number) if after_run else Path(), True
    if "%p" in path.name:
        return path.with_name(path.name.replace("%p", number)), True
    is_child = _is_child()
    if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ:
        rank = os.environ["RANK"]
        if rank.isascii() and rank.isdecimal() and len(rank) <= _MAX_RANK_DIGITS:
            path = _numbered(path, rank)
        else:
            is_child = True  # it needs another number
    return (_numbered(path, number), True) if is_child else (path, False)


def _numbered(path: Path, number: str) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


@cache
def _random_digits() -> str:
    return os.urandom(4).hex()


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
    """Return whether a process without a question writes a receipt: only with torch, and never over another receipt."""
    program = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    inductors_worker = "_inductor" in Path(program).parts
    return "torch" in sys.modules and not inductors_worker and not path.exists()


def _is_child() -> bool:
    return is_forked() or _multiprocess_child()


def _multiprocess_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


@in_forked_children
def _begin_again() -> None:
    """Forget the parent's files, and its lock, whose thread is not in a fork."""
    global _lock
    _lock = threading.RLock()
    _before.clear()
    _written.clear()
    _random_digits.cache_clear()
