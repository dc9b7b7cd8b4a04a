"""What can go wrong, as one tree, and what is no error of ours: an exception that a signal handler raises.

::

    DiodeLutError              everything that diode_lut raises on purpose
    ├── TableError             a table file, or one row of it
    ├── DatasetError           a dataset file, or one record of it
    ├── ModelError             a weights file, or what one was to be trained on
    ├── ExchangeError          another tool's file, or what it would need to be read
    ├── ProblemError           a problem, config or hardware that cannot exist
    ├── HardwareError          no device, or not the one that was asked for
    ├── SettingError           a setting with a value that it cannot have
    ├── MissError              a GEMM that no table answered for, with the setting strict
    ├── ReceiptError           a receipt file
    ├── CollectError           measuring could not start or go on
    ├── ProgramError           a program could not be started, or compared
    └── DeviceLostError        a kernel left the device unusable for this process

A message says what is wrong, where, and what is allowed; it fits on one line.

Python runs a signal handler between any two instructions, also within a ``try`` that catches other errors. What it
raises, such as an alarm's TimeoutError, belongs to the program.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

from diode_lut.domain.printable import as_command, printable

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

BROKEN_IMPORT = (AttributeError, ImportError, OSError, RuntimeError)
"""What importing torch or Triton raises where it is missing, or where it and what it loads do not fit together."""


def install_command(extras: str = "") -> str:
    """The command that installs what diode_lut needs with these extras, such as ``torch,report``, for a shell.

    In a clone it installs the clone, elsewhere the packages that the installation names: no registry has diode_lut.
    """
    import re
    import sys
    from importlib.metadata import PackageNotFoundError, requires
    from pathlib import Path

    wanted = f"[{extras}]" if extras else ""
    clone = Path(__file__).resolve().parent.parent.parent
    if (clone / "pyproject.toml").is_file():
        return as_command("pip", "install", f"{clone}{wanted}")
    try:
        needed = [line.partition(";") for line in requires("diode-lut") or ()]
    except PackageNotFoundError:
        return f"in a clone of diode_lut: {as_command('pip', 'install', f'.{wanted}')}"
    packages = []
    for package, _, marker in needed:
        extra = re.search(r"extra == '(.+?)'", marker)
        elsewhere = "platform_system" in marker and sys.platform != "linux"
        if (extra[1] if extra else "") in extras.split(",") and not elsewhere:
            packages.append(package)
    return as_command("pip", "install", *packages)


class DiodeLutError(Exception):
    """Base of all errors that diode_lut raises on purpose."""

    def __str__(self) -> str:
        """The message, on one line whatever it quotes."""
        return printable(super().__str__())


class TableError(DiodeLutError):
    """A table file, or one row of it, is not valid.

    ``path`` is the file, ``line`` and ``column`` the place in it (counted from 1, in characters; None if the file as
    a whole is meant), ``where`` the JSON path inside it (``entries[17].configs[0].block_m``; empty for the whole
    document) and ``reason`` what was found and what is allowed. A ``note`` is a remark of ``check`` on a table that may
    be valid; it is never raised.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: Path | None = None,
        line: int | None = None,
        column: int | None = None,
        where: str = "",
        note: bool = False,
    ) -> None:
        self.path, self.line, self.column, self.where, self.reason, self.note = path, line, column, where, reason, note
        position = ":".join(str(part) for part in (path, line, column) if part is not None)
        parts = (position, "note" if note else "", where, reason)
        super().__init__(": ".join(part for part in parts if part))


class DatasetError(DiodeLutError):
    """A dataset file, or one record of it, cannot be used."""


class ModelError(DiodeLutError):
    """A weights file cannot be used, or there is too little to train a model on."""


class ExchangeError(DiodeLutError):
    """A file of another tool is not what it should be, or does not say enough."""


class ProblemError(DiodeLutError, ValueError):
    """A problem, config or hardware description that cannot exist."""


class HardwareError(DiodeLutError):
    """No device was found, or it is not the one that was asked for."""


class SettingError(DiodeLutError, ValueError):
    """A setting has a value that it cannot have."""


class MissError(DiodeLutError):
    """A GEMM is left to Inductor, and the setting ``strict`` forbids that."""


class ReceiptError(DiodeLutError):
    """A receipt file cannot be used."""


class CollectError(DiodeLutError):
    """Measuring could not start or go on."""


class ProgramError(DiodeLutError):
    """A program cannot be started, or did not do what it was started for; ``code`` is the exit code to end with."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class DeviceLostError(DiodeLutError):
    """A kernel left the device unusable for this process: nothing can be measured in it any more."""


def let_pass(error: BaseException) -> None:
    """Raise again what a signal handler, or a debugger, has raised, if ``error`` is that or was caused by it.

    To be called wherever Exception or OSError is caught that others may have raised.
    """
    for each in _causes(error):
        traceback = each.__traceback__
        while traceback is not None:
            if _interrupts(traceback.tb_frame):
                raise each
            traceback = traceback.tb_next


_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def let_shortage_pass(error: BaseException) -> None:
    """Raise again what a signal handler has raised, or that the system lacked open files or memory.

    A shortage passes, and says nothing of the file that was to be read.
    """
    let_pass(error)
    for each in _causes(error):
        if isinstance(each, MemoryError) or (isinstance(each, OSError) and each.errno in _SHORTAGES):
            raise each


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised for, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _interrupts(frame: FrameType) -> bool:
    """Whether the function of this frame got the frame that called it as an argument, as a signal handler does."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + 1]  # the last is *args, if there are any
    given = [frame.f_locals.get(name) for name in names]
    below = frame.f_back
    return below is not None and any(
        value is below or (isinstance(value, tuple) and any(each is below for each in value)) for value in given
    )
