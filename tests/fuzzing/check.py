"""What becomes of a case: lowered for a device that is not there, or compiled and run."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.utils import run_and_get_code

import diode_lut
from diode_lut.hardware import detect_hardware
from diode_lut.log import warn_once
from diode_lut.statistics import Counts
from tests.fake_cuda import H200, Input, Lowered, compile_triton, lower
from tests.fuzzing.bounded import Bounded, bounded
from tests.fuzzing.cases import Case
from tests.fuzzing.operands import Sizes, elements, filled
from tests.fuzzing.products import BATCHED, BIASES

MOST_ELEMENTS = 2**25
"""Of a tensor that is really made."""

MOST_WORK = {"cpu": 2**28, "cuda": 2**36}
"""Multiplications of a product that is really computed."""

OUR_FAILURES = ("left to Inductor", "diode_lut is off", "left out")
"""What the log says where something of ours has gone wrong."""

NO_DEVICE = "not linked with support for cuda"
"""What PyTorch says if a graph that Inductor makes of its own would be tried out on a device that is not there."""

SCALE = 1 / 4
"""Standard deviation of the operands' values: sums stay within float16."""

_TUNABLES = ("block_m", "block_n", "block_k", "group_m", "num_stages")
"""What a kernel has from its row as it is; Inductor lets small blocks have fewer warps."""


class Outcome(NamedTuple):
    """``kernel``: a row's Triton kernel was made; ``row``: a row answered otherwise; ``miss``: Inductor decided.

    ``void``: nothing can be learnt, because it does not work without diode_lut either; ``failed``: it does.
    """

    status: str
    detail: str = ""


class GuaranteeError(Exception):
    """What must never happen."""


def lowered(case: Case, directory: Path, *, compiling: bool) -> Outcome:
    """The outcome on the device of ``fake_cuda``, down to code or, if ``compiling``, to what Triton makes of it."""
    inputs = case.product.inputs(case.product.sizes)
    function = case.product.function("cuda")

    def attempt() -> str:
        with _no_timing() as timed:
            code = lower(function, *inputs)
        _check_timed(case, len(timed))
        for source in code.triton_templates if compiling else ():
            shared = compile_triton(source, directory).metadata.shared
            if shared > H200.shared_memory_per_block_optin:
                raise GuaranteeError(f"a kernel needs {shared} bytes of shared memory")
        return code.code

    maximum = {"max_autotune": case.mode.startswith("max-autotune"), "benchmark_epilogue_fusion": False}
    with inductor_config.patch(maximum):
        outcome = _outcome(case, "cuda", directory, attempt)
    return outcome._replace(status="void") if NO_DEVICE in outcome.detail else outcome


def executed(case: Case, device: str, directory: Path) -> Outcome:
    """The outcome of compiling and running on a device, compared with float64."""
    product = case.product
    if not _fits(case, device):
        return Outcome("void", "too large")
    torch.manual_seed(case.number)
    function = product.function(device)
    runs = [_Run.of(case, sizes, device) for sizes in (product.sizes, product.again) if sizes is not None]
    with _full_precision():
        try:
            if not all(run.expected.holds(function(*run.tensors)) for run in runs):
                return Outcome("void", "eager is outside the limits")
        except Exception as error:  # noqa: BLE001 (whatever it is, it is not ours)
            return Outcome("void", f"PyTorch refuses: {error}")

        def attempt() -> str:
            torch._dynamo.reset()
            before = counters["inductor"]["select_algorithm_autotune"]
            codes: list[str] = []
            with torch.no_grad(), inductor_config.patch(freezing=case.frozen):
                compiled = _compiled(case, function, runs[0].tensors)
                for run in runs * (3 if case.mode == "reduce-overhead" else 1):
                    result, new = run_and_get_code(compiled, *run.tensors)
                    codes += new
                    run.check(result)
            _check_timed(case, counters["inductor"]["select_algorithm_autotune"] - before)
            return "\n".join(codes)

        return _outcome(case, device, directory, attempt)


def _compiled(case: Case, function: Callable[..., Any], tensors: list[torch.Tensor]) -> Callable[..., Any]:
    """The function, to be compiled when it is called; frozen, it takes all but the first tensor from a module."""
    compile_: Any = partial(torch.compile, mode=None if case.mode == "default" else case.mode)
    if not case.frozen:
        return compile_(function)
    compiled = compile_(_Module(function, tensors[1:]).eval())
    return lambda first, *_: compiled(first)


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], constants: list[torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.constants = torch.nn.ParameterList(torch.nn.Parameter(each, False) for each in constants)

    def forward(self, first: torch.Tensor) -> Any:
        return self.function(first, *self.constants)


class _Run(NamedTuple):
    """What a compiled function is called with, and what it must give."""

    tensors: list[torch.Tensor]
    expected: Bounded

    @classmethod
    def of(cls, case: Case, sizes: Sizes, device: str) -> _Run:
        product = case.product
        tensors = [_tensor(spec, device, _scale(case, place)) for place, spec in enumerate(product.inputs(sizes))]
        return cls(tensors, bounded(product.compute, tensors, product.precision))

    def check(self, result: torch.Tensor) -> None:
        if result.shape != self.expected.shape:
            raise GuaranteeError(f"the result is {tuple(result.shape)}, not {tuple(self.expected.shape)}")
        if not self.expected.holds(result):
            raise GuaranteeError(f"wrong digits: {self.expected.excess(result):.3g} times the limit")


def _scale(case: Case, place: int) -> float:
    """How large an operand's values are; NaN for a bias that must not be read."""
    ignored = case.product.op in BIASES and case.product.beta == 0 and place == 0
    return float("nan") if ignored else SCALE


def _tensor(spec: Input, device: str, scale: float) -> torch.Tensor:
    tensor = filled(spec, device, scale)
    for dimension in spec.dynamic:
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    return tensor


def _outcome(case: Case, device: str, directory: Path, attempt: Callable[[], str]) -> Outcome:
    """What an attempt, which returns code, comes to with the table; if it fails, compared with that without."""
    hardware = detect_hardware(device)
    table = directory / f"{case.seed}-{case.number}.json"
    case.write_table(table, hardware)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.product.precision.tf32 else "highest")
    try:
        with (
            diode_lut.config.patch(tables=(str(table),), **case.settings),
            diode_lut.profile_predictions() as counts,
            _no_failures_of_ours(),
        ):
            return _answered(case, counts, attempt())
    except Exception as error:  # noqa: BLE001 (it becomes the outcome)
        with diode_lut.config.patch(policy="off"):
            return _blame(error, attempt)
    finally:
        torch.set_float32_matmul_precision(precision)


def _blame(error: Exception, attempt: Callable[[], str]) -> Outcome:
    """Whose failure an error is, found out by another attempt, without diode_lut."""
    reason = f"{type(error).__name__}: {str(error).strip()[:2000]}"
    if not _device_is_alive():
        return Outcome("failed", reason)
    try:
        attempt()
    except Exception:  # noqa: BLE001 (whatever it is, it is not ours)
        return Outcome("void", f"without diode_lut as well: {reason}")
    return Outcome("failed", reason)


def _device_is_alive() -> bool:
    """Whether a fault has not put an end to all that the GPU does for this process."""
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _answered(case: Case, counts: Counts, code: str) -> Outcome:
    """Who made the choice; GuaranteeError if a kernel is none of the rows'."""
    hits = counts.as_dict()["hits"]
    kernels = [_config_of(source) for source in Lowered(code).triton_templates]
    known = [tuple(config.get(name) for name in _TUNABLES) for row in case.rows for config in _configs(row)]
    ours = [kernel for kernel in kernels if kernel in known]
    alone = hits["user"] == sum(hits.values()) and case.mode != "max-autotune-no-cudagraphs"
    if alone and len(ours) < len(kernels):
        raise GuaranteeError(f"kernels that no row names: {kernels}")
    if ours:
        return Outcome("kernel")
    return Outcome("row" if hits["user"] else "miss")


def _configs(row: dict[str, Any]) -> list[dict[str, Any]]:
    configs = row.get("configs")
    return [each for each in configs if isinstance(each, dict)] if isinstance(configs, list) else []


def _config_of(source: str) -> tuple[int, ...]:
    """The values of _TUNABLES in a kernel made from a Triton template."""
    found = dict(re.findall(r"^\s+(\w+) : tl\.constexpr = (\d+)$", source, flags=re.MULTILINE))
    found |= dict(re.findall(r"^(num_stages)=(\d+)", source, flags=re.MULTILINE))
    return tuple(int(found[name if name == "num_stages" else name.upper()]) for name in _TUNABLES)


def _check_timed(case: Case, times: int) -> None:
    if times and case.mode == "default" and not case.times_candidates:
        raise GuaranteeError(f"{times} benchmarks in default mode")


def _fits(case: Case, device: str) -> bool:
    product = case.product
    sizes = product.sizes
    work = prod(sizes[dim] for dim in ("bmnk" if product.op in BATCHED else "mnk"))
    largest = max(map(elements, product.inputs(sizes)))
    return largest <= MOST_ELEMENTS and work <= MOST_WORK[device]


@contextmanager
def _full_precision() -> Iterator[None]:
    """The library adds up in float32, as our limits have it."""
    matmul = torch.backends.cuda.matmul
    with ExitStack() as stack:
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
            stack.callback(setattr, matmul, name, getattr(matmul, name))
            setattr(matmul, name, False)
        yield


@contextmanager
def _no_timing() -> Iterator[list[str]]:
    """Has Inductor believe that its benchmarks brought no times; gives the names of what it wanted to time."""
    names: list[str] = []

    def nothing(_self: Any, name: str, *_: Any, **__: Any) -> dict[Any, float]:
        names.append(name)
        return {}

    with mock.patch.object(AlgorithmSelectorCache, "do_autotuning", nothing):
        yield names


@contextmanager
def _no_failures_of_ours() -> Iterator[None]:
    """Raises GuaranteeError at its end if the log says that something of ours went wrong."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("diode_lut")
    warn_once.cache_clear()
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)
    for message in messages:
        if any(sign in message for sign in OUR_FAILURES):
            raise GuaranteeError(message)
