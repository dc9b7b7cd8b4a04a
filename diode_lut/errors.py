r"""Errors of this package, text fit to be shown, and other spellings of a problem's values.

Text of others cannot move the cursor, end a line, or be read in another order. A letter is shown as Python's escape for
it, such as ``\x1b``, ``\n`` or ``\u202e``, unless ``str.isprintable`` says it is printable. Escaped are control
characters, line ends of all kinds, letters for the direction of writing or without a width, lone surrogates, and spaces
other than the usual. Escaping a text twice changes nothing.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def printable(text: str) -> str:
    """Return the text on one line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def as_lines(lines: Iterable[str]) -> str:
    """Return one text of the lines. None of them becomes two, whatever is in it."""
    return "\n".join(map(printable, lines))


def counted(number: int, what: str) -> str:
    """Return a number of things, such as ``2 processes``."""
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def as_command(*words: str | Path) -> str:
    """Return the words as a command to show, and to paste into a shell: each stays one word, whatever is in it.

    A Path is never taken for an option. A word is in quotes if it needs them, and in those of ``$'...'``, with escapes,
    if not all its letters are printable.
    """
    import shlex

    def in_word(letter: str) -> str:
        if letter.isprintable() and letter not in "'\\":
            return letter
        is_byte = "\udc80" <= letter <= "\udcff"  # of a file's name that is no UTF-8
        octets = letter.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
        return "".join(f"\\x{octet:02x}" for octet in octets)

    texts = (f"./{word}" if not isinstance(word, str) and str(word).startswith("-") else str(word) for word in words)
    return " ".join(shlex.quote(text) if text.isprintable() else f"$'{''.join(map(in_word, text))}'" for text in texts)


def printable_json(text: str) -> str:
    """Return JSON of the same meaning, with JSON's escapes in its strings."""

    def escaped(letter: str) -> str:
        if letter.isprintable() or letter in "\t\r":  # these are between values, in JSON of other programs
            return letter
        units = letter.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    return "\n".join(line if line.isprintable() else "".join(map(escaped, line)) for line in text.split("\n"))


def as_json(value: Any, *, indent: bool = True) -> str:
    """Return the value as JSON to be shown, also if it has lone surrogates, as names of files may."""
    import json

    import orjson

    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()
    except orjson.JSONEncodeError:
        text = json.dumps(value, ensure_ascii=False, indent=2 if indent else None)
    return printable_json(text)


BROKEN_IMPORT = (AttributeError, ImportError, OSError, RuntimeError)  # of torch or Triton, missing or unfit


def install_command(extras: str = "") -> str:
    """Return the command, for a shell, to install the needs of diode_lut with these extras, such as ``torch,report``.

    In a clone it installs the clone, elsewhere the packages named by the installation: no registry has diode_lut.
    """
    import sys
    from importlib.metadata import PackageNotFoundError, requires
    from pathlib import Path

    wanted = f"[{extras}]" if extras else ""
    clone = Path(__file__).resolve().parent.parent
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
    """Base of all errors diode_lut raises on purpose."""

    def __str__(self) -> str:
        """Return the message, on one line whatever it quotes."""
        return printable(super().__str__())


class TableError(DiodeLutError):
    """A table file, or a row of it, is not valid.

    ``path`` is the file, ``line`` and ``column`` the place in it (counted from 1, in characters. None if the file as a
    whole is meant), ``where`` the JSON path inside it (``entries[17].configs[0].block_m``. Empty for the whole
    document) and ``reason`` the fault, with the allowed values. A ``note`` is a remark of ``check`` on a table that may
    be valid. It is never raised.
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
    """A dataset file, or a record of it, cannot be used."""


class ModelError(DiodeLutError):
    """A weights file cannot be used, or there is too little to train a model on."""


class ExchangeError(DiodeLutError):
    """A file of another tool has faults, or does not say enough."""


class ProblemError(DiodeLutError, ValueError):
    """A problem, config or hardware description is impossible."""


class HardwareError(DiodeLutError):
    """No device was found, or it is not the device in question."""


class SettingError(DiodeLutError, ValueError):
    """A setting has an impossible value."""


class MissError(DiodeLutError):
    """A GEMM or a generated kernel is left to Inductor, against the setting ``strict``."""


class ReceiptError(DiodeLutError):
    """A receipt file cannot be used."""


class CollectError(DiodeLutError):
    """Measuring could not start or go on."""


class ProgramError(DiodeLutError):
    """A program cannot be started, or did not do its part. ``code`` is the exit code of the command."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class DeviceLostError(DiodeLutError):
    """A kernel left the device unusable for this process: it can measure nothing any more."""


def let_pass(error: BaseException) -> None:
    """Raise again an error of a signal handler, or of a debugger. Call it around the code of others."""
    for each in _causes(error):
        traceback = each.__traceback__
        while traceback is not None:
            frame, code = traceback.tb_frame, traceback.tb_frame.f_code
            names = code.co_varnames[: code.co_argcount + 1]  # the last is *args, if there are any
            given = [frame.f_locals.get(name) for name in names]
            more = (value for values in given if isinstance(values, tuple) for value in values)
            if frame.f_back is not None and any(value is frame.f_back for value in (*given, *more)):
                raise each  # a signal handler gets the frame of its caller
            traceback = traceback.tb_next


def let_shortage_pass(error: BaseException) -> None:
    """Raise again an error of a signal handler, or a shortage of open files or memory: it says nothing about a file."""
    let_pass(error)
    shortages = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    for each in _causes(error):
        if isinstance(each, MemoryError) or (isinstance(each, OSError) and each.errno in shortages):
            raise each


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its cause, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


_DTYPES = {
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "f16": "float16",
    "f32": "float32",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "half": "float16",
    "i8": "int8",
}

_SIZE = re.compile(r"(\d[\d_]{0,15})([km]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}

OPS_OF_LAYERS = {
    "conv1d": "mm, which some 1x1 convolutions become",
    "conv2d": "mm, which some 1x1 convolutions become",
    "gemm": "mm, or bmm with a batch",
    "linear": "addmm, or mm without a bias",
    "matmul": "mm, or bmm with a batch",
    "nn.linear": "addmm, or mm without a bias",
    "scaled_dot_product_attention": "flex_attention, if the program does: PyTorch alone chooses the others' kernels",
    "sdpa": "flex_attention, if the program does: PyTorch alone chooses the others' kernels",
}
"""Other words for an op, and the ops Inductor makes of them."""

_QUALIFIED = re.compile(r"(torch\.(ops\.)?)?(aten(\.|::))?_?")


def op_of(text: str) -> str:
    """Return the op: ``aten.mm`` is ``mm``, ``int-mm`` is ``int_mm``. Other values than text stay as they are."""
    if not isinstance(text, str):
        return text
    return _QUALIFIED.sub("", text.casefold().replace("-", "_"), count=1).removesuffix(".default")


def dtype_of(text: str | torch.dtype) -> str:
    """Return the type: ``bf16``, ``BFloat16`` and ``torch.bfloat16`` are ``bfloat16``. No type stays as it is."""
    name = str(text).casefold().removeprefix("torch.")
    return _DTYPES.get(name, name)


def variant_of(text: str) -> str:
    """Return the variant: ``row-bf16-fast`` is ``row-bfloat16-fast``. Other values than text stay as they are."""
    return "-".join(map(dtype_of, text.split("-"))) if isinstance(text, str) else text


def layout_of(text: str) -> str:
    """Return the layout: ``NT`` is ``nt``. Other values than text stay as they are."""
    return text.casefold() if isinstance(text, str) else text


def size_of(text: str) -> int:
    """Return the size in ``1024``, ``1_024`` or ``1k``. k is 1,024, m is 1,024 k. ProblemError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        if text.strip().isdecimal():
            raise ProblemError(f"{text!r} is not a size: it is too large")
        raise ProblemError(f"{text!r} is not a size (such as 1024, or 1k, which is the same)")
    return int(found[1].replace("_", "")) * _UNITS[found[2].casefold()]


def number_of(name: str, size: int | str) -> int:
    """Return a size, given as text or not. ProblemError names the size."""
    if not isinstance(size, str):
        return size
    try:
        return size_of(size)
    except ProblemError as error:
        raise ProblemError(f"{name}: {error}") from None


def csv_remedy(contents: bytes) -> str:
    """Return the remedy, in parentheses, if a file with these contents may be CSV, and else nothing."""
    is_csv = contents[:64].isascii() and b"," in contents[:64].replace(b";", b",") and contents.lstrip()[:1].isalpha()
    return " (`import timings` makes a dataset of CSV)" if is_csv else ""
