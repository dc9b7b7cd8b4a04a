"""A process for one cold compile, or for the times of one model: ``python -m modelbench.worker TASK RESULT``.

Starting up, which takes longer than many a compile, overlaps with other processes. What is measured does not: it waits
for a lock.
"""

import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from modelbench.compiling import compile_once, warm_up
from modelbench.labels import Label
from modelbench.models import build
from modelbench.timing import Compiled, time_model


def main() -> None:
    """Do the task, a JSON object, and write the result, another one."""
    task = json.loads(sys.argv[1])
    _prepare(task)
    with Path(task["lock"]).open("w") as file:
        _lock(file.fileno(), task["exclusive"], task["timeout"])
        wait = partial(_lock, file.fileno(), True, task["timeout"])
        found = _compile(task) if task["kind"] == "compile" else _time(task, wait)
    result = {**found, "device_name": _device_name(task["device"]), "torch": torch.__version__}
    Path(sys.argv[2]).write_text(json.dumps(result))


def _prepare(task: dict[str, Any]) -> None:
    """Import what the model needs, and start what Inductor needs, if that is not to be measured."""
    build(task["model"], "cpu", tiny=True)
    if task["warm"]:
        warm_up()
    if task["device"] == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]


def _lock(descriptor: int, exclusive: bool, timeout: int) -> None:
    """Wait until it is this process's turn; ``timeout`` seconds later, SIGALRM ends it."""
    signal.alarm(0)
    fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    signal.alarm(timeout)


def _compile(task: dict[str, Any]) -> dict[str, Any]:
    return compile_once(task["model"], Label.from_json(task["label"]), task["device"], task["tiny"])


def _time(task: dict[str, Any], alone: Callable[[], None]) -> dict[str, Any]:
    compiles = [
        Compiled(Label.from_json(each["label"]), each["repetition"], Path(each["caches"])) for each in task["compiles"]
    ]
    return time_model(task["model"], compiles, task["device"], task["tiny"], alone)


def _device_name(device: str) -> str:
    return str(torch.cuda.get_device_name()) if device == "cuda" else f"{os.cpu_count()} CPU cores"


if __name__ == "__main__":
    main()
