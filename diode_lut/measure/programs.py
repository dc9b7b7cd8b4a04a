"""A matmul with an epilogue outside a compile, as Inductor makes it of a small graph: in one kernel, or in two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import get_compile_threads
from torch._inductor.choices import InductorChoices
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_worker.subproc_pool import SubprocKind, SubprocPool
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import pad_mm
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import ChoiceCaller
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from diode_lut.errors import let_pass
from diode_lut.hook.attention import forced
from diode_lut.hook.choices import build_choice
from diode_lut.hook.lists import build_grouped, grouped_of
from diode_lut.hook.patches import measuring
from diode_lut.hook.problems import library_choice
from diode_lut.hook.versions import failure_reason
from diode_lut.measure.standalone import COMPILE_LIMIT_S, Kernel, Lowering, Subgraph
from diode_lut.problem import BATCHED, Problem
from diode_lut.process import log
from diode_lut.templates.config import ATEN, Config, padded

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
        measuring("add_preprocessing_fn", _force),
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


Operands = Sequence[torch.Tensor]
"""The bias, if the op has one, A and B."""


class Compiled:
    """A function of tensors, as Inductor compiles it without tables; to be made and loaded inside ``lowering``.

    ``inputs`` are tensors like those that it will be called with, on any device; ``device`` is where it will run.
    ``outputs`` are tensors without memory like those that it returns. With ``packed`` there are no gaps between their
    rows; else Inductor aligns long rows to more than 16 bytes.
    """

    def __init__(
        self,
        function: Callable[..., list[torch.Tensor]],
        inputs: Operands,
        device: torch.device,
        packed: bool = False,
    ) -> None:
        self._settings = {"comprehensive_padding": False} if packed else {}
        self._graph, self._mode, fake = trace(function, inputs, device)
        self.outputs = self._within(lambda: self._lower(fake))
        self._call: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]] | None = None

    def load(self) -> None:
        """Compile it, once."""
        if self._call is None:
            self._call = self._within(self._graph.compile_to_module).call

    def code(self) -> str:
        """The code that Inductor generates, instead of ``load``."""
        code: str = self._within(lambda: code_of(self._graph))
        return code

    def __call__(self, tensors: Operands) -> Sequence[torch.Tensor]:
        """What it returns for these tensors, once it is loaded."""
        assert self._call is not None
        return self._call(list(tensors))

    def _lower(self, inputs: Operands) -> list[torch.Tensor]:
        self._graph.run(*inputs)
        for output in self._graph.graph_outputs:
            output.freeze_layout()
        return [
            torch.empty_strided(
                [int(size) for size in output.get_size()],
                [int(stride) for stride in output.get_stride()],
                dtype=output.get_dtype(),
                device="meta",
            )
            for output in self._graph.graph_outputs
        ]

    def _within(self, step: Callable[[], Any]) -> Any:
        with V.set_graph_handler(self._graph), V.set_fake_mode(self._mode), inductor_config.patch(self._settings):
            return step()


class Padding:
    """The padding of one problem's operands to multiples of ``pad`` elements; ``problem`` is the padded problem.

    To be used inside ``lowering``, on ``device``. ``operands`` are tensors like those of the original problem.
    ``packed`` says whether copies must have rows without gaps, as kernels that many problems share have it.
    """

    def __init__(
        self, problem: Problem, pad: int, operands: Operands, device: torch.device, packed: bool = False
    ) -> None:
        self.problem, self._packed = padded(problem, pad), packed
        self._original, self._like, self._device = problem, operands, device

    @cached_property
    def copies(self) -> Compiled:
        """The copies that pad operands. Where an operand needs no padding, there is none of it."""
        return Compiled(self._copies, self._like, self._device, self._packed)

    @cached_property
    def library(self) -> Compiled:
        """The whole matmul by the library, as Inductor compiles what ``pad_mm`` makes of it."""
        return Compiled(self._multiplied, self._like, self._device)

    @cached_property
    def out(self) -> torch.Tensor:
        """Where kernels write the result of the padded problem."""
        a = self._like[-2]
        return torch.empty((*a.shape[:-2], self.problem.m, self.problem.n), dtype=a.dtype, device=self._device)

    def load(self, part: Literal["copies", "library"]) -> str | None:
        """Compile and load the copies, or the library's matmul; if that fails, the reason of dataset.REASONS."""
        try:
            getattr(self, part).load()
        except Exception as error:
            return failure_reason(error, "compile")
        return None

    def complete(self, operands: Operands, copies: Operands) -> list[torch.Tensor]:
        """The operands, of which those that need padding are replaced by their copies."""
        remaining = iter(copies)
        return [next(remaining) if count else each for each, count in zip(operands, self._zeros(), strict=True)]

    def unpadded(self, result: torch.Tensor) -> torch.Tensor:
        """The part of a padded result that is the result of the problem."""
        return result[..., : self._original.m, : self._original.n]

    def kernel(self, config: Config, lowered: Lowering) -> PaddedKernel | PaddedLibrary | None:
        """What runs ``config``, or None if nothing can."""
        base = config.padded(1)
        if base == ATEN:
            return PaddedLibrary(self)
        if self.load("copies") is not None:
            return None
        operands = self.complete(self._like, self.copies.outputs)
        kernel = lowered.for_problem(self.problem, base, operands)
        return None if kernel is None else PaddedKernel(kernel, self)

    def _lengths(self) -> tuple[int, int, int]:
        """How much is added to M, N and K."""
        m, n, k = (getattr(self.problem, size) - getattr(self._original, size) for size in "mnk")
        return m, n, k

    def _zeros(self) -> list[int]:
        """How many rows and columns are added to each operand."""
        m, n, k = self._lengths()
        return [*[n] * (len(self._like) - 2), m + k, k + n]

    def _copies(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        *bias, a, b = operands
        (m, n, k), batched = self._lengths(), self.problem.op in BATCHED
        copies = [pad_mm.pad_dim(each, n, each.dim() - 1) for each in bias]
        copies.append(pad_mm.pad_mat1(a, m_padded_length=m, k_padded_length=k, is_bmm=batched))
        copies.append(pad_mm.pad_mat2(b, k_padded_length=k, n_padded_length=n, is_bmm=batched))
        return [copy for copy, count in zip(copies, self._zeros(), strict=True) if count]

    def _multiplied(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        m, n, k = self._lengths()
        return [getattr(pad_mm, f"pad_{self.problem.op}")(*operands, m, k, n)]


class PaddedLibrary(NamedTuple):
    """The library on operands that each call pads; the result is a new tensor."""

    padding: Padding

    def compile(self) -> None:
        """Nothing: it is compiled when loaded, in this process."""

    @property
    def is_compiled(self) -> bool:
        """Whether ``load`` does not wait for another process; it never does."""
        return True

    def load(self) -> str | None:
        """Compile it inside ``lowering``; if that fails, the reason of dataset.REASONS."""
        return self.padding.load("library")

    def bind(self, problem: Problem, operands: Operands, out: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that runs it on these tensors and returns the result; ``out`` stays as it is."""
        del problem, out
        return lambda: self.padding.library(operands)[0]


class PaddedKernel(NamedTuple):
    """A kernel on operands that each call pads; the result is a part of ``padding.out``, or of a new tensor."""

    multiply: Kernel | Subgraph
    padding: Padding

    def compile(self) -> None:
        """Start compiling the kernel."""
        self.multiply.compile()

    @property
    def is_compiled(self) -> bool:
        """Whether ``load`` does not have to wait."""
        return self.multiply.is_compiled

    def load(self) -> str | None:
        """Load it, once the copies are loaded; if that fails, the reason of dataset.REASONS."""
        return self.multiply.load()

    def bind(self, problem: Problem, operands: Operands, out: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A function that runs it on these tensors and returns the result; ``out`` stays as it is."""
        del problem, out
        padding, result = self.padding, self.padding.unpadded(self.padding.out)
        multiply = self.multiply.bind_later(padding.problem, padding.out)

        def launch() -> torch.Tensor:
            computed = multiply(padding.complete(operands, padding.copies(operands)))
            return result if computed is None else padding.unpadded(computed)

        return launch
