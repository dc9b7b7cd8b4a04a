"""A limit on the work of comparing rows, counted in steps, so that it is the same on every machine.

Whether boxes cover another box takes exponential time in general: a table of a few kilobytes could keep a command busy
for days. What is not found within the limit is reported as not looked for.
"""

from __future__ import annotations

STEPS = 4_000_000
"""Steps for one table, each about a microsecond. 20,000 rows that do not overlap need a quarter of them at most."""
ROW_STEPS = 1_000_000
"""Steps for one row, so that a few rows do not use up the steps of all others."""


class ExhaustedError(Exception):
    """The steps are used up. It never leaves the functions that compare rows."""


class Effort:
    """Steps that remain, ``left``, and ``undecided``: the numbers of the rows for which they were too few."""

    def __init__(self, steps: int | None = None) -> None:
        self.left = STEPS if steps is None else steps
        self.undecided: set[int] = set()

    def spend(self, steps: int) -> None:
        """Use up some steps; ExhaustedError if there are not enough, and then none are left."""
        self.left -= steps
        if self.left < 0:
            self.left = 0
            raise ExhaustedError

    def share(self) -> Effort:
        """Steps for one row, to be given back with ``settle``."""
        return Effort(min(ROW_STEPS, self.left))

    def settle(self, share: Effort) -> None:
        """Take off what was used of the share."""
        self.left -= min(ROW_STEPS, self.left) - share.left
