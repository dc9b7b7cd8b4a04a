"""What is decided, as artifacts in PyTorch's structured trace: ``TORCH_TRACE`` writes it, tlparse makes pages of it."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import orjson
import sympy
import torch
from torch._guards import CompileContext, TracingContext
from torch._inductor.codecache import BypassFxGraphCache
from torch._logging._internal import trace_structured
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from diode_lut import snapshot as runtime
from diode_lut.decide.dynamic import Axis
from diode_lut.decide.selector import Decision
from diode_lut.errors import as_json
from diode_lut.hardware import Hardware
from diode_lut.problem import MAX_SIZE, OP_SIZES, Problem
from diode_lut.settings import config
from diode_lut.templates.config import Config


def trace_decision(decision: Decision, served: tuple[Config, ...]) -> None:
    """Trace a decision, and which of its configs Inductor gets."""
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


def trace_no_choice(problem: Problem, hardware: Hardware, reason: str) -> None:
    """Trace a problem that is left to Inductor without a question."""
    steps = [f"there is no choice: {reason}"]
    _trace("diode_lut_decision", lambda: {**_asked(problem, hardware), "tier": None, "steps": steps})


def trace_graph(counts: dict[str, Any], receipt: bytes, *, cached: bool) -> None:
    """Trace what was decided for a graph, as its counts and its receipt; ``cached`` if it came from a cache."""
    _trace("diode_lut_graph", lambda: {"cached": cached, "counts": counts, "receipt": orjson.loads(receipt)})


def _asked(problem: Problem, hardware: Hardware) -> dict[str, Any]:
    return {"gemm": str(problem), "problem": problem.to_json(), "hardware": str(hardware)}


def _trace(name: str, payload: Callable[[], dict[str, Any]]) -> None:
    """Nothing is made where nothing is traced."""
    trace_structured("artifact", lambda: {"name": name, "encoding": "json"}, payload_fn=lambda: as_json(payload()))


def axes_of(op: str, a: tuple[Any, ...], b: tuple[Any, ...], env: ShapeEnv) -> tuple[Axis, ...]:
    """The axes along which the problem of ``op`` with operands of these shapes may change; empty if none may.

    Sizes that are one expression are one axis, such as a batch times a length.
    """
    sizes: Mapping[str, Any] = {"m": a[-2], "n": b[-1], "k": a[-1], "b": a[0]}
    fields: dict[Any, list[str]] = defaultdict(list)
    for name in OP_SIZES[op]:
        size = sizes[name]
        expression = env.simplify(sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size))
        if not expression.is_number:
            fields[expression].append(name)
    return tuple(Axis(tuple(names), *_bounds(env, expression)) for expression, names in fields.items())


def axes_of_tensors(op: str, a: torch.Tensor, b: torch.Tensor) -> tuple[Axis, ...]:
    """The same for fake tensors."""
    env = next((size.node.shape_env for size in (*a.shape, *b.shape) if isinstance(size, torch.SymInt)), None)
    return () if env is None else axes_of(op, tuple(a.shape), tuple(b.shape), env)


def lacks_a_range(env: ShapeEnv, sizes: Iterable[Any]) -> bool:
    """Whether one of these sizes is known only when the graph runs, and nothing says how large it may be."""
    symbols = free_unbacked_symbols([env.simplify(sympy.sympify(size)) for size in sizes])
    uppers = [_range(env, symbol).upper for symbol in symbols]
    return any(not upper.is_Integer or upper >= _NO_BOUND for upper in uppers)


_NO_BOUND = sys.maxsize - 1
"""PyTorch's upper bound of the number of elements that a mask selects, if it knows none."""


def _bounds(env: ShapeEnv, expression: sympy.Expr) -> tuple[int, int | None]:
    """The least and the largest value that a size can have; None for no largest."""
    bounds = _range(env, expression)
    low = int(bounds.lower) if bounds.lower.is_Integer else 1
    high = int(bounds.upper) if bounds.upper.is_Integer and bounds.upper <= MAX_SIZE else None
    return min(max(low, 1), MAX_SIZE), high


def _range(env: ShapeEnv, expression: sympy.Expr) -> ValueRanges[Any]:
    """The values of an expression, as far as bounds, checks and the serving engine say."""
    bounds = _narrowed(env.bound_sympy(expression), _checked(env, expression))
    tokens = compile_range()
    if tokens is None or len(expression.free_symbols) != 1:
        return bounds
    (symbol,) = expression.free_symbols
    return _narrowed(bounds, bound_sympy(expression, {symbol: ValueRanges(*tokens)}))


def _checked(env: ShapeEnv, expression: sympy.Expr) -> ValueRanges[Any]:
    """What ``torch._check``, or a guard, says of an expression of several symbols, whose own bounds do not tell."""
    said = [each for each, holds in env.axioms.items() if holds is sympy.true and isinstance(each, sympy.Le)]
    most = [each.rhs for each in said if each.lhs == expression and each.rhs.is_Integer]
    least = [each.lhs for each in said if each.rhs == expression and each.lhs.is_Integer]
    return ValueRanges(max(least, default=-int_oo), min(most, default=int_oo))


def _narrowed(bounds: ValueRanges[Any], within: ValueRanges[Any]) -> ValueRanges[Any]:
    return bounds & within if within.lower <= bounds.upper and bounds.lower <= within.upper else bounds


_CONTEXTS = ("vllm.compilation.passes.inductor_pass", "vllm.compilation.inductor_pass")
"""Where vLLM keeps the context of its passes, in its present releases and in earlier ones."""


def compile_range() -> tuple[int, int] | None:
    """The least and the largest number of tokens for which vLLM has this graph compiled; None where it says nothing.

    vLLM compiles one graph for several ranges, without bounds on the symbol that stands for the number of tokens. Only
    the context of its passes has the range.
    """
    module = next(filter(None, map(sys.modules.get, _CONTEXTS)), None)
    found = getattr(getattr(module, "_pass_context", None), "compile_range", None)
    low, high = getattr(found, "start", None), getattr(found, "end", None)
    return (low, high) if isinstance(low, int) and isinstance(high, int) and 0 < low <= high else None


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
