"""A ``python`` whose programs run in forks of a process that has imported Inductor.

``python_in_fork.py PID ARGUMENT...``: PID is that of run_in_forks.py, whose next request this makes. Where PyTorch
would read other variables at import than it has read there, and for commands of diode_lut that do without torch, this
process becomes Python itself. So it does where Python imports diode_lut at the start although no directory says so.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

STARTUP = Path(__file__).parents[2] / "diode_lut" / "startup"  # where ``diode-lut run`` has Python look first
READ_WHEN_NEEDED = "TORCHINDUCTOR_CACHE_DIR"  # the one variable of PyTorch's that is read later


def torch_variables(lines: Iterable[str]) -> set[str]:
    """Those that PyTorch reads at import, with their values, of the lines of an environment."""
    return {line for line in lines if line.startswith("TORCH") and not line.startswith(READ_WHEN_NEEDED)}


def runs_in_fork(server: Path, arguments: list[str]) -> bool:
    """Whether these are of a program that needs torch, and it can run there."""
    ours = torch_variables(f"{name}={value}" for name, value in os.environ.items())
    theirs = torch_variables((server / "environ").read_text().split("\0"))
    needs_torch = arguments[2:3] == ["collect"] if arguments[:2] == ["-m", "diode_lut"] else arguments[0] != "-c"
    is_armed_by_path = str(STARTUP) in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return ours == theirs and needs_torch and (is_armed_by_path or "DIODE_LUT" not in os.environ)


def run_in_fork(server: Path, arguments: list[str]) -> int:
    """The exit code of the program, which prints where this process does."""
    if arguments[0] == "-":
        arguments = ["-c", sys.stdin.read(), *arguments[1:]]
    outputs = {name: f"/proc/{os.getpid()}/fd/{number}" for number, name in enumerate(("stdout", "stderr"), start=1)}
    request = {"arguments": arguments, "environment": dict(os.environ), "cwd": str(Path.cwd()), **outputs}
    with (server / "fd" / "1").open() as answers, (server / "fd" / "0").open("w") as requests:
        print(json.dumps(request), file=requests, flush=True)
        answers.readline()  # its number
        return int(answers.readline())


if __name__ == "__main__":
    server, arguments = Path("/proc", sys.argv[1]), sys.argv[2:]
    if runs_in_fork(server, arguments):
        sys.exit(run_in_fork(server, arguments))
    os.execv(sys.executable, [sys.executable, *arguments])
