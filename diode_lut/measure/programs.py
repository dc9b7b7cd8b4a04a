"""Functions of tensors, such as a matmul with its epilogue or attention, as Inductor compiles them on their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from diode_lut.errors import let_pass
from diode_lut.hook import quack
from diode_lut.hook.attention import forced
from diode_lut.hook.choices import build_choice, library_choice
from diode_lut.hook.joined import join_all
from diode_lut.hook.patches import measuring
from diode_lut.hook.unasked import build_grouped, grouped_of
from diode_lut.hook.versions import failure_reason
from diode_lut.log import log
from diode_lut.measure.gemm import reads_another
from diode_lut.problem import JOINED_SCALINGS, NO_VARIANT, SCALED, Problem
from diode_lut.templates.config import ATEN, Config

COMPILE_LIMIT_S = 120.0  # maximum time for compiling a kernel, in seconds
_LOADERS = ThreadPoolExecutor(16, "diode_lut load")  # of programs, each of which waits for Inductor's compile workers
Operands = Sequence[torch.Tensor]  # the tensors of a function, such as the bias, if the op has one, A and B


class Runnable:
    """A kernel of a config, to be compiled, loaded, and bound to tensors. By default ``load`` compiles it as well."""

    def compile(self) -> None:
        """Start compiling, in other processes if Inductor compiles in a pool."""

    @property
    def is_compiled(self) -> bool:
        """Whether ``load`` does not have to wait."""
        return True

    def load(self) -> str | None:
        """Wait until it is compiled and put it on the device. Return the reason of a failure, in dataset.REASONS."""
        raise NotImplementedError

    def bind(self, problem: Problem, out: torch.Tensor) -> Callable[[Operands], Any]:
        """Return a launch of the loaded kernel on these operands, which writes to ``out`` or returns a new tensor."""
        raise NotImplementedError


class Program(Runnable):
    """A function of tensors whose code is made by ``make_code``, which is pickled, compiled, loaded and bound."""

    def __init__(self, make_code: Callable[[], str]) -> None:
        self._make_code = make_code
        self._loading: Future[Any] | None = None

    def compile(self) -> None:
        if get_compile_threads() > 1:
            code = _generators().submit(self._make_code)
        else:
            code = Future[str]()
            try:
                code.set_result(self._make_code())
            except Exception as error:
                let_pass(error)
                code.set_exception(error)
        self._loading = _LOADERS.submit(lambda: PyCodeCache.load(code.result()))

    @property
    def is_compiled(self) -> bool:
        return self._loading is None or self._loading.done()

    def load(self) -> str | None:
        assert self._loading is not None
        try:
            self._loading.result(timeout=COMPILE_LIMIT_S)
        except Exception as error:
            log.debug("no program", exc_info=True)
            return failure_reason(error, "compile")
        return None

    def bind(self, problem: Problem, out: torch.Tensor) -> Callable[[Operands], Any]:
        assert self._loading is not None
        call = self._loading.result().call
        return lambda operands: call(list(operands))[0]

    def run(self, operands: Operands) -> Callable[[], Operands]:
        """Return a launch of the loaded program on these tensors, which returns its results, new tensors."""
        assert self._loading is not None
        call = self._loading.result().call
        return lambda: call(list(operands))


class FastestOf(Runnable):
    """Programs that compute the same, of which the fastest counts: a kernel for each matmul, and what follows it."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._programs = programs

    def compile(self) -> None:
        for program in self._programs:
            program.compile()

    @property
    def is_compiled(self) -> bool:
        return all(program.is_compiled for program in self._programs)

    def load(self) -> str | None:
        reasons = [program.load() for program in self._programs]
        return None if None in reasons else reasons[0]

    def run(self, operands: Operands) -> list[Callable[[], Operands]]:
        """Return launches of the programs that could be loaded."""
        return [program.run(operands) for program in self._programs if program.load() is None]


class WithWork(Runnable):
    """A kernel of QuACK for a matmul and the work after it, which another process compiles."""

    def __init__(self, variant: str, config: Config) -> None:
        self._variant, self._config = variant, config
        self._name = quack.name_of(variant, config, bias=not reads_another(variant))

    def compile(self) -> None:
        quack.compile_kernels([self._name])

    @property
    def is_compiled(self) -> bool:
        return quack.is_settled(self._name)

    def load(self) -> str | None:
        return "compile" if isinstance(quack.kernel(self._name), str) else None

    def run(self, operands: Operands) -> Callable[[], Operands]:
        """Return a launch on A, B, and the bias or the other tensor, which returns its result, a new tensor."""
        a, b, other = operands
        bias, c = (None, other) if reads_another(self._variant) else (other, None)
        return lambda: [quack.launch(a, b, bias, c, self._variant, str(self._config))]


@cache
def _generators() -> SubprocPool:
    """Return processes for generating code. Inductor's compile workers cannot if they have no CUDA context."""
    return SubprocPool(get_compile_threads() // 2, kind=SubprocKind.SPAWN)


def generate(
    function: Callable[..., Any], operands: Operands, device: torch.device, config: Config, *, joined: bool = False
) -> str:
    """Return Inductor's code for ``function`` with this config, perhaps ``joined``. CannotRun if it cannot run."""
    graph, mode, inputs = _trace(function, operands, device, config if joined else None)
    handler = _Forced(config)
    with (
        inductor_config.patch(compile_threads=1),  # generating starts no kernel's compilation
        V.set_graph_handler(graph),
        V.set_fake_mode(mode),
        V.set_debug_handler(DebugContext()),
        V.set_choices_handler(handler),
        measuring("add_preprocessing_fn", handler.of_grouped),
    ):
        graph.run(*inputs)
        return _code_of(graph)


def _trace(
    function: Callable[..., Any], operands: Operands, device: torch.device, joined: Config | None = None
) -> tuple[GraphLowering, FakeTensorMode, list[torch.Tensor]]:
    """Return a graph to be lowered for a function of tensors like ``operands``, its fake mode and its inputs."""
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        inputs = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=device) for each in operands]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
    traced.graph.eliminate_dead_code()  # a kernel for attention may lack results that nothing reads
    if joined is not None:
        join_all(traced.graph, joined)
    return GraphLowering(traced, example_inputs=inputs, shape_env=env), mode, inputs


def _code_of(graph: GraphLowering) -> str:
    code, *_ = graph.codegen()
    return str(getattr(code, "value", code))


class _Forced(InductorChoices):
    """A choices handler with the same config for each matmul, or each attention."""

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
            variant = JOINED_SCALINGS[1] if op_name in SCALED else NO_VARIANT  # float8 comes from joined matmuls only
            return [build_choice(self._config, kernel_inputs, op_name, variant=variant)]
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
        """Return the config's choice for a grouped matmul, for which Inductor asks no handler, or else all choices."""
        asked = grouped_of(choices)
        return choices if asked is None else [build_grouped(self._config, asked, choices)]


class Compiled:
    """A function of tensors as Inductor compiles it without tables, made and loaded inside ``kernels.lowering``.

    ``inputs`` are tensors like its operands, on any device, and ``device`` is where it will run. ``outputs`` are
    tensors without memory like its results. With ``packed`` there are no gaps between their rows. Otherwise Inductor
    aligns long rows to more than 16 bytes.
    """

    def __init__(
        self, function: Callable[..., list[torch.Tensor]], inputs: Operands, device: torch.device, packed: bool = False
    ) -> None:
        self._settings = {"comprehensive_padding": False} if packed else {}
        self._graph, self._mode, fake = _trace(function, inputs, device)
        self.outputs = []
        with self._lowered():
            self._graph.run(*fake)
            for output in self._graph.graph_outputs:
                output.freeze_layout()
                size, stride = [int(each) for each in output.get_size()], [int(each) for each in output.get_stride()]
                self.outputs.append(torch.empty_strided(size, stride, dtype=output.get_dtype(), device="meta"))
        self._call: Callable[[list[torch.Tensor]], Operands] | None = None

    def load(self) -> None:
        """Compile it, once."""
        if self._call is None:
            with self._lowered():
                self._call = self._graph.compile_to_module().call

    def code(self) -> str:
        """Return Inductor's code, instead of ``load``."""
        with self._lowered():
            return _code_of(self._graph)

    def __call__(self, tensors: Operands) -> Operands:
        """Return the results for these tensors, once it is loaded."""
        assert self._call is not None
        return self._call(list(tensors))

    @contextmanager
    def _lowered(self) -> Iterator[None]:
        with V.set_graph_handler(self._graph), V.set_fake_mode(self._mode), inductor_config.patch(self._settings):
            yield
