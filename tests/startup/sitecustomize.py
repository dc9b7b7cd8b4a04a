"""Python runs this first in every process that tests start.

torch and Inductor are a million objects that stay. Without this, the garbage collector walks through them again and
again while they are imported, and at the end: a third of the CPU time that such a process takes.
"""

from __future__ import annotations

import atexit
import gc

gc.set_threshold(50_000, 50, 50)
atexit.register(gc.freeze)
