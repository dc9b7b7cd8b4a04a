"""Receipts: the questions of processes and their answers, merged, written and read. One error refuses a whole file."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import orjson
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, defstruct
from msgspec.structs import asdict

from diode_lut.errors import ProblemError, ReceiptError, csv_remedy
from diode_lut.files import has_more_values, read_at_most
from diode_lut.hardware import Hardware
from diode_lut.log import warn_once
from diode_lut.problem import MAX_SIZE, NO_EPILOGUE, NO_VARIANT, OF_KERNELS, OP_SIZES, Problem
from diode_lut.settings import TIERS
from diode_lut.table.faults import whole_numbers

MAX_PERMILLE = 1_000_000  # maximum gain in a receipt, in thousandths
MAX_COUNT = 2**53 - 1
"""Maximum number of calls, processes or nanoseconds (100 days): every JSON reader reads it exactly."""

_Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
_Calls = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
_Size = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
_Permille = Annotated[int, Meta(ge=1, le=MAX_PERMILLE)]
_NotEmpty = Annotated[str, Meta(min_length=1)]
_TierName = Literal[TIERS]  # type: ignore[valid-type]  # the names of all tiers


class Versions(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """The software of a process. ``torch`` and ``triton`` are empty if they were not loaded."""

    diode_lut: str
    python: str
    torch: str = ""
    triton: str = ""


class SourceRecord(Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """A table or model with its tier, its file, the file's SHA-256, and its number of rows (0 for a model)."""

    tier: _TierName
    path: str
    digest: str
    rows: _Count


class Hit(NamedTuple):
    """An answer in use: its tier, the digest of its file, its row, and the configs that Inductor got.

    ``row`` is the row's key as text, empty for a model. ``configs`` are texts, best first. With the setting ``top_k``
    at 1 there is a single config. For a problem with dynamic sizes, ``over`` is the range of sizes that the configs
    are for, and the problem has a size in it. Otherwise ``over`` is empty.
    """

    problem: Problem
    tier: _TierName
    digest: str
    row: str
    configs: Annotated[tuple[str, ...], Meta(min_length=1)]
    over: _NotEmpty = ""


class Miss(NamedTuple):
    """A problem left to Inductor. ``over`` is as in Hit."""

    problem: Problem
    over: _NotEmpty = ""


class Skip(NamedTuple):
    """A config of an answer, and the reason why it could not run, as text."""

    problem: Problem
    tier: _TierName
    digest: str
    row: str
    config: str
    reason: str


class Left(NamedTuple):
    """A problem with the reason, as text, why it is among ``no_choice``, ``unfused`` or ``apart`` of a Device.

    With dynamic sizes it is a sample. Its epilogue is the class that is not fused.
    """

    problem: Problem
    reason: str


class GeneratedKernel(NamedTuple):
    """A kernel that Inductor generated, with one config of an answer, or left to it for a reason.

    ``tier``, ``digest``, ``row`` and ``over`` are those of the answer, as in Hit. Either ``config`` or ``reason`` is
    empty.
    """

    problem: Problem
    tier: str
    digest: str
    row: str
    config: str
    reason: str
    over: str = ""


NO_ANSWER = "no table and no model answers"
"""The reason for which Inductor decides about a generated kernel, or matmuls stay apart, if there is no other."""

ONLY_THE_LIBRARY = "Inductor has only the library's kernel"
FREEZABLE = "Inductor has only the library's kernel, because weights are not frozen"
"""Reasons of ``no_choice``. In the second case, freezing in the compiling thread would give Inductor a choice."""


@dataclass
class Device:
    """The questions about one kind of hardware. The counters count Inductor's questions.

    ``left_out`` are the reasons why other tables and models could not answer. ``misses`` were left to Inductor. If a
    model knows a missed problem, ``expected_permille`` is its expected gain over aten, in thousandths. No table could
    change anything about ``no_choice``, so these are not among the calls. ``unfused`` has matmuls for which the hook
    could have fused an epilogue, but did not. ``apart`` has matmuls that could be joined, but were asked about one by
    one. ``generated`` has kernels that Inductor generated, which no other number counts. ``cached`` counts the calls
    and ``no_choice`` of an earlier compile, whose graph came from a cache.
    """

    sources: dict[SourceRecord, None] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)
    hits: Counter[Hit] = field(default_factory=Counter)
    misses: Counter[Miss] = field(default_factory=Counter)
    expected_permille: dict[Problem, int] = field(default_factory=dict)
    skipped: Counter[Skip] = field(default_factory=Counter)
    no_choice: Counter[Left] = field(default_factory=Counter)
    unfused: Counter[Left] = field(default_factory=Counter)
    apart: Counter[Left] = field(default_factory=Counter)
    generated: Counter[GeneratedKernel] = field(default_factory=Counter)
    cached: int = 0

    @property
    def calls(self) -> int:
        """The number of questions."""
        return self.hits.total() + self.misses.total()

    def add(self, other: Device) -> None:
        """Add the questions of another process about the same hardware."""
        self.sources.update(other.sources)
        self.left_out.update(other.left_out)
        for (_, counts), (_, others) in zip(_counters(self), _counters(other), strict=True):
            counts.update(others)
        self.cached += other.cached
        for problem, permille in other.expected_permille.items():
            self.expect(problem, permille)

    def expect(self, problem: Problem, permille: int) -> None:
        """Note the gain that a model expects for a problem. The largest of several counts."""
        highest = max(permille, self.expected_permille.get(problem, 1))
        self.expected_permille[problem] = min(highest, MAX_PERMILLE)


_QUESTIONS: dict[str, Any] = {
    name: get_args(kind)[0] for name, kind in get_type_hints(Device).items() if get_origin(kind) is Counter
}
"""The counters of Device, each with the type of its keys."""


@dataclass
class Receipt:
    """The questions of some processes by hardware, and the time that selecting took, in nanoseconds."""

    processes: int = 1
    versions: dict[Versions, None] = field(default_factory=dict)
    selecting_ns: int = 0
    devices: dict[Hardware, Device] = field(default_factory=dict)


def merge_receipts(receipts: Iterable[Receipt]) -> Receipt:
    """Merge receipts. Their order does not matter."""
    merged = Receipt(0)
    for receipt in receipts:
        merged.processes += receipt.processes
        merged.versions.update(receipt.versions)
        merged.selecting_ns += receipt.selecting_ns
        for hardware, device in receipt.devices.items():
            merged.devices.setdefault(hardware, Device()).add(device)
    return merged


VERSION = 1  # the version of the format

MAX_BYTES = 64 * 2**20
MAX_VALUES = 5_000_000  # readers refuse larger files


def receipt_bytes(receipt: Receipt) -> bytes:
    """Return the content of the file, the same for equal receipts. If too large, its rarer half is left out."""
    data = _encoded(receipt)
    while len(data) > MAX_BYTES or has_more_values(data, MAX_VALUES):
        before = sum(len(counts) for device in receipt.devices.values() for _, counts in _counters(device))
        if not before:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        devices = {}
        for hardware, device in receipt.devices.items():  # of equal counts, the first entries stay
            halves: dict[str, Any] = {
                name: Counter(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: len(counts) // 2]))
                for name, counts in _counters(device)
            }
            devices[hardware] = replace(device, **halves)
        receipt = replace(receipt, devices=devices)
        warn_once(f"a receipt has room for about half of {before} entries: those asked least are left out")
        data = _encoded(receipt)
    return data


def _counters(device: Device) -> list[tuple[str, Counter[Any]]]:
    """Return the counters of a device, each with its name in the JSON object."""
    return [(name, getattr(device, name)) for name in _QUESTIONS]


def _encoded(receipt: Receipt) -> bytes:
    devices = []
    for hardware, device in sorted(receipt.devices.items(), key=lambda item: item[0]):
        fields = [
            f'"hardware": {_dumps(hardware_to_json(hardware))}',
            f'"sources": {_lines(map(asdict, sorted(device.sources)))}',
            f'"left_out": {_lines(sorted(device.left_out))}',
        ]
        for name, counts in _counters(device):
            if counts or name not in ("apart", "generated"):
                fields.append(f'"{name}": {_lines(_questions(device, counts))}')
        devices.append(",\n".join([*fields, f'"cached": {device.cached}']))
    whole = [
        f'"schema_version": {VERSION}',
        f'"processes": {receipt.processes}',
        f'"selecting_ns": {receipt.selecting_ns}',
        f'"versions": {_lines(map(versions_to_json, sorted(receipt.versions)))}',
        '"devices": [' + ",\n".join(f"{{\n{fields}\n}}" for fields in devices) + "]",
    ]
    return ("{\n" + ",\n".join(whole) + "\n}\n").encode()


def _questions(device: Device, counts: Counter[Any]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a counter: problems as ``collect`` takes them, with their calls and their answers."""
    for asked, calls in sorted(counts.items()):
        rest = asked._asdict()
        problem, over = rest.pop("problem"), rest.pop("over", "")
        if isinstance(asked, GeneratedKernel):
            rest = {name: value for name, value in rest.items() if (name == "reason") == bool(asked.reason)}
        if isinstance(asked, Miss) and problem in device.expected_permille:
            rest["expected_permille"] = device.expected_permille[problem]
        yield {**problem.to_json(), **over_to_json(over), "calls": calls, **rest}


def versions_to_json(versions: Versions) -> dict[str, str]:
    """Return the fields of the JSON object, without software that was not loaded."""
    return {name: version for name, version in asdict(versions).items() if version}


def hardware_to_json(hardware: Hardware) -> dict[str, Any]:
    """Return the fields of the JSON object, without aliases, which only tables have."""
    return {"name": hardware.name, "arch": hardware.arch, "sm_count": hardware.sm_count}


def over_to_json(over: str) -> dict[str, str]:
    """Return the field of the JSON object for dynamic sizes, or no field."""
    return {"over": over} if over else {}


def _lines(values: Iterable[Any]) -> str:
    lines = ",\n".join(map(_dumps, values))
    return f"[\n{lines}\n]" if lines else "[]"


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


class _Json(Struct, forbid_unknown_fields=True):
    """A JSON object without unknown fields."""


class _AskedJson(_Json, kw_only=True, dict=True):
    """A problem, with its sizes in capitals, and how often Inductor asked about it."""

    op: str
    dtype: str
    layout: str
    align: _Size
    B: _Size
    M: _Size
    N: _Size
    K: _Size
    H: _Size = 1
    G: _Size = 1
    V: _Size = 1
    epilogue: _NotEmpty | UnsetType = UNSET
    variant: _NotEmpty | UnsetType = UNSET
    calls: _Calls

    def __post_init__(self) -> None:
        """Make the problem, so that an error names the place of this object."""
        if self.epilogue == NO_EPILOGUE:
            raise ProblemError(f"epilogue: is left out where there is none, not {NO_EPILOGUE!r}")
        sizes = (self.align, self.B, self.M, self.N, self.K)
        classes = (self.epilogue or NO_EPILOGUE, self.variant or NO_VARIANT)
        self.problem = Problem.checked(self.op, self.dtype, self.layout, *sizes, *classes, self.H, self.G, self.V)


def _list_of(kind: Any, *more: Any) -> Any:
    """Return the type of a list of JSON objects with a problem, the other fields of ``kind``, and ``more``."""
    hints = get_type_hints(kind, include_extras=True)
    defaults = {name: (default,) for name, default in kind._field_defaults.items()}
    fields = [(name, hints[name], *defaults.get(name, ())) for name in kind._fields[1:]]
    return list[defstruct(kind.__name__, [*fields, *more], bases=(_AskedJson,), kw_only=True)]  # type: ignore[misc]


class _GeneratedJson(_Json, kw_only=True, dict=True):
    op: str
    variant: str
    X: _Size
    Y: _Size | UnsetType = UNSET
    R: _Size | UnsetType = UNSET
    LOADS: _Size | UnsetType = UNSET
    calls: _Calls
    tier: _TierName | UnsetType = UNSET
    digest: str | UnsetType = UNSET
    row: str | UnsetType = UNSET
    config: _NotEmpty | UnsetType = UNSET
    reason: _NotEmpty | UnsetType = UNSET
    over: _NotEmpty | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Make the kernel, so that an error names the place of this object."""
        sizes = {name: size for name in OF_KERNELS if (size := getattr(self, name.upper())) is not UNSET}
        problem = Problem.generated(self.op, self.variant, **sizes)
        if tuple(sizes) != OP_SIZES[problem.op] or problem.op != self.op:
            raise ProblemError(f"{self.op} has the sizes {', '.join(map(str.upper, OP_SIZES[problem.op]))}")
        answer = self.tier, self.digest, self.row, self.config
        if answer.count(UNSET) != (0 if self.reason is UNSET else len(answer)):
            raise ProblemError("either a reason, or tier, digest, row and config")
        self.problem = problem


class _HardwareJson(_Json, kw_only=True):
    name: _NotEmpty
    arch: _NotEmpty
    sm_count: _Size


_DeviceJson = defstruct(
    "_DeviceJson",
    [
        ("hardware", _HardwareJson),
        ("sources", list[SourceRecord]),
        ("left_out", list[str]),
        ("hits", _list_of(Hit)),
        ("misses", _list_of(Miss, ("expected_permille", _Permille | UnsetType, UNSET))),
        ("skipped", _list_of(Skip)),
        *((name, _list_of(Left), []) for name in ("no_choice", "unfused", "apart")),
        ("generated", list[_GeneratedJson], []),
        ("cached", _Count, 0),
    ],
    bases=(_Json,),
    kw_only=True,
)


class _ReceiptJson(_Json, kw_only=True):
    schema_version: _Count
    processes: _Calls
    selecting_ns: _Count
    versions: list[Versions]
    devices: list[_DeviceJson]  # type: ignore[valid-type]


def read_receipt(path: Path, contents: bytes | None = None) -> Receipt:
    """Read the receipt in a file, or ``contents``. ReceiptError names the place of the first error."""
    data = read_at_most(path, MAX_BYTES) if contents is None else contents
    if has_more_values(data, MAX_VALUES):
        raise ReceiptError(f"{path}: more than {MAX_VALUES} values, too many for a receipt")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        text = data.isascii() or "�" not in data.decode(errors="replace")
        reason = f"not JSON: {error.msg}{csv_remedy(data)}" if text else "neither JSON nor text (expected a receipt)"
        raise ReceiptError(f"{path}:{error.lineno}:{error.colno}: {reason}") from None
    return decode_receipt(document, str(path))


def decode_receipt(document: Any, path: str) -> Receipt:
    """Return the receipt in a parsed JSON document. A ReceiptError begins with ``path``."""
    if isinstance(document, dict) and "entries" in document:
        raise ReceiptError(f"{path}: a table, not a receipt")
    if isinstance(document, dict) and document.get("schema_version", VERSION) != VERSION:
        found = document["schema_version"]
        remedy = " (written by a newer diode_lut: upgrade)" if type(found) is int and found > VERSION else ""
        raise ReceiptError(f"{path}: schema_version: expected {VERSION}, found {found!r:.60}{remedy}")
    try:
        decoded: Any = convert(whole_numbers(document), _ReceiptJson)
    except ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        reason = reason.replace("Expected", "expected", 1).replace("Object", "object", 1)
        raise ReceiptError(": ".join(filter(None, (path, place.strip("`."), reason)))) from None
    devices: dict[Hardware, Device] = {}
    for each in decoded.devices:
        device = devices.setdefault(Hardware(**asdict(each.hardware)), Device())
        device.sources.update(dict.fromkeys(each.sources))
        device.left_out.update(dict.fromkeys(each.left_out))
        device.cached += each.cached
        for name, kind in _QUESTIONS.items():
            for asked in getattr(each, name):
                rest = (getattr(asked, part) or "" for part in kind._fields[1:])
                getattr(device, name)[kind(asked.problem, *rest)] += asked.calls
        for miss in each.misses:
            if miss.expected_permille:
                device.expect(miss.problem, miss.expected_permille)
    return Receipt(decoded.processes, dict.fromkeys(decoded.versions), decoded.selecting_ns, devices)
