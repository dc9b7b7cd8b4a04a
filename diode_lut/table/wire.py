"""Rows as table files write them: types made of what the registry says, into which msgspec reads JSON.

The JSON Schema says the same, and a test compares the two. ``MAX_ENTRIES`` and what ``entry_of`` checks are all that a
file must keep to besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta, Struct, defstruct

from diode_lut.kernels.config import Config
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.kernels.template import Parameter, Template
from diode_lut.problem import ALIGNS, DTYPES, LAYOUTS, MAX_SIZE, OPS
from diode_lut.table.entry import SIZE_FIELDS, Candidate, Entry
from diode_lut.table.fault import Fault

MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096
"""Of one row: more than any search tries on a problem, far more than a row needs."""
MAX_GAIN_PERMILLE = 2**31 - 1

_SIZE = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
_GAIN = Annotated[int, Meta(ge=0, le=MAX_GAIN_PERMILLE)]


def _values(parameter: Parameter) -> Any:
    if isinstance(parameter.values, range):
        return Annotated[int, Meta(ge=parameter.values[0], le=parameter.values[-1])]
    return Literal[parameter.values]


def _closed(name: str, fields: list[Any], **options: Any) -> type[Struct]:
    return defstruct(name, fields, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True, **options)


def _config(template: Template) -> type[Struct]:
    tunables = [(parameter.name, _values(parameter)) for parameter in template.parameters]
    fields = [*tunables, ("gain_permille", _GAIN, None)]
    return _closed(template.name, fields, tag_field="template", tag=template.name)


_CONFIGS = tuple(map(_config, TEMPLATES.values()))

FIELDS: dict[str, Any] = {
    "op": Literal[OPS],
    "dtype": Literal[DTYPES],
    "layout": Literal[LAYOUTS],
    "align": Literal[ALIGNS],
    **dict.fromkeys(SIZE_FIELDS, tuple[_SIZE, _SIZE]),
    "configs": Annotated[tuple[Union[_CONFIGS], ...], Meta(min_length=1, max_length=MAX_CONFIGS)],  # type: ignore[valid-type]  # noqa: UP007
    "problems": _SIZE,
    "note": str,
}
"""The fields of a row, in the order of ``Entry``'s, with what they may be."""

Row: Any = _closed("Row", [(name, kind) if name == "configs" else (name, kind, None) for name, kind in FIELDS.items()])
"""One row. What is None was left out: null is not allowed."""

ROWS = msgspec.json.Decoder(list[Row])
"""Many rows, from JSON in UTF-8."""

_astuple = msgspec.structs.astuple
_new = tuple.__new__


class _Configs(dict[tuple[int, ...], Config]):
    """The configs of one template: of all in a table few are different, and equal ones are the same object."""

    def __init__(self, template: str) -> None:
        super().__init__()
        self._template = template

    def __missing__(self, params: tuple[int, ...]) -> Config:
        config = self[params] = Config(self._template, params)
        return config


class Meaning:
    """What rows mean: makes entries of them."""

    def __init__(self) -> None:
        self._parts = {
            kind: (_Configs(name).__getitem__, _picker(template.names))
            for kind, (name, template) in zip(_CONFIGS, TEMPLATES.items(), strict=True)
        }

    def entry(self, row: Any) -> Entry:
        """The entry of a row; Fault if a range ends before it begins, or a config comes twice."""
        op, dtype, layout, align, b, m, n, k, wires, problems, note = _astuple(row)
        candidates = self.candidates(wires)
        if (
            (m is not None and m[0] > m[1])
            or (n is not None and n[0] > n[1])
            or (k is not None and k[0] > k[1])
            or (b is not None and b[0] > b[1])
        ):
            raise next(reversed_ranges(row))
        return _new(Entry, (op, dtype, layout, align, b, m, n, k, candidates, problems, note))

    def candidates(self, wires: Sequence[Any]) -> tuple[Candidate, ...]:
        """The candidates of a row; Fault if a config comes twice."""
        parts = self._parts
        candidates, seen = [], set()
        for wire in wires:
            config_of, params = parts[type(wire)]
            config = config_of(params(wire))
            seen.add(id(config))
            candidates.append(_new(Candidate, (config, wire.gain_permille)))
        if len(seen) < len(candidates):
            raise _repeated(candidates)
        return tuple(candidates)


def _picker(names: tuple[str, ...]) -> Callable[[Any], tuple[int, ...]]:
    """What gives these attributes of an object as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda wire: tuple([getattr(wire, name) for name in names])


def reversed_ranges(row: Any) -> Iterator[Fault]:
    """The ranges of a row, or of an entry, that end before they begin."""
    for name in SIZE_FIELDS:
        size = getattr(row, name)
        if size is not None and size[0] > size[1]:
            yield Fault(f"{list(size)} ends before it begins (allowed: [lowest, highest])", name)


def _repeated(candidates: Sequence[Candidate]) -> Fault:
    """The first config that an earlier one equals; gains do not matter."""
    configs = [candidate.config for candidate in candidates]
    number = next(number for number, config in enumerate(configs) if config in configs[:number])
    return Fault(f"{configs[number]} is listed twice", "configs", number)
