"""Work for other processes that can go wrong in every way."""

import os
import signal


def double(number: int) -> int:
    """Twice the number; 13 is an error, and multiples of 10 take the process down."""
    if number == 13:
        raise ValueError("no 13")
    if number % 10 == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number
