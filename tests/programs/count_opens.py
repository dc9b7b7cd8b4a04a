"""``count_opens DIRECTORY COMMAND...`` runs each command on a copy of the directory.

Prints, for each command, how often it opened each file that was there before.
"""

import json
import os
import shutil
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from diode_lut.cli import main

original, *commands = sys.argv[1:]
names = {path.name for path in Path(original).iterdir()}
directory, opened = Path(), Counter[str]()


def count(event: str, arguments: tuple[object, ...]) -> None:
    """Count each system call: Python's own ``open`` has a mode, the ``os.open`` that it may call has none.

    A file that is opened to be locked, before it is replaced, is not read.
    """
    if event == "open":
        path, mode, _ = arguments
        if mode is None and isinstance(path, str | Path) and Path(path).parent == directory:
            opened[Path(path).name] += 1
    if event == "fcntl.flock":
        path = Path(f"/proc/self/fd/{arguments[0]}").readlink()
        if path.parent == directory:
            opened[path.name] -= 1


sys.addaudithook(count)
counts = {}
with TemporaryDirectory() as copies:
    for number, command in enumerate(commands):
        directory = Path(shutil.copytree(original, Path(copies, str(number))))
        opened.clear()
        with suppress(SystemExit):
            main(
                [
                    str(directory / word) if word in names or word.startswith("new.") else word
                    for word in command.split()
                ]
            )
        counts[command] = {name: opened[name] for name in names & opened.keys()}
print(json.dumps(counts), file=sys.stderr)
sys.stderr.flush()
os._exit(0)
