"""What the JSON Schema says about a parsed table, in our words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from diode_lut.resources import schemas_directory
from diode_lut.table.fault import Fault, missing_field, shown, unknown_field

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


_MOST = 10_000


@cache
def table_validator() -> Draft202012Validator:
    """What checks a parsed table against the JSON Schema."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(orjson.loads((schemas_directory() / "table.v1.schema.json").read_bytes()))


def broken_rules(document: object) -> list[Fault]:
    """What the schema says is wrong with a parsed table, as far as anybody reads on. Thousands of rows take seconds."""
    errors = table_validator().iter_errors(document)
    return list(islice((fault for error in errors for fault in _faults(error)), _MOST))


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
        yield Fault(_REASONS[str(error.validator)](found, expected), *path)


_REASONS: dict[str, Callable[[Any, Any], str]] = {
    "const": lambda found, expected: f"expected {expected}, found {shown(found)}",
    "enum": lambda found, expected: f"{shown(found)} is not allowed (allowed: {', '.join(map(str, expected))})",
    "type": lambda found, expected: f"{shown(found)} is not of type {expected}",
    "minimum": lambda found, expected: f"{shown(found)} is too small (allowed: from {expected})",
    "maximum": lambda found, expected: f"{shown(found)} is too large (allowed: up to {expected})",
    "minItems": lambda found, expected: f"{shown(found)} has too few elements (allowed: from {expected})",
    "maxItems": lambda found, expected: f"{shown(found)} has too many elements (allowed: up to {expected})",
    "minLength": lambda found, expected: f"{shown(found)} is too short (allowed: from {expected} characters)",
}
"""What to say, for each keyword of the schema, about a value that breaks it."""
