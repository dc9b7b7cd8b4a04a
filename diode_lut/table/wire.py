"""The rows of a table's JSON as types, and how they become entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec
from msgspec import Meta, Struct, ValidationError, defstruct

from diode_lut.domain.ops import (
    ALIGNS,
    ATTENTION_ONLY,
    DTYPES,
    EPILOGUES,
    LAYOUTS,
    MATMUL_SIZES,
    MAX_SIZE,
    NAMED_VARIANTS,
    OPS,
)
from diode_lut.kernels.config import Config
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.kernels.template import Parameter, Template
from diode_lut.table.canonical import SCHEMA_VERSION
from diode_lut.table.entry import (
    DTYPES_OF_VERSION_1,
    OPS_OF_VERSION_1,
    TEMPLATES_OF_VERSION_1,
    Candidate,
    Entry,
)
from diode_lut.table.header import whole
from diode_lut.table.position import Fault, shown
from diode_lut.table.rules import of_no_problem, repeated, reversed_ranges
from diode_lut.table.schema import first_broken_rule

MAX_ENTRIES = 200_000
MAX_CONFIGS = 4096
"""Of one row: more than any search tries on a problem, far more than a row needs."""
MAX_GAIN_PERMILLE = 2**31 - 1

_SIZE = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
_RANGE = tuple[_SIZE, _SIZE]
_GAIN = Annotated[int, Meta(ge=0, le=MAX_GAIN_PERMILLE)]


def _values(parameter: Parameter) -> Any:
    if isinstance(parameter.values, range):
        return Annotated[int, Meta(ge=parameter.values[0], le=parameter.values[-1])]
    return Literal[parameter.values]


def _closed(name: str, fields: list[Any], **options: Any) -> type[Struct]:
    return defstruct(name, fields, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True, **options)


def _config(template: Template, parameters: Sequence[Parameter]) -> type[Struct]:
    required = [(each.name, _values(each)) for each in parameters if each.default is None]
    optional = [(each.name, _values(each), each.default) for each in parameters if each.default is not None]
    fields = [*required, *optional, ("gain_permille", _GAIN, None)]
    return _closed(template.name, fields, tag_field="template", tag=template.name)


class FormatVersion(NamedTuple):
    """A version of the table format: its configs by template, and its rows' fields with what they may be.

    Of ``row``, a field that is None was left out: null is not allowed. ``rows`` decodes many from JSON in UTF-8.
    """

    configs: dict[str, type[Struct]]
    fields: dict[str, Any]
    row: Any
    rows: msgspec.json.Decoder[list[Any]]

    @classmethod
    def of(cls, configs: dict[str, type[Struct]], more: dict[str, Any]) -> FormatVersion:
        """The format with these configs; ``more`` has the fields in which it differs from the others."""
        union: Any = Union[tuple(configs.values())]  # noqa: UP007
        fields = {
            "op": Literal[OPS],
            "dtype": Literal[DTYPES],
            "layout": Literal[LAYOUTS],
            "align": Literal[ALIGNS],
            **dict.fromkeys(MATMUL_SIZES, _RANGE),
            "configs": Annotated[tuple[union, ...], Meta(min_length=1, max_length=MAX_CONFIGS)],
            "problems": _SIZE,
            "note": str,
            **more,
        }
        row = _closed("Row", [(name, of) if name == "configs" else (name, of, None) for name, of in fields.items()])
        return cls(configs, fields, row, msgspec.json.Decoder(list[row]))  # type: ignore[valid-type]


FORMATS = {
    1: FormatVersion.of(
        {name: _config(TEMPLATES[name], TEMPLATES[name].required) for name in TEMPLATES_OF_VERSION_1},
        {"op": Literal[OPS_OF_VERSION_1], "dtype": Literal[DTYPES_OF_VERSION_1]},
    ),
    2: FormatVersion.of(
        {name: _config(template, template.parameters) for name, template in TEMPLATES.items()},
        {
            "epilogue": Literal[tuple(EPILOGUES)],
            "variant": Literal[NAMED_VARIANTS],
            **dict.fromkeys(ATTENTION_ONLY, _RANGE),
        },
    ),
}
"""By version. Fields are in the order of ``Entry``'s."""

_astuple = msgspec.structs.astuple
_new = tuple.__new__
_FIELDS = len(Entry._fields)
_COMMON_DTYPES = (None, *DTYPES_OF_VERSION_1)
_NOT_IN_VERSION_1 = (None,) * len(FORMATS[2].fields.keys() - FORMATS[1].fields.keys())
"""The last fields of an entry, which rows of version 1 do not have."""


class _Configs(dict[Any, Config]):
    """The configs of one template, by what ``pick`` takes from the object that a config was decoded to.

    Of all configs in a table few are different, and equal ones are the same object.
    """

    def __init__(self, template: str, names: tuple[str, ...]) -> None:
        super().__init__()
        self._template, self._names = template, names
        self.pick: Callable[[Any], Any] = attrgetter(*names) if names else type

    def __missing__(self, picked: Any) -> Config:
        values = (picked,) if len(self._names) == 1 else picked
        config = Config.make(self._template, dict(zip(self._names, values, strict=True)) if self._names else {})
        self[picked] = config
        return config


class Meaning:
    """What rows mean: makes entries of them."""

    def __init__(self) -> None:
        self._parts = {}
        for version in FORMATS.values():
            for template, kind in version.configs.items():
                *tunables, _ = kind.__struct_fields__
                configs = _Configs(template, tuple(tunables))
                self._parts[kind] = configs.__getitem__, configs.pick

    def entry(self, row: Any) -> Entry:
        """The entry of a row; Fault if a range ends before it begins, or a config comes twice.

        Also if the op has no such dtype, layout or variant.
        """
        fields = _astuple(row)
        if len(fields) < _FIELDS:
            fields += _NOT_IN_VERSION_1
        op, dtype, layout, align, b, m, n, k, wires, problems, note, epilogue, variant, h, g, v = fields
        candidates = self.candidates(wires)
        if (
            (m is not None and m[0] > m[1])
            or (n is not None and n[0] > n[1])
            or (k is not None and k[0] > k[1])
            or (b is not None and b[0] > b[1])
        ):
            raise next(reversed_ranges(row))
        if op not in OPS_OF_VERSION_1 or dtype not in _COMMON_DTYPES or not (variant is h is g is v is None):
            for fault in (*reversed_ranges(row), *of_no_problem(row)):
                raise fault
        values = (
            op,
            dtype,
            layout,
            align,
            b,
            m,
            n,
            k,
            candidates,
            problems,
            note,
            epilogue,
            variant,
            h,
            g,
            v,
        )
        return _new(Entry, values)

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
            raise repeated(candidates)
        return tuple(candidates)


_DEPTH = 3
"""How far inside a row there are numbers: in an object of a list of a field."""


def decode_entry(
    row: object, meaning: Meaning | None = None, *, explain: bool = True, version: int = SCHEMA_VERSION
) -> Entry:
    """The entry of a row; Fault names the first thing that is wrong with it, unless ``explain`` is False."""
    kind = FORMATS[version].row
    try:
        decoded = msgspec.convert(row, kind)
    except ValidationError:
        try:
            decoded = msgspec.convert(whole(row, _DEPTH), kind)
        except ValidationError as error:
            raise first_broken_rule(row, str(error), version, part="entry") if explain else Fault(str(error)) from None
    entry = (meaning or Meaning()).entry(decoded)
    if any("\ud800" <= letter <= "\udfff" for letter in entry.note or ""):
        raise Fault(f"{shown(entry.note)} is not Unicode (a lone surrogate cannot be written)", "note")
    return entry


def decode_readable(row: dict[str, Any], version: int) -> tuple[Entry, list[Fault]]:
    """The entry that the fields of a bad row make which are good, and what is wrong with these besides their types."""
    fields: dict[str, Any] = {"configs": ()}
    faults: list[Fault] = []
    kinds = FORMATS[version].fields
    for name in filter(row.__contains__, kinds):
        with suppress(ValidationError):
            fields[name] = msgspec.convert(whole(row[name], _DEPTH - 1), kinds[name])
    try:
        fields["configs"] = Meaning().candidates(fields["configs"])
    except Fault as fault:
        fields["configs"] = ()
        faults.append(fault)
    fields["candidates"] = fields.pop("configs")
    entry = Entry._make(map(fields.get, Entry._fields))
    return entry, [*faults, *reversed_ranges(entry), *of_no_problem(entry)]
