"""Asks for GEMMs by hand, as the hook does, in this process and in others that it makes; without torch it is quick.

``python ask.py STEP...``, where a step is ``ask`` (once, of the H200 table's hardware), ``torch`` (something by that
name is imported), ``fork``, ``mp-fork`` or ``mp-spawn`` (another process asks, and its number is printed),
``no-choice`` (Inductor has only the library for a linear layer on a CPU), ``graph`` (one has been compiled), ``wait``
(for a line on the standard input), ``set=PATH``, ``cd=PATH``, ``exit=CODE``, ``_exit``, ``exec=STEP`` (the process
becomes another program, which takes that step) or a signal's name, which ends the process.
"""

import multiprocessing
import os
import signal
import sys
from types import ModuleType
from typing import Any

import diode_lut
from diode_lut.decide.catalog import sources_for
from diode_lut.receipts import FREEZABLE, recorder
from diode_lut.receipts.receipt_file import write_after_graph


def ask() -> None:
    problem = diode_lut.Problem.of("bmm", 2, 3, 4, dtype="float32", layout="nn")
    hardware = diode_lut.Hardware("A GPU", "sm_10", 1)
    recorder.devices_seen([hardware])  # a compile looks at the devices for its key, before it asks
    recorder.sources_seen(sources_for(hardware, diode_lut.config.copy(), ()))
    decision = diode_lut.select(problem, hardware=hardware)
    recorder.served(decision, decision.configs)


def no_choice() -> None:
    problem = diode_lut.Problem.of("addmm", 8, 64, 64, dtype="float32", layout="nt")
    recorder.no_choice(problem, diode_lut.Hardware("A CPU", "cpu-avx2", 1), FREEZABLE)


def in_another(method: str, work: Any) -> None:
    process = multiprocessing.get_context(method).Process(target=work)
    process.start()
    print(process.pid, flush=True)
    process.join()
    assert process.exitcode == 0


def forked() -> None:
    child = os.fork()
    if child == 0:
        ask()
        sys.exit()
    print(child, flush=True)
    assert os.waitpid(child, 0)[1] == 0


def nothing() -> None:
    """What a worker does that is never needed."""


def step(name: str, value: str) -> None:
    if name == "ask":
        ask()
    elif name == "torch":
        sys.modules["torch"] = ModuleType("torch")
    elif name == "fork":
        forked()
    elif name.startswith("mp-"):
        in_another(name.removeprefix("mp-"), nothing if value else ask)
    elif name == "no-choice":
        no_choice()
    elif name == "graph":
        write_after_graph(recorder.own_receipt)
    elif name == "wait":
        print("ready", flush=True)
        sys.stdin.readline()
    elif name == "set":
        diode_lut.config.receipt = value
    elif name == "cd":
        os.chdir(value)
    elif name == "exit":
        sys.exit(int(value))
    elif name == "_exit":
        os._exit(0)
    elif name == "exec":
        os.execv(sys.executable, [sys.executable, __file__, value])
    elif name in signal.Signals.__members__:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.Signals[name])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        step(*argument.partition("=")[::2])
