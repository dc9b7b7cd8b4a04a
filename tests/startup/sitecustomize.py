"""Python runs this first in every process that tests start.

torch and Inductor are a million objects that stay. Without this, the garbage collector walks through them again and
again while they are imported, and at the end: a third of the CPU time that such a process takes.

Python runs one module of this name. Another that it would have run instead is run at the end.
"""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.machinery import PathFinder

gc.set_threshold(50_000, 50, 50)
atexit.register(gc.freeze)

_others = [directory for directory in sys.path if directory != __file__.rpartition("/")[0]]
_next = PathFinder.find_spec("sitecustomize", _others)
if _next is not None and _next.loader is not None and _next.origin != __file__:
    exec(_next.loader.get_code("sitecustomize"))  # type: ignore[attr-defined]
