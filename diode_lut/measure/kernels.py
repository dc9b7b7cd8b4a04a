"""Kernels of a config, compiled and launched outside of a compile, also on operands padded at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import ir
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CodeCacheFuture
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes import pad_mm
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.select_algorithm import WORKSPACE_ARG_PLACEHOLDER, TritonTemplateCaller, realize_inputs
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from diode_lut.errors import let_pass
from diode_lut.hook.choices import build_choice
from diode_lut.hook.problems import TORCH_DTYPES
from diode_lut.hook.versions import failure_reason
from diode_lut.log import log
from diode_lut.measure.gemm import MAX_BATCH, Specialization, tensors_of
from diode_lut.measure.programs import COMPILE_LIMIT_S, Compiled, Operands, Runnable
from diode_lut.problem import BATCHED, INTEGER, RESULT_OF_INTEGERS, SCALED, Problem, Scaling
from diode_lut.settings import config as settings
from diode_lut.templates.config import ATEN, Config, padded

_HINTS = (7, 1009, 101, 13)
"""The hints of B, M, N and K, in steps, while a kernel is made. They are distinct, to find them among its arguments."""

_MAX_STEPS = 2**24 - 1  # maximum of M, N and K in steps, so Inductor knows they fit in 32 bits, as TMA requires


@contextmanager
def lowering(device: torch.device) -> Iterator[Lowering]:
    """Let Inductor make kernels in the block, in the compile of an empty graph, without tables and models."""
    AsyncCompile.wait_pool_ready()
    empty = torch.fx.Graph()
    empty.output(())
    env = ShapeEnv()
    graph = GraphLowering(torch.fx.GraphModule({}, empty), shape_env=env)
    mode = FakeTensorMode(shape_env=env)
    with (
        settings.patch(policy="off"),
        V.set_graph_handler(graph),
        V.set_fake_mode(mode),
        V.set_debug_handler(DebugContext()),
    ):
        yield Lowering(graph, env, device)


class Lowering:
    """Makes kernels, inside ``lowering``."""

    def __init__(self, graph: GraphLowering, env: ShapeEnv, device: torch.device) -> None:
        self._graph = graph
        self.device = device
        self._symbols = []
        for hint, most in zip(_HINTS, (MAX_BATCH, *[_MAX_STEPS] * 3), strict=True):
            symbol = env.create_symbol(hint, ConstantSource(f"size_{hint}"), dynamic_dim=DimDynamic.DYNAMIC)
            env.constrain_symbol_range(symbol, 2, most)
            self._symbols.append(symbol)
        self._inputs: dict[Any, MMKernelInputs] = {}

    def for_problem(
        self, problem: Problem, config: Config, operands: Sequence[torch.Tensor]
    ) -> Kernel | Subgraph | None:
        """Return a kernel of ``config`` for tensors like ``operands``, in the order of ``tensors_of``, or None."""
        shapes = [(each.dtype, tuple(each.shape), each.stride()) for each in operands]
        key = (problem, *shapes)
        if key not in self._inputs:
            self._inputs[key] = inputs_of(problem, [self._node(*shape) for shape in shapes])
        caller = _caller(problem, config, self._inputs[key])
        if isinstance(caller, TritonTemplateCaller):
            return Kernel(caller)
        return None if caller is None else Subgraph(caller)

    def specialized(self, specialization: Specialization, config: Config) -> Kernel | None:
        """Return the kernel of ``config`` for all problems of a specialization, or None if it cannot be made."""
        if specialization not in self._inputs:
            sizes = [step * symbol for step, symbol in zip(specialization.steps, self._symbols, strict=True)]
            sizes[-1] = specialization.one_step or sizes[-1]
            packed = [self._node(part.dtype, part.size, part.stride) for part in tensors_of(specialization, *sizes)]
            self._inputs[specialization] = inputs_of(specialization, packed)
        caller = _caller(specialization, config, self._inputs[specialization])
        if not isinstance(caller, TritonTemplateCaller):
            return None
        arguments = [_HINTS.index(value) for value in list(caller.bmreq.extra_args)[:-3] if value in _HINTS]
        return Kernel(caller, tuple(arguments), specialization.steps)

    def _node(self, dtype: torch.dtype, size: Sequence[Any], stride: Sequence[Any]) -> Any:
        name = f"arg{len(self._graph.graph_inputs)}"
        layout = ir.FixedLayout(self.device, dtype, list(size), list(stride))
        node = ir.TensorBox.create(ir.InputBuffer(name=name, layout=layout))
        self._graph.graph_inputs[name] = node
        return realize_inputs(node)  # type: ignore[no-untyped-call]


def _caller(kind: Problem | Specialization, config: Config, inputs: MMKernelInputs) -> ir.ChoiceCaller | None:
    """Return Inductor's choice for a config, or None if Inductor cannot make it."""
    try:
        return build_choice(config, inputs, kind.op, variant=kind.variant)
    except Exception as error:
        let_pass(error)
        log.debug("%s: Inductor cannot make it", config, exc_info=True)
        return None


def inputs_of(kind: Problem | Specialization, nodes: list[Any]) -> MMKernelInputs:
    """Return Inductor's inputs for nodes in the order of ``tensors_of``."""
    if kind.op in SCALED:
        result = TORCH_DTYPES[Scaling.of(kind.variant).result]
        return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1, out_dtype=result)
    if kind.op in INTEGER:
        return MMKernelInputs(nodes, out_dtype=TORCH_DTYPES[RESULT_OF_INTEGERS])
    return MMKernelInputs(nodes, scalars={"alpha": 1, "beta": 1} if len(nodes) == 3 else None)


class Kernel(Runnable):
    """A Triton kernel. ``arguments`` maps each size argument to B, M, N or K, in units of ``steps``."""

    def __init__(
        self,
        caller: TritonTemplateCaller,
        arguments: tuple[int, ...] = (),
        steps: tuple[int, int, int, int] = (1, 1, 1, 1),
    ) -> None:
        self.caller = caller
        self.arguments = arguments
        self._steps = steps
        self._compiling: Any = None
        self._failure: str | None = None

    def compile(self) -> None:
        request = self.caller.bmreq
        try:
            source = Path(request.module_path).read_text(encoding="utf-8")
            self._compiling = AsyncCompile().triton(request.kernel_name, source)
        except Exception as error:
            self._failure = failure_reason(error, "compile")

    @property
    def is_compiled(self) -> bool:
        return not isinstance(self._compiling, CodeCacheFuture) or self._compiling.future.done()  # type: ignore[attr-defined]

    def load(self) -> str | None:
        if self._failure is None and isinstance(self._compiling, CodeCacheFuture):
            try:
                self._compiling.future.result(timeout=COMPILE_LIMIT_S)  # type: ignore[attr-defined]
                self._compiling = self._compiling.result()
            except Exception as error:
                self._failure = failure_reason(error, "compile")
        return self._failure

    def bind(self, problem: Problem, out: torch.Tensor) -> Callable[[Operands], None]:
        stream, run = torch.cuda.current_stream().cuda_stream, self._compiling.run
        arguments = self.arguments_for(problem)
        size = self.caller.bmreq.workspace_size
        if size is not None:
            workspace = torch.zeros(size, dtype=torch.uint8, device=out.device)
            arguments = [workspace if each == WORKSPACE_ARG_PLACEHOLDER else each for each in arguments]
        return lambda operands: run(*operands, out, *arguments, stream=stream)

    def arguments_for(self, problem: Problem) -> list[Any]:
        """Return the kernel's arguments after its tensors: sizes, perhaps a workspace, and the grid."""
        given = list(self.caller.bmreq.extra_args)
        if not self.arguments:
            return given
        sizes = (problem.b, problem.m, problem.n, problem.k)
        choice = self.caller.annotations["ktc"]
        meta = {**choice.params.to_kwargs(), **choice.extra_kwargs}
        place = sizes[:3] if problem.op in BATCHED else sizes[1:3]
        grid = choice.template.grid(*place, meta)
        return [*(sizes[each] // self._steps[each] for each in self.arguments), *given[len(self.arguments) : -3], *grid]


@dataclass(frozen=True)
class Subgraph(Runnable):
    """Several kernels of Inductor for a problem, loaded inside ``lowering``. The result is a new tensor."""

    caller: Any

    def load(self) -> str | None:
        try:
            self.caller._compiled_module = self.caller._compile_for_benchmarking()
        except Exception as error:
            return failure_reason(error, "compile")
        return None

    def bind(self, problem: Problem, out: torch.Tensor) -> Callable[[Operands], Any]:
        return lambda operands: self.caller._compiled_module.call(list(operands))[0]


class Padding:
    """The padding of a problem's operands to multiples of ``pad`` elements. ``problem`` is the padded problem.

    It is used inside ``lowering``, on ``device``. ``operands`` are tensors like those of the original problem. With
    ``packed`` the rows of copies have no gaps, as in kernels for many problems.
    """

    def __init__(
        self, problem: Problem, pad: int, operands: Operands, device: torch.device, packed: bool = False
    ) -> None:
        self.problem, self._packed = padded(problem, pad), packed
        self._original, self._like, self._device = problem, operands, device
        m, n, k = (getattr(self.problem, size) - getattr(problem, size) for size in "mnk")
        self._added = m, n, k
        self._is_copied = [*[n > 0] * (len(operands) - 2), m + k > 0, k + n > 0]

    @cached_property
    def copies(self) -> Compiled:
        """The copies of operands with padding, where needed."""
        return Compiled(self._copies, self._like, self._device, self._packed)

    @cached_property
    def library(self) -> Compiled:
        """The whole matmul by the library, as Inductor compiles it after its pass ``pad_mm``."""
        pad_and_multiply = getattr(pad_mm, f"pad_{self.problem.op}")
        m, n, k = self._added
        return Compiled(lambda *operands: [pad_and_multiply(*operands, m, k, n)], self._like, self._device)

    @cached_property
    def out(self) -> torch.Tensor:
        """The memory for the result of the padded problem."""
        a = self._like[-2]
        return torch.empty((*a.shape[:-2], self.problem.m, self.problem.n), dtype=a.dtype, device=self._device)

    def load(self, part: Literal["copies", "library"]) -> str | None:
        """Compile and load the copies, or the library's matmul. Return the reason of a failure, in dataset.REASONS."""
        try:
            getattr(self, part).load()
        except Exception as error:
            return failure_reason(error, "compile")
        return None

    def complete(self, operands: Operands, copies: Operands) -> list[torch.Tensor]:
        """Return the operands, with copies in place of the padded."""
        remaining = iter(copies)
        return [next(remaining) if copied else each for each, copied in zip(operands, self._is_copied, strict=True)]

    def unpadded(self, result: torch.Tensor) -> torch.Tensor:
        """Return the result of the problem, a part of a padded result."""
        return result[..., : self._original.m, : self._original.n]

    def kernel(self, config: Config, lowered: Lowering) -> PaddedKernel | PaddedLibrary | None:
        """Return a kernel of ``config``, or None if it cannot be made."""
        base = config.padded(1)
        if base == ATEN:
            return PaddedLibrary(self)
        if self.load("copies") is not None:
            return None
        operands = self.complete(self._like, self.copies.outputs)
        kernel = lowered.for_problem(self.problem, base, operands)
        return None if kernel is None else PaddedKernel(kernel, self)

    def _copies(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        *bias, a, b = operands
        (m, n, k), batched = self._added, self.problem.op in BATCHED
        copies = [pad_mm.pad_dim(each, n, each.dim() - 1) for each in bias]
        copies.append(pad_mm.pad_mat1(a, m_padded_length=m, k_padded_length=k, is_bmm=batched))
        copies.append(pad_mm.pad_mat2(b, k_padded_length=k, n_padded_length=n, is_bmm=batched))
        return [copy for copy, copied in zip(copies, self._is_copied, strict=True) if copied]


@dataclass(frozen=True)
class PaddedLibrary(Runnable):
    """The library on operands padded at each call, loaded inside ``lowering``. The result is a new tensor."""

    padding: Padding

    def load(self) -> str | None:
        return self.padding.load("library")

    def bind(self, problem: Problem, out: torch.Tensor) -> Callable[[Operands], torch.Tensor]:
        return lambda operands: self.padding.library(operands)[0]


@dataclass(frozen=True)
class PaddedKernel(Runnable):
    """A kernel on operands padded at each call. The result is a part of ``padding.out``, or of a new tensor."""

    multiply: Runnable
    padding: Padding

    def compile(self) -> None:
        self.multiply.compile()

    @property
    def is_compiled(self) -> bool:
        return self.multiply.is_compiled

    def load(self) -> str | None:  # the copies are loaded before
        return self.multiply.load()

    def bind(self, problem: Problem, out: torch.Tensor) -> Callable[[Operands], torch.Tensor]:
        padding, result = self.padding, self.padding.unpadded(self.padding.out)
        multiply = self.multiply.bind(padding.problem, padding.out)

        def launch(operands: Operands) -> torch.Tensor:
            computed = multiply(padding.complete(operands, padding.copies(operands)))
            return result if computed is None else padding.unpadded(computed)

        return launch
