"""What the JSON Schema says about a parsed table, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from diode_lut.domain.spelling import dtype_of, op_of
from diode_lut.io.resources import schemas_directory
from diode_lut.table.position import Fault, JsonPath, missing_field, shown, unknown_field

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


_MOST = 10_000


@cache
def table_validator(version: int) -> Draft202012Validator:
    """What checks a parsed table of a version against the JSON Schema."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(orjson.loads((schemas_directory() / f"table.v{version}.schema.json").read_bytes()))


def broken_rules(document: object, version: int) -> list[Fault]:
    """The first _MOST things that the schema says are wrong with a parsed table. Thousands of rows take seconds."""
    errors = table_validator(version).iter_errors(document)
    faults = islice((fault for error in errors for fault in _faults(error)), _MOST)
    return list({(fault.path, fault.reason): fault for fault in faults}.values())  # several rules may say the same


@cache
def _part_validator(version: int, part: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator({"$ref": f"#/$defs/{part}", "$defs": table_validator(version).schema["$defs"]})


def first_broken_rule(document: object, otherwise: str, version: int, part: str = "") -> Fault:
    """The first thing that the schema, or a part of it, says is wrong; ``otherwise``, if it finds nothing wrong.

    The rows of a table are not looked at.
    """
    if part:
        validator = _part_validator(version, part)
    else:
        validator = table_validator(version)
        if isinstance(document, dict) and isinstance(document.get("entries"), list):
            document = {**document, "entries": []}
    faults = [fault for error in validator.iter_errors(document) for fault in _faults(error)]
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
