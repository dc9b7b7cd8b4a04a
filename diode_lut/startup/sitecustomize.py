"""Python runs this at the start of each process of a program under ``diode-lut run`` and its like.

It imports its own copy of diode_lut, unless the environment's own copy is there already. Then it runs the module of
this name that Python would have run otherwise. Python reports errors, and starts the program anyway.

A program may start a Python too old for diode_lut, such as 3.7, and is left alone. So this module is written for such a
Python.
"""

import sys
from importlib import import_module

_HERE, _, _ = __file__.rpartition("/")
sys.path[:] = [directory for directory in sys.path if directory != _HERE]
try:
    if sys.version_info >= (3, 10) and "diode_lut" not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        _PACKAGE, _, _ = _HERE.rpartition("/")
        _spec = spec_from_file_location("diode_lut", f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE])
        assert _spec is not None
        assert _spec.loader is not None
        sys.modules["diode_lut"] = module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules["diode_lut"])
finally:
    _this = sys.modules.pop("sitecustomize")
    try:
        import_module("sitecustomize")
    except ImportError as _error:
        sys.modules["sitecustomize"] = _this
        if getattr(_error, "name", "sitecustomize") != "sitecustomize":
            raise
