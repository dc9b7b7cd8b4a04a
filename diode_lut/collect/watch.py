"""Kernels that hang or ruin the process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from diode_lut.domain.problem import Problem
from diode_lut.inductor.names import failure_reason
from diode_lut.kernels.config import Config

LIMIT_S = 60.0
"""Seconds after which a watched block counts as hung, by default."""

_DEVICE_ERROR = re.compile(r"\b(CUDA|HIP) error\b|Triton Error")


class Crash(NamedTuple):
    """What was measured when a process became unusable; ``config`` is None where it is not known.

    ``reason`` is one of ``dataset.REASONS``.
    """

    problem: Problem
    config: Config | None
    reason: str

    def __str__(self) -> str:
        what = f"{self.problem}, {self.config}" if self.config else str(self.problem)
        return f"{what}: {'hung' if self.reason == 'timeout' else f'died ({self.reason})'}"


class Watch:
    """Calls ``lost``, which must not return, when a kernel hangs or leaves the device unusable.

    ``lost`` is called in the thread that measures after a fault, and in a thread of its own after a hang.
    """

    def __init__(self, lost: Callable[[Crash], None]) -> None:
        self._lost = lost

    @contextmanager
    def __call__(
        self, problem: Problem, config: Config | None = None, what: str = "launch", limit_s: float = LIMIT_S
    ) -> Iterator[None]:
        """A block that runs a kernel and waits for it: the kernel of ``config``, or any kernel for the problem.

        If the block raises an error that leaves the device unusable, the process is lost for the reason ``what``. If
        it takes longer than ``limit_s`` seconds, the reason is ``timeout``. Other errors are raised.
        """
        timer = threading.Timer(limit_s, self._lost, [Crash(problem, config, "timeout")])
        timer.daemon = True
        timer.start()
        try:
            yield
        except RuntimeError as error:
            if _DEVICE_ERROR.search(str(error)) and not _device_answers():
                self._lost(Crash(problem, config, what))
            raise
        finally:
            timer.cancel()

    def failure(self, problem: Problem, config: Config, is_right: Callable[[], bool]) -> str | None:
        """Why a kernel does not count, one of ``dataset.REASONS``: its launch fails, or its result is not right.

        ``is_right`` launches it, and compares what it computes.
        """
        try:
            with self(problem, config):
                right = is_right()
        except RuntimeError as error:
            return failure_reason(error, "launch")
        return None if right else "wrong_result"


def _device_answers() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except (AssertionError, RuntimeError):  # AssertionError: torch has no CUDA at all
        return False
    return True
