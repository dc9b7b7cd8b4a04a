"""What is known of a problem when a kernel is compiled that takes sizes as arguments, once for many problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._inductor import ir
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CodeCacheFuture
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.select_algorithm import WORKSPACE_ARG_PLACEHOLDER, TritonTemplateCaller, realize_inputs
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from diode_lut.errors import let_pass
from diode_lut.hook.choices import build_choice
from diode_lut.hook.problems import TORCH_DTYPES, operand_dtypes
from diode_lut.hook.versions import failure_reason
from diode_lut.problem import (
    BATCHED,
    INTEGER,
    ITEMSIZES,
    NO_VARIANT,
    RESULT_OF_INTEGERS,
    SCALED,
    Problem,
    Scaling,
    contiguous_align,
    letters,
)
from diode_lut.process import log
from diode_lut.settings import config as settings
from diode_lut.templates.config import Config

MAX_BATCH = 65535
"""The largest batch that a kernel for many problems serves: more takes another launch grid."""

_MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of a tensor, so that kernels made for small hints, with 32-bit indices, reach all."""


class Specialization(NamedTuple):
    """What a compiler must know of a problem whose operands are packed; problems that agree in it share kernels.

    ``units`` are divisors of M, N and K that the compiler knows: powers of two, up to the number of elements in 16
    bytes, which is what a thread reads at once. ``even_k`` is the block size along K if that divides K, else 0.
    ``one_step`` is K if a block is at least as long, so that there is no loop to be pipelined, else 0.
    """

    op: str
    dtype: str
    layout: str
    units: tuple[int, int, int]
    even_k: int
    one_step: int
    variant: str = NO_VARIANT

    @classmethod
    def of(cls, problem: Problem, config: Config) -> Specialization:
        """How ``config``, of a Triton template, is compiled for ``problem``, which must be able to share kernels."""
        vector = 16 // ITEMSIZES[problem.dtype]
        m, n, k = (math.gcd(size, vector) for size in (problem.m, problem.n, problem.k))
        block_k = config.tiles.block_k
        of_a, _ = letters(problem.layout)
        units = (m if of_a == "t" else 1, n, k)  # a row-major A is not read along M
        even_k, one_step = (problem.k % block_k == 0) * block_k, (problem.k <= block_k) * problem.k
        return cls(problem.op, problem.dtype, problem.layout, units, even_k, one_step, problem.variant)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """What B, M, N and K are multiples of."""
        m, n, k = self.units
        return 1, m, n, max(k, self.even_k)


def shares_kernels(problem: Problem) -> bool:
    """Whether kernels with sizes as arguments can compute it: its operands are packed, neither many nor large."""
    b, m, n, k = problem.sizes
    packed = problem.align == contiguous_align(problem.dtype, problem.layout, m, n, k, b)
    return packed and b <= MAX_BATCH and b * max(m * k, k * n, m * n) <= _MAX_ELEMENTS


class Part(NamedTuple):
    """One tensor: A or B, where ``letter`` is that of its layout, or else a bias or a scale, which has none."""

    role: str
    dtype: torch.dtype
    size: tuple[Any, ...]
    letter: str = ""

    @property
    def stride(self) -> tuple[Any, ...]:
        """Steps between its elements if it is packed."""
        *batch, rows, columns = (1, *self.size) if len(self.size) == 1 else self.size
        steps = (1, rows) if self.letter == "t" else (columns, 1)
        return (*(rows * columns for _ in batch), *steps)[-len(self.size) :]


Kind = Problem | Specialization
"""What decides, besides sizes, which tensors there are."""


def tensors_of(kind: Kind, b: Any, m: Any, n: Any, k: Any) -> list[Part]:
    """The tensors in the function's order: the bias, if there is one, A and B; of scaled_mm the rest is behind them."""
    batch = (b,) if kind.op in BATCHED else ()
    (letter_a, letter_b), (type_a, type_b) = letters(kind.layout), operand_dtypes(kind.dtype)
    operands = [Part("a", type_a, (*batch, m, k), letter_a), Part("b", type_b, (*batch, k, n), letter_b)]
    if kind.op in SCALED:
        scaling = Scaling.of(kind.variant)
        rows, columns = (m, n) if scaling.per == "row" else (1, 1)
        scales = [Part("scale", torch.float32, size) for size in ((rows, 1), (1, columns))]
        return [*operands, *scales, *([Part("bias", TORCH_DTYPES[scaling.result], (n,))] if scaling.bias else [])]
    bias = {"addmm": (n,), "baddbmm": (b, m, n)}.get(kind.op)
    return operands if bias is None else [Part("bias", type_a, bias), *operands]


def inputs_of(kind: Kind, nodes: list[Any]) -> MMKernelInputs:
    """Inductor's inputs for nodes that are like ``tensors_of``."""
    if kind.op in SCALED:
        result = TORCH_DTYPES[Scaling.of(kind.variant).result]
        return MMKernelInputs(nodes, mat1_idx=0, mat2_idx=1, out_dtype=result)
    if kind.op in INTEGER:
        return MMKernelInputs(nodes, out_dtype=TORCH_DTYPES[RESULT_OF_INTEGERS])
    return MMKernelInputs(nodes, scalars={"alpha": 1, "beta": 1} if len(nodes) == 3 else None)


def function_of(problem: Problem) -> Callable[..., torch.Tensor]:
    """The problem as a function of ``tensors_of``, with an optional ``out``."""
    if problem.op in INTEGER:
        return torch._int_mm
    if problem.op not in SCALED:
        return getattr(torch, problem.op)  # type: ignore[no-any-return]
    scaling = Scaling.of(problem.variant)
    return partial(torch._scaled_mm, out_dtype=TORCH_DTYPES[scaling.result], use_fast_accum=scaling.fast)


COMPILE_LIMIT_S = 120.0
"""Maximum time for compiling a kernel, in seconds."""

_Shape = tuple[torch.dtype, Sequence[Any], Sequence[Any]]
"""Type, sizes and strides of a tensor."""

_HINTS = (7, 1009, 101, 13)
"""The hints of B, M, N and K, in steps, while a kernel is made; distinct, to find them among its arguments."""

_MAX_STEPS = 2**24 - 1
"""Maximum of M, N and K in steps, so that Inductor knows that they fit in 32 bits, as TMA requires."""


class Kernel:
    """A Triton kernel, to be compiled, loaded, and bound to tensors.

    ``arguments`` says which of B, M, N and K, in units of ``steps``, each size argument is; it is empty if the sizes
    are constants.
    """

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
        """Start compiling, in Inductor's pool of processes if it has one."""
        request = self.caller.bmreq
        try:
            source = Path(request.module_path).read_text(encoding="utf-8")
            self._compiling = AsyncCompile().triton(request.kernel_name, source)
        except Exception as error:
            self._failure = failure_reason(error, "compile")

    @property
    def is_compiled(self) -> bool:
        """Whether ``load`` does not have to wait."""
        return not isinstance(self._compiling, CodeCacheFuture) or self._compiling.future.done()  # type: ignore[attr-defined]

    def load(self) -> str | None:
        """Wait until it is compiled and put it on the device; if that fails, the reason of dataset.REASONS."""
        if self._failure is None and isinstance(self._compiling, CodeCacheFuture):
            try:
                self._compiling.future.result(timeout=COMPILE_LIMIT_S)  # type: ignore[attr-defined]
                self._compiling = self._compiling.result()
            except Exception as error:
                self._failure = failure_reason(error, "compile")
        return self._failure

    def bind(self, problem: Problem, operands: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], None]:
        """A function that launches the loaded kernel on these tensors, which are as ``problem`` says."""
        return partial(self.bind_later(problem, out), operands)

    def bind_later(self, problem: Problem, out: torch.Tensor) -> Callable[[Sequence[torch.Tensor]], None]:
        """The same for operands that come with each launch."""
        stream, run = torch.cuda.current_stream().cuda_stream, self._compiling.run
        arguments = self._arguments_for(problem, out.device)
        return lambda operands: run(*operands, out, *arguments, stream=stream)

    def arguments_for(self, problem: Problem) -> list[Any]:
        """What the kernel is launched with after its tensors: sizes, perhaps a workspace, and the grid."""
        given = list(self.caller.bmreq.extra_args)
        if not self.arguments:
            return given
        sizes = (problem.b, problem.m, problem.n, problem.k)
        choice = self.caller.annotations["ktc"]
        meta = {**choice.params.to_kwargs(), **choice.extra_kwargs}
        place = sizes[:3] if problem.op in BATCHED else sizes[1:3]
        grid = choice.template.grid(*place, meta)
        return [*(sizes[each] // self._steps[each] for each in self.arguments), *given[len(self.arguments) : -3], *grid]

    def _arguments_for(self, problem: Problem, device: torch.device) -> list[Any]:
        arguments = self.arguments_for(problem)
        size = self.caller.bmreq.workspace_size
        if size is None:
            return arguments
        workspace = torch.zeros(size, dtype=torch.uint8, device=device)
        return [workspace if each == WORKSPACE_ARG_PLACEHOLDER else each for each in arguments]


class Subgraph(NamedTuple):
    """Several kernels that Inductor has made for one problem; the result is a new tensor."""

    caller: Any

    def compile(self) -> None:
        """Nothing: it is compiled when loaded, in this process."""

    @property
    def is_compiled(self) -> bool:
        """Whether ``load`` does not wait for another process; it never does."""
        return True

    def load(self) -> str | None:
        """Compile it inside ``lowering``; if that fails, the reason of dataset.REASONS."""
        try:
            self.caller._compiled_module = self.caller._compile_for_benchmarking()
        except Exception as error:
            return failure_reason(error, "compile")
        return None

    def bind(self, problem: Problem, operands: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], Any]:
        """A function that runs it on these tensors and returns the result; ``out`` stays as it is."""
        return partial(self.bind_later(problem, out), operands)

    def bind_later(self, problem: Problem, out: torch.Tensor) -> Callable[[Sequence[torch.Tensor]], Any]:
        """The same for operands that come with each launch."""
        del problem, out
        return lambda operands: self.caller._compiled_module.call(list(operands))[0]


@contextmanager
def lowering(device: torch.device) -> Iterator[Lowering]:
    """The state in which Inductor makes kernels, inside the compile of an empty graph, with its compile workers ready.

    What is compiled in it, as the parts of decompose_k are, is left to Inductor by tables and models.
    """
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
    """Makes kernels; valid inside ``lowering``."""

    def __init__(self, graph: GraphLowering, env: ShapeEnv, device: torch.device) -> None:
        self._graph = graph
        self.device = device
        self._symbols = [
            _symbol(env, hint, most) for hint, most in zip(_HINTS, (MAX_BATCH, *[_MAX_STEPS] * 3), strict=True)
        ]
        self._inputs: dict[Any, MMKernelInputs] = {}

    def for_problem(
        self, problem: Problem, config: Config, operands: Sequence[torch.Tensor]
    ) -> Kernel | Subgraph | None:
        """What runs ``config`` on tensors like ``operands``: the bias, if any, A and B. None if nothing can."""
        shapes = [(each.dtype, tuple(each.shape), each.stride()) for each in operands]
        key = (problem, *shapes)
        if key not in self._inputs:
            self._inputs[key] = self._make_inputs(problem, shapes)
        caller = _caller(config, self._inputs[key], problem.op, problem.variant)
        if isinstance(caller, TritonTemplateCaller):
            return Kernel(caller)
        return None if caller is None else Subgraph(caller)

    def specialized(self, specialization: Specialization, config: Config) -> Kernel | None:
        """The kernel of ``config`` for all problems of a specialization, or None if it cannot be made."""
        if specialization not in self._inputs:
            sizes = [step * symbol for step, symbol in zip(specialization.steps, self._symbols, strict=True)]
            sizes[-1] = specialization.one_step or sizes[-1]
            packed = [(part.dtype, part.size, part.stride) for part in tensors_of(specialization, *sizes)]
            self._inputs[specialization] = self._make_inputs(specialization, packed)
        caller = _caller(config, self._inputs[specialization], specialization.op, specialization.variant)
        if not isinstance(caller, TritonTemplateCaller):
            return None
        arguments = [_HINTS.index(value) for value in list(caller.bmreq.extra_args)[:-3] if value in _HINTS]
        return Kernel(caller, tuple(arguments), specialization.steps)

    def _make_inputs(self, kind: Kind, shapes: Sequence[_Shape]) -> MMKernelInputs:
        return inputs_of(kind, [self._node(*shape) for shape in shapes])

    def _node(self, dtype: torch.dtype, size: Sequence[Any], stride: Sequence[Any]) -> Any:
        name = f"arg{len(self._graph.graph_inputs)}"
        layout = ir.FixedLayout(self.device, dtype, list(size), list(stride))
        node = ir.TensorBox.create(ir.InputBuffer(name=name, layout=layout))
        self._graph.graph_inputs[name] = node
        return realize_inputs(node)  # type: ignore[no-untyped-call]


def _caller(config: Config, inputs: MMKernelInputs, op: str, variant: str) -> ir.ChoiceCaller | None:
    try:
        return build_choice(config, inputs, op, variant=variant)
    except Exception as error:
        let_pass(error)
        log.debug("%s: Inductor cannot make it", config, exc_info=True)
        return None


def _symbol(env: ShapeEnv, hint: int, most: int) -> sympy.Symbol:
    symbol = env.create_symbol(hint, ConstantSource(f"size_{hint}"), dynamic_dim=DimDynamic.DYNAMIC)
    env.constrain_symbol_range(symbol, 2, most)
    return symbol
