"""Decisions about matmuls, from Inductor's inputs and a snapshot to choices, without tracing and code generation."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.virtualized import V

import diode_lut
from diode_lut.errors import MissError
from diode_lut.hook.choices import marked_choices
from diode_lut.hook.handler import decide_matmul
from diode_lut.hook.snapshot import CannotRun, InductorSnapshot
from diode_lut.receipts import recorder
from diode_lut.templates.config import ATEN, Config
from tests.hook.test_hook import Rows, triton

pytestmark = pytest.mark.usefixtures("h200", "graph")

SMALL, LARGE = triton("triton_mm", 64, 64, 32), triton("triton_mm", 64, 128, 32)
LIBRARY = {"template": "aten"}


@pytest.fixture
def graph() -> Iterator[None]:
    """An empty graph of Inductor's, to which inputs belong."""
    empty = torch.fx.symbolic_trace(torch.nn.Identity())
    with V.set_graph_handler(GraphLowering(empty)):
        V.graph.current_node = None  # type: ignore[assignment]
        yield


def inputs(
    *shapes: Sequence[int], dtype: torch.dtype = torch.bfloat16, strides: Sequence[Sequence[int]] = ()
) -> MMKernelInputs:
    """The inputs of a lowering, in memory on the GPU, with the last two as A and B; packed rows by default."""
    device, nodes = torch.device("cuda:0"), []
    for place, shape in enumerate(shapes):
        stride = strides[place] if strides else ir.FlexibleLayout.contiguous_strides(shape)
        nodes.append(ir.InputBuffer(name=f"x{place}", layout=ir.FixedLayout(device, dtype, shape, stride)))
    return MMKernelInputs([ir.TensorBox.create(node) for node in nodes])


class Choice:
    """A choice of Inductor's, as far as a decision looks at it."""

    def __init__(self, config: Config, given: MMKernelInputs) -> None:
        self.config, self.input_nodes, self.annotations = config, given.nodes(), dict[str, Any]()


def chosen(now: InductorSnapshot, given: MMKernelInputs, op: str = "mm", cannot: Sequence[Config] = ()) -> list[Config]:
    """The configs that Inductor gets, the best first; those in ``cannot`` cannot run. None are those of Inductor."""

    def build(config: Config) -> Any:
        if config in cannot:
            raise CannotRun("a test")
        return Choice(config, given)

    decided = decide_matmul(now, given, op)
    if decided is None:
        return []
    found: Any = marked_choices(now, decided.decision, build, decided.pad) or []
    return [choice.config for choice in found]


def config(row: dict[str, Any]) -> Config:
    return Config.from_json(row)


MM = inputs, ((512, 256), (256, 512))


def test_the_row_decides(rows: Rows) -> None:
    """The first config of the row that covers the problem is the only choice."""
    rows({"op": "mm", "m": [1, 64], "configs": [LARGE]}, {"op": "mm", "configs": [SMALL, LIBRARY]})
    now = InductorSnapshot()
    assert chosen(now, inputs((512, 256), (256, 512))) == [config(SMALL)]
    assert chosen(now, inputs((32, 256), (256, 512))) == [config(LARGE)]
    assert chosen(now, inputs((2, 32, 256), (2, 256, 512)), "bmm") == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [SMALL]),
        ({"top_k": 2}, [SMALL, LARGE]),
        ({"policy": "verify"}, [SMALL, LIBRARY]),
        ({"top_k": 3, "policy": "verify"}, [SMALL, LARGE, LIBRARY]),
    ],
    ids=str,
)
def test_settings_decide_how_many(rows: Rows, settings: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    """Inductor gets ``top_k`` configs, and the library as well to verify them."""
    rows({"op": "mm", "configs": [SMALL, LARGE]})
    with diode_lut.config.patch(**settings):
        found = chosen(InductorSnapshot(), inputs((512, 256), (256, 512)))
    assert found == list(map(config, expected))


def test_what_cannot_run_gives_way(rows: Rows) -> None:
    """The next config of the row is taken. If none can run, Inductor chooses; with ``strict`` that is an error."""
    rows({"op": "mm", "configs": [SMALL, LARGE]})
    given, both = inputs((512, 256), (256, 512)), [config(SMALL), config(LARGE)]
    with diode_lut.profile_predictions() as counts:
        assert chosen(InductorSnapshot(), given, cannot=both[:1]) == both[1:]
        assert chosen(InductorSnapshot(), given, cannot=both) == []
    assert (counts.total_predictions, counts.skipped_configs, counts.unserved) == (2, 3, 1)
    with diode_lut.config.patch(strict=True), pytest.raises(MissError, match=r"no config of .* can run"):
        chosen(InductorSnapshot(), given, cannot=both)


@pytest.mark.parametrize(
    ("given", "op", "expected"),
    [
        (inputs, "mm", "mm 512x512x256 bfloat16 nn align 16"),
        (lambda *shapes: inputs(*shapes, dtype=torch.float16), "mm", "mm 512x512x256 float16 nn align 16"),
        (lambda *_: inputs((512, 256), (256, 512), strides=((256, 1), (1, 256))), "mm", "mm 512x512x256 bfloat16 nt"),
        (lambda *_: inputs((512, 256), (256, 512), strides=((257, 1), (512, 1))), "mm", "bfloat16 nn align 2"),
        (lambda *shapes: inputs((512,), *shapes, strides=((1,), (256, 1), (512, 1))), "addmm", "addmm 512x512x256"),
        (lambda *shapes: inputs((512, 512), *shapes), "addmm", "mm 512x512x256 bfloat16 nn align 16 epilogue medium"),
        (lambda *shapes: inputs((512, 1), *shapes), "addmm", "mm 512x512x256 bfloat16 nn align 16 epilogue light"),
    ],
    ids=["packed", "float16", "transposed", "unaligned", "bias", "matrix", "column"],
)
def test_the_problem(rows: Rows, given: Callable[..., MMKernelInputs], op: str, expected: str) -> None:
    """Tables are asked about the problem of the inputs; a bias that is more than a row is an epilogue."""
    rows()
    decided = decide_matmul(InductorSnapshot(), given((512, 256), (256, 512)), op)
    assert decided is not None
    assert expected in str(decided.decision.problem)
    assert (decided.pad, decided.decision.configs, decided.followed) == (1, (), decided.decision.problem)


def test_what_tables_do_not_have(rows: Rows) -> None:
    """There is no decision about types that tables do not have, matrices without unit stride, or sizes of zero."""
    rows({"configs": [LIBRARY]})
    now = InductorSnapshot()
    assert decide_matmul(now, inputs((8, 8), (8, 8), dtype=torch.float64), "mm") is None
    assert decide_matmul(now, inputs((8, 8), (8, 8), strides=((16, 2), (8, 1))), "mm") is None
    assert decide_matmul(now, inputs((0, 8), (8, 8)), "mm") is None


def test_a_snapshot_decides_as_when_it_was_made(rows: Rows) -> None:
    """Tables and settings that change after the first question do not reach it. Each epilogue has an answer."""
    rows({"op": "mm", "configs": [SMALL]}, {"op": "mm", "epilogue": "heavy", "configs": [LARGE]})
    now, given = InductorSnapshot(), inputs((512, 256), (256, 512))
    assert chosen(now, given) == [config(SMALL)]
    rows({"op": "mm", "configs": [LIBRARY]})
    with diode_lut.config.patch(top_k=2):
        assert chosen(now, given) == [config(SMALL)]
    decided = decide_matmul(now, given, "mm")
    assert decided is not None
    answers = now.answers(decided.decision.problem, given.device(), padding=False)
    first = {name: answers.with_epilogue(name).configs[0] for name in ("none", "light", "medium", "heavy")}
    assert first == dict.fromkeys(("none", "light", "medium"), config(SMALL)) | {"heavy": config(LARGE)}
    assert chosen(InductorSnapshot(), given) == [ATEN]
    assert recorder.own_receipt().devices
