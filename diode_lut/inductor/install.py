"""Putting the hook into Inductor: for every thread, and into the keys of its caches.

The way that all of torch 2.11 to 2.15 have is a configuration value, a factory of choices handlers. torch 2.11 keys its
caches by the factory's pickle, later ones by the ``uuid()`` of what it makes; since 2.13 configuration is kept per
thread, so the default that new threads start from has to change as well.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from types import ModuleType
from typing import Any
from uuid import uuid4

from diode_lut.inductor.switch import is_off, turn_off
from diode_lut.runtime.post_import import when_imported


class Factory:
    """Makes the choices handler of a thread: ours, on top of what ``previous`` makes, the user's own factory."""

    __name__ = "FACTORY"  # torch 2.11's repro scripts set configuration by the names of its callables

    previous: Any = None

    def __call__(self) -> Any:
        """A new handler; without ours if that cannot be loaded."""
        try:
            from diode_lut.inductor.hook import DiodeChoices, on_top_of

            return DiodeChoices() if self.previous is None else on_top_of(self.previous())
        except Exception as error:
            turn_off(error)
            return _inductors_own() if self.previous is None else self.previous()

    def __deepcopy__(self, memo: dict[int, Any]) -> Factory:
        """Itself, whatever tables there are: torch 2.13 copies it for each thread, and keys its caches by a copy."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """What the answers depend on goes into the pickle, because torch 2.11 keys its caches by that."""
        return _restore, (self.previous, cache_identity())


FACTORY = Factory()
"""The factory of this process."""


def _inductors_own() -> Any:
    """Inductor's own handler, with the identity that a factory's handlers must have since torch 2.13."""
    from torch._inductor.choices import InductorChoices

    class Plain(InductorChoices):
        def uuid(self) -> str:
            return "diode_lut is off"

    return Plain()


def _restore(*_identity: Any) -> Factory:
    return FACTORY


def cache_identity() -> tuple[Hashable, ...]:
    """What the answers depend on; something new each time, so that no cache answers, if that cannot be told."""
    if is_off():
        return ("off",)
    try:
        from diode_lut.inductor.snapshot import snapshot

        return snapshot().identity
    except Exception as error:
        turn_off(error)
        return ("unknown", uuid4().hex)


def install(config: ModuleType) -> None:
    """Arm the hook in Inductor, given ``torch._inductor.config``; called right after that is imported.

    An Inductor that has no place for it leaves the hook off, with a warning.
    """
    try:
        if config.inductor_choices_class is FACTORY:
            return  # this package has been reloaded
        _install_factory(config)
        _take_over_this_thread()
        when_imported("torch._inductor.select_algorithm", f"{__name__}:install_filter")
        when_imported("torch._dynamo.precompile_context", "diode_lut.inductor.precompile:mark_what_is_kept")
        when_imported("torch._dynamo.package", "diode_lut.inductor.precompile:check_what_is_served")
    except Exception as error:
        turn_off(error)


def _install_factory(config: Any) -> None:
    FACTORY.previous = config.inductor_choices_class
    config._config["inductor_choices_class"].default = FACTORY
    config.inductor_choices_class = FACTORY


def _take_over_this_thread() -> None:
    """Replace the handler of this thread, if it has compiled before."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None or not hasattr(virtualized.threadlocal, virtualized._choices._key):
        return
    from diode_lut.inductor.hook import on_top_of

    virtualized.V.set_choices_handler(on_top_of(virtualized.V.choices))


def install_filter(select_algorithm: Any) -> None:
    """Have Inductor show us each list of candidates, given ``torch._inductor.select_algorithm``."""
    try:
        select_algorithm.add_preprocessing_fn(filter_choices)
    except Exception as error:
        turn_off(error)


def filter_choices(choices: list[Any]) -> list[Any]:
    """What ``choice_filter`` says; it is loaded now, because Inductor's parts that it needs import each other."""
    try:
        from diode_lut.inductor import choice_filter
    except Exception as error:
        turn_off(error)
        return choices
    return choice_filter.filter_choices(choices)
