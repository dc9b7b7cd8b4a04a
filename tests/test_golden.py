"""The answers of the shipped tables and models are those that were recorded."""

from pathlib import Path

from golden import differences

RECORDED = Path(__file__).with_name("golden.msgpack.zst")
EVERY = 83  # one of this many recorded questions is asked; ``python tools/golden.py`` asks all of them


def test_answers_are_those_recorded() -> None:
    """A change of the code changes no answer. Where it should, ``python tools/golden.py`` records the new answers."""
    assert list(differences(RECORDED, EVERY)) == []
