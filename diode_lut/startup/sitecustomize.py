"""Python runs this at the start of each process of a program that ``diode-lut run`` and its like have started.

It imports the copy of diode_lut that it is part of, unless the environment's own copy is there already. Then it runs
the module of this name that Python would have run otherwise. Python reports errors, and starts the program anyway.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_HERE, _, _ = __file__.rpartition("/")
_PACKAGE, _, _ = _HERE.rpartition("/")


def _import_package() -> None:
    spec = spec_from_file_location("diode_lut", f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE])
    assert spec is not None
    assert spec.loader is not None
    sys.modules["diode_lut"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["diode_lut"])


def _run_next() -> None:
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sitecustomize"])


sys.path[:] = [directory for directory in sys.path if directory != _HERE]
try:
    if "diode_lut" not in sys.modules:
        _import_package()
finally:
    _run_next()
