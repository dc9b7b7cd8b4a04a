"""Whose doing it is what becomes of a case: a row's, Inductor's own, or a failure of ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

import diode_lut
from diode_lut.hardware import detect_hardware
from diode_lut.log import warn_once
from diode_lut.receipts.recorder import Counts
from tests.fake_cuda import H200, Lowered, compile_triton
from tests.fuzzing.cases import TableCase

OUR_FAILURES = ("left to Inductor", "diode_lut is off", "left out")  # in the log if something of ours went wrong


class Outcome(NamedTuple):
    """``kernel``: a row's Triton kernel was made; ``row``: a row answered otherwise; ``miss``: Inductor decided.

    ``void``: nothing can be learnt, because it does not work without diode_lut either; ``failed``: it does.
    ``fault``: the GPU does nothing more for this process, so a new one has to find out which of the two it is.
    """

    status: str
    detail: str = ""


class GuaranteeError(Exception):
    """What must never happen."""


def outcome_of(case: TableCase, device: str, directory: Path, attempt: Callable[[], str]) -> Outcome:
    """What an attempt, which returns code, comes to with the table; if it fails, compared with that without."""
    hardware = detect_hardware(device)
    table = directory / f"{case.seed}-{case.number}.json"
    case.write_table(table, hardware)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.tf32 else "highest")
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
        return Outcome("fault", reason)
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


def _answered(case: TableCase, counts: Counts, code: str) -> Outcome:
    """Who made the choice; GuaranteeError if a kernel is none of the rows'."""
    hits = counts.as_dict()["hits"]
    sources = Lowered(code).triton_templates
    kernels = [_config_of(source, case.tunables) for source in sources]
    ours = [source for source in sources if any(_is_ours(source, case, names) for names in _kinds(case))]
    alone = hits["user"] == sum(hits.values()) and case.names_kernels
    if alone and len(ours) < len(kernels):
        raise GuaranteeError(f"kernels that no row names: {kernels}")
    if ours or case.has_kernel(code):
        return Outcome("kernel")
    if counts.no_choice and not hits["user"]:
        return Outcome("void", "Inductor has no choice here")
    return Outcome("row" if hits["user"] else "miss")


def _kinds(case: TableCase) -> tuple[tuple[str, ...], ...]:
    return (case.tunables, *case.other_tunables)


def _is_ours(source: str, case: TableCase, tunables: tuple[str, ...]) -> bool:
    """Whether a kernel is one that a row names. One for few rows has all rows of A in its blocks."""
    if "FEW_ROWS : tl.constexpr = True" in source:
        tunables = tuple(name for name in tunables if name not in ("block_m", "group_m"))
    known = [tuple(config.get(name) for name in tunables) for row in case.rows for config in configs_of(row)]
    return _config_of(source, tunables) in known


def configs_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The configs of a row, as far as they are any."""
    configs = row.get("configs")
    return [each for each in configs if isinstance(each, dict)] if isinstance(configs, list) else []


def _config_of(source: str, tunables: tuple[str, ...]) -> tuple[int, ...]:
    """The values of tunables in a kernel made from a Triton template."""
    found = dict(re.findall(r"^\s+(\w+) : tl\.constexpr = (\d+)$", source, flags=re.MULTILINE))
    found |= dict(re.findall(r"^(num_stages)=(\d+)", source, flags=re.MULTILINE))
    return tuple(int(found.get(name if name == "num_stages" else name.upper(), 0)) for name in tunables)


def check_room(code: Lowered, directory: Path) -> None:
    """Have Triton compile all kernels that are made from its templates, and see that an H200 has room for them."""
    for source in code.triton_templates:
        shared = compile_triton(source, directory).metadata.shared
        if shared > H200.shared_memory_per_block_optin:
            raise GuaranteeError(f"a kernel needs {shared} bytes of shared memory")


def check_timed(case: TableCase, times: int) -> None:
    if times and case.mode == "default" and not case.times_candidates:
        raise GuaranteeError(f"{times} benchmarks in default mode")


@contextmanager
def full_precision() -> Iterator[None]:
    """The libraries add up in float32, as our limits have it, and convolutions are not in TF32."""
    matmul = torch.backends.cuda.matmul
    reduced = (matmul, "allow_fp16_reduced_precision_reduction"), (matmul, "allow_bf16_reduced_precision_reduction")
    with ExitStack() as stack:
        for owner, name in (*reduced, (torch.backends.cudnn, "allow_tf32")):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, False)
        yield


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
