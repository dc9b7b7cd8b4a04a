"""The output of commands: text in which only our own line ends are unescaped, progress bars, and found problems."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    printable_lines,
)

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")

STANDARD = "-"
"""What stands for standard input or standard output."""


def say(text: str, *, err: bool = False, colors: Mapping[str, str] | None = None) -> None:
    """Print the text with its line ends, on standard output or on standard error.

    Lines that begin with one of the words in ``colors`` have that word in its color, on a terminal, unless NO_COLOR is
    set.
    """
    lines = printable_lines(text)
    if colors:
        lines = "\n".join(_colored(line, colors) for line in lines.split("\n"))
    click.echo(lines, err=err, color=False if os.environ.get("NO_COLOR") else None)


def _colored(line: str, colors: Mapping[str, str]) -> str:
    word, space, rest = line.partition(" ")
    return f"{click.style(word, fg=colors[word], bold=True)}{space}{rest}" if word in colors else line


ERROR = {"error:": "red", "CONFLICT:": "red"}
"""Colors of what went wrong."""

CHANGES = {"+": "green", "-": "red", "added": "green", "removed": "red", "winner": "yellow"}
"""Colors of what is added, removed and changed."""


def write(path: Path, data: bytes) -> None:
    """Replace the file, or create it; ``-`` is standard output."""
    with changing(path) as save:
        save(data)


@contextmanager
def changing(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield what replaces the file, or creates it; meanwhile other writers wait. ``-`` is standard output."""
    from diode_lut.files import replacing

    if is_standard(path):
        yield _print
    else:
        with replacing(path) as save:
            yield save


def _print(data: bytes) -> None:
    click.echo(data, nl=False)


@contextmanager
def in_a_file(path: Path) -> Iterator[Path]:
    """A file to write to for a path; for ``-`` a temporary one, which is printed on standard output at the end."""
    if not is_standard(path):
        yield path
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as directory:
        file = Path(directory) / "output"
        yield file
        write(path, file.read_bytes())


def is_standard(path: Path) -> bool:
    """Whether a path is standard output, so that what else there is to say goes to standard error."""
    return str(path) == STANDARD


class Minutes:
    """A line on standard error now and then: progress where there is no terminal for bars."""

    def __init__(self, seconds: float = 60) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def say(self, text: str) -> None:
        """Print the text, if it is time."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._seconds
            say(printable(text), err=True)


class Bars:
    """Progress bars on standard error; without a terminal, a line a minute."""

    def __init__(self, progress: Progress, minutes: Minutes) -> None:
        self._progress = progress
        self._minutes = minutes

    def track(self, items: Iterable[Item], name: str, total: int | None = None) -> Iterator[Item]:
        """Pass the items on, and show a bar with this name."""
        from rich.markup import escape

        if self._progress.disable:
            return self._counted(items, f"{name}: {{}} of {total}" if total else f"{name}: {{}} done")
        return iter(self._progress.track(items, total=total, description=escape(printable(name))))

    def _counted(self, items: Iterable[Item], text: str) -> Iterator[Item]:
        for number, item in enumerate(items, 1):
            yield item
            self._minutes.say(text.format(number))


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Bars that are shown only on a terminal, and removed at the end; elsewhere a line a minute."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Bars(progress, Minutes())


def _as_lines(errors: Sequence[TableError]) -> list[str]:
    return [str(error) for error in errors]


def _as_list(errors: Sequence[TableError]) -> list[str]:
    """A list with an object for each problem; ``line`` and ``column`` are null for problems of the whole file."""
    fields = ("line", "column", "where", "reason")
    problems = [
        {
            "severity": "note" if error.note else "error",
            "path": str(error.path),
            **{name: getattr(error, name) for name in fields},
        }
        for error in errors
    ]
    return [as_json(problems)]


def _as_github(errors: Sequence[TableError]) -> list[str]:
    """Annotations, as workflow commands of GitHub Actions."""
    return [_annotation(error) for error in errors]


def _annotation(error: TableError) -> str:
    place = {"file": error.path, "line": error.line, "col": error.column}
    properties = ",".join(
        f"{name}={_property(printable(str(value)))}" for name, value in place.items() if value is not None
    )
    message = printable(": ".join(filter(None, (error.where, error.reason))))
    return f"::{'notice' if error.note else 'error'} {properties}::{_data(message)}"


def _data(text: str) -> str:
    """The text as a workflow command has it, without line ends."""
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


REPORTERS: dict[str, Callable[[Sequence[TableError]], list[str]]] = {
    "text": _as_lines,
    "json": _as_list,
    "github": _as_github,
}
"""By format of ``check``: the lines to print for the problems that were found."""


def exit_code(error: DiodeLutError | OSError) -> int:
    """2 for what cannot be read or asked for, 1 for what is invalid, 0 for a note; a program's as in shells."""
    if isinstance(error, TableError) and error.note:
        return 0
    if isinstance(error, ProgramError):
        return error.code
    unreadable = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
    wrong_usage = isinstance(error, (HardwareError, ProblemError, SettingError))
    return 2 if unreadable or wrong_usage else 1
