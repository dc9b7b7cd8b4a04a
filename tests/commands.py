"""Calling the command line from tests."""

from __future__ import annotations

from click.testing import CliRunner, Result

from diode_lut.cli import main


def call(*arguments: object) -> Result:
    """What a command does; anything but a clean exit is an error here, as it would be a traceback outside."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result
