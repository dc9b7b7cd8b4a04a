"""A process for one cold compile, or for the times of one model: ``python -m modelbench.worker TASK RESULT``.

Starting up, which takes longer than many a compile, overlaps with other processes. What is measured does not: it waits
for a lock.
"""

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import torch
from modelbench.compiling import compile_once, warm_up
from modelbench.labels import Label
from modelbench.models import build
from modelbench.timing import Compiled, time_model


def main() -> None:
    """Do the task, a JSON object, and write the result, another one."""
    task = json.loads(sys.argv[1])
    name, device, tiny = task["model"], task["device"], task["tiny"]
    build(name, "cpu", tiny=True)  # imports what the model needs
    if task["warm"]:
        warm_up()
    if device == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    with Path(task["lock"]).open("w") as file:

        def lock(*, exclusive: bool = True) -> None:
            """Wait until it is this process's turn; ``timeout`` seconds later, SIGALRM ends it."""
            signal.alarm(0)
            fcntl.flock(file.fileno(), fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            signal.alarm(task["timeout"])

        lock(exclusive=task["exclusive"])
        if task["kind"] == "compile":
            found = compile_once(name, Label.from_json(task["label"]), device, tiny)
        else:
            compiles = [
                Compiled(Label.from_json(each["label"]), each["repetition"], Path(each["caches"]))
                for each in task["compiles"]
            ]
            found = time_model(name, compiles, device, tiny, lock)
    about = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"
    Path(sys.argv[2]).write_text(json.dumps({**found, "device_name": about, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
