"""The types of arguments and options, and the files that they name: opening them, and checks before the work."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from diode_lut import errors
from diode_lut.cli.output import MAX_BYTES, STANDARD, progress_bars, say
from diode_lut.files import read_at_most, require_writable, tables_directory
from diode_lut.hardware import KNOWN, Hardware, detect_hardware, gpus_of, slug
from diode_lut.problem import DTYPES, EPILOGUES, LAYOUTS, MAX_SIZE, NAMED_VARIANTS, OPS, VARIANTS, WITHOUT_CHOICE
from diode_lut.settings import config

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from diode_lut.dataset import Dataset, Record
    from diode_lut.measure.problems import RecordedKernel
    from diode_lut.model.ranking import Model
    from diode_lut.problem import Problem
    from diode_lut.table import Table


class _Spelled(click.Choice[str]):
    """Choices with other spellings. ``spell`` returns the usual spelling."""

    def __init__(self, choices: Iterable[str], spell: Callable[[str], str]) -> None:
        super().__init__(choices)
        self._spell = spell

    def normalize_choice(self, choice: Any, ctx: click.Context | None) -> str:  # noqa: ARG002 (click's)
        """Return the usual spelling."""
        return self._spell(choice)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Name Inductor's ops for a layer, the close choices and the variants of an op. For float64 there is none."""
        if self._spell is errors.op_of:
            ops = errors.OPS_OF_LAYERS.get(errors.op_of(value))
            if ops:
                return f"unknown op {value!r}; use {ops}"
            names = [name for parameter in ctx.command.params for name in parameter.opts] if ctx else []
            option = next((name for name in ("--problems", "--rows") if name in names), None)
            if option and (value == STANDARD or Path(value).is_file()):
                return f"{value} is a file and no op: write {option} {value}"
        if self._spell is errors.dtype_of and errors.dtype_of(value) == WITHOUT_CHOICE:
            return f"no choice in {WITHOUT_CHOICE}: Inductor has only the library's kernel for it"
        op = ctx.params.get("op") if ctx and self._spell is errors.variant_of else None
        choices = VARIANTS.get(op, ()) if op in OPS else tuple(self.choices)
        if not choices:
            return f"{op} has no variants: leave it out"
        close = " or ".join(get_close_matches(self._spell(value), choices))
        meant = f" (did you mean {close}?)" if close else ""
        if self._spell is errors.variant_of:
            of_op, allowed = f" of {op}" if op in OPS else "", f" (allowed: {', '.join(choices)})"
            return f"{value!r} is no variant{of_op}{meant or allowed}"
        return f"{super().get_invalid_choice_message(value, ctx)}{meant}"


ANY = "any"  # all ops, or all alignments

OP, ANY_OP = _Spelled(OPS, errors.op_of), _Spelled((*OPS, ANY), errors.op_of)
DTYPE = _Spelled(DTYPES, errors.dtype_of)
LAYOUT = click.Choice(LAYOUTS, case_sensitive=False)
VARIANT = _Spelled(NAMED_VARIANTS, errors.variant_of)
EPILOGUE = click.Choice(tuple(EPILOGUES), case_sensitive=False)


class _SizeRange(click.IntRange):
    """A size, such as 1024 or ``1k``."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str):
            if re.fullmatch(r"\d+([x,]\d+)+", value):
                self.fail(f"{value!r} are several sizes: write {re.sub('[x,]', ' ', value)}", param, ctx)
            try:
                value = errors.size_of(value)
            except errors.ProblemError as error:
                self.fail(str(error), param, ctx)
        return int(super().convert(value, param, ctx))


SIZE = _SizeRange(1, MAX_SIZE)


def size_range(text: str) -> list[int]:
    """Return the ends of a range like ``513-1k``, or a size twice."""
    low, dash, high = text.partition("-")
    try:
        return [errors.size_of(low), errors.size_of(high if dash else low)]
    except errors.ProblemError:
        reason = f"{text!r} is neither a size nor a range like 513-1024; for any size, leave it out"
        raise click.BadParameter(reason) from None


def _time(unit: str) -> Callable[[str], float]:
    """Return a type of times above zero: numbers of this unit, or with a unit of their own, such as ``90s``."""
    seconds_in = {"": {"s": 1, "m": 60}[unit], "s": 1, "m": 60, "h": 3600}

    def time(text: str) -> float:
        found = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?) ?([smh]?)", str(text).strip())
        seconds = float(found[1]) * seconds_in[found[2]] if found else 0.0
        if not seconds > 0:
            raise click.BadParameter(f"{text!r} is not a time above zero, such as 10, 90s, 10m or 1.5h")
        return seconds / seconds_in[""]

    time.__name__ = {"s": "seconds", "m": "minutes"}[unit]  # the help shows it, in capitals
    return time


MINUTES, SECONDS = _time("m"), _time("s")


class _Fraction(click.FloatRange):
    """A fraction. Unlike click's ranges, it does not contain NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        fraction = float(super().convert(value, param, ctx))
        if math.isnan(fraction):
            self.fail(f"{value!r} is not a number from 0 to {self.max:g}", param, ctx)
        return fraction


FRACTION, FRACTION_FOR_TESTS = _Fraction(0, 1.0), _Fraction(0, 0.9)


def hardware_of(text: str) -> Hardware:
    """Return the hardware with a name, or raise HardwareError.

    The name is a table's, its GPU's or another well-known GPU's, the path of a table, ``cpu`` or ``cuda`` for
    the devices of this machine, or NAME,ARCH,SMS[,ALIAS...].
    """
    new = "NAME,ARCH,SMS, for example 'NVIDIA H200,sm_90,132'"
    if text.endswith(".json") and Path(text).is_file():
        from diode_lut.table import read_hardware

        return read_hardware(Path(text))
    name, *rest = (part.strip() for part in text.split(","))
    if name in ("cpu", "cuda") and not rest:
        return detect_hardware(name)
    if not rest:
        from diode_lut.decide.catalog import find_hardware

        try:
            return find_hardware(name, config.tables)
        except errors.HardwareError as error:
            if text.endswith(".json"):
                raise errors.HardwareError(f"{text}: no such file, and no table of that name") from None
            raise errors.HardwareError(f"{error}{_gpus_meant(name)}; describe new hardware as {new}") from None
    arch, sm_count, *aliases = (*rest, "")
    if not sm_count.isdecimal():
        raise errors.HardwareError(f"{text}: is neither a name nor {new}")
    try:
        return Hardware.described(name, arch, int(sm_count), filter(None, aliases))
    except errors.ProblemError as error:
        raise errors.HardwareError(f"{text}: {error}") from None


def _gpus_meant(name: str) -> str:
    """Return, as text, the well-known GPUs of an architecture, or those with similar names."""
    if slug(name) in ("", "gpu", "nvidia", "amd"):
        return "; cuda is the GPU of this machine, on AMD as well"
    of_arch = gpus_of(name)
    if of_arch:
        return f"; {name} is an architecture, of {', '.join(of_arch)}"
    names = {slug(alias): alias for gpu in KNOWN for alias in (gpu.name, *gpu.aliases)}
    alike = [each for each in names if slug(name).startswith(each) or each.startswith(slug(name))]
    close = alike or get_close_matches(slug(name), names, 2)
    return f" (did you mean {' or '.join(names[each] for each in close[:2])}?)" if close else ""


_STDIN = Path("<stdin>")


class Typed(NamedTuple):
    """A file as typed: its path, its contents if it is no file that can be opened, and the name of a shipped table."""

    path: Path
    contents: bytes | None = None
    shipped_as: str = ""

    def read(self, read: Callable[[Path], bytes]) -> bytes:
        """Return the contents, for which ``read`` opens the file if there is one."""
        return read(self.path) if self.contents is None else self.contents

    def whole(self) -> bytes:
        """Return the contents of any kind of file. OSError if they cannot be read or are too large for all kinds."""
        return self.read(lambda path: read_at_most(path, MAX_BYTES))

    @property
    def target(self) -> Path:
        """Where to write the changed file, perhaps standard output. SettingError if it cannot change."""
        if self.shipped_as:
            copying = errors.as_command("cp", self.path, "mine.json")
            remedy = f"give the path of a file, such as that of a copy: {copying}"
            reason = f"a shipped table, which is not changed by its name ({remedy})"
            raise errors.SettingError(f"{self.shipped_as}: {reason}")
        if self.contents is None:
            return self.path
        if self.path == _STDIN:
            return Path(STANDARD)
        raise errors.SettingError(f"{self.path}: is in git's history, which is not changed: give the path of a file")

    @property
    def file(self) -> Path:
        """The path, for code without a reader of contents. SettingError if there is no file."""
        if self.contents is not None:
            raise errors.SettingError(f"{self.path}: is not in a file: save it first")
        return self.path


_NO_FILES = (
    (r"\w+://.*", "an address, not a file: download it first"),
    (r"(?s)\s*[\[{].*", "a file is expected, not its contents: save them, or pipe them in and give -"),
    (r"HEAD[~^\d]*", "a revision, not a file: REVISION:PATH is a file in it"),
    (r".*[*?].*", "no such file: a shell replaces * and ? only without quotes, and only if a file matches"),
)
"""Patterns of other texts than files, and remedies."""


class _FileType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """A file to read, as a Typed: a path, ``-``, REVISION:PATH in git, or, with ``names``, the name of a table."""

    name = "file"

    def __init__(self, *, names: bool) -> None:
        self._names = names

    def convert(self, value: str | Typed, param: click.Parameter | None, ctx: click.Context | None) -> Typed:
        if isinstance(value, Typed):
            return value
        if ctx is not None and ctx.resilient_parsing:  # a shell completes, and nothing is read
            return Typed(Path(value))
        if value == STANDARD:
            return Typed(_STDIN, _standard_input(ctx))
        if "\0" in value:
            self.fail(f"{value!r} has a zero byte, which no file's name has", param, ctx)
        path = Path(value)
        if path.exists() or path.is_symlink():
            return Typed(path)
        for pattern, reason in _NO_FILES:
            if re.fullmatch(pattern, value):
                self.fail(f"{value}: {reason}", param, ctx)
        if re.fullmatch(r"[^:\s]*:.+", value):
            try:
                return Typed(path, git_output(Path.cwd(), "cat-file", "blob", value))
            except errors.SettingError as error:
                reason = f"no such file, and git has none either: {str(error).partition('; run this')[0]}"
                raise errors.TableError(reason, path=path) from OSError(value)  # counts as unreadable
        has_ending = re.search(r"\.(json|msgpack|zst|safetensors|html|csv)$", value)
        if self._names and re.fullmatch(r"[\w .-]+", value) and not has_ending:
            from diode_lut.decide.catalog import find_path

            path = find_path(value)
            return Typed(path, shipped_as=value if path.is_relative_to(tables_directory()) else "")
        return Typed(path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names of tables, shipped and of the user's own, and files."""
        from click.shell_completion import CompletionItem

        from diode_lut.decide.catalog import find_tables

        names = dict.fromkeys(file.name for file in find_tables(())) if self._names else ()
        tables = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return [*tables, *click.Path().shell_complete(ctx, param, incomplete)]


TABLE = _FileType(names=True)  # a table or model to read
FILE = _FileType(names=False)  # another file to read, such as a dataset

table_option = partial(click.option, metavar="FILE", type=TABLE)
files_option = partial(click.option, metavar="FILE", multiple=True, type=FILE)
KERNELS = click.option(
    "--kernels",
    "kernel_directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure the generated kernels too that `run --kernels` recorded in this directory. Their code runs.",
)
DEVICE = click.option(
    "--device",
    type=click.Choice(("cuda", "cpu", "all")),
    help="The device to measure; all: every GPU of this machine, in parallel. CUDA_VISIBLE_DEVICES says which GPUs "
    "there are.  [default: cuda if there is a GPU, else cpu]",
)


def _standard_input(ctx: click.Context | None) -> bytes:
    """Read all of standard input, once in a command."""
    found = ctx.meta if ctx is not None else {}
    if str(_STDIN) in found:
        raise click.UsageError("standard input (-) can be read only once: give a file for the other")
    found[str(_STDIN)] = True
    if sys.stdin is None:
        raise errors.SettingError("standard input (-) is closed: give a file")
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise errors.SettingError(f"standard input: more than {MAX_BYTES >> 30} GiB: save it in a file")
    return data


def git_output(directory: Path, *arguments: str) -> bytes:
    """Run git and return its output. SettingError if it fails or is not installed."""
    import subprocess

    command = ["git", "-C", str(directory), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603
    except FileNotFoundError:
        raise errors.SettingError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        raise errors.SettingError(f"{reason}; run this in a clone that you may change") from None


def read_whole_table(typed: Typed, remedy: str = "correct it first") -> Table:
    """Read a table to write it again. TableError, with the remedy, if a row is invalid or a field is written twice."""
    from diode_lut.table import located, read_bytes, table_of
    from diode_lut.table.lint import written_twice

    data = typed.read(read_bytes)
    table = table_of(typed.path, data)
    for error in table.errors or located(typed.path, data, written_twice(data)):
        raise errors.TableError(f"{error} ({remedy})")
    return table


def read_datasets(inputs: Iterable[Typed], hardware: Hardware | None = None, layout: str = "nn") -> list[Dataset]:
    """Open datasets. ``hardware`` and ``layout`` are for files without their own."""
    from diode_lut.dataset import read_dataset

    return [read_dataset(each.path, hardware=hardware, layout=layout, contents=each.contents) for each in inputs]


def require_same_device(datasets: Iterable[Dataset], table: Table | Model) -> None:
    """Raise DatasetError if a dataset was measured on another device than the table's or model's."""
    for dataset in datasets:
        found = dataset.header.hardware
        if not found.same_device(table.hardware):
            raise errors.DatasetError(f"{dataset.path}: measured on {found}, but {table.path} is for {table.hardware}")


def read_datasets_for(table: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """Open datasets. DatasetError if one was measured on another device than the table's or model's."""
    datasets = read_datasets(inputs, table.hardware)
    require_same_device(datasets, table)
    return datasets


def read_datasets_answered_by(chooser: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """Open datasets of devices for which the table or model answers, with a note for others than its own."""
    datasets = read_datasets(inputs)
    require_same_device([each for each in datasets if not each.header.hardware.same_arch(chooser.hardware)], chooser)
    for found in dict.fromkeys(each.header.hardware for each in datasets):
        if not found.same_device(chooser.hardware):
            say(f"note: {errors.printable(str(chooser.path))} is for {chooser.hardware}; measured on {found}", err=True)
    return datasets


def records_of(datasets: Iterable[Dataset]) -> Iterator[Record]:
    """Yield the records of datasets that are current, with progress bars."""
    from diode_lut.dataset import current_records

    with progress_bars() as progress:
        yield from current_records(datasets, progress.records)


def say_losses(datasets: Iterable[Dataset]) -> int:
    """Say how many damaged places of the datasets were left out, and return the exit code for it."""
    lost = {dataset.path: len(dataset.lost) for dataset in datasets if dataset.lost}
    remedy = "get an undamaged copy, or measure their problems again; `pack` writes a file of what is left"
    for path, places in lost.items():
        say(errors.printable(f"{path}: damaged places, whose records are lost: {places} ({remedy})"), err=True)
    return int(bool(lost))


def problems_of(typed: Typed, find_hardware: Callable[[], Hardware] | None = None) -> list[Problem]:
    """Read the problems of a shipped set or of a file. UsageError if there is no such file."""
    from diode_lut.measure import SETS
    from diode_lut.measure.problems import problem_set, read_problems

    name = str(typed.path)
    if typed.contents is None and name in SETS:
        return problem_set(name)
    if typed.contents is None and not typed.path.exists():
        raise click.UsageError(f"--problems: {name}: no such file, and no shipped set ({', '.join(SETS)})")
    return read_problems(typed.path, find_hardware, typed.contents)


def kernels_of(directory: Path | None) -> list[RecordedKernel]:
    """Read the generated kernels that were recorded in a directory. CollectError if there are none."""
    if directory is None:
        return []
    from diode_lut.measure.problems import read_kernels

    kernels = read_kernels(directory)
    if not kernels:
        remedy = "`diode-lut run --kernels` records a program's"
        raise errors.CollectError(f"{directory}: no kernel is recorded there ({remedy})")
    return kernels


def require_torch(command: str) -> None:
    """Raise SettingError, with the command to install torch, if torch is missing or broken."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise errors.SettingError(f"{command} needs torch: {errors.install_command('torch')}") from error
    except errors.BROKEN_IMPORT as error:
        reason = f"cannot be imported ({error}): install it again"
        raise errors.SettingError(f"{command} needs torch, which {reason}") from error


def require_inductor(command: str) -> None:
    """Raise SettingError, with a remedy, if torch is missing, or if Inductor, with Triton, is broken."""
    require_torch(command)
    try:
        import diode_lut.hook.problems  # noqa: F401
    except errors.BROKEN_IMPORT as error:
        remedy = "install torch and triton again; on a CPU, triton can be removed"
        raise errors.SettingError(f"{command} needs Inductor, which cannot be imported ({error}): {remedy}") from error


def require_picture(path: Path) -> None:
    """Raise SettingError or OSError if no picture can be drawn and written."""
    require_writable(path)
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise errors.SettingError(f"--picture needs matplotlib: {errors.install_command('report')}") from error
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.lstrip(".") not in formats:
        endings = ", .".join(sorted(formats))
        raise errors.SettingError(f"--picture: {path.name}: the name must end with one of .{endings}")
