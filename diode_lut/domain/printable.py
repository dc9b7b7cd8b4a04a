r"""Text that others wrote, made fit to be shown: it cannot move the cursor, end a line, or be read in another order.

A letter that is not printable, as ``str.isprintable`` has it, is shown as the escape that Python writes for it:
``\x1b``, ``\n``, ``\u202e``. These are control characters, line ends of all kinds, letters that change the direction of
writing or have no width, lone surrogates, and spaces other than the usual one. Text that is escaped twice is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def printable(text: str) -> str:
    """The text on one line."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def as_lines(lines: Iterable[str]) -> str:
    """One text of the lines, none of which becomes two, whatever is in it."""
    return "\n".join(map(printable, lines))


def as_command(*words: str | Path) -> str:
    """The words as a command that can be shown, and pasted into a shell: each stays one word, whatever is in it.

    A Path is never taken for an option.
    """
    texts = (f"./{word}" if not isinstance(word, str) and str(word).startswith("-") else str(word) for word in words)
    return " ".join(map(_as_word, texts))


def _as_word(text: str) -> str:
    """The text in quotes if it needs them; where letters are not printable, in those of ``$'...'`` with escapes."""
    import shlex

    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_in_word, text))}'"


def _in_word(letter: str) -> str:
    if letter.isprintable() and letter not in "'\\":
        return letter
    is_byte = "\udc80" <= letter <= "\udcff"  # of a file's name that is no UTF-8
    octets = letter.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\x{octet:02x}" for octet in octets)


def printable_lines(text: str) -> str:
    """The text with the lines that it has."""
    return as_lines(text.split("\n"))


def printable_json(text: str) -> str:
    """JSON that says the same as the given one, with escapes of JSON in its strings."""
    return "\n".join(line if line.isprintable() else _in_json(line) for line in text.split("\n"))


def as_json(value: Any, *, indent: bool = True) -> str:
    """The value as JSON to be shown; also where it has lone surrogates, as names of files may."""
    import json

    import orjson

    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()
    except orjson.JSONEncodeError:
        text = json.dumps(value, ensure_ascii=False, indent=2 if indent else None)
    return printable_json(text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _in_json(line: str) -> str:
    return "".join(letter if letter.isprintable() else _escape_in_json(letter) for letter in line)


def _escape_in_json(letter: str) -> str:
    if letter in "\t\r":  # between values, where another program wrote the JSON
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
