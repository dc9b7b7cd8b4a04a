"""Decoding many rows fast: most are made of parts that other rows had before.

Nothing here decides what is valid. ``decode`` does, once for each different part. A row made of parts that it accepted
is put together from what it made of them; any other row is given to it as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from diode_lut.kernels.registry import TEMPLATES
from diode_lut.table.decode import (
    ENTRY,
    MAX_CONFIGS,
    decode_config,
    decode_entry,
    decode_gain,
    decode_range,
    decode_size,
    repeated,
)
from diode_lut.table.entry import KEY_FIELDS, Candidate, Entry
from diode_lut.table.fault import Fault

Decoded = TypeVar("Decoded")

_new = tuple.__new__
_names_are_known = frozenset(ENTRY).issuperset


class Parts(dict[Any, Decoded], Generic[Decoded]):
    """What parts of rows decode to; a new part is decoded when it is asked for."""

    def __init__(self, decode: Callable[[Any], Decoded]) -> None:
        super().__init__()
        self._decode = decode

    def __missing__(self, raw: Any) -> Decoded:
        part = self[raw] = self._decode(raw)
        return part


class Template(NamedTuple):
    """For the configs of one template: how many fields they have, what picks the values, and what these decode to."""

    width: int
    values: Callable[[Any], Any]
    candidates: Parts[Candidate]


class Recall:
    """Decodes rows, of which none may have a boolean or a null: to Python, but not to JSON, 1 and true are equal."""

    def __init__(self) -> None:
        self._kinds = Parts(_kind)
        self._size = Parts(decode_size).__getitem__
        self._templates = Parts(_template)
        self._gains = Parts(decode_gain)
        self._problems = Parts(ENTRY["problems"])

    def decode(self, row: Any) -> Entry:
        """The entry of a row; Fault names the first thing that is wrong with it."""
        try:
            return self._entry(row)
        except (Fault, KeyError, TypeError, AttributeError):
            return decode_entry(row)

    def _entry(self, row: Any) -> Entry:
        get, size = row.get, self._size
        kind = self._kinds[get("op"), get("dtype"), get("layout"), get("align")]
        b, m, n, k = get("b"), get("m"), get("n"), get("k")
        configs = row["configs"]
        if len(configs) > MAX_CONFIGS:
            raise KeyError
        candidates = tuple([self._candidate(fields) for fields in configs])
        problems, note = get("problems"), get("note")
        if not candidates or repeated(candidates) is not None or not _names_are_known(row):
            raise KeyError
        return _new(
            Entry,
            (
                *kind,
                None if b is None else decode_range(b, size),
                None if m is None else decode_range(m, size),
                None if n is None else decode_range(n, size),
                None if k is None else decode_range(k, size),
                candidates,
                None if problems is None else self._problems[problems],
                None if note is None else ENTRY["note"](note),
            ),
        )

    def _candidate(self, fields: Any) -> Candidate:
        template = self._templates[fields["template"]]
        candidate = template.candidates[template.values(fields)]
        if len(fields) == template.width:
            return candidate
        gain = self._gains[fields["gain_permille"]]
        if len(fields) > template.width + 1:
            raise KeyError
        return _new(Candidate, (candidate[0], gain))


def _kind(values: tuple[Any, ...]) -> tuple[Any, ...]:
    fields = zip(KEY_FIELDS, values, strict=False)
    return tuple([None if value is None else ENTRY[name](value) for name, value in fields])


def _template(name: str) -> Template:
    names = ("template", *TEMPLATES[name].names)

    def decode(values: Any) -> Candidate:
        return Candidate(decode_config(dict(zip(names, values if len(names) > 1 else (values,), strict=True))))

    return Template(len(names), itemgetter(*names), Parts(decode))
