"""Dynamo's cache of packages, ``torch._dynamo.config.caching_precompile``, whose keys are a function's name and line.

Nothing that an answer depends on is in these keys. So each graph that goes into a package is marked with the identity
of the snapshot by which its kernels were chosen, and a package is served only where all marks are the present identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diode_lut.inductor.switch import cache_identity, is_answered, turn_off
from diode_lut.io.log import log

_MARK = "_diode_lut"


def mark_what_is_kept(precompile_context: Any) -> None:
    """Mark what Dynamo keeps for packages, given ``torch._dynamo.precompile_context``."""
    try:
        context = precompile_context.PrecompileContext
        context.record_artifact = staticmethod(_marking(context.record_artifact))
    except Exception as error:
        turn_off(error)


def check_what_is_served(package: Any) -> None:
    """Serve no package that was made with other settings or tables, given ``torch._dynamo.package``."""
    try:
        cache = package.DynamoCache
        cache.read, cache.load = _reading(cache.read), _checking(cache.load)
    except Exception as error:
        turn_off(error)


def _marking(record: Callable[[Any], None]) -> Callable[[Any], None]:
    def record_artifact(artifact: Any) -> None:
        """Called within the compile that has made the artifact, or after it has been read, with its mark."""
        vars(artifact).setdefault(_MARK, repr(cache_identity()) if is_answered() else None)
        record(artifact)

    return record_artifact


def _reading(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_entry(path: str) -> Any:
        entry = read(path)
        for artifact in entry.backends.values():
            vars(artifact).setdefault(_MARK, None)  # made by a process without the hook
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
