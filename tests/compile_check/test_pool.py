"""Work that is done whatever becomes of the processes."""

from concurrent.futures.process import BrokenProcessPool

from diode_lut.compile_check import each_in_a_process
from tests.programs.fragile import double


def test_items_that_kill_their_process_are_told_from_the_others() -> None:
    """Each item comes once: with its result, with its error, or as the one that took its process down."""
    done = [(item, future.exception() or future.result()) for item, future in each_in_a_process(double, range(1, 22))]
    assert sorted(item for item, _ in done) == list(range(1, 22))
    results = dict(done)
    assert {item for item, result in done if isinstance(result, BrokenProcessPool)} == {10, 20}
    assert str(results[13]) == "no 13"
    assert all(result == 2 * item for item, result in done if item not in (10, 13, 20))
