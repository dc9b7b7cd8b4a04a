"""What one compile is decided by, from the first key of a cache to the last kernel of its backward.

Inductor asks several times: for the keys of its caches, for each matrix multiplication, and for the backward later,
often in another thread. All of that has one tracing context, which a lazy backward gets back. Whatever is asked first
there takes the snapshot, so that no entry of a cache is keyed by other settings than those that decided it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch._guards import TracingContext
from torch._inductor.utils import parallel_num_threads

from diode_lut import runtime
from diode_lut.hardware import detect_hardware, local_devices
from diode_lut.problem import Hardware, Problem
from diode_lut.selector import Decision


class Moment(NamedTuple):
    """The settings and tables, torch's precision of float32 for each type of device, and the threads of C++ kernels."""

    snapshot: runtime.Snapshot
    precision: dict[str, str]
    cpu_threads: int

    @classmethod
    def now(cls) -> Moment:
        """The present one."""
        backends = {"cuda": torch.backends.cuda.matmul, "cpu": torch.backends.mkldnn.matmul}  # type: ignore[attr-defined]
        precision = {name: str(matmul.fp32_precision) for name, matmul in backends.items()}
        return cls(runtime.Snapshot(), precision, parallel_num_threads())

    def hardware(self, device: str | torch.device) -> Hardware:
        """The hardware of a device; a CPU has as many threads as kernels are compiled for."""
        found = detect_hardware(device)
        return found._replace(sm_count=self.cpu_threads) if torch.device(device).type == "cpu" else found

    def decide(self, problem: Problem, device: str | torch.device) -> Decision:
        """The decision for one problem on one of torch's devices."""
        return runtime.decide(problem, self.hardware(device), self.snapshot)

    def identity(self) -> tuple[Hashable, ...]:
        """All that decisions on this machine can depend on: the same in another process if it decides the same."""
        return (*self.snapshot.identity(tuple(map(self.hardware, local_devices()))), *sorted(self.precision.items()))


_of_contexts: WeakKeyDictionary[TracingContext, Moment] = WeakKeyDictionary()


def current() -> Moment:
    """That of the compile which this thread is at; outside of any, the present one."""
    context = TracingContext.try_get()
    if context is None:
        return Moment.now()
    moment = _of_contexts.get(context)
    if moment is None:
        moment = _of_contexts[context] = Moment.now()
    return moment
