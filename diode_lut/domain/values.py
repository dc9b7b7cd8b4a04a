"""What a setting may be: the values that are allowed, in a program and as text in an environment variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple


class Values(NamedTuple):
    """The values that are allowed: as text, as a check that returns the value to keep, and as an environment variable.

    ``check`` raises TypeError or ValueError for others, ``parse`` KeyError or ValueError.
    """

    text: str
    check: Callable[[Any], Any]
    parse: Callable[[str], Any]


def one_of(*values: str) -> Values:
    """Any of these texts."""

    def check(value: Any) -> str:
        if value not in values:
            raise ValueError
        return str(value)

    return Values(", ".join(values), check, str)


def some_of(*values: str) -> Values:
    """A list of one or more of these texts, which is kept in their order."""

    def check(value: Any) -> tuple[str, ...]:
        names = set(_check_names(value))
        if not names or names - set(values):
            raise ValueError
        return tuple(name for name in values if name in names)

    text = f"a list of some of {', '.join(values)}; in the environment separated by {os.pathsep!r}"
    return Values(text, check, _parse_names)


def integer(low: int, high: int) -> Values:
    """An integer from ``low`` to ``high``."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    return Values(f"an integer from {low} to {high}", check, int)


def _check_fraction(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError
    return float(value)


def _check_not_negative(value: Any) -> float:
    if type(value) not in (int, float) or not value >= 0:
        raise ValueError
    return float(value)


def _check_flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError
    return value


def _parse_flag(text: str) -> bool:
    return {"0": False, "false": False, "1": True, "true": True}[text.lower()]


def _check_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # would be taken apart into its letters
        raise TypeError
    return tuple(os.fspath(name) for name in value)


def _check_tables(value: Any) -> tuple[str, ...]:
    """Names and paths; a relative path of a file means that file, wherever the process goes."""
    return tuple(_absolute(name) if os.path.isfile(name) else name for name in _check_names(value))  # noqa: PTH113


def _absolute(path: str) -> str:
    """The absolute path; the path itself if the working directory has been removed."""
    try:
        return os.path.abspath(path)  # noqa: PTH100 (pathlib takes longer to import than all the rest)
    except FileNotFoundError:
        return path


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(os.pathsep) if name)


def _check_path(value: Any) -> str | None:
    if value is None:
        return None
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError
    try:
        return os.path.abspath(path)  # noqa: PTH100 (pathlib takes longer to import than all the rest)
    except FileNotFoundError:  # there is no directory to start from
        raise ValueError from None


FRACTION = Values("a number from 0 to 1", _check_fraction, float)
NOT_NEGATIVE = Values("a number that is not negative; inf for never", _check_not_negative, float)
FLAG = Values("True or False; in the environment 1, true, 0 or false", _check_flag, _parse_flag)
NAMES = Values(
    f"a list of table names and paths; in the environment separated by {os.pathsep!r}", _check_tables, _parse_names
)
PATH = Values("a path, not a relative one in a directory that is gone, or None", _check_path, lambda text: text or None)
