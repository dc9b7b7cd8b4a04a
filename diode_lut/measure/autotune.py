"""Method ``autotune``: Inductor's own benchmarks of all its choices for a matmul under max-autotune."""

from __future__ import annotations

import logging
import math
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

import torch
from torch._inductor import config as inductor_config
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.utils import fresh_cache

from diode_lut.dataset import Record, Timing
from diode_lut.dataset.dataset import NS_PER_MS
from diode_lut.errors import CollectError, let_pass
from diode_lut.hook.patches import measuring
from diode_lut.hook.problems import aten_of, config_of, problem_of_aten
from diode_lut.hook.versions import failure_reason
from diode_lut.measure.gemm import make_gemm, matmul_precision
from diode_lut.measure.tasks import Outcome, Task, Watch
from diode_lut.problem import Problem
from diode_lut.settings import config
from diode_lut.templates.config import Config

LIMIT_S = 3600.0  # Seconds after which a problem counts as hung. An exhaustive search takes minutes
_REPETITIONS = 6  # number of timings of each choice on a CPU, after Inductor's first

_NOISY_LOGGERS = ("torch._inductor.select_algorithm", "torch._inductor.runtime.triton_heuristics")
"""Loggers that write a traceback for each failing choice. The dataset has the reason instead."""


def measure(tasks: Sequence[Task], device: str, watch: Watch, search_space: str) -> Iterator[Outcome]:
    """Measure the stage, as a Measurer. Inductor chooses the configs, not the tasks. The hook is off meanwhile."""
    for task in tasks:
        with watch(task.problem, limit_s=LIMIT_S):
            outcome = _measure(task.problem, device, search_space)
            if outcome.status == "skipped" and device == "cuda":
                torch.cuda.synchronize()  # an unusable device raises here, where the watch sees it
        yield outcome


def _measure(problem: Problem, device: str, search_space: str) -> Outcome:
    try:
        with config.patch(policy="off"), matmul_precision(problem.dtype):
            gemm = make_gemm(problem, device)
            rounds = autotune(gemm.function, gemm.arguments, search_space=search_space, freeze=gemm.frozen)
    except CollectError as error:
        return Outcome(problem, "skipped", reason=str(error))
    for found in rounds:
        if found.problem == problem:
            return Outcome(problem, "measured", Record(problem, found.timings), ignored=found.ignored)
    others = ", ".join(str(each.problem or each.name) for each in rounds)
    reason = f"reached Inductor as {others}" if rounds else "Inductor does not autotune it as a GEMM"
    return Outcome(problem, "skipped", reason=reason)


class Round(NamedTuple):
    """A round of autotuning: the matmul in Inductor, and its timings.

    ``name`` is Inductor's name of the op. ``problem`` is None if tables have no such problems. There is a timing for
    each config, or several on a CPU, in the order of Inductor's list. ``ignored`` counts the choices without a
    config.
    """

    name: str
    problem: Problem | None
    timings: tuple[Timing, ...]
    ignored: int


def autotune(
    function: Callable[..., Any], arguments: tuple[torch.Tensor, ...], *, search_space: str, freeze: bool
) -> list[Round]:
    """Compile ``function`` under max-autotune with empty caches, run it once, and return the rounds of autotuning.

    ``search_space`` is ``default`` or ``exhaustive``, as Inductor has them. ``freeze`` turns the parameters of a module
    into constants: otherwise Inductor has no C++ template for ``mm`` and ``addmm``. CollectError, on a line, if it does
    not compile or run.
    """
    observer = _Observer()
    settings = {
        "max_autotune": True,
        "max_autotune_gemm": True,
        "max_autotune_gemm_search_space": search_space.upper(),
        "max_autotune_gemm_backends": "ATEN,TRITON,CPP",
        "triton.enable_persistent_tma_matmul": True,
        "pipeline_max_autotune_gemm": False,  # would benchmark unseen
        "shape_padding": False,  # would measure another problem
        "freezing": freeze,
        "autotune_num_choices_displayed": 0,
        "max_autotune_report_choices_stats": False,
    }
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            for logger in map(logging.getLogger, _NOISY_LOGGERS):
                stack.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.CRITICAL)
            # fresh_cache itself leaves its directory behind after Ctrl-C.
            directory = tempfile.TemporaryDirectory(prefix="diode-lut-", ignore_cleanup_errors=True)
            stack.enter_context(fresh_cache(dir=stack.enter_context(directory), delete=False))
            stack.enter_context(inductor_config.patch(settings))
            torch._dynamo.reset()
            stack.callback(torch._dynamo.reset)
            with observer.attached(), torch.no_grad():
                torch.compile(function, fullgraph=True, dynamic=False)(*arguments)
                if arguments[0].is_cuda:
                    torch.cuda.synchronize()
    except Exception as error:
        let_pass(error)
        lines = str(error).strip().splitlines() or [""]
        raise CollectError(f"does not compile or run: {type(error).__name__}: {lines[0]}") from error
    return observer.rounds


class _Observer:
    """Sees the choices offered by Inductor, and then their times."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self._offered: list[list[ChoiceCaller]] = []
        self._repeated: defaultdict[ChoiceCaller, list[float]] = defaultdict(list)

    @contextmanager
    def attached(self) -> Iterator[None]:
        with (
            measuring("add_preprocessing_fn", self.offer),
            measuring("add_feedback_saver", self.feedback),
            measuring("AlgorithmSelectorCache.benchmark_choices", self.benchmark_choices),
        ):
            yield

    def offer(self, choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
        """Keep the list, as Inductor's preprocessing function, because ``feedback`` gets it without failed compiles."""
        if len(choices) == 1:  # Inductor takes a single choice without a benchmark
            self.rounds.append(_round(choices[0].name, choices, {}))
        else:
            self._offered.append(choices)
        return choices

    def feedback(self, timings: dict[ChoiceCaller, float], name: str, *_others: Any) -> None:
        """Add a round, as Inductor's feedback saver. ``timings`` are milliseconds, infinite for failing choices."""
        offered = next(choices for choices in self._offered if not timings.keys().isdisjoint(choices))
        times = {choice: [ms, *self._repeated.get(choice, ())] for choice, ms in timings.items()}
        self.rounds.append(_round(name, offered, times))

    def benchmark_choices(
        self,
        benchmark: Callable[..., dict[ChoiceCaller, float]],
        cls: type,
        choices: Sequence[ChoiceCaller],
        *args: Any,
        **named: Any,
    ) -> dict[ChoiceCaller, float]:
        """Time choices with Inductor's ``benchmark``, on a CPU several times, in rounds in which each has its turn.

        Each time is the median of a tenth of a second, after a warm-up. Other processes disturb a CPU for longer, and
        so only some times of each choice.
        """
        timings = benchmark(cls, choices, *args, **named)
        if choices[0].input_nodes[0].get_device_or_error().type == "cpu":
            for _ in range(_REPETITIONS):
                for choice, milliseconds in benchmark(cls, choices, *args, **named).items():
                    self._repeated[choice].append(milliseconds)
        return timings


def _round(name: str, offered: list[ChoiceCaller], times: dict[ChoiceCaller, list[float]]) -> Round:
    aten = aten_of(offered)
    problem = None if aten is None else problem_of_aten(aten)[0]
    if problem is None:
        return Round(name, None, (), len(offered))
    configs = [config_of(choice) for choice in offered]
    best: dict[Config, list[Timing]] = {}
    for choice, known in zip(offered, configs, strict=True):
        if known is not None:
            milliseconds = times.get(choice, [math.inf])
            if all(map(math.isfinite, milliseconds)):
                timings = [Timing.of(known, each * NS_PER_MS) for each in milliseconds]
            else:
                timings = [_measured_alone(choice, known)]
            before = best.get(known, timings)
            best[known] = min(before, timings, key=lambda some: median(each.ns or math.inf for each in some))
    return Round(name, problem, tuple(chain.from_iterable(best.values())), configs.count(None))


def _measured_alone(choice: ChoiceCaller, config: Config) -> Timing:
    """Try a choice without a time on its own, which gives its time after all, or the reason why it fails."""
    stage = "compile"
    try:
        if hasattr(choice, "precompile"):
            choice.precompile()
        stage = "launch"
        tensors = AlgorithmSelectorCache.get_inputs([choice], list(choice.input_nodes), choice.layout, None)
        milliseconds = AlgorithmSelectorCache.benchmark_choice(choice, tensors)
        return Timing.of(config, milliseconds * NS_PER_MS)
    except Exception as error:
        return Timing(config, None, failure_reason(error, stage))
