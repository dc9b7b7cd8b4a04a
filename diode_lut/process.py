"""The version of diode_lut, which receipts, tables and the keys of Inductor's caches have, too.

A module of its own, because ``import diode_lut`` needs it, and none of what else it could stand beside.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from diode_lut.errors import printable

if TYPE_CHECKING:
    from importlib.abc import Loader


__version__ = "0.1.0"


_PACKAGE = Path(__file__).resolve().parent


def tables_directory() -> Path:
    """The directory of the shipped tables."""
    return _directory("tables")


def own_directory() -> Path | None:
    """The directory of the user's own configuration, ``$XDG_CONFIG_HOME/diode_lut``; None if the user has no home."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):  # noqa: PTH117 (these raise nothing)
        config = os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(config, "diode_lut") if os.path.isabs(config) else None  # noqa: PTH117


def own_tables_directory() -> Path | None:
    """The directory of the user's own tables that need not be named: ``$XDG_CONFIG_HOME/diode_lut/tables``."""
    directory = own_directory()
    return None if directory is None else directory / "tables"


def schemas_directory() -> Path:
    """The directory of the JSON Schemas."""
    return _directory("schemas")


def documents_directory() -> Path:
    """The directory of the documentation."""
    return _directory("docs")


def _directory(name: str) -> Path:
    """Inside the package once it is installed, next to it in a checkout."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


_actions: list[Callable[[], None]] = []
_forked = False


def in_forked_children(action: Callable[[], None]) -> Callable[[], None]:
    """Decorator: each process that this one forks calls ``action`` first, in the order of these calls.

    ``action`` must not wait for a lock. On Windows, which has no fork, it is never called.
    """
    _actions.append(action)
    return action


def is_forked() -> bool:
    """Whether this process was forked from one that had imported this package."""
    return _forked


def _run_all() -> None:
    global _forked
    _forked = True
    for action in _actions:
        action()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_run_all)


class _Unasked(logging.Logger):
    """Shows warnings only, however much the program shows of its own, until a level is set for this logger itself."""

    def getEffectiveLevel(self) -> int:  # noqa: N802 (logging's name)
        return self.level or max(super().getEffectiveLevel(), logging.WARNING)


log = logging.getLogger("diode_lut")
log.__class__ = _Unasked


@lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Log ``message`` as a warning, the first time in this process."""
    log.warning("%s", printable(message))


_CODE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 (see ``settings.py``)

_imported: frozenset[tuple[str, int, int, int]] | None = None
"""The files of this package's code when this process imported it: path, inode, size and time of each."""


@cache
def code_digest() -> str:
    """A digest of this package's code, wherever it lies; takes 10 ms once. OSError if it cannot be read.

    Compiled copies that Python keeps do not count, but they do where they are all there is.
    """
    import hashlib  # not when this package is imported: OpenSSL takes its time
    from pathlib import Path

    digest = hashlib.sha256()
    for name in sorted(file.path for file in _code_files(_CODE)):
        path = Path(name)
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_CODE).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def remember_code() -> None:
    """Remember the code as it is, before more of it is imported; takes less than a millisecond."""
    global _imported
    _imported = _code()


def is_code_as_imported() -> bool:
    """Whether the code is still as it was when it was remembered; if not, it is not known what this process runs.

    Where it was not remembered, or cannot be looked at, it counts as unchanged.
    """
    if _imported is None or _code() == _imported:
        return True

    warn_once("diode_lut was replaced while it is in use: start the program again; until then caches do not serve it")
    return False


def _code() -> frozenset[tuple[str, int, int, int]] | None:
    try:
        files = [(file.path, file.stat()) for file in _code_files(_CODE)]
    except OSError:
        return None
    return frozenset((path, found.st_ino, found.st_size, found.st_mtime_ns) for path, found in files)


def _code_files(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _code_files(entry.path)
            elif ".py" in entry.name:
                yield entry


_STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Interrupt:
    """Raises KeyboardInterrupt, but not in a ``__del__``, where it would only be a note; remembers that it came."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        self.called = True
        while frame is not None and frame.f_code.co_name != "__del__":
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt


def interrupt_on_signals() -> None:
    """From now on SIGINT, unless it is ignored as in a shell's background job, and SIGTERM raise KeyboardInterrupt.

    Where Python ignores it, it is raised at the end of the next ``signals_held``.
    """
    handler = _Interrupt()
    for number in _STOPPING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """SIGINT and SIGTERM take effect at the end of the block, so that what is written is whole, and counted as well.

    Only the main thread gets signals; in other threads nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if waiting:
            signal.raise_signal(waiting[0])
        if any(isinstance(handler, _Interrupt) and handler.called for handler in before.values()):
            raise KeyboardInterrupt


_hooks: dict[str, list[str]] = {}
"""The hooks to call after the import of each module that has not been imported yet."""


def when_imported(name: str, hook: str) -> None:
    """Call ``hook``, written ``package.module:function``, with the module ``name`` as soon as that is imported.

    That is at once if it already is. ``hook``'s own module is not imported before then. What ``hook`` raises, the
    import raises.
    """
    module = sys.modules.get(name)
    if module is not None:
        _call(hook, module)
        return
    _hooks.setdefault(name, []).append(hook)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _call(hook: str, module: ModuleType) -> None:
    name, _, function = hook.partition(":")
    getattr(import_module(name), function)(module)


class _Finder:
    """Finds the modules that have hooks by asking all other finders, and makes their loaders call the hooks.

    It stays in ``sys.meta_path``, also when no hooks are left: threads that import something iterate over that list,
    and would skip a finder if one before it was removed.
    """

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec, with our loader; None if it has no hooks, or while this thread asks the other finders."""
        asking = vars(self._asking)
        if name not in _hooks or name in asking:
            return None
        asking[name] = True
        try:
            finders = [finder for finder in list(sys.meta_path) if hasattr(finder, "find_spec")]
            spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        finally:
            del asking[name]
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _Loader(spec.loader))
        return spec


_FINDER = _Finder()


class _Loader:
    """Loads a module as ``loader`` does, and calls the hooks. The module then looks as if ``loader`` had loaded it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # for those that only look at the spec

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        hooks = _hooks.pop(module.__name__, [])
        try:
            while hooks:
                _call(hooks[0], module)
                del hooks[0]
        except BaseException:
            _hooks.setdefault(module.__name__, []).extend(hooks)  # the import fails, and may be tried again
            raise
