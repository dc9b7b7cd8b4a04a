"""Fields that are written twice in one object: valid JSON, of which parsers keep the last and say nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from diode_lut.bounded import has_more_values
from diode_lut.table.fault import Fault
from diode_lut.table.position import JsonPath

MAX_VALUES = 10_000_000
"""In a file, for all of it to be parsed at once; a table of as many rows as are allowed has fewer."""


def written_twice(data: bytes) -> list[Fault]:
    """Each field that comes more than once, in a file that is valid JSON in UTF-8.

    None are found if it is nested too deeply, or has more than MAX_VALUES values: a table has neither.
    """
    with suppress(RecursionError):
        if has_more_values(data, MAX_VALUES):
            return []
        return [Fault("is written twice (only the last one counts)", *path) for path in _repeated_fields(data)]
    return []


def _repeated_fields(data: bytes) -> Iterator[JsonPath]:
    objects: list[_Object] = []

    def remember(pairs: list[tuple[str, Any]]) -> _Object:
        fields = _Object(pairs)
        if len(fields) < len(pairs):
            fields.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
            objects.append(fields)
        return fields

    document = json.loads(data, object_pairs_hook=remember)
    if objects:
        yield from _walk(document, ())


class _Object(dict[str, Any]):
    """An object, and which of its fields were repeated."""

    repeated: list[str] = []  # noqa: RUF012 (never changed)


def _walk(value: Any, path: JsonPath) -> Iterator[JsonPath]:
    if isinstance(value, _Object):
        yield from ((*path, name) for name in value.repeated)
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from _walk(inner, (*path, step))
