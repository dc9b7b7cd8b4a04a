"""What a forked process has to put right: a lock may be held by a thread that is not there."""

from __future__ import annotations

import os
from collections.abc import Callable

_actions: list[Callable[[], None]] = []
_forked = False


def in_forked_children(action: Callable[[], None]) -> Callable[[], None]:
    """Decorator: each process that this one forks calls ``action`` first, in the order of these calls.

    ``action`` must not wait for a lock. On Windows, which has no fork, it is never called.
    """
    _actions.append(action)
    return action


def is_forked() -> bool:
    """Whether this process was forked from one that had imported this package."""
    return _forked


def _run_all() -> None:
    global _forked
    _forked = True
    for action in _actions:
        action()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_run_all)
