"""Where everything that commands show leaves the program: nothing but our own line ends reaches the terminal raw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from diode_lut.domain.printable import printable, printable_lines

if TYPE_CHECKING:
    from rich.progress import Progress

Item = TypeVar("Item")


def say(text: str, *, err: bool = False) -> None:
    """Print the text, its lines as they are, on standard output or on standard error."""
    click.echo(printable_lines(text), err=err)


class Bars:
    """Progress bars on standard error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def track(self, items: Iterable[Item], name: str, total: int | None = None) -> Iterator[Item]:
        """Pass the items on, with a bar called ``name``."""
        from rich.markup import escape

        return iter(self._progress.track(items, total=total, description=escape(printable(name))))


@contextmanager
def progress_bars() -> Iterator[Bars]:
    """Bars that are shown on a terminal only, and are gone in the end."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Bars(progress)
