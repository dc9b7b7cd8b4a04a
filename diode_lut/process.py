"""This process: its version and directories, forks, signals, and calls after an import. It imports little."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

__version__ = "0.1.0"

_CODE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 (pathlib is slower, and this is done at import)
_imported: frozenset[tuple[str, int, int, int]] | None = None  # path, inode, size, time of each file at import


@cache
def code_digest() -> str:
    """Return a digest of this package's code, wherever it lies, in 10 ms, once. OSError if it cannot be read."""
    import hashlib  # not when this package is imported: these take their time
    from pathlib import Path

    digest = hashlib.sha256()
    for path in map(Path, sorted(file.path for file in _code_files(_CODE))):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_CODE).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def remember_code() -> None:
    """Remember the code as it is, before more of it is imported. It takes less than a millisecond."""
    global _imported
    _imported = _code()


def is_code_as_imported() -> bool:
    """Return whether the code is as it was when it was remembered, as far as that can be said."""
    if _imported is None or _code() == _imported:
        return True
    from diode_lut.log import warn_once

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


_actions: list[Callable[[], None]] = []
_forked = False


def in_forked_children(action: Callable[[], None]) -> Callable[[], None]:
    """Have each forked child call ``action`` first, in order. A decorator. ``action`` must not wait for a lock."""
    _actions.append(action)
    return action


def is_forked() -> bool:
    """Return whether this process was forked after the import of this package."""
    return _forked


def _run_all() -> None:
    global _forked
    _forked = True
    for action in _actions:
        action()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_run_all)


_STOPPING = (signal.SIGINT, signal.SIGTERM)


class _Interrupt:
    """Raise KeyboardInterrupt, but not in a ``__del__``, where it would only be a note; and remember the signal."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, _number: int, frame: FrameType | None) -> None:
        self.called = True
        while frame is not None and frame.f_code.co_name != "__del__":
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt


def interrupt_on_signals() -> None:
    """Have SIGINT, unless ignored, and SIGTERM raise KeyboardInterrupt, again after a block if Python ignores it."""
    handler = _Interrupt()
    for number in _STOPPING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[None]:
    """Have SIGINT and SIGTERM take effect at the end of the block, which writes a file, in the main thread."""
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


_hooks: dict[str, list[str]] = {}  # the hooks to call after the imports of modules


def when_imported(name: str, hook: str) -> None:
    """Call ``hook``, written ``package.module:function``, with the module ``name`` as soon as it is imported.

    If it already is, ``hook`` is called at once. Its own module is not imported before then. The import raises the
    errors of ``hook``.
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
    """Find the modules with hooks by asking all other finders, and make their loaders call the hooks.

    It stays in ``sys.meta_path``, also without hooks: importing threads iterate over the list, and would skip a finder
    if one before it was removed.
    """

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, with our loader. None without hooks, or while this thread asks other finders."""
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
    """Load a module as ``loader`` does, and call the hooks. The module then looks as if ``loader`` had loaded it."""

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
