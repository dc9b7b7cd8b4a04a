"""Kernels that hang, and signals that stop the program."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config

LIMIT_S = 60.0
"""Seconds after which what is watched counts as hung, if nothing else is said."""

_DEVICE_ERROR = re.compile(r"\b(CUDA|HIP) error\b|Triton Error")


class Loss(NamedTuple):
    """What was in hand when a process became unusable; ``config`` is None where that cannot be known.

    ``reason`` is one of ``dataset.REASONS``.
    """

    problem: Problem
    config: Config | None
    reason: str

    def __str__(self) -> str:
        what = f"{self.problem}, {self.config}" if self.config else str(self.problem)
        return f"{what}: {'hung' if self.reason == 'timeout' else f'died ({self.reason})'}"


class Watch:
    """Notices that the process cannot go on, and calls ``lost``, which must not return.

    ``lost`` is called in the thread that measures after a fault, and in a thread of its own after a hang.
    """

    def __init__(self, lost: Callable[[Loss], None]) -> None:
        self._lost = lost

    @contextmanager
    def __call__(
        self, problem: Problem, config: Config | None = None, what: str = "launch", limit_s: float = LIMIT_S
    ) -> Iterator[None]:
        """Around code that runs a kernel and waits for it: for ``config``, or for any of the problem's.

        If an error comes out that leaves the device unusable, the process is lost for the reason ``what``; if the
        code takes longer than ``limit_s`` seconds, for the reason ``timeout``. Other errors pass.
        """
        timer = threading.Timer(limit_s, self._lost, [Loss(problem, config, "timeout")])
        timer.daemon = True
        timer.start()
        try:
            yield
        except RuntimeError as error:
            if _DEVICE_ERROR.search(str(error)) and not _device_answers():
                self._lost(Loss(problem, config, what))
            raise
        finally:
            timer.cancel()


def _device_answers() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except (AssertionError, RuntimeError):  # AssertionError: torch has no CUDA at all
        return False
    return True


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C and SIGTERM take effect only when the block is left, so that what is written is counted as well.

    Only the main thread gets signals; in any other the block is like any block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: waiting.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if waiting:
            signal.raise_signal(waiting[0])
