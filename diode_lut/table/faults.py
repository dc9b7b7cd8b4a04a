"""Faults of a file: the reason, the path in the document, and the line and column in the file."""

from __future__ import annotations

import json
import re
from bisect import bisect, insort
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, reduce
from itertools import islice
from math import inf
from operator import getitem
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import orjson

from diode_lut.errors import dtype_of, op_of
from diode_lut.files import schemas_directory
from diode_lut.problem import VARIANTS

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

JsonPath = tuple[str | int, ...]  # from the top of a document to a value: names of fields, numbers of elements
_LONGEST_VALUE = _LONGEST_NAME = 60  # maximum number of characters that a message repeats of a wrong value or name


class Fault(Exception):  # noqa: N818 (checks list faults as values; only decoding raises them)
    """The reason why a value is not allowed, and its path in the decoded value. A ``note`` is a remark."""

    def __init__(self, reason: str, *path: str | int, note: bool = False) -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path: JsonPath = path
        self.note = note

    @property
    def field(self) -> JsonPath:
        """The path, in the table, of the row's field with the fault."""
        return self.path[:3]

    def inside(self, *outer: str | int) -> Fault:
        """Return the same fault with a longer path."""
        return Fault(self.reason, *outer, *self.path, note=self.note)


def shown(value: object) -> str:
    """Return a wrong value for a message, as JSON unless it is large."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list) and (len(value) > 2 or any(isinstance(item, (dict, list)) for item in value)):
        return f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def whole_numbers(value: Any, depth: float = inf) -> Any:
    """Return the value with numbers without a fraction as integers, as JSON Schema has it, to this depth of nesting."""
    if type(value) is float and value.is_integer():
        return int(value)
    if depth and isinstance(value, list):
        return [whole_numbers(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return {name: whole_numbers(item, depth - 1) for name, item in value.items()}
    return value


_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_]*")


def dotted(path: JsonPath) -> str:
    """Write the path as people do: ``entries[17].configs[0].block_m``. Unusual names are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if _PLAIN_NAME.fullmatch(step) else json.dumps(step)
            name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
            text += f".{name}" if text else name
    return text


_MOST = 10_000


@cache
def validator(part: str = "") -> Draft202012Validator:
    """Return a validator of parsed tables, or of a ``part`` of them, for the schema file."""
    from jsonschema import Draft202012Validator

    if part:
        return Draft202012Validator({"$ref": f"#/$defs/{part}", "$defs": validator().schema["$defs"]})
    return Draft202012Validator(orjson.loads((schemas_directory() / "table.v2.schema.json").read_bytes()))


def broken_rules(document: object) -> list[Fault]:
    """Return the first _MOST faults of a parsed table by the schema. Thousands of rows take seconds."""
    errors = validator().iter_errors(document)
    faults = islice((fault for error in errors for fault in _faults(error, document)), _MOST)
    return list({(fault.path, fault.reason): fault for fault in faults}.values())  # several rules may say the same


def first_broken_rule(document: object, otherwise: str, part: str = "") -> Fault:
    """Return the first fault by the schema, or a part of it, else ``otherwise``. The rows of a table are left out."""
    if not part and isinstance(document, dict) and isinstance(document.get("entries"), list):
        document = {**document, "entries": []}

    def place(fault: Fault) -> tuple[int, ...]:
        """Sort paths as a document has their values. Missing values come last."""
        numbers, value = [], document
        for step in fault.path:
            if isinstance(value, dict):
                numbers.append(list(value).index(step) if step in value else len(value))
                value = value.get(step)
            else:
                numbers.append(int(step))
                value = value[int(step)]  # type: ignore[index]
        return tuple(numbers)

    faults = [fault for error in validator(part).iter_errors(document) for fault in _faults(error, document)]
    return min(faults, key=place, default=Fault(otherwise))


def _faults(error: ValidationError, document: Any) -> Iterator[Fault]:
    """Put an error of jsonschema in our words. A missing or unknown field is a fault of that field."""
    path, found, expected, schema = error.absolute_path, error.instance, error.validator_value, error.schema
    if error.validator == "required":
        # jsonschema reports each missing field separately, and names it only in the message.
        reason = f"is missing (required: {', '.join(expected)})"
        yield from (Fault(reason, *path, name) for name in expected if error.message.startswith(repr(name)))
    elif error.validator == "additionalProperties":
        known = schema["properties"]
        reason = f"unknown field (known: {', '.join(known)})"
        yield from (Fault(reason, *path, name) for name in found if name not in known)
    else:
        meant = ""
        if path and path[-1] == "variant":
            op = reduce(getitem, list(path)[:-1], document).get("op")
            schema = {"enum": VARIANTS[op]} if isinstance(op, str) and op in VARIANTS else schema
        allowed = [each for each in schema.get("enum", ()) if isinstance(each, str)]
        if isinstance(found, str) and allowed:
            spelled = [each for each in (dtype_of(found), op_of(found)) if each in allowed]
            close = spelled or get_close_matches(found, allowed, 1)
            meant = f" (did you mean {close[0]}?)" if close else ""
        if type(found) is int and expected == "array":
            meant = f" (one size is [{found}, {found}])"
        yield Fault(f"{shown(found)} is not {_allowed(schema)}{meant}", *path)


def _allowed(schema: Any) -> str:
    """Return the values that a part of the schema allows, as text."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"allowed (allowed: {', '.join(map(str, schema['enum']))})"
    low, high = schema.get("minItems"), schema.get("maxItems")
    if schema["type"] == "integer":
        return f"an integer from {schema['minimum']} to {schema['maximum']}"
    if schema["type"] == "array":
        return "[lowest, highest]" if low == high == 2 else f"a list of {low} to {high}" if low else "a list"
    if schema["type"] == "object":
        return f'{{"{schema["required"][0]}": ...}}' if "required" in schema else "an object"
    return "a name" if "minLength" in schema else "a string"


class Place(NamedTuple):
    """A line, and a column in characters, both counted from 1."""

    line: int
    column: int


def place_at(data: bytes, offset: int) -> Place:
    """Return the place of the byte at ``offset``. All bytes before it must be UTF-8."""
    start = data.rfind(b"\n", 0, offset) + 1
    return Place(data.count(b"\n", 0, offset) + 1, len(data[start:offset].decode()) + 1)


class Positions:
    """Finds JSON paths in a file of valid JSON in UTF-8."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._parts: dict[JsonPath, Mapping[Any, msgspec.Raw]] = {}  # by path. Of equal names the last counts
        self._places = [(0, 1, 1)]  # known offsets with line and column, so that lines are not counted again

    def place(self, path: JsonPath) -> Place:
        """Return the place of the value, or of the innermost value around it if the file does not have it."""
        import numpy as np  # a file without faults does not need it

        value: bytes | msgspec.Raw = self._data
        for number, step in enumerate(path):
            around = path[:number]
            if around not in self._parts:
                self._parts[around] = _parts(value)
            if step not in self._parts[around]:
                break
            value = self._parts[around][step]
        # Parts of the file are views of it.
        ends = [np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (self._data, value)]
        offset = ends[1] - ends[0] or len(self._data) - len(self._data.lstrip(b" \t\r\n"))
        known, line, column = self._places[bisect(self._places, (offset + 1,)) - 1]
        between = self._data[known:offset]
        last = between.rfind(b"\n") + 1
        place = Place(line + between.count(b"\n"), len(between[last:].decode()) + (1 if last else column))
        insort(self._places, (offset, *place))
        return place


def _parts(value: bytes | msgspec.Raw) -> Mapping[Any, msgspec.Raw]:
    with suppress(msgspec.ValidationError, RecursionError):
        return msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    with suppress(msgspec.ValidationError, RecursionError):
        return dict(enumerate(msgspec.json.decode(value, type=list[msgspec.Raw])))
    return {}
