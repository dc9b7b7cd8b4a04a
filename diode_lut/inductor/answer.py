"""A decision as the list of candidates that Inductor may choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from torch._inductor import config as inductor_config
from torch._inductor.ir import ChoiceCaller

from diode_lut import runtime
from diode_lut.problem import ATEN, Config
from diode_lut.selector import Decision
from diode_lut.settings import config

MARK = "diode_lut"
"""The annotation of candidates that Inductor must keep to."""

Build = Callable[[Config], ChoiceCaller | None]


def autotuning() -> bool:
    """Whether Inductor would benchmark matrix products."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def in_force() -> bool:
    """Whether the settings let tables decide in Inductor's present mode."""
    return config.policy != "off" and (config.default_mode or autotuning())


def answer(decision: Decision, build: Build) -> list[ChoiceCaller] | None:
    """The candidates for a decision, marked; None if Inductor should choose among its own.

    ``build`` makes the candidate of a config, or says None if that cannot run. Fewer than ``top_k`` of those that can
    run are taken, best first; with the policy ``verify``, aten as well.
    """
    if decision.configs:
        built = dict(islice(_runnable(decision, build), config.top_k))
    else:
        built = {} if config.fallback_to_autotune or not autotuning() else {ATEN: build(ATEN)}
    if decision.configs and built and config.policy == "verify":
        built.setdefault(ATEN, build(ATEN))
    callers = [caller for caller in built.values() if caller is not None]
    for caller in callers:
        caller.annotations[MARK] = True
    return callers or None


def _runnable(decision: Decision, build: Build) -> Iterator[tuple[Config, ChoiceCaller | None]]:
    for candidate in decision.configs:
        caller = build(candidate)
        if caller is None:
            runtime.skipped(decision, candidate)
        else:
            yield candidate, caller
