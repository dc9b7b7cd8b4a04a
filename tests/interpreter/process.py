"""The interpreter's device, for tests whose process must not have it itself."""

import os

import pytest

from tests.interpreter.library import NoCompilerError, UnavailableError, built_library


def require_interpreter() -> None:
    """Skip the test where there can be no such device; without a compiler it fails in continuous integration."""
    try:
        built_library()
    except UnavailableError as reason:
        if os.environ.get("CI") and isinstance(reason, NoCompilerError):
            raise
        pytest.skip(str(reason))
