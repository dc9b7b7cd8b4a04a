"""What can go wrong, as one tree.

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
    └── DeviceLostError        a kernel left the device unusable for this process

A message says what is wrong, where, and what is allowed; it fits on one line.
"""

from __future__ import annotations

from pathlib import Path

from diode_lut.domain.printable import printable

BROKEN_IMPORT = (AttributeError, ImportError, OSError, RuntimeError)
"""What importing torch or Triton raises where it is missing, or where it and what it loads do not fit together."""


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


class DeviceLostError(DiodeLutError):
    """A kernel left the device unusable for this process: nothing can be measured in it any more."""
