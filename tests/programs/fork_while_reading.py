"""Forks while another thread is reading the tables, and selects in the child; ends well if that ends."""

import logging
import os
import signal
import sys
import threading

import diode_lut

LIMIT_S = 20
PROBLEM = diode_lut.Problem.of("mm", 2, 3, 4, dtype="float32", layout="nn")
HARDWARE = diode_lut.Hardware("A GPU", "sm_10", 1)


class Pause(logging.Handler):
    """Stops the thread that says which tables it has read, still in the middle of it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.over = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.reached.set()
        self.over.wait()


def main() -> int:
    """The exit code of the child."""
    pause = Pause()
    diode_lut.set_log_level("info")
    logging.getLogger("diode_lut").handlers = [pause]
    reader = threading.Thread(target=diode_lut.select, args=[PROBLEM], kwargs={"hardware": HARDWARE})
    reader.start()
    pause.reached.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        logging.getLogger("diode_lut").handlers.clear()
        diode_lut.select(PROBLEM, hardware=HARDWARE)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    pause.over.set()
    reader.join()
    return status


if __name__ == "__main__":
    sys.exit(main() and 1)
