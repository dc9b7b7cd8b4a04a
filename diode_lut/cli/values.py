"""What people type that is no file: ops, types, layouts, sizes, times and hardware."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from diode_lut.domain.errors import HardwareError, ProblemError
from diode_lut.domain.gpus import KNOWN, gpus_of
from diode_lut.domain.hardware import Hardware, detect_hardware, slug
from diode_lut.domain.ops import DTYPES, EPILOGUES, LAYOUTS, MAX_SIZE, NAMED_VARIANTS, OPS
from diode_lut.domain.spelling import OPS_OF_LAYERS, dtype_of, layout_of, op_of, size_of, variant_of

_NEW_HARDWARE = "NAME,ARCH,SMS, for example 'NVIDIA H200,sm_90,132'"


class _Spelled(click.Choice[str]):
    """A choice that may be spelled in other ways as well; ``spell`` gives the name that is meant."""

    def __init__(self, choices: Sequence[str], spell: Callable[[str], str]) -> None:
        super().__init__(choices)
        self._spell = spell

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._spell(value), param, ctx)


class _Op(_Spelled):
    """An op, in capitals or as PyTorch prints it as well."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(choices, op_of)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        ops = OPS_OF_LAYERS.get(op_of(value))
        if ops:
            self.fail(f"{value!r} is no op of Inductor's: it is {ops}", param, ctx)
        return super().convert(value, param, ctx)


ANY = "any"
"""What stands for all ops, or all alignments."""

OP = _Op(OPS)
ANY_OP = _Op((*OPS, ANY))
DTYPE = _Spelled(DTYPES, dtype_of)
LAYOUT = _Spelled(LAYOUTS, layout_of)
VARIANT = _Spelled(NAMED_VARIANTS, variant_of)
EPILOGUE = _Spelled(tuple(EPILOGUES), str.casefold)


_SEVERAL = re.compile(r"\d+(x\d+)+")


class _Size(click.IntRange):
    """A size, for which ``1k`` is 1024."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str):
            if _SEVERAL.fullmatch(value):
                self.fail(f"{value!r} are several sizes: write {' '.join(value.split('x'))}", param, ctx)
            try:
                value = size_of(value)
            except ProblemError as error:
                self.fail(str(error), param, ctx)
        return int(super().convert(value, param, ctx))


SIZE = _Size(1, MAX_SIZE)


class _Sizes(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """A size, or a range like ``513-1k``."""

    name = "sizes"

    def convert(self, value: str | list[int], param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        low, dash, high = value.partition("-")
        try:
            return [size_of(low), size_of(high if dash else low)]
        except ProblemError:
            self.fail(f"{value!r} is neither a size nor a range like 513-1024; for any size, leave it out", param, ctx)


SIZES = _Sizes()


class _Time(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """A time above zero: a number of the unit that is the default, or with a unit of its own, such as ``90s``."""

    name = "time"

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _TIME.fullmatch(str(value).strip())
        seconds = float(found[1]) * _SECONDS[found[2] or self._unit] if found else 0.0
        if not seconds > 0:
            self.fail(f"{value!r} is not a time above zero, such as 10, 90s, 10m or 1.5h", param, ctx)
        return seconds / _SECONDS[self._unit]


_TIME = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?) ?([smh]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}

MINUTES = _Time("m")
SECONDS = _Time("s")


class _Fraction(click.FloatRange):
    """A fraction up to a largest one. NaN is in every range of click's."""

    def __init__(self, most: float) -> None:
        super().__init__(0, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        fraction = float(super().convert(value, param, ctx))
        if math.isnan(fraction):
            self.fail(f"{value!r} is not a number from 0 to {self.max:g}", param, ctx)
        return fraction


FRACTION = _Fraction(1.0)
FRACTION_FOR_TESTS = _Fraction(0.9)


def hardware_of(text: str) -> Hardware:
    """The hardware that somebody named; HardwareError if it is none.

    The name is a table's, its path, that of a table's GPU or of another well-known one, ``cpu`` or ``cuda`` for what
    this machine has, or NAME,ARCH,SMS[,ALIAS...].
    """
    if text.endswith(".json") and Path(text).is_file():
        from diode_lut.table import read_hardware

        return read_hardware(Path(text))
    name, *rest = (part.strip() for part in text.split(","))
    if name in ("cpu", "cuda") and not rest:
        return detect_hardware(name)
    if not rest:
        from diode_lut.selection.catalog import find_hardware
        from diode_lut.settings import config

        try:
            return find_hardware(name, config.tables)
        except HardwareError as error:
            raise HardwareError(f"{error}{_meant(name)}; describe new hardware as {_NEW_HARDWARE}") from None
    arch, sm_count, *aliases = (*rest, "")
    if not sm_count.isdecimal():
        raise HardwareError(f"{text}: is neither a name nor {_NEW_HARDWARE}")
    try:
        return Hardware.described(name, arch, int(sm_count), filter(None, aliases))
    except ProblemError as error:
        raise HardwareError(f"{text}: {error}") from None


def _meant(name: str) -> str:
    """The well-known GPUs that a name may stand for: of an architecture, or those with similar names."""
    if slug(name) in ("", "gpu", "nvidia", "amd"):
        return "; cuda is the GPU of this machine, on AMD as well"
    of_arch = gpus_of(name)
    if of_arch:
        return f"; {name} is an architecture, of {', '.join(of_arch)}"
    names = {slug(alias): alias for gpu in KNOWN for alias in (gpu.name, *gpu.aliases)}
    alike = [each for each in names if slug(name).startswith(each) or each.startswith(slug(name))]
    close = alike or get_close_matches(slug(name), names, 2)
    return f" (did you mean {' or '.join(names[each] for each in close[:2])}?)" if close else ""
