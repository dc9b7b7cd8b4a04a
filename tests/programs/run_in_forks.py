"""Runs programs as ``python`` does, each in a fork of this process, which has run ``BEGINNING``: mostly imports.

``python run_in_forks.py BEGINNING``: each line of stdin is a request in JSON. ``arguments`` are those of ``python``:
``-c PROGRAM``, ``-m MODULE`` or a file, and what follows. ``environment`` and ``cwd`` are those of the program, and
``stdout`` and ``stderr`` the files that it prints to. Each line of stdout is the exit code of one program, by
subprocess's rules.
"""

import atexit
import gc
import json
import os
import runpy
import sys
import tempfile
import threading
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def fork_for_each(requests: Iterable[str]) -> dict[str, Any] | None:
    """In each fork its request; in this process None, after the last."""
    for line in requests:
        if (child := os.fork()) == 0:
            os.setsid()
            return dict(json.loads(line))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def run(arguments: list[str], environment: dict[str, str], cwd: str, stdout: str, stderr: str) -> None:
    """Become the process that would run this, and run it."""
    for number, path in enumerate((os.devnull, stdout, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)  # both may be one file
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (the other one has read requests that are not for this process)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR may be another one
    first, *others = arguments
    own = {"-c": "", "-m": cwd}.get(first, str(Path(first).parent))
    sys.path[:1] = [own, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    run_sitecustomize()
    if first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-c":
        source, name, sys.argv = others[0], "<string>", ["-c", *others[1:]]
    else:
        main.__file__ = name = first
        source, sys.argv = Path(first).read_text(encoding="utf-8"), arguments
    exec(compile(source, name, "exec", dont_inherit=True), vars(main))


def run_sitecustomize() -> None:
    """Run what Python would have run at the start, unless this process has."""
    ours, spec = sys.modules.get("sitecustomize"), PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None and spec.origin != getattr(ours, "__file__", None):
        sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sitecustomize"])


if __name__ == "__main__":
    exec(sys.argv[1], {})
    gc.freeze()  # what is here already is no program's garbage, so its end need not walk through all of torch
    if (request := fork_for_each(sys.stdin)) is not None:
        try:
            run(**request)
        except SystemExit as end:
            if not isinstance(end.code, int | None):
                raise
            code = end.code or 0
        else:
            code = 0
        # As Python ends, which would also free all of torch's objects, and have their memory copied for that
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
