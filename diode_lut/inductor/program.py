"""A matmul with an epilogue outside a compile, as Inductor makes it of a small graph: in one kernel, or in two."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import ChoiceCaller
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from diode_lut.domain.interruption import let_pass
from diode_lut.domain.problem import Problem
from diode_lut.inductor.build_choice import build_choice
from diode_lut.inductor.choices import library_choice
from diode_lut.inductor.names import failure_reason
from diode_lut.inductor.standalone import COMPILE_LIMIT_S
from diode_lut.kernels.config import ATEN, Config

log = logging.getLogger(__name__)

_LOADING = 16
"""Number of programs that are loaded at the same time; each waits for Inductor's compile workers."""


class Program:
    """What Inductor generates for a function of tensors, to be compiled, loaded, and bound to tensors."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._loading: Future[Any] | None = None

    def compile(self) -> None:
        """Start compiling, in Inductor's pool of processes if it has one."""
        self._loading = _pool().submit(PyCodeCache.load, self.code)

    def load(self) -> str | None:
        """Wait until it is compiled and put it on the device; if that fails, the reason of dataset.REASONS."""
        assert self._loading is not None
        try:
            self._loading.result(timeout=COMPILE_LIMIT_S)
        except Exception as error:
            return failure_reason(error, "compile")
        return None

    def bind(self, problem: Problem, operands: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], object]:
        """A function that runs the loaded program on these tensors and returns its result, a new tensor."""
        del problem, out
        assert self._loading is not None
        call = self._loading.result().call
        return lambda: call(list(operands))[0]


def make_program(
    function: Callable[..., torch.Tensor], operands: Sequence[torch.Tensor], device: torch.device, config: Config
) -> Program | None:
    """``function`` of tensors like ``operands``, with ``config`` for its matmul. None if that cannot be made."""
    try:
        return Program(_generate(function, operands, device, config))
    except Exception as error:
        let_pass(error)
        log.debug("%s: Inductor cannot make it", config, exc_info=True)
        return None


def _generate(
    function: Callable[..., torch.Tensor], operands: Sequence[torch.Tensor], device: torch.device, config: Config
) -> str:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    with mode:
        inputs = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=device) for each in operands]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
    view_to_reshape(traced)  # type: ignore[no-untyped-call]
    graph = GraphLowering(traced, example_inputs=inputs, shape_env=env)
    with (
        V.set_graph_handler(graph),
        V.set_fake_mode(mode),
        V.set_debug_handler(DebugContext()),
        V.set_choices_handler(_Forced(config)),
    ):
        graph.run(*inputs)
        code, *_ = graph.codegen()
    return str(getattr(code, "value", code))


class _Forced(InductorChoices):
    """The choices handler that answers each matmul with one config."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def get_template_configs(
        self,
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[ChoiceCaller]:
        if self._config != ATEN:
            return [build_choice(self._config, kernel_inputs, op_name)]
        ask = super().get_template_configs
        return [
            library_choice(templates, op_name, lambda offered: ask(kernel_inputs, offered, op_name, kwarg_overrides))
        ]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOADING, thread_name_prefix="diode_lut load")
