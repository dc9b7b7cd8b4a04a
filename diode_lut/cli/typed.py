"""The files that people type.

A file is a path, the name of a table that ``tables`` lists, ``-``, or ``REVISION:PATH`` as git has it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from diode_lut.cli.output import STANDARD
from diode_lut.domain.errors import SettingError, TableError
from diode_lut.domain.printable import as_command
from diode_lut.io.files import read_at_most
from diode_lut.io.resources import tables_directory

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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
            from diode_lut.selection.catalog import find_path

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
    from diode_lut.selection.catalog import find_tables

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
