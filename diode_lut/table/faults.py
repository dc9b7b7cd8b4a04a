"""Where in a file a fault is."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from diode_lut.errors import dtype_of, op_of
from diode_lut.process import schemas_directory

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


MAX_SHOWN = 60
"""How many characters of a wrong value a message repeats."""


class Fault(Exception):  # noqa: N818 (checks list faults as values; only decoding raises them)
    """A value is not allowed: why, and the path to it from the value that was to be decoded.

    A ``note`` says something about a check, and that nothing is wrong.
    """

    def __init__(self, reason: str, *path: str | int, note: bool = False) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path: JsonPath = path
        self.note = note

    @property
    def field(self) -> JsonPath:
        """The path to the field of a row that the fault is in; seen from outside the row."""
        return self.path[:3]

    def inside(self, *outer: str | int) -> Fault:
        """The same fault, seen from further out."""
        return Fault(self.reason, *outer, *self.path, note=self.note)


def shown(value: object) -> str:
    """A wrong value for a message: as JSON has it, unless it is large."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and (len(value) > 2 or any(isinstance(item, (dict, list)) for item in value)):
        return f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def unknown_field(known: Iterable[str]) -> str:
    """Why a field that is not in ``known`` is wrong."""
    return f"unknown field (known: {', '.join(known)})"


def missing_field(required: Iterable[str]) -> str:
    """Why it is wrong that one of the ``required`` fields is not there."""
    return f"is missing (required: {', '.join(required)})"


JsonPath = tuple[str | int, ...]
"""The way from the top of a document to a value: names of fields and numbers of elements, counted from 0."""

_BLANK = re.compile(r"[ \t\r\n]*")
_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]')
_decode_at = json.JSONDecoder().raw_decode
_LONGEST_NAME = 60
_CHUNK = 1 << 16
"""Characters between two known line numbers: the most that are counted to find a place."""
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_]*")


def dotted(path: JsonPath) -> str:
    """The path as people write it: ``entries[17].configs[0].block_m``; unusual names are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if _PLAIN_NAME.fullmatch(step) else json.dumps(step)
            name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
            text += f".{name}" if text else name
    return text


class Inside(NamedTuple):
    """Where the fields or elements of a value begin, and where the value ends; of equal names the last counts."""

    starts: dict[str | int, int]
    end: int


class Place(NamedTuple):
    """A line, and a column in characters, both counted from 1."""

    line: int
    column: int


def place_at(data: bytes, offset: int) -> Place:
    """Where the byte at ``offset`` is, before which all is UTF-8."""
    start = data.rfind(b"\n", 0, offset) + 1
    return Place(data.count(b"\n", 0, offset) + 1, len(data[start:offset].decode()) + 1)


class Landmark(NamedTuple):
    """A row of a table, by its number, and the byte of the file at which it begins."""

    row: int
    offset: int


def line_of_row(data: bytes, row: int, landmarks: Sequence[Landmark]) -> int:
    """The line of a row of the table in the file, which is JSON; the search begins at the last landmark before it.

    ``landmarks`` are in the order of rows. None of them, or the first row and any others.
    """
    if not landmarks:
        return Positions(data).place(("entries", row)).line
    after = bisect_right(landmarks, row, key=attrgetter("row"))
    first, start = landmarks[after - 1]
    end = landmarks[after].offset - 1 if after < len(landmarks) else len(data)  # less the comma
    rows = Positions(b"[" + data[start:end] + b"]")
    return data.count(b"\n", 0, start) + rows.place((row - first,)).line


class Positions:
    """Finds JSON paths in a file that is valid JSON in UTF-8."""

    def __init__(self, data: bytes) -> None:
        self._text = data.decode()
        self._lines = list(self._starts())
        self._known: dict[int, Inside] = {}

    def place(self, path: JsonPath) -> Place:
        """Where the value begins; or the innermost value around it, if it is not there."""
        at = self._blank(0)
        for step in path:
            inner = self._inside(at).starts.get(step)
            if inner is None:
                break
            at = inner
        return self._place(at)

    def _place(self, at: int) -> Place:
        """Line and column, counted from the chunk's beginning: a list of all lines could be larger than the file."""
        chunk = at - at % _CHUNK
        line, start = self._lines[at // _CHUNK]
        start = max(start, self._text.rfind("\n", chunk, at) + 1)
        return Place(line + self._text.count("\n", chunk, at), at - start + 1)

    def _starts(self) -> Iterator[tuple[int, int]]:
        """At the beginning of each chunk the number of the line, and where that line begins."""
        line, start = 1, 0
        for chunk in range(0, len(self._text) + 1, _CHUNK):
            yield line, start
            line += self._text.count("\n", chunk, chunk + _CHUNK)
            start = max(start, self._text.rfind("\n", chunk, chunk + _CHUNK) + 1)

    def _inside(self, at: int) -> Inside:
        """What is in the value at ``at``, found once."""
        if at not in self._known:
            scan = {"{": self._fields, "[": self._elements}.get(self._text[at])
            self._known[at] = scan(self._blank(at + 1)) if scan else Inside({}, at)
        return self._known[at]

    def _fields(self, at: int) -> Inside:
        starts: dict[str | int, int] = {}
        while self._text[at] != "}":
            name, at = _decode_at(self._text, at)
            starts[name] = at = self._blank(self._blank(at) + 1)
            # A list may be all rows of a table: they are too many to pass over more than once.
            at = self._inside(at).end if self._text[at] == "[" else self._end(at)
            at = self._next(at)
        return Inside(starts, at + 1)

    def _elements(self, at: int) -> Inside:
        starts: dict[str | int, int] = {}
        while self._text[at] != "]":
            starts[len(starts)] = at
            at = self._next(self._end(at))
        return Inside(starts, at + 1)

    def _blank(self, at: int) -> int:
        """The end of the white space at ``at``."""
        return _BLANK.match(self._text, at).end()  # type: ignore[union-attr]

    def _next(self, at: int) -> int:
        """The start of the field or element after the one that ends at ``at``, or the closing bracket."""
        at = self._blank(at)
        return self._blank(at + 1) if self._text[at] == "," else at

    def _end(self, at: int) -> int:
        """The end of the value at ``at``."""
        try:
            return _decode_at(self._text, at)[1]
        except RecursionError:
            return self._end_of_deep(at)

    def _end_of_deep(self, at: int) -> int:
        depth = 0
        brackets = _BRACKET.finditer(self._text, at)
        for bracket in brackets:
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(bracket[0], 0)
            if depth == 0:
                break
        return bracket.end()


_MOST = 10_000


@cache
def validator(part: str = "") -> Draft202012Validator:
    """Return what validates a parsed table, or a ``part`` of one, with the schema file."""
    from jsonschema import Draft202012Validator

    if part:
        return Draft202012Validator({"$ref": f"#/$defs/{part}", "$defs": validator().schema["$defs"]})
    return Draft202012Validator(orjson.loads((schemas_directory() / "table.v2.schema.json").read_bytes()))


def broken_rules(document: object) -> list[Fault]:
    """Return the first _MOST faults that the schema finds in a parsed table. Thousands of rows take seconds."""
    errors = validator().iter_errors(document)
    faults = islice((fault for error in errors for fault in _faults(error)), _MOST)
    return list({(fault.path, fault.reason): fault for fault in faults}.values())  # several rules may say the same


def first_broken_rule(document: object, otherwise: str, part: str = "") -> Fault:
    """Return the first fault that the schema, or a part of it, finds; ``otherwise`` if it finds none.

    The rows of a table are left out.
    """
    if not part and isinstance(document, dict) and isinstance(document.get("entries"), list):
        document = {**document, "entries": []}
    faults = [fault for error in validator(part).iter_errors(document) for fault in _faults(error)]
    return min(faults, key=lambda fault: _place(document, fault.path), default=Fault(otherwise))


def _place(value: Any, path: JsonPath) -> tuple[int, ...]:
    """Sorts paths as a document has their values; what is missing comes last."""
    place = []
    for step in path:
        if isinstance(value, dict):
            place.append(list(value).index(step) if step in value else len(value))
            value = value.get(step)
        else:
            place.append(int(step))
            value = value[int(step)]
    return tuple(place)


def _faults(error: ValidationError) -> Iterator[Fault]:
    """What jsonschema found, in our words. A field that is missing or unknown is a fault of that field."""
    path, found, expected = error.absolute_path, error.instance, error.validator_value
    if error.validator == "required":
        # jsonschema reports each missing field on its own, and names it only in the message.
        names = [name for name in expected if error.message.startswith(repr(name))]
        yield from (Fault(missing_field(expected), *path, name) for name in names)
    elif error.validator == "additionalProperties":
        known = error.schema["properties"]
        yield from (Fault(unknown_field(known), *path, name) for name in found if name not in known)
    else:
        yield Fault(f"{shown(found)} is not {_allowed(error.schema)}{_meant(found, error.schema)}", *path)


def _meant(found: object, schema: Any) -> str:
    """Which of the allowed values is probably meant, as text; empty if none is alike."""
    allowed = [each for each in schema.get("enum", ()) if isinstance(each, str)]
    if not isinstance(found, str) or not allowed:
        return ""
    spelled = [each for each in (dtype_of(found), op_of(found)) if each in allowed]
    close = spelled or get_close_matches(found, allowed, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _allowed(schema: Any) -> str:
    """What a part of the schema takes, as text."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"allowed (allowed: {', '.join(map(str, schema['enum']))})"
    low, high = schema.get("minItems"), schema.get("maxItems")
    if schema["type"] == "integer":
        return f"an integer from {schema['minimum']} to {schema['maximum']}"
    if schema["type"] == "array":
        return "[lowest, highest]" if low == high == 2 else f"a list of {low} to {high}" if low else "a list"
    return "a name" if "minLength" in schema else {"object": "an object", "string": "a string"}[schema["type"]]
