"""What is decided, as artifacts in PyTorch's structured trace: ``TORCH_TRACE`` writes it, tlparse makes pages of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from torch._logging._internal import trace_structured

from diode_lut.domain.hardware import Hardware
from diode_lut.domain.printable import as_json
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config
from diode_lut.selection.selector import Decision


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
