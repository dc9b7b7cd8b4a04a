"""A decision as the list of choices that Inductor gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

import torch
from torch._inductor import config as inductor_config
from torch._inductor.ir import ChoiceCaller
from torch._inductor.utils import is_big_gpu

from diode_lut.domain.problem import Problem
from diode_lut.inductor.snapshot import snapshot
from diode_lut.inductor.switch import is_off
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.padding import PADDED_OPS, needed_pad, pad_multiple
from diode_lut.runtime.snapshot import skip
from diode_lut.selection.selector import Decision
from diode_lut.settings import Settings

MARK = "diode_lut"
"""The annotation of choices that Inductor must keep to."""


class CannotRun(Exception):  # noqa: N818 (an answer, not an error)
    """Why a config cannot, or must not, run a matmul here, as text."""


Build = Callable[[Config], ChoiceCaller]


def autotuning() -> bool:
    """Whether Inductor would benchmark matmuls."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def in_force() -> bool:
    """Whether the hook is on, and the settings let tables decide in Inductor's present mode."""
    if is_off():
        return False
    settings = snapshot().settings
    return settings.policy != "off" and (settings.default_mode or autotuning())


def answer(decision: Decision, build: Build, pad: int = 1) -> list[ChoiceCaller] | None:
    """The choices of a decision, marked; None if Inductor should choose among its own.

    ``build`` makes the choice of a config, or raises CannotRun; it gets the config without its ``pad``. ``pad`` is the
    number of elements that Inductor has padded the operands to multiples of. Up to ``top_k`` of those that can run are
    taken, best first; a model's are taken only if its first can run. With the policy ``verify``, aten is added. If
    there are none, that is a MissError under the setting ``strict``.
    """
    now = snapshot()
    built = dict(islice(runnable(decision, build, pad), now.settings.top_k))
    now.record(decision, tuple(built))
    if (now.settings.policy == "verify") if built else _only_aten(decision, now.settings):
        with suppress(CannotRun):
            built.setdefault(ATEN.padded(pad), build(ATEN))
    for choice in built.values():
        choice.annotations[MARK] = True
    return list(built.values()) or None


def _only_aten(decision: Decision, settings: Settings) -> bool:
    """Whether a problem without a match is to be aten's, without a benchmark."""
    return not decision.configs and not settings.fallback_to_autotune and autotuning()


def runnable(decision: Decision, build: Build, pad: int = 1) -> Iterator[tuple[Config, ChoiceCaller]]:
    """The configs of a decision that can run, best first, with their choices; those that cannot are recorded.

    ``build`` and ``pad`` are as for ``answer``.
    """
    for candidate in decision.configs:
        try:
            if needed_pad(decision.problem, candidate.pad) != pad:
                raise CannotRun(_why_not(candidate, decision.problem, pad))
            choice = build(candidate.padded(1))
            if not is_big_enough(choice.input_nodes[0].get_device_or_error(), decision, candidate):
                raise CannotRun("Inductor finds the GPU too small, and no row has the config's measured gain")
            yield candidate, choice
        except CannotRun as reason:  # noqa: PERF203 (one config is all that is usually tried)
            skip(decision, candidate, str(reason))
            if decision.only_first and candidate == decision.configs[0]:
                return


def is_big_enough(device: torch.device, decision: Decision, config: Config) -> bool:
    """Whether a GPU has enough SMs for a config: Inductor wants 68 for Triton's, unless a row has its measured gain.

    With the policy ``verify`` Inductor measures it itself.
    """
    if not config.kernel.many_sms or decision.is_measured(config):
        return True
    return snapshot().settings.policy == "verify" or is_big_gpu(device)


def _why_not(config: Config, problem: Problem, pad: int) -> str:
    """Why operands that are padded to multiples of ``pad`` are not what the config needs."""
    multiple = pad_multiple(problem.dtype)
    if needed_pad(problem, config.pad) == 1:
        return f"its operands are padded to multiples of {pad} already"
    if problem.op not in PADDED_OPS:
        return f"Inductor does not pad {problem.op}"
    if config.pad != multiple:
        return f"Inductor pads {problem.dtype} to multiples of {multiple} only"
    return "Inductor has not padded its operands" if snapshot().settings.pad else "the setting pad is off"
