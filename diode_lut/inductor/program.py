"""A matmul with an epilogue outside a compile, as Inductor makes it of a small graph: in one kernel, or in two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import get_compile_threads
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_worker.subproc_pool import SubprocKind, SubprocPool
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import ChoiceCaller
from torch._inductor.select_algorithm import add_preprocessing_fn
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from diode_lut.domain.errors import let_pass
from diode_lut.domain.problem import Problem
from diode_lut.inductor.attention import forced
from diode_lut.inductor.build_choice import build_choice
from diode_lut.inductor.choices import library_choice
from diode_lut.inductor.grouped import build_grouped, grouped_of
from diode_lut.inductor.names import failure_reason
from diode_lut.inductor.standalone import COMPILE_LIMIT_S
from diode_lut.io.log import log
from diode_lut.kernels.config import ATEN, Config

_LOADING = 16
"""Number of programs that are loaded at the same time; each waits for Inductor's compile workers."""


class Program:
    """A function of tensors, for which Inductor's code is to be generated, compiled, loaded, and bound to tensors.

    ``generate`` returns the code, as ``generate`` of this module does; it is pickled.
    """

    def __init__(self, generate: Callable[[], str]) -> None:
        self._generate = generate
        self._loading: Future[Any] | None = None

    def compile(self) -> None:
        """Start generating and compiling, in pools of processes if Inductor compiles in one."""
        code = _generators().submit(self._generate) if get_compile_threads() > 1 else _done(self._generate)
        self._loading = _loaders().submit(lambda: PyCodeCache.load(code.result()))

    @property
    def is_compiled(self) -> bool:
        """Whether ``load`` does not have to wait."""
        return self._loading is None or self._loading.done()

    def load(self) -> str | None:
        """Wait until it is compiled and put it on the device; if that fails, the reason of dataset.REASONS."""
        assert self._loading is not None
        try:
            self._loading.result(timeout=COMPILE_LIMIT_S)
        except Exception as error:
            log.debug("no program", exc_info=True)
            return failure_reason(error, "compile")
        return None

    def bind(self, problem: Problem, operands: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], object]:
        """A function that runs the loaded program on these tensors and returns its result, a new tensor."""
        del problem, out
        run = self.run(operands)
        return lambda: run()[0]

    def run(self, operands: Sequence[torch.Tensor]) -> Callable[[], Sequence[torch.Tensor]]:
        """A function that runs the loaded program on these tensors and returns its results, which are new tensors."""
        assert self._loading is not None
        call = self._loading.result().call
        return lambda: call(list(operands))


def _done(function: Callable[[], str]) -> Future[str]:
    future: Future[str] = Future()
    try:
        future.set_result(function())
    except Exception as error:
        let_pass(error)
        future.set_exception(error)
    return future


@cache
def _generators() -> SubprocPool:
    """Processes that generate code. Those in which Inductor compiles cannot, where they have no CUDA context."""
    return SubprocPool(get_compile_threads() // 2, kind=SubprocKind.SPAWN)


@cache
def _loaders() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LOADING, thread_name_prefix="diode_lut load")


def generate(
    function: Callable[..., Any], operands: Sequence[torch.Tensor], device: torch.device, config: Config
) -> str:
    """Inductor's code for ``function`` of tensors like ``operands``, with ``config`` for its matmul or attention.

    CannotRun if the config cannot run it.
    """
    graph, mode, inputs = trace(function, operands, device)
    with (
        inductor_config.patch(compile_threads=1),  # generating starts no kernel's compilation
        V.set_graph_handler(graph),
        V.set_fake_mode(mode),
        V.set_debug_handler(DebugContext()),
        V.set_choices_handler(_Forced(config)),
    ):
        graph.run(*inputs)
        return code_of(graph)


def trace(
    function: Callable[..., Any], operands: Sequence[torch.Tensor], device: torch.device
) -> tuple[GraphLowering, FakeTensorMode, list[torch.Tensor]]:
    """A function of tensors like ``operands`` on a device as a graph to be lowered, its fake mode and its inputs."""
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        inputs = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=device) for each in operands]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
    traced.graph.eliminate_dead_code()  # a kernel for attention may lack results that nothing reads
    return GraphLowering(traced, example_inputs=inputs, shape_env=env), mode, inputs


def code_of(graph: GraphLowering) -> str:
    """Inductor's code for a graph that has been lowered."""
    code, *_ = graph.codegen()
    return str(getattr(code, "value", code))


class _Forced(InductorChoices):
    """The choices handler that answers each matmul, or each attention, with one config."""

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

    def get_flex_attention_fwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        ask = super().get_flex_attention_fwd_configs
        return [forced("flex_attention", self._config, lambda: ask(*arguments, **named))]

    def get_flex_attention_bwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        ask = super().get_flex_attention_bwd_configs
        return [forced("flex_attention_backward", self._config, lambda: ask(*arguments, **named))]

    def get_flex_decode_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        ask = super().get_flex_decode_configs
        return [forced("flex_decoding", self._config, lambda: ask(*arguments, **named))]

    def of_grouped(self, choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
        """The config's choice for a grouped matmul, which Inductor asks no handler about; else all choices."""
        asked = grouped_of(choices)
        return choices if asked is None else [build_grouped(self._config, asked, choices)]


def _force(choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
    handler = V.choices
    return handler.of_grouped(choices) if isinstance(handler, _Forced) else choices


add_preprocessing_fn(_force)
