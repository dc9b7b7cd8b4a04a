"""Calling a function right after a module has been imported, by any part of the program and at any time.

The wrapt package can do this as well, but importing it takes longer than all of diode_lut may take.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

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
