"""The output of commands: text without foreign line ends, files of each kind, progress bars, and exit codes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from diode_lut.errors import (
    DiodeLutError,
    HardwareError,
    ProblemError,
    ProgramError,
    SettingError,
    TableError,
    as_json,
    printable,
)
from diode_lut.files import read_at_most, replacing

if TYPE_CHECKING:
    from rich.progress import Progress

    from diode_lut.dataset import Dataset, Record

Element = TypeVar("Element")

ERROR = {"error:": "red", "CONFLICT:": "red"}  # colors of errors

CHANGES = {"+": "green", "-": "red", "added": "green", "removed": "red", "winner": "yellow"}
"""Colors of additions, removals and changes."""


def say(text: str, *, err: bool = False, colors: Mapping[str, str] | None = None) -> None:
    """Print the text with its line ends. On a terminal, a first word of a line gets its color from ``colors``."""
    lines = list(map(printable, text.split("\n")))
    for number, line in enumerate(lines if colors else ()):
        word, space, rest = line.partition(" ")
        if colors and word in colors:
            lines[number] = f"{click.style(word, fg=colors[word], bold=True)}{space}{rest}"
    click.echo("\n".join(lines), err=err, color=False if os.environ.get("NO_COLOR") else None)


PIPE_WIDTH = 1000  # columns of tables if the output is not a terminal: enough for any line
MAX_BYTES = 1 << 30  # maximum size of a file of any kind
STANDARD = "-"  # the name of standard input and of standard output


def is_standard(path: Path) -> bool:
    """Return whether a path is standard output. All other text goes to standard error then."""
    return str(path) == STANDARD


def write(path: Path, data: bytes) -> None:
    """Replace the file, or create it. ``-`` is standard output."""
    with changing(path) as save:
        save(data)


@contextmanager
def changing(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function to write the file with, while other writers wait. ``-`` is standard output."""
    if is_standard(path):
        yield lambda data: click.echo(data, nl=False)
    else:
        with replacing(path) as save:
            yield save


@contextmanager
def in_a_file(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to. For ``-`` it is temporary, and printed on standard output at the end."""
    if not is_standard(path):
        yield path
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        file = Path(directory) / "output"
        yield file
        write(path, file.read_bytes())


class Minutes:
    """Progress without a terminal: a line on standard error every minute."""

    def __init__(self, seconds: float = 60) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def say(self, text: str) -> None:
        """Print the text, if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            say(printable(text), err=True)


class Bars:
    """Progress bars on standard error. Without a terminal they are a line a minute."""

    def __init__(self, progress: Progress, minutes: Minutes) -> None:
        self._progress = progress
        self._minutes = minutes

    def track(self, items: Iterable[Element], name: str, total: int | None = None) -> Iterator[Element]:
        """Yield the items, and show a bar with this name."""
        from rich.markup import escape

        if not self._progress.disable:
            yield from self._progress.track(items, total=total, description=escape(printable(name)))
            return
        for number, item in enumerate(items, 1):
            yield item
            self._minutes.say(f"{name}: {number} {f'of {total}' if total else 'done'}")

    def records(self, dataset: Dataset) -> Iterator[Record]:
        """Yield the records of a dataset, and show a bar."""
        return self.track(dataset, dataset.path.name)


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Yield bars, and remove them at the end."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Bars(progress, Minutes())


def _errors_as_annotations(errors: Sequence[TableError]) -> Iterator[str]:
    """Yield workflow commands of GitHub Actions."""

    def data(text: str) -> str:
        return printable(text).replace("%", "%25")

    for error in errors:
        places = {"file": error.path, "line": error.line, "col": error.column}
        properties = ",".join(
            f"{name}={data(str(value)).replace(':', '%3A').replace(',', '%2C')}"
            for name, value in places.items()
            if value is not None
        )
        message = data(": ".join(filter(None, (error.where, error.reason))))
        yield f"::{'notice' if error.note else 'error'} {properties}::{message}"


REPORTERS: dict[str, Callable[[Sequence[TableError]], Iterable[str]]] = {
    "text": lambda errors: map(str, errors),
    "json": lambda errors: [
        as_json(
            [
                {
                    "severity": "note" if error.note else "error",
                    "path": str(error.path),
                    **{name: getattr(error, name) for name in ("line", "column", "where", "reason")},
                }
                for error in errors
            ]
        )
    ],
    "github": _errors_as_annotations,
}
"""The formats of ``check``, as functions from faults to lines. In JSON, a fault of the whole file has no line."""

STOPPED = 130  # exit code after Ctrl-C, as in shells


def say_error(error: DiodeLutError | OSError) -> int:
    """Print an error, and return its exit code. A system error gets the form of all others, without a number."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str | PathLike):
        name = os.fsdecode(error.filename)
        remedy = f" (name files in it, such as {Path(name, '*')})" if isinstance(error, IsADirectoryError) else ""
        text = f"{name}: {error.strerror}{remedy}"
    elif isinstance(error, FileNotFoundError) and error.filename is None:  # from os.getcwd
        text = "the working directory has been removed: change to another one"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:  # files have a name
        text = f"standard output: {error.strerror}"
    say(printable(f"error: {text}"), err=True, colors=ERROR)
    return exit_code(error)


def exit_code(error: DiodeLutError | OSError) -> int:
    """Return 2 for unreadable files and wrong usage, 1 for invalid files, 0 for a note, and a program's own code."""
    if isinstance(error, TableError) and error.note:
        return 0
    if isinstance(error, ProgramError):
        return error.code
    unreadable = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
    wrong_usage = isinstance(error, (HardwareError, ProblemError, SettingError))
    return 2 if unreadable or wrong_usage else 1


TABLE_KIND, DATASET, MODEL, RECEIPT, PAGE = "a table", "a dataset", "a model", "a receipt", "a page"
COMPARISON = "figures of compare"
PROBLEMS, TIMINGS, PICTURE, UNKNOWN = "a list of problems", "timings", "a picture", "a file of another kind"

_FORMS = {TABLE_KIND: "a table is JSON", DATASET: "a dataset is msgpack", PAGE: "the page is HTML"}
_ENDINGS = {".csv", ".html", ".json", ".msgpack", ".pdf", ".png", ".safetensors", ".svg", ".txt", ".zst"}
"""Endings of names by which the kind of a file is known."""


class Output(click.Path):
    """A file to write, whose name ends as its kind does. Only a file of the same kind is replaced."""

    def __init__(
        self, kind: str = "", *endings: str, file_okay: bool = True, dir_okay: bool = False, allow_dash: bool = True
    ) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, allow_dash=allow_dash, path_type=Path)
        self.kind, self._endings = kind, endings

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # type: ignore[override]
        """Return the path."""
        if str(value) == STANDARD and not self.allow_dash:
            self.fail("standard output (-) is not possible here: give a name, such as ./- for a file -", param, ctx)
        if str(value) == "--":
            self.fail("-- ends the options: give a name before it", param, ctx)
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        if self._endings and path.suffix in _ENDINGS and path.suffix not in self._endings:
            self.fail(f"{path}: {_FORMS[self.kind]}, so the name ends with {self._endings[0]}", param, ctx)
        if self.kind:
            require_kind(path, self.kind)
        if self.file_okay and not is_standard(path) and not path.parent.is_dir():
            raise SettingError(f"{path.parent}: no such directory to write to")
        return path


ANY_OUTPUT = Output()  # a file whose kind depends on other arguments: the command calls require_kind
output_option = partial(click.option, "-o", "--output", metavar="OUT", required=True)  # the file that a command makes

TABLE_OUTPUT = Output(TABLE_KIND, ".json")
PICTURE_OUTPUT = Output(PICTURE, allow_dash=False)


def format_option(*forms: str, about: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Return the option for the form of a command's output, by default the first."""
    return click.option("--format", "form", type=click.Choice(forms), default=forms[0], help=about)


TEXT_OR_JSON = format_option("text", "json", about="Lines for people, or a JSON document for programs.")


def require_kind(path: Path, kind: str) -> None:
    """Raise SettingError if the file is of another kind, and would be lost. An empty file is of any kind."""
    if is_standard(path) or not path.is_file() or not path.stat().st_size:
        return
    found = _kind_of(read_at_most(path, MAX_BYTES))
    if found != kind:
        raise SettingError(f"{path}: exists, and is not {kind} but {found} (name another file, or remove it)")


_KEYS = {
    TABLE_KIND: {"entries"},
    RECEIPT: {"processes", "devices"},
    COMPARISON: {"seconds", "gemms"},
    "torch-diode-table": {"version", "hardware"},
}
"""The fields by which kinds of JSON objects are told apart."""


def _kind_of(data: bytes) -> str:
    """Return the kind of a file with these contents. Of JSON only the outermost level is looked at."""
    import msgspec

    from diode_lut.dataset import is_dataset

    start = data[:1024].lstrip()
    try:
        if start[:1] == b"{":
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            found = (kind for kind, keys in _KEYS.items() if keys <= fields.keys())
            are_lists = all(bytes(value).startswith(b"[") for value in fields.values())
            return next(found, "inductor-table" if are_lists else UNKNOWN)
        if start[:1] == b"[":
            items = list(map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw])))
            if not all(b'"op"' in item for item in items):
                return UNKNOWN
            return TIMINGS if items and all(b'"config"' in item for item in items) else PROBLEMS
    except (msgspec.MsgspecError, RecursionError):
        return UNKNOWN
    if start.lower().startswith(b"<!doctype html"):
        return PAGE
    if start.startswith((b"\x89PNG", b"%PDF", b"<?xml", b"<svg")):
        return PICTURE
    if start.startswith(b"op,dtype,layout,"):
        return TIMINGS
    if is_dataset(data):
        return DATASET
    return MODEL if data[8:9] == b"{" else UNKNOWN
