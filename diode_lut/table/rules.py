"""Rules that hold between the fields of a row: about its ranges and its op.

The functions take what a row was decoded to, or an Entry: both have the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from diode_lut.domain.ops import ATTENTION_ONLY, DOMAINS, MATMULS, OP_SIZES, SIZE_FIELDS, Domain
from diode_lut.table.entry import Candidate
from diode_lut.table.position import Fault


def reversed_ranges(row: Any) -> Iterator[Fault]:
    """The ranges of a row that end before they begin."""
    for name in SIZE_FIELDS:
        size = getattr(row, name, None)
        low, high = size or (0, 0)
        if low > high:
            yield Fault(f"[{low}, {high}] ends before it begins (allowed: [lowest, highest])", name)


def of_no_problem(row: Any) -> Iterator[Fault]:
    """The first field in which a row asks for what problems of its op, or of any op, do not have."""
    ops = MATMULS if row.op is None else (row.op,)
    for name in ATTENTION_ONLY:
        if getattr(row, name, None) is not None and name not in OP_SIZES[ops[0]]:
            yield Fault(f"is no size of {row.op or 'GEMMs'} (allowed: {', '.join(OP_SIZES[ops[0]])})", name)
            return
    for place, name in enumerate(Domain._fields):
        field = name.removesuffix("s")
        value = getattr(row, field, None)
        having = [op for op in ops if value is None or value in DOMAINS[op][place]]
        if not having:
            allowed = dict.fromkeys(each for op in ops for each in DOMAINS[op][place] if each)
            said = f"allowed: {', '.join(allowed)}" if allowed else f"{row.op} has no variants"
            yield Fault(f"{value!r} is not for {row.op or 'such problems'} ({said})", field)
            return
        ops = tuple(having)


def repeated(candidates: Sequence[Candidate]) -> Fault:
    """The first config that an earlier one equals; gains do not matter."""
    configs = [candidate.config for candidate in candidates]
    number = next(number for number, config in enumerate(configs) if config in configs[:number])
    return Fault(f"{configs[number]} is listed twice", "configs", number)
