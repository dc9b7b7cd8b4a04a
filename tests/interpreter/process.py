"""Processes that have the interpreter's device, for tests and tools that must not have it themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import ROOT, environment
from tests.interpreter.library import NoCompilerError, UnavailableError, built_library


def require_interpreter() -> None:
    """Skip the test where there can be no such device; without a compiler it fails in continuous integration."""
    try:
        built_library()
    except UnavailableError as reason:
        if os.environ.get("CI") and isinstance(reason, NoCompilerError):
            raise
        pytest.skip(str(reason))


def run_program(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a Python program of this repository that uses the device."""
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment(), capture_output=True, text=True)
