"""The types of arguments and options: names and numbers, files to read, and files to write."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from diode_lut.cli.output import STANDARD, is_standard
from diode_lut.errors import (
    OPS_OF_LAYERS,
    HardwareError,
    ProblemError,
    SettingError,
    TableError,
    as_command,
    dtype_of,
    op_of,
    size_of,
    variant_of,
)
from diode_lut.files import read_at_most, tables_directory
from diode_lut.hardware import KNOWN, Hardware, detect_hardware, gpus_of, slug
from diode_lut.problem import DTYPES, EPILOGUES, LAYOUTS, MAX_SIZE, NAMED_VARIANTS, OPS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Spelled(click.Choice[str]):
    """Choices with other spellings. ``spell`` returns the usual spelling."""

    def __init__(self, choices: Iterable[str], spell: Callable[[str], str]) -> None:
        super().__init__(choices)
        self._spell = spell

    def normalize_choice(self, choice: Any, ctx: click.Context | None) -> str:  # noqa: ARG002 (click's)
        """Return the usual spelling."""
        return self._spell(choice)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Name Inductor's ops for a layer."""
        ops = OPS_OF_LAYERS.get(op_of(value)) if self._spell is op_of else None
        wrong = super().get_invalid_choice_message(value, ctx)
        return f"unknown op {value!r}; use {ops}" if ops else wrong


ANY = "any"
"""All ops, or all alignments."""

OP, ANY_OP = _Spelled(OPS, op_of), _Spelled((*OPS, ANY), op_of)
DTYPE = _Spelled(DTYPES, dtype_of)
LAYOUT = click.Choice(LAYOUTS, case_sensitive=False)
VARIANT = _Spelled(NAMED_VARIANTS, variant_of)
EPILOGUE = click.Choice(tuple(EPILOGUES), case_sensitive=False)


class _SizeRange(click.IntRange):
    """A size, such as 1024 or ``1k``."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str):
            if re.fullmatch(r"\d+(x\d+)+", value):
                self.fail(f"{value!r} are several sizes: write {value.replace('x', ' ')}", param, ctx)
            try:
                value = size_of(value)
            except ProblemError as error:
                self.fail(str(error), param, ctx)
        return int(super().convert(value, param, ctx))


SIZE = _SizeRange(1, MAX_SIZE)


def size_range(text: str) -> list[int]:
    """Return the ends of a range like ``513-1k``, or a size twice."""
    low, dash, high = text.partition("-")
    try:
        return [size_of(low), size_of(high if dash else low)]
    except ProblemError:
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
        from diode_lut.settings import config

        try:
            return find_hardware(name, config.tables)
        except HardwareError as error:
            raise HardwareError(f"{error}{_gpus_meant(name)}; describe new hardware as {new}") from None
    arch, sm_count, *aliases = (*rest, "")
    if not sm_count.isdecimal():
        raise HardwareError(f"{text}: is neither a name nor {new}")
    try:
        return Hardware.described(name, arch, int(sm_count), filter(None, aliases))
    except ProblemError as error:
        raise HardwareError(f"{text}: {error}") from None


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


_MAX_BYTES = 1 << 30
_STDIN = Path("<stdin>")


class Typed(NamedTuple):
    """A file named on the command line: its path in messages, and its contents if it cannot be opened as a file.

    ``shipped_as`` is the name of a shipped table, as typed.
    """

    path: Path
    contents: bytes | None = None
    shipped_as: str = ""

    def read(self, read: Callable[[Path], bytes]) -> bytes:
        """Return the contents, for which ``read`` opens the file if there is one."""
        return read(self.path) if self.contents is None else self.contents

    def whole(self) -> bytes:
        """Return the contents of any kind of file. OSError if they cannot be read or are too large for all kinds."""
        return self.read(lambda path: read_at_most(path, _MAX_BYTES))

    @property
    def target(self) -> Path:
        """Where to write the changed file, perhaps standard output. SettingError if it cannot change."""
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
        """The path, for code without a reader of contents. SettingError if there is no file."""
        if self.contents is not None:
            raise SettingError(f"{self.path}: is not in a file: save it first")
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
            except SettingError as error:
                reason = f"no such file, and git has none either: {str(error).partition('; run this')[0]}"
                raise TableError(reason, path=path) from OSError(value)  # counts as unreadable
        is_name = re.fullmatch(r"[\w .-]+", value) and not re.search(
            r"\.(json|msgpack|zst|safetensors|html|csv)$", value
        )
        if self._names and is_name:
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


TABLE = _FileType(names=True)
"""A table or model to read."""

FILE = _FileType(names=False)
"""Another file to read, such as a dataset."""


KERNELS = click.option(
    "--kernels",
    "kernel_directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure the generated kernels too that `run --kernels` recorded in this directory. Their code runs.",
)


def _standard_input(ctx: click.Context | None) -> bytes:
    """Read all of standard input, once in a command."""
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


def git_output(directory: Path, *arguments: str) -> bytes:
    """Run git and return its output. SettingError if it fails or is not installed."""
    import subprocess

    command = ["git", "-C", str(directory), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603
    except FileNotFoundError:
        raise SettingError("git is not installed") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip()
        raise SettingError(f"{reason}; run this in a clone that you may change") from None


TABLE_KIND, DATASET, MODEL, RECEIPT, PAGE = "a table", "a dataset", "a model", "a receipt", "a page"
COMPARISON = "figures of compare"
PROBLEMS, TIMINGS, PICTURE, UNKNOWN = "a list of problems", "timings", "a picture", "a file of another kind"

_FORMS = {TABLE_KIND: "a table is JSON", DATASET: "a dataset is msgpack", PAGE: "the page is HTML"}
_ENDINGS = {".csv", ".html", ".json", ".msgpack", ".pdf", ".png", ".safetensors", ".svg", ".txt", ".zst"}
"""Endings of names by which the kind of a file is known."""


class Output(click.Path):
    """A file to write, in an existing directory.

    Its name has no ending of another kind of file. An existing file is replaced only by a file of its kind.
    """

    def __init__(
        self, kind: str = "", *endings: str, file_okay: bool = True, dir_okay: bool = False, allow_dash: bool = True
    ) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, allow_dash=allow_dash, path_type=Path)
        self.kind, self._endings = kind, endings

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # type: ignore[override]
        """Return the path."""
        if str(value) == STANDARD and not self.allow_dash:
            self.fail("standard output (-) is not possible here: give a name, such as ./- for a file -", param, ctx)
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        if self._endings and path.suffix in _ENDINGS and path.suffix not in self._endings:
            self.fail(f"{path}: {_FORMS[self.kind]}, so the name ends with {self._endings[0]}", param, ctx)
        if self.kind:
            require_kind(path, self.kind)
        if self.file_okay and not is_standard(path) and not path.parent.is_dir():
            raise SettingError(f"{path.parent}: no such directory to write to")
        return path


ANY_OUTPUT = Output()
"""A file whose kind depends on other arguments: the command calls require_kind."""

output_option = partial(click.option, "-o", "--output", metavar="OUT", required=True)
"""The option for the file that a command makes."""

TABLE_OUTPUT = Output(TABLE_KIND, ".json")
PICTURE_OUTPUT = Output(PICTURE, allow_dash=False)


TEXT_OR_JSON = click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    help="Lines for people, or a JSON document for programs.",
)
"""The option for the form of what a command prints."""


def require_kind(path: Path, kind: str) -> None:
    """SettingError if the file is of another kind, and would be lost. An empty file is of any kind."""
    if is_standard(path) or not path.is_file() or not path.stat().st_size:
        return
    found = _kind_of(read_at_most(path, _MAX_BYTES))
    if found != kind:
        raise SettingError(f"{path}: exists, and is not {kind} but {found} (name another file, or remove it)")


_KEYS = {
    TABLE_KIND: {"entries"},
    RECEIPT: {"processes", "devices"},
    COMPARISON: {"seconds", "gemms"},
    "torch-diode-table": {"version", "hardware"},
}
"""The fields by which kinds of JSON objects are told apart."""


def _kind_of(data: bytes) -> str:
    """Return the kind of a file with these contents. Of JSON only the outermost level is looked at."""
    import msgspec

    from diode_lut.dataset import is_dataset

    start = data[:1024].lstrip()
    try:
        if start[:1] == b"{":
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            found = (kind for kind, keys in _KEYS.items() if keys <= fields.keys())
            are_lists = all(bytes(value).startswith(b"[") for value in fields.values())
            return next(found, "inductor-table" if are_lists else UNKNOWN)
        if start[:1] == b"[":
            items = list(map(bytes, msgspec.json.decode(data, type=list[msgspec.Raw])))
            if not all(b'"op"' in item for item in items):
                return UNKNOWN
            return TIMINGS if items and all(b'"config"' in item for item in items) else PROBLEMS
    except (msgspec.MsgspecError, RecursionError):
        return UNKNOWN
    if start.lower().startswith(b"<!doctype html"):
        return PAGE
    if start.startswith((b"\x89PNG", b"%PDF", b"<?xml", b"<svg")):
        return PICTURE
    if start.startswith(b"op,dtype,layout,"):
        return TIMINGS
    if is_dataset(data):
        return DATASET
    return MODEL if data[8:9] == b"{" else UNKNOWN
