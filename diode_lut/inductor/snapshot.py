"""The snapshot of settings and tables that a compile keeps, so that its answers match the keys of its cache entries.

A compile asks for it many times: for the key of AOTAutograd's cache, for that of the cache for graphs, for each matmul,
and again when its backward pass is compiled, perhaps much later and in another thread. The first question makes the
snapshot. It is kept with the context that PyTorch carries through a compile and restores for the backward pass.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch._guards import CompileContext, TracingContext
from torch._inductor.codecache import BypassFxGraphCache

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.inductor.trace import trace_decision, trace_no_choice
from diode_lut.kernels.config import Config
from diode_lut.runtime import snapshot as runtime
from diode_lut.selection.selector import Decision
from diode_lut.settings import config

_DTYPES = {"none": "float32", "ieee": "float32", "tf32": "tf32"}
"""What PyTorch calls the precision of float32 matmuls: the data type in tables."""


class MatmulSettings(NamedTuple):
    """The settings of PyTorch and Triton on which it depends how a matmul is computed.

    ``cpu`` and ``cuda`` are what tables call float32 matmuls there, ``float32`` or ``tf32``; None for a precision that
    tables do not have. ``float16_accumulation`` says whether the library may add up in float16. ``carveout`` is the
    number of SMs that kernels leave free, if that is set. ``triton`` is the precision that Triton takes for float32,
    whatever a kernel asks for; empty if kernels decide.
    """

    cpu: str | None
    cuda: str | None
    float16_accumulation: bool
    carveout: int | None
    triton: str

    @classmethod
    def now(cls) -> MatmulSettings:
        """Read the present settings of this process."""
        cpu, cuda = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul  # type: ignore[attr-defined]
        return cls(
            _DTYPES.get(cpu.fp32_precision),
            _DTYPES.get(cuda.fp32_precision),
            bool(cuda.allow_fp16_accumulation),
            torch._C._get_sm_carveout_experimental(),
            os.environ.get("TRITON_F32_DEFAULT", ""),
        )


class InductorSnapshot(runtime.Snapshot):
    """A snapshot that also has the settings for matmuls, of which tables tell the precision of float32 apart."""

    answered = True
    """Whether no error, which may not happen again, has kept an answer from the compile."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul = MatmulSettings.now()

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """Also the settings for matmuls."""
        return (*super().identity, *self.matmul)

    @property
    def has_identity(self) -> bool:
        """Whether a key was made of it."""
        return "identity" in vars(self)

    def has_present_settings(self) -> bool:
        """Whether the settings for matmuls are still these; a process that compiles for another goes by the other's."""
        return _handed_over is self or self.matmul == MatmulSettings.now()

    def record(self, decision: Decision, served: tuple[Config, ...]) -> None:
        """Also in PyTorch's structured trace."""
        trace_decision(decision, served)
        super().record(decision, served)

    def record_fusion(self, decision: Decision, served: Config) -> None:
        """Also in the trace."""
        trace_decision(decision, (served,) if decision.configs else ())
        super().record_fusion(decision, served)

    def record_no_choice(self, problem: Problem, device: str | torch.device, reason: str) -> None:
        """Also in the trace."""
        trace_no_choice(problem, self._hardware(device), reason)
        super().record_no_choice(problem, device, reason)

    def __reduce__(self) -> tuple[Any, ...]:
        """For the process in which Inductor compiles a whole graph, under the key that this process has computed.

        That process has none of the user's functions. Where there are some, Inductor compiles in this one, as it does
        with anything that it cannot hand over.
        """
        if self.choosers:
            raise BypassFxGraphCache("choosers are functions of this process")
        _ = self.identity  # looks at all devices
        return _taken_over, (os.getpid(), vars(self.settings), self._devices, self.matmul)

    def float32(self, device_type: str | None) -> str | None:
        """What tables call float32 matmuls: ``float32`` or ``tf32``; None if they have no such precision."""
        return self.matmul.cpu if device_type == "cpu" else self.matmul.cuda


_taken: WeakKeyDictionary[object, InductorSnapshot] = WeakKeyDictionary()
"""The snapshot of each compile that is under way, or whose backward pass is to come.

There is no lock, which a fork could leave held.
"""


_handed_over: InductorSnapshot | None = None
"""The snapshot of the graph that this process compiles for another."""


def _taken_over(
    process: int, settings: dict[str, Any], devices: dict[str, Hardware], matmul: MatmulSettings
) -> InductorSnapshot:
    """The snapshot of ``process``. If that is another process, it is in force here until the next is handed over.

    This process writes no receipt then, because the other one tells of the graph itself.
    """
    global _handed_over
    taken = InductorSnapshot()
    for name, value in settings.items():
        setattr(taken.settings, name, value)
    taken._devices, taken.matmul = devices, matmul
    if process != os.getpid():
        _handed_over = taken
        config.receipt = None
    return taken


def compiles_for_another() -> bool:
    """Whether this process has taken over the snapshot of another, which saves the graph."""
    return _handed_over is not None


def forget_what_was_taken_over() -> None:
    """This process compiles the next graph by itself, with the hook off."""
    global _handed_over
    _handed_over = None


def snapshot() -> InductorSnapshot:
    """The snapshot of the compile that this thread is in; outside of a compile, where no cache is asked, a new one.

    Dynamo's context comes first: where parts of a graph are compiled on their own, each has its own tracing context,
    and could see other settings than those in the key of the whole graph.
    """
    if _handed_over is not None:
        return _handed_over
    compilation = CompileContext.try_get() or TracingContext.try_get()
    if compilation is None:
        return InductorSnapshot()
    return _taken.get(compilation) or _taken.setdefault(compilation, InductorSnapshot())
