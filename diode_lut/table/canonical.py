"""The canonical form of a table's JSON: the order of rows and fields, and how each is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.ops import ALIGNS, DTYPES, EPILOGUES, LAYOUTS, MAX_SIZE, NAMED_VARIANTS, OPS, SIZE_FIELDS
from diode_lut.domain.printable import printable_json
from diode_lut.table.entry import KEY_FIELDS, Candidate, Entry, Range

_NAMED = {name: f"{name} " for name in ("align", "epilogue", "variant", *SIZE_FIELDS)}
"""Fields whose values do not say what they are."""


def key_text(entry: Entry) -> str:
    """What the row covers: ``mm bfloat16 nt align 16 m 513-1024 n 4096 k 1-64``."""
    parts = [
        f"{_NAMED.get(name, '')}{_value_text(value)}"
        for name, value in zip(KEY_FIELDS, entry.key, strict=True)
        if value is not None
    ]
    return " ".join(parts) or "everything"


def candidate_text(candidate: Candidate) -> str:
    """The config, and what it gains over aten: ``triton_mm 128x128x64 g8 s4 w8 (1.063)``."""
    gain = candidate.gain_permille
    return str(candidate.config) if gain is None else f"{candidate.config} ({gain / 1000:.3f})"


def winner_text(entry: Entry) -> str:
    """The row's first config, with its gain."""
    return candidate_text(entry.best)


def _value_text(value: str | int | Range) -> str:
    if isinstance(value, tuple):
        low, high = value
        return str(low) if low == high else f"{low}-{high}"
    return str(value)


SCHEMA_VERSION = 2
"""The version of the table format that is written by default."""

VERSIONS = (1, SCHEMA_VERSION)
"""The versions of the table format that are read."""

SCHEMAS = {version: f"../schemas/table.v{version}.schema.json" for version in VERSIONS}
"""What ``$schema`` says in a table of this repository: editors then check the file while it is typed."""

SCHEMA_NAMES = {version: f"urn:diode-lut:table:v{version}" for version in VERSIONS}
"""What it says in a table elsewhere: a name by which editors can be told where the schema is."""

PROVENANCE = (
    *("torch", "triton", "cuda", "driver", "benchmarker"),
    *("measured_on", "measured_by", "datasets", "pruned_with", "diode_lut"),
)
"""What ``provenance`` may say, in the order in which it is written."""

_AFTER_ALL = (MAX_SIZE + 1, MAX_SIZE + 1)
_OPS, _DTYPES, _LAYOUTS, _ALIGNS, _EPILOGUES, _VARIANTS = (
    {value: place for place, value in enumerate((*domain, None))}
    for domain in (OPS, DTYPES, LAYOUTS, ALIGNS, EPILOGUES, NAMED_VARIANTS)
)


def canonical_order(entry: Entry) -> tuple[Any, ...]:
    """Sorts entries by key: domains in their own order, sizes upwards, narrow before wide, left out last.

    Entries with the same key, which a good table does not have, go by the rest of their contents.
    """
    op, dtype, layout, align, b, m, n, k, candidates, problems, note, epilogue, variant, h, g, v = entry
    return (
        _OPS[op],
        _DTYPES[dtype],
        _LAYOUTS[layout],
        _ALIGNS[align],
        _EPILOGUES[epilogue],
        _VARIANTS[variant],
        b or _AFTER_ALL,
        m or _AFTER_ALL,
        n or _AFTER_ALL,
        k or _AFTER_ALL,
        h or _AFTER_ALL,
        g or _AFTER_ALL,
        v or _AFTER_ALL,
        tuple([(config, -1 if gain is None else gain) for config, gain in candidates]),
        problems or 0,
        note is not None,
        note or "",
    )


def canonical_bytes(
    version: int,
    schema: str,
    hardware: Hardware,
    provenance: Mapping[str, str | list[str]],
    entries: Iterable[Entry],
) -> bytes:
    """The file, in UTF-8: each top-level key on its own line, each row's head on a line, each config on a line."""
    rows = ",\n".join(_entry(entry) for entry in sorted(entries, key=canonical_order))
    body = f"{rows}\n" if rows else ""
    head = {
        "$schema": schema,
        "schema_version": version,
        "hardware": hardware._asdict(),
        "provenance": {name: provenance[name] for name in sorted(provenance, key=PROVENANCE.index)},
    }
    lines = "".join(f"{_json(name)}: {_json(value)},\n" for name, value in head.items())
    return f'{{\n{lines}"entries": [\n{body}]\n}}\n'.encode()


def _entry(entry: Entry) -> str:
    fields = entry._replace(candidates=(), note=None).to_json()
    del fields["configs"]
    configs = ",\n".join(f"  {_candidate(candidate)}" for candidate in entry.candidates)
    head = f"{_json(fields)[1:-1]}, " if fields else ""
    tail = "" if entry.note is None else f', "note": {_json(entry.note)}'
    return f'{{{head}"configs": [\n{configs}\n]{tail}}}'


@lru_cache(1 << 14)
def _candidate(candidate: Candidate) -> str:
    """Many rows have the same ones."""
    return _json(candidate.to_json())


_encode = json.JSONEncoder(ensure_ascii=False).encode


def _json(value: Any) -> str:
    """The value on one line; letters that are not printable are escaped, so that people who review a file see them."""
    return printable_json(_encode(value))
