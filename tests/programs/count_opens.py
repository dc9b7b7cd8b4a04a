"""``count_opens DIRECTORY COMMAND...`` runs a command, and prints how often it opened each file of the directory."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

from diode_lut.cli import main

directory, *command = sys.argv[1:]
opened: Counter[str] = Counter()


def count(event: str, arguments: tuple[object, ...]) -> None:
    """Count each system call: Python's own ``open`` has a mode, the ``os.open`` that it may call has none.

    A file that is opened to be locked, before it is replaced, is not read.
    """
    if event == "open":
        path, mode, _ = arguments
        if mode is None and isinstance(path, str | Path) and Path(path).parent == Path(directory):
            opened[Path(path).name] += 1
    if event == "fcntl.flock":
        path = Path(f"/proc/self/fd/{arguments[0]}").readlink()
        if path.parent == Path(directory):
            opened[path.name] -= 1


sys.addaudithook(count)
try:
    main(command)
finally:
    print(json.dumps(opened), file=sys.stderr)
    sys.stderr.flush()
    os._exit(0)
