"""Calling a function right after a module has been imported, by any part of the program and at any time.

The wrapt package can do this as well, but importing it takes longer than all of diode_lut may take.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader


def when_imported(name: str, hook: str) -> None:
    """Call ``hook``, written ``package.module:function``, with the module ``name`` as soon as that is imported.

    That is at once if it already is. ``hook``'s own module is not imported before then. What ``hook`` raises, the
    import raises.
    """
    module = sys.modules.get(name)
    if module is not None:
        _call(hook, module)
    else:
        sys.meta_path.insert(0, _Finder(name, hook))


def _call(hook: str, module: ModuleType) -> None:
    name, _, function = hook.partition(":")
    getattr(import_module(name), function)(module)


class _Finder:
    """Finds one module by asking the finders after it, and makes the module's loader call the hook in the end."""

    def __init__(self, name: str, hook: str) -> None:
        self._name, self._hook = name, hook

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _Loader(spec.loader, self))
        return spec

    def imported(self, module: ModuleType) -> None:
        """Call the hook: the module is complete, and this finder is no longer needed.

        Where another finder asks all finders itself, this is called twice.
        """
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            try:
                _call(self._hook, module)
            except BaseException:
                sys.meta_path.insert(0, self)  # the import fails, and may be tried again
                raise


class _Loader:
    """Loads a module as ``loader`` does, and calls the finder. The module then looks as if ``loader`` had loaded it."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.imported(module)
