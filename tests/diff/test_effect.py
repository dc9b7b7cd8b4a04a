"""What a change of tables does to time."""

import pytest

from diode_lut.dataset import Record, Timing
from diode_lut.diff import Effect, effect_of
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table
from diode_lut.templates.config import ATEN, Config

H200 = Hardware("NVIDIA H200", "sm_90", 132)
A, B, C = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 32, 64))
PROBLEM = Problem("mm", "float16", "nn", 16, 1, 1, 8, 8)


def table(config: Config | None, high: int = 100) -> Table:
    """One that answers with ``config`` for m up to ``high``."""
    row = Entry("mm", "float16", None, None, None, (1, high), None, None, (Candidate(config or A),))
    return Table(H200, [row] if config else [])


def records(*ratios: float) -> list[Record]:
    """For m from 1: A takes 100 ns, B takes the given ratio of that, aten 400 ns, and C fails."""
    return [
        Record(
            PROBLEM._replace(m=m),
            (Timing(A, 100), Timing(B, 100 * ratio), Timing(ATEN, 400), Timing(C, None, "launch")),
        )
        for m, ratio in enumerate(ratios, start=1)
    ]


def effect(old: Table, new: Table) -> Effect:
    return effect_of(old, new, records(0.5, 2, 4))


def test_the_mean_is_geometric_and_the_worst_comes_first() -> None:
    """Halving once, doubling once and doubling twice is a factor of the third root of four."""
    found = effect(table(A), table(B))
    assert found.changes == pytest.approx([3, 1, -0.5])
    assert found.mean_change == pytest.approx(4 ** (1 / 3) - 1)
    assert [switch.problem.m for switch in found.switches] == [3, 2, 1]


def test_a_miss_counts_as_aten() -> None:
    """A problem that is no longer covered takes what aten takes."""
    found = effect(table(A), table(A, high=1))
    assert (found.problems, found.old_covered, found.new_covered) == (3, 3, 1)
    assert [(switch.new, switch.change) for switch in found.switches] == [(ATEN, 3), (ATEN, 3)]


def test_problems_that_keep_their_kernel_are_not_affected() -> None:
    """Naming aten where there was no match changes the coverage, not a kernel."""
    found = effect(table(None), table(ATEN))
    assert (found.switches, found.mean_change) == ([], None)
    assert (found.old_covered, found.new_covered) == (0, 3)


def test_a_change_to_what_failed_is_unknown() -> None:
    """Without a time of the new kernel nothing is claimed, and the problem is still counted."""
    found = effect(table(A), table(C))
    assert (len(found.switches), found.changes, found.mean_change) == (3, [], None)


def test_nothing_measured_is_an_error() -> None:
    """Failures alone say nothing about time."""
    with pytest.raises(DatasetError, match="no usable timing"):
        effect_of(table(A), table(B), [Record(PROBLEM, (Timing(A, None, "launch"),))])
