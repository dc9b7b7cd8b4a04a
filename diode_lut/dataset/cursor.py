"""Walking through one large JSON or msgpack document, of which only a small part is ever in memory as objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

import msgpack

from diode_lut.dataset.dataset import Readable

MAX_BYTES = 1 << 30
"""Size limit of a JSON file, because its whole text is in memory."""

MAX_VALUE_BYTES = 4 << 20
"""Size limit of a value that is decoded at once: its objects may take a hundred times as much memory."""

_USUAL_VALUE_BYTES = 64 << 10
"""Nearly all values are smaller."""


class Cursor(Protocol):
    """A place in a document. Its methods raise ValueError, or msgpack's UnpackException, on a damaged document."""

    def enter(self) -> Iterator[Any]:
        """The keys of the map that begins here; after each key, its value must be entered or taken."""

    def value(self) -> Any:
        """Take the value that begins here."""

    def end(self) -> None:
        """ValueError if anything of the document is left."""


class JsonCursor:
    """Walks through the text of a JSON file, which may hold NaN and Infinity, as Python's json writes them."""

    def __init__(self, file: Readable) -> None:
        data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"too large (allowed: {MAX_BYTES >> 20} MiB)")
        self._text = data.decode("utf-8")
        self._position = 0
        self._decoder = json.JSONDecoder()

    def enter(self) -> Iterator[Any]:
        """See Cursor."""
        self._take("{")
        more = self._peek() != "}"
        if not more:
            self._take("}")
        while more:
            key = self.value()
            self._take(":")
            yield key
            more = self._peek() == ","
            self._take("," if more else "}")

    def value(self) -> Any:
        """See Cursor."""
        self._peek()
        with suppress(ValueError):
            return self._decoded(_USUAL_VALUE_BYTES)
        return self._decoded(MAX_VALUE_BYTES)

    def end(self) -> None:
        """See Cursor."""
        if self._peek():
            raise json.JSONDecodeError("Extra data", self._text, self._position)

    def _decoded(self, most: int) -> Any:
        """The value that begins here; ValueError if it is longer than ``most`` characters."""
        text = self._text[self._position : self._position + most]
        try:
            value, end = self._decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, self._text, self._position + error.pos) from None
        if end == most:
            raise ValueError(f"a value of more than {most >> 20} MiB")
        self._position += end
        return value

    def _peek(self) -> str:
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _take(self, expected: str) -> None:
        if self._peek() != expected:
            raise json.JSONDecodeError(f"Expecting '{expected}'", self._text, self._position)
        self._position += 1


class MsgpackCursor:
    """Walks through a msgpack file."""

    def __init__(self, file: Readable) -> None:
        self._unpacker = msgpack.Unpacker(file, max_buffer_size=MAX_VALUE_BYTES)

    def enter(self) -> Iterator[Any]:
        """See Cursor."""
        for _ in range(self._unpacker.read_map_header()):
            yield self.value()

    def value(self) -> Any:
        """See Cursor."""
        return self._unpacker.unpack()

    def end(self) -> None:
        """See Cursor."""
        if next(self._unpacker, None) is not None:
            raise ValueError("more follows the document")


_SPACE = re.compile(r"[ \t\r\n]*")
