"""What ``check`` found, for people, for programs and for GitHub."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diode_lut.domain.errors import TableError
from diode_lut.domain.printable import as_json, printable


def _as_text(errors: Sequence[TableError]) -> list[str]:
    return [str(error) for error in errors]


def _as_json(errors: Sequence[TableError]) -> list[str]:
    """One list, of an object for each problem; ``line`` and ``column`` are null if the file as a whole is meant."""
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
    """The text as GitHub's runner reads it in a command, in which there are no line ends."""
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


REPORTERS: dict[str, Callable[[Sequence[TableError]], list[str]]] = {
    "text": _as_text,
    "json": _as_json,
    "github": _as_github,
}
"""The lines to print for the problems that were found, in each format."""
