"""Configs with ``pad`` outside a compile, as functions to call: each call pads the operands first, as Inductor does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes import pad_mm
from torch._inductor.virtualized import V

from diode_lut.domain.ops import BATCHED
from diode_lut.domain.problem import Problem
from diode_lut.inductor.names import failure_reason
from diode_lut.inductor.program import code_of, trace
from diode_lut.inductor.standalone import Kernel, Lowering, Subgraph
from diode_lut.kernels.config import ATEN, Config
from diode_lut.kernels.padding import padded

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
