"""Ways to compile the same work, and their results: a line of JSON for each case, which a later run leaves alone."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from modelbench.dynamic import bound, fresh, note
from torch import Tensor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering

import diode_lut

Results = Sequence[Tensor]
Line = dict[str, Any]


class Way(NamedTuple):
    """How a case is compiled: which of its functions, the setting ``policy``, and options of Inductor."""

    function: str
    policy: str = "off"
    options: Mapping[str, Any] = {}


class Compiled(NamedTuple):
    """What runs a function, the code that Inductor generated for it, and its results."""

    step: Callable[[], Any]
    code: str
    results: Any

    @property
    def kernels(self) -> int:
        """How many kernels a call launches."""
        return len(re.findall(r"\.run\(|extern_kernels\.\w+\(|torch\.ops\.aten\.\w+\.\w+\(", self.code))


def compiled(function: Callable[..., Any], operands: Sequence[Tensor], way: Way) -> Compiled:
    """The function, compiled and called once. Inductor's ``run_and_get_code`` would forget what was compiled before."""
    codes: list[str] = []
    with diode_lut.config.patch(policy=way.policy), mock.patch.object(GraphLowering, "save_output_code", codes.append):
        run = torch.compile(fresh(function), dynamic=False, options=dict(way.options) or None)
        results = run(*operands)
    return Compiled(bound(run, operands), "\n".join(codes), results)


def difference(result: Tensor, exact: Tensor) -> float:
    """Relative to the norm of the exact result, in float64."""
    return float((result.double() - exact).norm() / exact.norm())


def read(out: Path) -> list[Line]:
    """The lines of the results, without one that was cut off; none if there is no such file."""
    lines = out.read_text(encoding="utf-8").splitlines(keepends=True) if out.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def measure_missing(
    out: Path, cases: Iterable[str], measure: Callable[[str], Line], device: str, budget: float, limit: float
) -> None:
    """Add what ``measure`` finds out about each case that has no line yet; none is begun after ``budget`` seconds.

    A case that fails has its error in the place of times. One that takes over ``limit`` seconds, or leaves the GPU
    unusable, ends the process too; the next run goes on behind it.
    """
    AsyncCompile.wait_pool_ready()  # else the first case would compile in one process
    until = time.monotonic() + budget
    done = {line["case"] for line in read(out)}
    for name in cases:
        if name in done or time.monotonic() >= until:
            continue
        try:
            with _no_longer_than(limit, out, name):
                found = measure(name)
        except RuntimeError as error:
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        note(out, case=name, **found)
        if device == "cuda" and "error" in found:
            torch.cuda.synchronize()


@contextmanager
def _no_longer_than(seconds: float, out: Path, case: str) -> Iterator[None]:
    def give_up() -> None:
        note(out, case=case, error=f"took over {seconds:.0f} s")
        os._exit(1)

    watch = threading.Timer(seconds, give_up)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
