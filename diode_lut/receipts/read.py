"""Read receipts from JSON. A file with any error is refused as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert
from msgspec.structs import asdict

from diode_lut.errors import ProblemError, ReceiptError
from diode_lut.files import has_more_values, read_at_most
from diode_lut.hardware import Hardware
from diode_lut.problem import MAX_SIZE, NO_EPILOGUE, NO_VARIANT, OF_KERNELS, OP_SIZES, Problem
from diode_lut.receipts.receipt import (
    MAX_BYTES,
    MAX_PERMILLE,
    MAX_VALUES,
    VERSION,
    Device,
    GeneratedKernel,
    Hit,
    Miss,
    NoChoice,
    Receipt,
    Skip,
    SourceRecord,
    Unfused,
    Versions,
    merge_receipts,
)
from diode_lut.settings import TIERS

MAX_COUNT = 2**53 - 1
"""Maximum number of calls, processes or nanoseconds (100 days): every JSON reader reads it exactly."""

_Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
_Calls = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
_Size = Annotated[int, Meta(ge=1, le=MAX_SIZE)]
_NotEmpty = Annotated[str, Meta(min_length=1)]
_TierName = Literal[TIERS]  # type: ignore[valid-type]  # the names of all tiers


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


class _MissJson(_AskedJson, kw_only=True):
    over: _NotEmpty | UnsetType = UNSET
    expected_permille: Annotated[int, Meta(ge=1, le=MAX_PERMILLE)] | UnsetType = UNSET


class _HitJson(_AskedJson, kw_only=True):
    tier: _TierName
    digest: str
    row: str
    configs: Annotated[tuple[str, ...], Meta(min_length=1)]
    over: _NotEmpty | UnsetType = UNSET


class _SkipJson(_AskedJson, kw_only=True):
    tier: _TierName
    digest: str
    row: str
    config: str
    reason: str


class _LeftJson(_AskedJson, kw_only=True):
    reason: str


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

    def __post_init__(self) -> None:
        """Make the kernel, so that an error names the place of this object."""
        sizes = {name: size for name in OF_KERNELS if (size := getattr(self, name.upper())) is not UNSET}
        problem = Problem.generated(self.op, self.variant, **sizes)
        if tuple(sizes) != OP_SIZES[problem.op] or problem.op != self.op:
            raise ProblemError(f"{self.op} has the sizes {', '.join(map(str.upper, OP_SIZES[problem.op]))}")
        answer = self.tier, self.digest, self.row, self.config
        if answer.count(UNSET) != (0 if self.reason is UNSET else len(answer)):
            raise ProblemError("either a reason, or tier, digest, row and config")
        self.kernel = GeneratedKernel(problem, *(each or "" for each in (*answer, self.reason)))


class _SourceJson(_Json, kw_only=True):
    tier: _TierName
    path: str
    digest: str
    rows: _Count


class _HardwareJson(_Json, kw_only=True):
    name: _NotEmpty
    arch: _NotEmpty
    sm_count: _Size


class _DeviceJson(_Json, kw_only=True):
    hardware: _HardwareJson
    sources: list[_SourceJson]
    left_out: list[str]
    hits: list[_HitJson]
    misses: list[_MissJson]
    skipped: list[_SkipJson]
    no_choice: list[_LeftJson] = []
    unfused: list[_LeftJson] = []
    generated: list[_GeneratedJson] = []
    cached: _Count = 0


class _VersionsJson(_Json, kw_only=True):
    diode_lut: str
    python: str
    torch: str = ""
    triton: str = ""


class _ReceiptJson(_Json, kw_only=True):
    schema_version: _Count
    processes: _Calls
    selecting_ns: _Count
    versions: list[_VersionsJson]
    devices: list[_DeviceJson]


def read_receipt(path: Path, contents: bytes | None = None) -> Receipt:
    """Read the receipt in a file; ReceiptError names the place of the first error, or another version.

    ``contents`` replaces reading the file.
    """
    data = read_at_most(path, MAX_BYTES) if contents is None else contents
    if has_more_values(data, MAX_VALUES):
        raise ReceiptError(f"{path}: more than {MAX_VALUES} values, too many for a receipt")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        text = data.isascii() or "�" not in data.decode(errors="replace")
        reason = f"not JSON: {error.msg}" if text else "neither JSON nor text (expected a receipt)"
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
        decoded = convert(_whole(document), _ReceiptJson)
    except ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        reason = reason.replace("Expected", "expected", 1).replace("Object", "object", 1)
        raise ReceiptError(": ".join(filter(None, (path, place.strip("`."), reason)))) from None
    versions = dict.fromkeys(Versions(**asdict(each)) for each in decoded.versions)
    devices = (Receipt(0, devices={Hardware(**asdict(each.hardware)): _device(each)}) for each in decoded.devices)
    return Receipt(decoded.processes, versions, decoded.selecting_ns, merge_receipts(devices).devices)


def _whole(value: Any) -> Any:
    """Return the value with integers in place of floats without a fraction, as JSON Schema has it."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if type(value) is float and value.is_integer() else value


def _device(decoded: _DeviceJson) -> Device:
    """Return the counts of a device. Counts of equal entries add up."""
    sources = (SourceRecord(**asdict(each)) for each in decoded.sources)
    device = Device(dict.fromkeys(sources), dict.fromkeys(decoded.left_out), cached=decoded.cached)
    for hit in decoded.hits:
        who = (hit.tier, hit.digest, hit.row)
        device.hits[Hit(hit.problem, *who, hit.configs, hit.over or "")] += hit.calls
    for miss in decoded.misses:
        device.misses[Miss(miss.problem, miss.over or "")] += miss.calls
        if miss.expected_permille:
            device.expect(miss.problem, miss.expected_permille)
    for skip in decoded.skipped:
        who = (skip.tier, skip.digest, skip.row)
        device.skipped[Skip(skip.problem, *who, skip.config, skip.reason)] += skip.calls
    for left in decoded.no_choice:
        device.no_choice[NoChoice(left.problem, left.reason)] += left.calls
    for left in decoded.unfused:
        device.unfused[Unfused(left.problem, left.reason)] += left.calls
    for each in decoded.generated:
        device.generated[each.kernel] += each.calls
    return device
