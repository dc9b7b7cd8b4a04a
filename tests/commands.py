"""Calling the command line from tests."""

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from diode_lut.cli import main
from tests.forks import environment


def call(*arguments: object) -> Result:
    """What a command does; anything but a clean exit is an error here, as it would be a traceback outside."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def started(*command: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """A command with pipes for its output, as a shell in the directory of a user would start it."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment() | variables,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def running(name: str, *arguments: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """A command of ours in a process of its own."""
    return started(sys.executable, "-m", "diode_lut", name, *arguments, cwd=cwd, **variables)


def run(name: str, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What becomes of it."""
    with running(name, *arguments, cwd=cwd, **variables) as process:
        out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess([], process.returncode, out, err)
