"""Why a candidate could not be measured, in the words of a dataset."""

from __future__ import annotations

from diode_lut.domain.interruption import let_pass

_SIGNS = {
    "out of resource: shared memory": "shared_memory",
    "out of memory": "out_of_memory",
    "can't allocate memory": "out_of_memory",
    "timed out": "timeout",
}
"""What the messages of Triton, CUDA and PyTorch say, against the reason; they arrive wrapped in various errors."""


def failure_reason(error: Exception, stage: str) -> str:
    """The reason, one of ``dataset.REASONS``, that ``error`` stands for.

    ``stage`` is what was going on, ``compile`` or ``launch``, and the answer where the error says nothing better. What
    a signal handler has raised is no failure of the candidate, and is raised again.
    """
    let_pass(error)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, AssertionError) and stage == "launch":  # raised by Inductor's own check of results
        return "wrong_result"
    text = str(error).lower()
    return next((reason for sign, reason in _SIGNS.items() if sign in text), stage)
