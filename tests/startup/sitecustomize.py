"""Python runs this first in every process that tests start.

torch and Inductor are a million objects that stay. Without this, the garbage collector walks through them again and
again while they are imported, and at the end: a third of the CPU time that such a process takes.

Python runs one module of this name. The next one in ``sys.path`` is run at the end.
"""

import atexit
import gc
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

gc.set_threshold(50_000, 50, 50)
atexit.register(gc.freeze)

_here = __file__.rpartition("/")[0]
if _here in sys.path:  # pytest's own process imports this as a module of tests
    _next = PathFinder.find_spec("sitecustomize", sys.path[len(sys.path) - sys.path[::-1].index(_here) :])
    if _next is not None and _next.loader is not None:
        _next.loader.exec_module(module_from_spec(_next))
