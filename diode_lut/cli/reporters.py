"""What ``check`` found, for people, for programs and for GitHub."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diode_lut.errors import TableError


def _as_text(errors: Sequence[TableError]) -> list[str]:
    return [str(error) for error in errors]


def _as_json(errors: Sequence[TableError]) -> list[str]:
    """One list, of an object for each problem; ``line`` and ``column`` are null if the file as a whole is meant."""
    import orjson

    fields = ("line", "column", "where", "reason")
    problems = [
        {
            "severity": "note" if error.note else "error",
            "path": str(error.path),
            **{name: getattr(error, name) for name in fields},
        }
        for error in errors
    ]
    return [orjson.dumps(problems, option=orjson.OPT_INDENT_2).decode()]


def _as_github(errors: Sequence[TableError]) -> list[str]:
    """Annotations, as workflow commands of GitHub Actions."""
    return [_annotation(error) for error in errors]


def _annotation(error: TableError) -> str:
    place = {"file": error.path, "line": error.line, "col": error.column}
    properties = ",".join(f"{name}={_property(str(value))}" for name, value in place.items() if value is not None)
    message = ": ".join(filter(None, (error.where, error.reason)))
    return f"::{'notice' if error.note else 'error'} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


REPORTERS: dict[str, Callable[[Sequence[TableError]], list[str]]] = {
    "text": _as_text,
    "json": _as_json,
    "github": _as_github,
}
"""The lines to print for the problems that were found, in each format."""
