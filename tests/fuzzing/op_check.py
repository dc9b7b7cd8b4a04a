"""What becomes of one op, or its gradients: lowered for a device that is not there, or compiled and run."""

from collections.abc import Callable
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

from diode_lut.errors import ProblemError
from diode_lut.templates.config import Config
from tests.fake_cuda import Lowered
from tests.fuzzing.cases import TableCase
from tests.fuzzing.outcome import GuaranteeError, Outcome, check_room, check_timed, full_precision, outcome_of
from tests.fuzzing.rows import Row
from tests.fuzzing.runs import EAGER_ERRORS, Run, overruns_so_far, results_of


def lowered_op(case: TableCase, directory: Path, lower: Callable[[], Lowered], *, compiling: bool) -> Outcome:
    """The outcome on the device of ``fake_cuda``, down to code or, if ``compiling``, to what Triton makes of it."""

    def attempt() -> str:
        code = lower()
        if compiling:
            check_room(code, directory)
        return code.code

    with inductor_config.patch(max_autotune=case.mode != "default"):
        return outcome_of(case, "cuda", directory, attempt)


def executed_op(
    case: TableCase,
    device: str,
    directory: Path,
    function: Callable[..., Any],
    run: Callable[[], Run],
    *,
    backward: bool,
) -> Outcome:
    """The outcome of compiling a function of a run's tensors and calling it, compared with float64 and with eager."""
    torch.manual_seed(case.number)
    torch._dynamo.reset()  # eager flex attention goes through Dynamo
    with full_precision():
        try:
            expected = run()
        except RuntimeError as error:
            return Outcome("void", f"PyTorch refuses: {str(error)[:2000]}")
        if not all(each.isfinite().all() for each in expected.eager):
            return Outcome("void", "eager is not finite")

        found: list[list[float]] = []

        def attempt() -> str:
            torch._dynamo.reset()
            torch.manual_seed(case.number)
            before = counters["inductor"]["select_algorithm_autotune"]
            overruns = overruns_so_far()
            compile_: Any = partial(torch.compile, mode=None if case.mode == "default" else case.mode)
            compiled = partial(results_of, compile_(function), backward=backward)
            results, codes = run_and_get_code(compiled, expected.tensors)
            found.append(expected.distances(results))
            expected.check(results)
            del results
            if overruns_so_far() > overruns:
                raise GuaranteeError("a kernel wrote beside a tensor")
            check_timed(case, counters["inductor"]["select_algorithm_autotune"] - before)
            return "\n".join(codes)

        outcome = outcome_of(case, torch.device(device).type, directory, attempt)
        if outcome.status == "void" and len(found) == 2:
            return _compared(outcome, expected, *found)
        if outcome.status in ("kernel", "row") and not any(_is_allowed(row) for row in case.rows):
            return Outcome("failed", "a row with wrong values answered")
        return outcome


def _is_allowed(row: Row) -> bool:
    """Whether no config of a row has wrong values."""
    try:
        return bool([Config.from_json(config) for config in row["configs"]])
    except ProblemError:
        return False


def _compared(outcome: Outcome, expected: Run, ours: list[float], theirs: list[float]) -> Outcome:
    """What it is if neither is within the limits: where terms cancel, as in gradients, PyTorch's kernels are not."""
    for place, (our, their, limit) in enumerate(zip(ours, theirs, expected.limits, strict=True)):
        if not (our <= limit + EAGER_ERRORS * their or isnan(their)):
            detail = f"wrong digits: result {place} is {our:.3g} away, and {their:.3g} without diode_lut"
            return Outcome("failed", detail)
    return outcome
