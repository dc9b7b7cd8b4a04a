"""The snapshot by which Inductor's present compile decides, and its decisions in PyTorch's structured trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import orjson
import torch
from torch._guards import CompileContext, TracingContext
from torch._inductor.codecache import BypassFxGraphCache
from torch._logging._internal import trace_structured

from diode_lut import snapshot as runtime
from diode_lut.decide.sources import Decision
from diode_lut.errors import as_json
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.settings import config
from diode_lut.templates.config import Config

_DTYPES = {"none": "float32", "ieee": "float32", "tf32": "tf32"}
"""The data type in tables, by PyTorch's name of the precision of float32 matmuls."""


class MatmulSettings(NamedTuple):
    """The settings of PyTorch and Triton that the computation of a matmul depends on.

    ``cpu`` and ``cuda`` are the tables' names of float32 matmuls there, ``float32`` or ``tf32``. They are None for a
    precision without tables. ``float16_accumulation`` says whether the library may add up in float16.
    ``carveout`` is the number of SMs that kernels leave free, if it is set. ``triton`` is the precision that Triton
    takes for float32 in every kernel, and empty if kernels decide.
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
    """A snapshot with the settings for matmuls. Tables tell the precisions of float32 apart."""

    answered = True
    """Whether the compile got all its answers. An error may have kept an answer from it, and may not happen again."""

    def __init__(self) -> None:
        super().__init__()
        self.matmul = MatmulSettings.now()

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """Everything that its decisions depend on, with the settings for matmuls."""
        return (*super().identity, *self.matmul)

    @property
    def has_identity(self) -> bool:
        """Whether a key was made of it."""
        return "identity" in vars(self)

    def has_present_settings(self) -> bool:
        """Return whether the settings for matmuls are unchanged, or handed over by another process."""
        return _handed_over is self or self.matmul == MatmulSettings.now()

    def float32(self, device_type: str | None) -> str | None:
        """Return the tables' name of float32 matmuls: ``float32`` or ``tf32``, or None for other precisions."""
        return self.matmul.cpu if device_type == "cpu" else self.matmul.cuda

    def trace(self, decision: Decision, served: tuple[Config, ...]) -> None:
        """Show a decision in PyTorch's structured trace."""
        _trace(
            "diode_lut_decision",
            lambda: {
                **_asked(decision.problem, decision.hardware),
                "over": decision.over,
                "tier": decision.tier,
                "from": decision.where,
                "inductor_gets": list(map(str, served)),
                "answer": list(map(str, decision.configs)),
                "confidence": decision.confidence,
                "steps": list(decision.steps),
            },
        )

    def trace_left(self, problem: Problem, device: str | torch.device, why: str) -> None:
        """Show in the structured trace, and in the log, why no table is asked about a problem."""
        hardware = self.hardware(device)
        _trace("diode_lut_decision", lambda: {**_asked(problem, hardware), "tier": None, "steps": [why]})
        super().trace_left(problem, device, why)

    def __reduce__(self) -> tuple[Any, ...]:
        """Hand over to Inductor's process for a whole graph, which uses the key of this process.

        Choosers are functions of the user's, and cannot be handed over. Then Inductor compiles in this process.
        """
        if self.choosers:
            raise BypassFxGraphCache("choosers are functions of this process")
        _ = self.identity  # looks at all devices
        return _taken_over, (os.getpid(), vars(self.settings), self._devices, self.matmul)


_taken: WeakKeyDictionary[object, InductorSnapshot] = WeakKeyDictionary()
"""The snapshot of each compile that is under way, or whose backward pass is to come.

There is no lock, because a fork could leave it held.
"""

_handed_over: InductorSnapshot | None = None
"""The snapshot of the graph, if this process compiles for another."""


def snapshot() -> InductorSnapshot:
    """Return the snapshot of this thread's compile, or outside of a compile, where no cache is asked, a new snapshot.

    Dynamo's context comes first. If parts of a graph are compiled on their own, each has its own tracing context, and
    could see other settings than those in the key of the whole graph.
    """
    if _handed_over is not None:
        return _handed_over
    compilation = CompileContext.try_get() or TracingContext.try_get()
    if compilation is None:
        return InductorSnapshot()
    return _taken.get(compilation) or _taken.setdefault(compilation, InductorSnapshot())


def _taken_over(
    process: int, settings: dict[str, Any], devices: dict[str, Hardware], matmul: MatmulSettings
) -> InductorSnapshot:
    """Return the snapshot of ``process``. From another process, it is in force until the next is handed over.

    This process writes no receipt then, because the other process tells of the graph itself.
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
    """Return whether this process compiles a graph that another process saves."""
    return _handed_over is not None


def forget_what_was_taken_over() -> None:
    """Compile the next graph as this process's own, with the hook off."""
    global _handed_over
    _handed_over = None


_CONTEXTS = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")
"""The modules with the context of vLLM's passes, in its present and in earlier releases."""


def compile_range() -> tuple[int, int] | None:
    """Return the least and the largest number of tokens of this graph in vLLM, or None if unknown.

    vLLM compiles a graph for several ranges, without bounds on the symbol of the number of tokens. Only the context of
    its passes has the range.
    """
    module = next(filter(None, map(sys.modules.get, _CONTEXTS)), None)
    found = getattr(getattr(module, "_pass_context", None), "compile_range", None)
    low, high = getattr(found, "start", None), getattr(found, "end", None)
    return (low, high) if isinstance(low, int) and isinstance(high, int) and 0 < low <= high else None


def trace_graph(counts: dict[str, Any], receipt: bytes, *, cached: bool) -> None:
    """Trace the counts and the receipt of a graph, which may be ``cached``."""
    _trace("diode_lut_graph", lambda: {"cached": cached, "counts": counts, "receipt": orjson.loads(receipt)})


def _asked(problem: Problem, hardware: Hardware) -> dict[str, Any]:
    return {"gemm": str(problem), "problem": problem.to_json(), "hardware": str(hardware)}


def _trace(name: str, payload: Callable[[], dict[str, Any]]) -> None:
    """Write an artifact for tlparse, if ``TORCH_TRACE`` is set."""
    trace_structured("artifact", lambda: {"name": name, "encoding": "json"}, payload_fn=lambda: as_json(payload()))
