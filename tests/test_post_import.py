"""Hooks that run after an import."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, cast

import pytest

from diode_lut.process import _hooks, when_imported

HOOK = """
seen = []

def install(module):
    seen.append((module.__name__, module.LAST))
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to import from: a package ``watched`` with a module ``inner``, and a module ``hooking``."""
    (tmp_path / "watched").mkdir()
    (tmp_path / "watched" / "__init__.py").touch()
    (tmp_path / "watched" / "inner.py").write_text("FIRST = 1\nLAST = 2\n")
    (tmp_path / "watched" / "other.py").touch()
    (tmp_path / "hooking.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in ("watched", "watched.inner", "watched.other", "hooking"):
        sys.modules.pop(name, None)
        _hooks.pop(name, None)


def seen() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = importlib.import_module("hooking").seen
    return found


def test_hook_runs_after_the_import(packages: Path) -> None:
    """The hook gets the finished module, once; neither module is imported before somebody asks for it."""
    when_imported("watched.inner", "hooking:install")
    importlib.import_module("watched.other")
    assert "hooking" not in sys.modules
    assert "watched.inner" not in sys.modules
    importlib.import_module("watched.inner")
    importlib.import_module("watched.inner")
    assert seen() == [("watched.inner", 2)]


def test_hook_runs_at_once_if_the_module_is_there(packages: Path) -> None:
    """The order of the two imports does not matter."""
    importlib.import_module("watched.inner")
    when_imported("watched.inner", "hooking:install")
    assert seen() == [("watched.inner", 2)]


def test_nothing_is_left_behind(packages: Path) -> None:
    """Afterwards the module looks as if it had been imported without a hook."""
    when_imported("watched.inner", "hooking:install")
    module = importlib.import_module("watched.inner")
    other = importlib.import_module("watched.other")
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is type(module.__loader__) is type(other.__loader__)
    assert inspect.getsource(module).startswith("FIRST")


def test_threads_that_import_lose_no_finder(packages: Path) -> None:
    """An import does not remove a finder, because a thread that goes through them would skip the next."""
    when_imported("watched.inner", "hooking:install")
    when_imported("watched.other", "hooking:install")
    finders = list(sys.meta_path)
    going_through = iter(sys.meta_path)
    assert next(going_through) is finders[0]
    importlib.import_module("watched.inner")
    assert list(going_through) == finders[1:]


def test_wrapped_finders(packages: Path) -> None:
    """Tools that profile imports wrap all finders: the hook is called, once."""
    when_imported("watched.inner", "hooking:install")
    sys.meta_path[:] = [Wrapped(finder) for finder in sys.meta_path]
    importlib.import_module("watched.inner")
    assert seen() == [("watched.inner", 2)]


class Wrapped:
    """A finder of such a tool."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return cast("ModuleSpec | None", self._finder.find_spec(name, path, target))


def test_what_only_looks_sees_the_loader(packages: Path) -> None:
    """A spec that is looked at before the import has the source, as without a hook."""
    when_imported("watched.inner", "hooking:install")
    spec = importlib.util.find_spec("watched.inner")
    assert spec is not None
    assert spec.loader is not None
    assert cast("InspectLoader", spec.loader).get_source("watched.inner") == "FIRST = 1\nLAST = 2\n"


def test_failed_import_is_tried_again(packages: Path) -> None:
    """An import that fails calls no hook and leaves it armed for the next try."""
    source = packages / "watched" / "inner.py"
    source.write_text("raise ZeroDivisionError\n")
    when_imported("watched.inner", "hooking:install")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("watched.inner")
    source.write_text("LAST = 'now it works'\n")
    importlib.invalidate_caches()
    importlib.import_module("watched.inner")
    assert seen() == [("watched.inner", "now it works")]


def test_missing_module(packages: Path) -> None:
    """A module that does not exist stays a ModuleNotFoundError."""
    when_imported("watched.missing", "hooking:install")
    with pytest.raises(ModuleNotFoundError, match=r"watched\.missing"):
        importlib.import_module("watched.missing")


def test_two_hooks(packages: Path) -> None:
    """Two hooks for one module are both called."""
    when_imported("watched.inner", "hooking:install")
    when_imported("watched.inner", "hooking:install")
    importlib.import_module("watched.inner")
    assert len(seen()) == 2


@pytest.mark.parametrize("theirs_first", [True, False])
def test_beside_the_finder_of_another_package(packages: Path, theirs_first: bool) -> None:
    """A finder of the same kind, which asks all finders itself, changes nothing: the hook is called once."""
    if theirs_first:
        sys.meta_path.insert(0, AskingFinder())
    when_imported("watched.inner", "hooking:install")
    if not theirs_first:
        sys.meta_path.insert(0, AskingFinder())
    importlib.import_module("watched.inner")
    assert seen() == [("watched.inner", 2)]


class AskingFinder:
    """What other post-import hooks put into sys.meta_path."""

    def __init__(self) -> None:
        self.asking = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if self.asking or name != "watched.inner":
            return None
        self.asking = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asking = False


def test_hook_that_fails_is_tried_again(packages: Path) -> None:
    """Where the hook raises, as after Ctrl-C, the import fails; the next import calls it again."""
    (packages / "hooking.py").write_text(HOOK + "    if len(seen) == 1: raise KeyboardInterrupt\n")
    when_imported("watched.inner", "hooking:install")
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("watched.inner")
    importlib.import_module("watched.inner")
    assert seen() == [("watched.inner", 2)] * 2
