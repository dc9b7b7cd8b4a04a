"""Inductor's inputs, and the problems that they are."""

from collections.abc import Iterator

import pytest
import torch
from torch import fx
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import FixedLayout, InputBuffer, TensorBox
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V

from diode_lut.hook.problems import problem_of
from diode_lut.problem import Problem


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    """A graph in which nothing has been lowered."""
    empty = fx.Graph()
    empty.output(())
    with V.set_graph_handler(GraphLowering(fx.GraphModule({}, empty))):
        yield


def matrix(name: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> TensorBox:
    layout = FixedLayout(torch.device("cpu"), torch.float16, list(sizes), list(strides))
    return TensorBox.create(InputBuffer(name=name, layout=layout))


@pytest.mark.parametrize(("strides", "align"), [((1, 8, 1), 2), ((8, 64, 1), 16), ((512, 1, 1), 16)])
def test_matrices_of_one_column_side_by_side(strides: tuple[int, ...], align: int) -> None:
    """Matrices that start an element apart are not aligned, as tables, datasets and other tools' files have it."""
    inputs = MMKernelInputs([matrix("a", (8, 512, 1), strides), matrix("b", (8, 1, 64), (64, 64, 1))])
    assert problem_of(inputs, "bmm") == Problem("bmm", "float16", "nn", align, 8, 512, 64, 1)
