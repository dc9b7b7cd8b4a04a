"""Dynamo's cache of packages, ``torch._dynamo.config.caching_precompile``: its keys are a function's name and line.

So each graph that goes into a package is marked with the identity of what its kernels were chosen by; and a package is
served only where all its graphs have the mark of what would choose now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from diode_lut.inductor.install import cache_identity
from diode_lut.inductor.switch import turn_off

log = logging.getLogger(__name__)

_MARK = "_diode_lut"


def mark_what_is_kept(precompile_context: Any) -> None:
    """Have what Dynamo keeps for packages marked, given ``torch._dynamo.precompile_context``."""
    try:
        context = precompile_context.PrecompileContext
        context.record_artifact = staticmethod(_marking(context.record_artifact))
    except Exception as error:
        turn_off(error)


def check_what_is_served(package: Any) -> None:
    """Have no package served that other settings or tables have made, given ``torch._dynamo.package``."""
    try:
        cache = package.DynamoCache
        cache.read, cache.load = _reading(cache.read), _checking(cache.load)
    except Exception as error:
        turn_off(error)


def _marking(record: Callable[[Any], None]) -> Callable[[Any], None]:
    def record_artifact(artifact: Any) -> None:
        """Within the compile that has made it; or when it has been read, with the mark that it came with."""
        vars(artifact).setdefault(_MARK, repr(cache_identity()))
        record(artifact)

    return record_artifact


def _reading(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_entry(path: str) -> Any:
        entry = read(path)
        for artifact in entry.backends.values():
            vars(artifact).setdefault(_MARK, None)  # of a process without the hook
        return entry

    return read_entry


def _checking(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def load_entry(function: Any) -> Any:
        entry = load(function)
        if entry is None or all(_is_current(artifact) for artifact in entry.backends.values()):
            return entry
        log.info("%s is compiled again: its package was made with other settings or tables", function)
        return None

    return load_entry


def _is_current(artifact: Any) -> bool:
    return getattr(artifact, _MARK, None) == repr(cache_identity())
