"""Checks of tables: all mistakes in a file at once, with rows and configs that are never used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from diode_lut.errors import ProblemError, TableError, counted
from diode_lut.files import has_more_values
from diode_lut.hardware import Architecture, architecture, require_architecture
from diode_lut.problem import BATCHED, DOMAINS, NO_EPILOGUE
from diode_lut.table import MAX_VALUES, RowDecoder, Rows, decode_header, located, parse, read_bytes, require_version
from diode_lut.table.faults import Fault, JsonPath, broken_rules
from diode_lut.table.format import Table, to_bytes
from diode_lut.table.lookup import Effort, overlaps, repeats, shared_problem, unreachable
from diode_lut.table.row import Entry, is_point
from diode_lut.templates.config import PADDED_OPS, Config, pad_multiple, templates_for
from diode_lut.templates.template import Complaint

CONFLICT = "merge conflict: "  # the beginning of the part of a note in which ``merge`` leaves a decision to people


def check_file(path: Path, contents: bytes | None = None) -> list[TableError]:
    """Return all mistakes of the table in the file, or in ``contents``, in the order of its lines."""
    try:
        data = read_bytes(path) if contents is None else contents
        document = parse(path, data, MAX_VALUES)
        require_version(document)
        written = document.get("entries")
        rows = Rows(path, written if isinstance(written, list) else [])
        broken = list(rows.faults)
        good = (number for number in count() if number not in rows.faults)
        # Rows that were decoded keep to the schema, so only the others are validated with it, which takes longer.
        entries = {"entries": [written[number] for number in broken]} if isinstance(written, list) else {}
        of_schema = []
        for fault in broken_rules({**document, **entries}):
            match fault.path:
                case ("entries", int(place), *inner):  # the number in the file instead of the place in ``broken``
                    fault = Fault(fault.reason, "entries", broken[place], *inner)
            of_schema.append(fault)
        of_meaning = list(_of_meaning(document, dict(zip(good, rows.entries, strict=False)), broken))
    except TableError as error:
        return [error]
    except Fault as fault:
        return located(path, data, [fault])
    except RecursionError:
        return located(path, data, [Fault("is nested too deeply to be a table")])
    said = {fault.field for fault in of_schema}
    more = [fault for fault in of_meaning if fault.field not in said]
    errors = located(path, data, [*of_schema, *more, *written_twice(data)])
    if not broken:
        with suppress(Fault):
            head = decode_header(document)
            canonical = to_bytes(Table(head.hardware, rows.entries, head.provenance, schema=head.schema))
            if canonical != data:
                lines = zip_longest(data.split(b"\n"), canonical.split(b"\n"))
                line = next(number for number, (found, wanted) in enumerate(lines, start=1) if found != wanted)
                errors.append(TableError("is not in canonical form (fmt writes it so)", path=path, line=line, column=1))
    return sorted(errors, key=lambda error: (error.line or 0, error.column or 0))


def _of_meaning(document: dict[str, Any], good: Mapping[int, Entry], broken: list[int]) -> Iterator[Fault]:
    """Find mistakes outside of the schema. Of a broken row, the readable fields are checked."""
    hardware = document.get("hardware")
    arch = hardware.get("arch") if isinstance(hardware, dict) else None
    arch = arch if isinstance(arch, str) else None
    try:
        require_architecture(arch or "cpu-unknown")
    except ProblemError as error:
        yield Fault(str(error), "hardware", "arch")
    decoder = RowDecoder()
    for number in broken:
        row = document["entries"][number]
        if isinstance(row, dict):
            entry, faults = decoder.readable(row)
            yield from (fault.inside("entries", number) for fault in (*faults, *useless(entry, arch)))
    for number, entry in good.items():
        yield from (fault.inside("entries", number) for fault in useless(entry, arch))
        for part in (entry.note or "").split("; "):
            if part.startswith(CONFLICT):
                reason = f"{part!r} is not decided (keep or change the row, and take this out of its note)"
                yield Fault(reason, "entries", number, "note")
    yield from contradictions(good)


def written_twice(data: bytes) -> list[Fault]:
    """Find fields that are written more than once, in a file of valid JSON that is no larger than a table may be."""
    found: list[JsonPath] = []
    repeated: dict[int, tuple[object, list[str]]] = {}  # with the objects, so that no other gets their ids

    def remember(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            repeated[id(fields)] = fields, [name for name, count in counts.items() if count > 1]
        return fields

    def walk(value: Any, path: JsonPath) -> None:
        _, names = repeated.get(id(value), (None, []))
        found.extend((*path, name) for name in names)
        steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for step, inner in steps:
            walk(inner, (*path, step))

    with suppress(RecursionError):
        if not has_more_values(data, MAX_VALUES):
            document = json.loads(data, object_pairs_hook=remember)
            if repeated:
                walk(document, ())
            return [Fault("is written twice (only the last one counts)", *path) for path in found]
    return []


def contradictions(entries: Mapping[int, Entry]) -> Iterator[Fault]:
    """Find rows, by number, that are never used or contradict another. A note has the number of rows not looked at."""
    reachable = {number: entry for number, entry in entries.items() if entry.volume > 0}
    covering, overlapping = Effort(), Effort()
    for number in unreachable(reachable, covering):
        yield Fault("is never used: more specific rows cover all of its problems", "entries", number)
    for number, first in repeats(reachable):
        yield Fault(f"has the same key as entries[{first}]", "entries", number)
    for number, other in overlaps(reachable, overlapping):
        shared = shared_problem(entries[number], entries[other])
        reason = f"covers {shared} with the same specificity as entries[{other}] (make one of them narrower)"
        yield Fault(reason, "entries", number)
    for sought, effort in (
        ("rows that are never used", covering),
        ("rows that cover a problem with the same specificity", overlapping),
    ):
        if effort.undecided:
            rows = counted(len(effort.undecided), "row")
            reason = f"{sought} were not looked for in {rows}: too many rows cover some of the same sizes"
            yield Fault(reason, "entries", note=True)


def edited_gains(table: Table, earlier: Table) -> Iterator[Fault]:
    """Note gains that the row had for another config in an earlier version of the table."""
    before = {entry.key: entry.candidates for entry in earlier.entries}
    for number, entry in table.numbered.items():
        had = before.get(entry.key, ())
        owners = {gain: config for config, gain in set(had) - set(entry.candidates) if gain is not None}
        for place, (config, gain) in enumerate(entry.candidates):
            if gain in owners and owners[gain] != config and (config, gain) not in had:
                reason = f"the gain {gain} was measured for {owners[gain]} (take it out, or build from timings again)"
                yield Fault(reason, "entries", number, "configs", place, "gain_permille", note=True)


def useless(entry: Entry, arch: str | None) -> Iterator[Fault]:
    """Find reasons why a row, or one of its configs, is never used. ``arch`` is the architecture of the table."""
    if entry.op is not None and entry.op not in BATCHED and not entry.covers_unbatched:
        yield Fault(f"{entry.op} has no batch, so that only a range from 1 is ever asked for", "b")
    for number, config in enumerate(entry.configs):
        ops = config.kernel.ops
        if entry.op is not None and entry.op not in ops:
            reason = f"{config.template} cannot do {entry.op} (it can do: {', '.join(ops)})"
            yield Fault(reason, "configs", number, "template")
        elif config.pad > 1:
            yield from (Fault(reason, "configs", number, "pad") for reason in _useless_padding(entry, config.pad))
    if arch is not None:
        for number, config in enumerate(entry.configs):
            for reason, field in _complaints(config, entry, architecture(arch)):
                yield Fault(reason, "configs", number, *([field] if field else []))


def _useless_padding(entry: Entry, pad: int) -> Iterator[str]:
    """Say why Inductor never pads for a config with this ``pad``."""
    if entry.op is not None and entry.op not in PADDED_OPS:
        yield f"Inductor does not pad {entry.op} (it pads: {', '.join(PADDED_OPS)})"
        return
    if entry.epilogue not in (None, NO_EPILOGUE):
        yield "a kernel with an epilogue in it takes operands as they are"
        return
    ops = PADDED_OPS if entry.op is None else (entry.op,)
    dtypes = {dtype for op in ops for dtype in DOMAINS[op].dtypes if entry.dtype in (None, dtype)}
    multiples = sorted(set(map(pad_multiple, dtypes)))
    if pad not in multiples:
        padded_to = " or ".join(map(str, multiples))
        yield (f"Inductor does not pad {entry.dtype or 'any dtype'} to multiples of {pad} (it pads to {padded_to})")
    sizes = entry.m, entry.n, entry.k
    if all(size is not None and is_point(size) and all(x == 1 or x % pad == 0 for x in size) for size in sizes):
        yield f"m, n and k are multiples of {pad} already, so that nothing is padded"


def launchable(entry: Entry, arch: str) -> Iterator[tuple[int, Config]]:
    """Return the configs of the row that can be launched on an architecture, each with its number."""
    known = architecture(arch)
    for number, config in enumerate(entry.configs):
        if not any(True for _ in _complaints(config, entry, known)):
            yield number, config


def _complaints(config: Config, entry: Entry, known: Architecture) -> Iterator[Complaint]:
    if config.kernel.runs_on(known):
        yield from config.kernel.complaints(config.params, entry, known)
    else:
        others = ", ".join(templates_for(known, entry.op))
        yield Complaint(f"{config.template} does not run on {known.name} (what does: {others})", "template")
