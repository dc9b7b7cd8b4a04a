"""Programs of others, as their users write them, on random weights: what one is, and all of them by name.

A program calls ``torch.compile`` itself, with the options that its users give. It is a function that makes its model
and its inputs, and returns a ``Run``. Whoever measures calls ``Run.step`` again and again.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Any_ = TypeVar("Any_", bound="torch.nn.Module | Tensor")


@dataclass(frozen=True)
class Given:
    """Where a program runs: its device, the type of its weights, and whether it is tiny, to try it out.

    With ``exact`` all is computed in float64, from weights and inputs that were rounded to ``dtype`` before.
    """

    device: str
    dtype: torch.dtype
    tiny: bool = False
    exact: bool = False

    def put(self, value: Any_) -> Any_:
        """Move a module or a tensor of floats to the device, in its type."""
        placed: Any = value.to(self.device, self.dtype)
        return placed.double() if self.exact else placed  # type: ignore[no-any-return]

    def normal(self, *shape: int) -> Tensor:
        """Draw a tensor of floats."""
        return self.put(torch.randn(shape, device=self.device))

    def integers(self, most: int, *shape: int) -> Tensor:
        """Draw a tensor of integers below ``most``."""
        return torch.randint(most, shape, device=self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision in bfloat16, or none for exact results."""
        return nullcontext() if self.exact else torch.autocast(self.device, torch.bfloat16)

    def made(self, make: Callable[[], torch.nn.Module]) -> Any:
        """Return the module that ``make`` makes, with its weights drawn on the device."""
        with torch.device(self.device):
            return self.put(make())


class Run(NamedTuple):
    """A program that is ready: its step, and results that can be compared, from the same compiled code."""

    step: Callable[[], object]
    results: Callable[[], Iterable[Tensor]]


class Program(NamedTuple):
    """A program: a phrase that describes it, the type of its weights, and the packages that it needs."""

    about: str
    start: Callable[[Given], Run]
    dtype: torch.dtype = torch.bfloat16
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


def inference(function: Callable[[], Any]) -> Run:
    """A step without gradients, whose results are compared as they are."""

    def step() -> Any:
        with torch.inference_mode():
            return function()

    def results() -> Iterable[Tensor]:
        found = step()
        return [found] if isinstance(found, Tensor) else found

    return Run(step, results)


def training(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor], *, clip: bool = False
) -> Run:
    """A step of an optimizer; the loss and the gradients of the first one are compared."""

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    def results() -> Iterable[Tensor]:
        loss = step()
        return [loss, *(weight.grad for weight in model.parameters() if weight.grad is not None)]

    return Run(step, results)


def programs() -> Mapping[str, Program]:
    """All programs by name, the most important first."""
    from modelbench.real_images import IMAGES
    from modelbench.real_others import OTHERS
    from modelbench.real_texts import TEXTS

    return {**TEXTS, **OTHERS, **IMAGES}
