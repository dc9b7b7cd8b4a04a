"""What people type that is no file: ops, types, layouts, sizes, times and hardware."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from diode_lut.cli.output import STANDARD, say
from diode_lut.errors import (
    BROKEN_IMPORT,
    OPS_OF_LAYERS,
    DatasetError,
    HardwareError,
    ProblemError,
    SettingError,
    TableError,
    as_command,
    dtype_of,
    install_command,
    layout_of,
    op_of,
    printable,
    size_of,
    variant_of,
)
from diode_lut.files import read_at_most
from diode_lut.hardware import KNOWN, Hardware, detect_hardware, gpus_of, slug
from diode_lut.problem import DTYPES, EPILOGUES, LAYOUTS, MAX_SIZE, NAMED_VARIANTS, OPS
from diode_lut.process import tables_directory

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from diode_lut.dataset import Dataset
    from diode_lut.model.ranking import Model
    from diode_lut.table import Table


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
        from diode_lut.decide.catalog import find_hardware
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


_MAX_BYTES = 1 << 30
_IN_GIT = r"[^:\s]*:.+"
_NAME = r"[\w .-]+"
_NO_FILES = (
    (r"\w+://.*", "an address, not a file: download it first"),
    (
        r"(?s)\s*[\[{].*",
        "a file is expected, not its contents: save them, or pipe them in and give -",
    ),
    (r"HEAD[~^\d]*", "a revision, not a file: REVISION:PATH is a file in it"),
    (r".*[*?].*", "no such file: a shell replaces * and ? only without quotes, and only if a file matches"),
)
"""What people give instead of a file, and what to do."""
_LIKE_FILES = r".*\.(json|msgpack|zst|safetensors|html|csv)"


class Typed(NamedTuple):
    """A file that somebody named: where it is, and its contents if it cannot be opened as a file.

    ``path`` is what messages call it. ``shipped_as`` is the name that was typed for a shipped table.
    """

    path: Path
    contents: bytes | None = None
    shipped_as: str = ""

    def read(self, read: Callable[[Path], bytes]) -> bytes:
        """The contents, for which ``read`` opens the file where there is one."""
        return read(self.path) if self.contents is None else self.contents

    def whole(self) -> bytes:
        """The contents, whatever they are; OSError if they cannot be read, or are more than any file may have."""
        return self.read(lambda path: read_at_most(path, _MAX_BYTES))

    @property
    def target(self) -> Path:
        """Where a changed file is written: the file, or standard output; SettingError if it must stay as it is."""
        if self.shipped_as:
            remedy = f"give the path of a file, such as that of a copy: {as_command('cp', self.path, 'mine.json')}"
            raise SettingError(f"{self.shipped_as}: a shipped table, which is not changed by its name ({remedy})")
        if self.contents is None:
            return self.path
        if self.path == _STDIN:
            return Path(STANDARD)
        raise SettingError(f"{self.path}: is in git's history, which is not changed: give the path of a file")

    @property
    def file(self) -> Path:
        """The path, for what can only read files; SettingError if this is none."""
        if self.contents is not None:
            raise SettingError(f"{self.path}: is not in a file: save it first")
        return self.path


_STDIN = Path("<stdin>")


class _FileType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """Takes what people type, and makes a Typed of it; names of tables only where tables are expected."""

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
        if re.fullmatch(_IN_GIT, value):
            return Typed(path, _in_git(value))
        if self._names and re.fullmatch(_NAME, value) and not re.fullmatch(_LIKE_FILES, value):
            from diode_lut.decide.catalog import find_path

            path = find_path(value)
            return Typed(path, shipped_as=value if path.is_relative_to(tables_directory()) else "")
        return Typed(path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Files, and the names of tables."""
        from click.shell_completion import CompletionItem

        names = _known_names() if self._names else []
        return [
            *(CompletionItem(name) for name in names if name.startswith(incomplete)),
            *click.Path().shell_complete(ctx, param, incomplete),
        ]


TABLE = _FileType(names=True)
"""A table or model to read."""

FILE = _FileType(names=False)
"""Another file to read, such as a dataset."""


def _standard_input(ctx: click.Context | None) -> bytes:
    """All of standard input, once in a command."""
    found = ctx.meta if ctx is not None else {}
    if str(_STDIN) in found:
        raise click.UsageError("standard input (-) can be read only once: give a file for the other")
    found[str(_STDIN)] = True
    if sys.stdin is None:
        raise SettingError("standard input (-) is closed: give a file")
    data = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SettingError(f"standard input: more than {_MAX_BYTES >> 30} GiB: save it in a file")
    return data


def _in_git(name: str) -> bytes:
    """The file of that name in git's history; TableError, which counts as unreadable, if there is none."""
    try:
        return git_output(Path.cwd(), "cat-file", "blob", name)
    except SettingError as error:
        reason = str(error).partition("; run this")[0]
        raise TableError(f"no such file, and git has none either: {reason}", path=Path(name)) from OSError(name)


def _known_names() -> list[str]:
    """The names of the shipped tables and models, and of those in the user's directory of tables."""
    from diode_lut.decide.catalog import find_tables

    return list(dict.fromkeys(file.name for file in find_tables(())))


def git_output(directory: Path, *arguments: str) -> bytes:
    """What git prints; SettingError if it fails or is not installed."""
    import subprocess

    try:
        completed = subprocess.run(  # noqa: S603
            ["git", "-C", str(directory), *arguments],  # noqa: S607
            capture_output=True,
            check=True,
        )
    except FileNotFoundError:
        raise SettingError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        raise SettingError(f"{reason}; run this in a clone that you may change") from None
    return completed.stdout


def git_user() -> str:
    """How git calls this user, ``Name <address>``; empty if it does not know."""
    try:
        fields = (git_output(Path.cwd(), "config", f"user.{field}") for field in ("name", "email"))
        name, address = (field.decode(errors="replace").strip() for field in fields)
    except SettingError:
        return ""
    return f"{name} <{address}>"


class Named(click.Path):
    """A file or directory to write; ``-`` is refused unless it is allowed."""

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # type: ignore[override]
        """The path."""
        if str(value) == STANDARD and not self.allow_dash:
            self.fail("standard output (-) is not possible here: give a name, such as ./- for a file -", param, ctx)
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        return path


class Output(Named):
    """A file to write: of one kind, which an existing one must be, and with no ending of another kind of file."""

    def __init__(self, kind: str = "", *endings: str, dir_okay: bool = False, allow_dash: bool = True) -> None:
        super().__init__(dir_okay=dir_okay, allow_dash=allow_dash, path_type=Path)
        self.kind, self._endings = kind, endings

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # type: ignore[override]
        """The path."""
        path = super().convert(value, param, ctx)
        if self._endings and path.suffix in _ENDINGS and path.suffix not in self._endings:
            self.fail(f"{path}: {_FORMS[self.kind]}, so the name ends with {self._endings[0]}", param, ctx)
        if self.kind:
            require_kind(path, self.kind)
        return path


_ENDINGS = {".csv", ".html", ".json", ".msgpack", ".pdf", ".png", ".safetensors", ".svg", ".txt", ".zst"}
"""Endings of names that say what is in a file."""

TABLE_KIND, DATASET, MODEL, RECEIPT, PAGE = "a table", "a dataset", "a model", "a receipt", "a page"
FIGURES, COMPARISON = "figures of evaluate", "figures of compare"
PROBLEMS, TIMINGS, PICTURE, UNKNOWN = "a list of problems", "timings", "a picture", "a file of another kind"

_FORMS = {TABLE_KIND: "a table is JSON", DATASET: "a dataset is msgpack", PAGE: "the page is HTML"}

_KEYS = {
    TABLE_KIND: {"entries"},
    RECEIPT: {"processes", "devices"},
    FIGURES: {"against", "worst"},
    COMPARISON: {"seconds", "gemms"},
    "torch-diode-table": {"version", "hardware"},
}
"""By kind of a JSON object: fields that only such an object has."""

_PICTURES = (b"\x89PNG", b"%PDF", b"<?xml", b"<svg")


def require_kind(path: Path, kind: str) -> None:
    """SettingError if a file is there that holds something else, which would be lost; an empty one holds nothing."""
    if str(path) == STANDARD or not path.is_file() or not path.stat().st_size:
        return
    found = _kind_of(read_at_most(path, _MAX_BYTES))
    if found != kind:
        raise SettingError(f"{path}: exists, and is not {kind} but {found} (name another file, or remove it)")


def _kind_of(data: bytes) -> str:
    """The kind of file that has these contents; of JSON only the outermost level is looked at."""
    from diode_lut.dataset import is_dataset

    start = data[:_START_BYTES].lstrip()
    if start[:1] == b"{":
        return _kind_of_object(data)
    if start[:1] == b"[":
        return _kind_of_list(data)
    if start.lower().startswith(b"<!doctype html"):
        return PAGE
    if start.startswith(_PICTURES):
        return PICTURE
    if start.startswith(b"op,dtype,layout,"):
        return TIMINGS
    if is_dataset(data):
        return DATASET
    return MODEL if data[8:9] == b"{" else UNKNOWN


def _kind_of_object(data: bytes) -> str:
    import msgspec

    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return UNKNOWN
    found = (kind for kind, keys in _KEYS.items() if keys <= fields.keys())
    lists = all(bytes(value).startswith(b"[") for value in fields.values())
    return next(found, "inductor-table" if lists else UNKNOWN)


def _kind_of_list(data: bytes) -> str:
    import msgspec

    try:
        items = msgspec.json.decode(data, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return UNKNOWN
    if not all(b'"op"' in bytes(item) for item in items):
        return UNKNOWN
    return TIMINGS if items and all(b'"config"' in bytes(item) for item in items) else PROBLEMS


_START_BYTES = 1 << 10

ANY_OUTPUT = Output()
"""A file whose kind depends on other arguments: the command calls require_kind."""

TABLE_OUTPUT = Output(TABLE_KIND, ".json")
PAGE_OUTPUT = Output(PAGE, ".html")
PICTURE_OUTPUT = Output(PICTURE, allow_dash=False)


_REMEDY = "get an undamaged copy, or measure their problems again; `pack` writes a file of what is left"


def read_whole_table(typed: Typed, remedy: str) -> Table:
    """The table; TableError, with the remedy, if writing it again would lose something.

    Lost would be an invalid row, or the first of two fields with the same name.
    """
    from diode_lut.table.lint import written_twice
    from diode_lut.table.read import located, read_bytes, table_of

    data = typed.read(read_bytes)
    table = table_of(typed.path, data)
    for error in table.errors or located(typed.path, data, written_twice(data)):
        raise TableError(f"{error} ({remedy})")
    return table


def read_datasets_for(table: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """The datasets, or DatasetError if one of them was measured on another device than the table or model is for."""
    from diode_lut.dataset import read_dataset

    datasets = [read_dataset(each.path, hardware=table.hardware, contents=each.contents) for each in inputs]
    require_same_device(datasets, table)
    return datasets


def read_datasets_answered_by(chooser: Table | Model, inputs: Iterable[Typed]) -> list[Dataset]:
    """The datasets, or DatasetError if one of them was measured on a device that the table or model never answers for.

    It answers for its own device, and for others with the same architecture and SM count, which is said once.
    """
    from diode_lut.dataset import read_dataset

    datasets = [read_dataset(each.path, contents=each.contents) for each in inputs]
    require_same_device([each for each in datasets if not each.header.hardware.same_arch(chooser.hardware)], chooser)
    for found in dict.fromkeys(each.header.hardware for each in datasets):
        if not found.same_device(chooser.hardware):
            say(f"note: {printable(str(chooser.path))} is for {chooser.hardware}; measured on {found}", err=True)
    return datasets


def require_same_device(datasets: Iterable[Dataset], table: Table | Model) -> None:
    """DatasetError if one of the datasets was measured on another device than the table or model is for."""
    for dataset in datasets:
        found = dataset.header.hardware
        if not found.same_device(table.hardware):
            raise DatasetError(f"{dataset.path}: measured on {found}, but {table.path} is for {table.hardware}")


def read_datasets_alike(inputs: Iterable[Typed]) -> tuple[list[Dataset], Hardware]:
    """The datasets and what they were measured on, or DatasetError if that is not one device for all of them."""
    from diode_lut.dataset import read_dataset

    first, *others = datasets = [read_dataset(each.path, contents=each.contents) for each in inputs]
    device = first.header.hardware
    for other in others:
        if not other.header.hardware.same_device(device):
            raise DatasetError(f"{other.path}: measured on {other.header.hardware}, but {first.path} on {device}")
    return datasets, device


def end_with_losses(datasets: Iterable[Dataset]) -> None:
    """At the end of a command: exit with 1 if datasets were damaged, and say how many places were left out."""
    lost = {dataset.path: len(dataset.lost) for dataset in datasets if dataset.lost}
    for path, places in lost.items():
        say(printable(f"{path}: damaged places, whose records are lost: {places} ({_REMEDY})"), err=True)
    if lost:
        click.get_current_context().exit(1)


def require_torch(command: str) -> None:
    """SettingError, with the command that installs torch, if torch is missing or broken."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        raise SettingError(f"{command} needs torch: {install_command('torch')}") from error
    except BROKEN_IMPORT as error:
        raise SettingError(f"{command} needs torch, which cannot be imported ({error}): install it again") from error


class Optional(NamedTuple):
    """A package that a command can do without: the extra that has it, and what is missing then, as text."""

    package: str
    extra: str
    loss: str


def require_packages(command: str, device: str | None, optional: Sequence[Optional]) -> None:
    """SettingError if torch is missing, or Triton and this is for a GPU; else a note on the optional ones that are.

    One message names all that is missing, and the command that installs it.
    """
    needed = [name for name in ("torch", "triton") if find_spec(name) is None]
    if needed == ["triton"] and not _is_for_gpu(command, device):
        needed = []
    lacking = [each for each in optional if find_spec(each.package) is None]
    extras = dict.fromkeys([*(["torch"] if needed else []), *(each.extra for each in lacking)])
    without = [f"without {each.package} {each.loss}" for each in lacking]
    text = "; ".join([*([f"{command} needs {' and '.join(needed)}"] if needed else []), *without])
    if needed:
        raise SettingError(f"{text}: {install_command(','.join(extras))}")
    if lacking:
        say(f"note: {text}: {install_command(','.join(extras))}", err=True)


def _is_for_gpu(command: str, device: str | None) -> bool:
    require_torch(command)
    import torch

    return device != "cpu" and torch.cuda.is_available()


def require_inductor(command: str) -> None:
    """SettingError, which says what to do, if torch is missing, or if Inductor, which imports Triton, is broken."""
    require_torch(command)
    try:
        import diode_lut.hook.problems  # noqa: F401
    except BROKEN_IMPORT as error:
        remedy = "install torch and triton again; on a CPU, triton can be removed"
        raise SettingError(f"{command} needs Inductor, which cannot be imported ({error}): {remedy}") from error
