"""What the hook and the receipt add to a compile: prints what was measured beside the figures to reach.

Run with ``make bench``. A graph of many GEMMs is lowered for an H200 that is not there. The hook's time is the time
inside it without Inductor's own handler, which the hook asks. The median of all calls is shown, so that a busy machine
shows about the same. A Triton choice is made by Inductor as well, and has no figure to reach.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest import mock

import torch
from bench_engine import HARDWARE, microseconds, show
from torch._guards import TracingContext, tracing
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.simd_kernel_features import SIMDKernelFeatures

import diode_lut
from diode_lut.decide.sources import ModelSource, TableSource
from diode_lut.hook import generated
from diode_lut.hook.handler import DiodeChoices
from diode_lut.hook.snapshot import InductorSnapshot, snapshot
from diode_lut.problem import Problem
from diode_lut.receipts import recorder
from diode_lut.templates.config import ATEN
from tests.fake_cuda import Input, Lowered, fake_cuda, lower

GEMMS = 200
EACH, REPEATS = 4, 30  # generated kernels of each form, and times that each of their questions is repeated
LAYERS, GRAPHS = 12, 6  # layers of an encoder, and times that it is lowered
DECISIONS = 20_000
TRITON: dict[str, Any] = {"template": "triton_mm", "block_m": 64, "block_n": 64, "block_k": 32}
TRITON |= {"group_m": 8, "num_stages": 3, "num_warps": 4}
ROWS: dict[str, dict[str, Any]] = {"aten": {"template": "aten"}, "triton": TRITON}


OTHERS = ("medium", "heavy")  # classes of epilogues of which relu is none


def main() -> None:
    """Measure everything."""
    print(f"{'':58} {'measured':>13} {'target':>12}")
    with tempfile.TemporaryDirectory() as directory, fake_cuda():
        aten, triton = (row(Path(directory) / f"{name}.json", config) for name, config in ROWS.items())
        others = table(
            Path(directory) / "others.json", [entry(ROWS["aten"]), *(entry(TRITON, name) for name in OTHERS)]
        )
        bench_receipt(aten)
        bench_graph("rows with aten", (aten,), ("user",), 20)
        bench_graph("no row", (), ("user",), 20)
        bench_graph("no row, so that the model is asked", (), ("user", "model"))
        bench_graph("rows with Triton, Inductor's making of choices included", (triton,), ("user",))
        bench_graph("relu, rows with Triton for other epilogues", (others,), ("user",), None, torch.relu)
        bench_generated("rows", (kernels(Path(directory) / "generated.json"),))
        bench_generated("no row", ())
        bench_generated("shipped rows and model", (), ("device", "model"))
        bench_encoder()
        show(
            "cache identity, once for each graph", microseconds(lambda _: InductorSnapshot().identity, [0] * 200), "us"
        )


def row(path: Path, config: dict[str, Any]) -> str:
    """A table with one row for any ``mm``."""
    return table(path, [entry(config)])


def entry(config: dict[str, Any], epilogue: str | None = None) -> dict[str, Any]:
    """A row for any ``mm``, with any epilogue or with those of one class."""
    return {"op": "mm", **({} if epilogue is None else {"epilogue": epilogue}), "configs": [config]}


def table(path: Path, entries: list[dict[str, Any]]) -> str:
    """A table with these rows."""
    path.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE._asdict(), "entries": entries}))
    return str(path)


def bench_receipt(table: str) -> None:
    """Noting decisions, of which each problem is asked about several times."""
    problems = [Problem("mm", "float16", "nn", 16, 1, 64 + size % 1000, 64, 64) for size in range(DECISIONS)]
    with diode_lut.config.patch(tables=(table,)):
        decisions = [diode_lut.select(problem, hardware=HARDWARE) for problem in problems]
    show("receipt, a hit", microseconds(lambda each: recorder.served(each, (ATEN,)), decisions), "us", 5)
    show("receipt, a miss", microseconds(lambda each: recorder.served(each, ()), decisions), "us", 5)


def bench_graph(
    what: str,
    tables: tuple[str, ...],
    tiers: tuple[str, ...],
    target: float | None = None,
    epilogue: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> None:
    """All GEMMs of one graph, the second time, when tables and models are loaded."""
    with diode_lut.config.patch(tables=tables, tiers=tiers):
        lower_gemms(epilogue)
        with clock() as calls:
            lower_gemms(epilogue)
    show(f"hook, {GEMMS} GEMMs, {what}", median(calls) * len(calls) * 1e3, "ms", target)


def lower_gemms(epilogue: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
    """A graph of GEMMs that all differ, each with the epilogue behind it; in a context, as each compile has it."""

    def gemms(*matrices: torch.Tensor) -> list[torch.Tensor]:
        results = [a @ matrices[0] for a in matrices[1:]]
        return results if epilogue is None else list(map(epilogue, results))

    with tracing(TracingContext(None)):
        lower(gemms, Input((64, 64)), *(Input((16 * size, 64)) for size in range(1, GEMMS + 1)))


def kernels(path: Path) -> str:
    """A table with rows for all generated kernels."""
    looped = {"template": "looped_reduction", "block_x": 8, "block_r": 64, "num_warps": 2}
    kept = {"template": "persistent_reduction", "block_x": 1, "num_warps": 4}
    flat = {"template": "pointwise", "block_x": 512, "num_warps": 2}
    tiled = {"template": "pointwise", "block_x": 32, "block_y": 32, "num_warps": 4}
    rows = [{"op": "pointwise", "configs": [tiled]}, {"op": "pointwise", "variant": "flat", "configs": [flat]}]
    return table(path, [*rows, {"op": "reduction", "configs": [looped, kept]}])


FORMS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.float().pow(2).mean(-1),
    lambda x: x.float().sum(0),
    lambda x: torch.softmax(x, -1),
    lambda x: torch.nn.functional.gelu(x),
    lambda x: x.chunk(2, 1)[0].t() + x.chunk(2, 1)[1],
)
"""The work of a generated kernel: reductions of rows and columns, several in one kernel, and pointwise, also tiled."""


def generated_graph() -> Lowered:
    """A graph of generated kernels that all differ; in a context, as each compile has it."""

    def works(*matrices: torch.Tensor) -> list[torch.Tensor]:
        return [FORMS[number % len(FORMS)](x) for number, x in enumerate(matrices)]

    with tracing(TracingContext(None)):
        return lower(works, *(Input((size, 2 * size)) for size in range(100, 100 + EACH * len(FORMS))))


def bench_generated(what: str, tables: tuple[str, ...], tiers: tuple[str, ...] = ("user",)) -> None:
    """The kernels that Inductor generates for a graph, and the splits of its reductions.

    Each of Inductor's questions is repeated, first with what the hook, tables and models remember of any kernel
    forgotten, then with what they remember of this kernel in another graph, and then within a graph. The least time of
    the thread counts. So a busy machine shows about the same, but the first question takes longer, as processors'
    caches have other contents.
    """
    least: dict[str, list[list[float]]] = {"fixed_arguments": [], "parts_of": []}

    def repeated(name: str) -> Any:
        question = getattr(generated, name)

        def ask(*arguments: Any, **named: Any) -> Any:
            if name == "fixed_arguments":
                arguments[1].select_index_dtype()  # which Inductor asks for right after, and remembers
            least[name].append([])
            for forget in FORGETTING:
                times = []
                for _ in range(REPEATS):
                    forget(snapshot())
                    started = time.thread_time()
                    answer = question(*arguments, **named)
                    times.append(time.thread_time() - started)
                least[name][-1].append(min(times))
            return answer

        return mock.patch.object(generated, name, ask)

    patched = diode_lut.config.patch(tables=tables, tiers=tiers)
    with patched, repeated("fixed_arguments"), repeated("parts_of"):
        generated_graph()
    kernels, splits = least["fixed_arguments"], least["parts_of"]
    for place, asked in enumerate(("new", "of an earlier graph", "asked before")):
        each = sum(times[place] for times in (*kernels, *splits)) / len(kernels)
        show(f"hook, {len(kernels)} generated kernels {asked}, each, {what}", each * 1e6, "us", 100)


def forget_graph(now: InductorSnapshot) -> None:
    """Forget the decisions of this graph."""
    now._kernels.clear()


def forget_all(now: InductorSnapshot) -> None:
    """Forget what is remembered of all kernels."""
    forget_graph(now)
    generated._fixed_for.cache_clear()
    for sources in now._sources.values():
        for source in (source for tier in sources.tiers for source in tier.sources):
            if isinstance(source, TableSource):
                source.table._index.find.cache_clear()
            elif isinstance(source, ModelSource) and source._kernels is not None:
                source._kernels.ranked.cache_clear()


FORGETTING = (forget_all, forget_graph, lambda _: None)


def layer(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A layer of an encoder, written out."""
    *matrices, scale = weights
    qkv, out, up, down = matrices
    batch, tokens, width = x.shape

    def norm(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (width,), scale, scale)

    heads = ((norm(x) @ qkv).view(batch, tokens, 3, -1, 64)).permute(2, 0, 3, 1, 4)
    q, k, v = heads.unbind()
    weighted = torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v
    x = x + weighted.transpose(1, 2).reshape(x.shape) @ out
    return x + torch.nn.functional.gelu(norm(x) @ up) @ down


def lower_encoder(layers: int, width: int) -> None:
    """A graph of layers one after another, each with weights of its own."""

    def encoder(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for first in range(0, len(weights), 5):
            x = layer(x, *weights[first : first + 5])
        return x

    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width), (width,)]
    lower(encoder, Input((4, 128, width)), *map(Input, shapes * layers))


def bench_encoder() -> None:
    """All generated kernels of a graph as they come, with the shipped rows and model, and noting them at its end.

    Inductor's own code runs before each question, and leaves processors' caches with other contents. What it asks by
    itself, if the hook does not, is not counted: whether a reduction keeps r, its hint, and whether a kernel indexes
    with 64 bits. ``test_hint_is_asked_no_more_often`` counts the questions about hints. The least mean of several times
    counts, each with what is remembered of any kernel forgotten.
    """
    name, least = "triton_kernel_kwargs", dict[str, float]()
    inductors = (InductorChoices, "should_use_persistent_reduction"), (SIMDKernelFeatures, "get_reduction_hint")
    for _ in range(GRAPHS):
        new: list[bool] = []
        patched = diode_lut.config.patch(tables=(), tiers=("device", "model"))
        with patched, tracing(TracingContext(None)), recorder.collecting():
            lower_encoder(1, 64)  # which loads tables and models
            forget_all(snapshot())
            with clock(name, *inductors, now=time.thread_time) as calls:
                question = getattr(DiodeChoices, name)

                def ask(choices: Any, kernel_class: Any, features: Any, *rest: Any, question: Any = question) -> Any:
                    features.select_index_dtype()  # which Inductor remembers
                    known = len(snapshot()._kernels)
                    answer = question(choices, kernel_class, features, *rest)
                    new.append(len(snapshot()._kernels) > known)  # noqa: B023 (called in this round)
                    return answer

                with mock.patch.object(DiodeChoices, name, ask):
                    lower_encoder(LAYERS, 512)
            started = time.thread_time()
        noting = (time.thread_time() - started) / len(calls)
        found = {"mean": mean(calls), "median": median(calls)}
        for what, wanted in (("new", True), ("known", False)):
            found[f"mean of the {what}"] = mean(call for call, each in zip(calls, new, strict=True) if each == wanted)
        least = {what: min(seconds + noting, least.get(what, 1.0)) for what, seconds in found.items()}
    for what, seconds in least.items():
        show(f"hook, {len(calls)} generated kernels of {LAYERS} layers, {what}", seconds * 1e6, "us", 100)


@contextmanager
def clock(
    name: str = "get_template_configs", *others: tuple[type, str], now: Callable[[], float] = time.perf_counter
) -> Iterator[list[float]]:
    """Adds the seconds of each question of this name, by default about a matmul, to a list.

    Without the time in Inductor's own handler, for this name, and in other methods of Inductor's classes.
    """
    calls: list[float] = []
    inside: list[float] = []

    def ours(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            inside.append(0.0)
            started = now()
            try:
                return method(*arguments, **keywords)
            finally:
                calls.append(now() - started - inside.pop())

        return call

    def inductors(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            before, started = inside[-1] if inside else 0.0, now()
            try:
                return method(*arguments, **keywords)
            finally:
                if inside:
                    inside[-1] = before + now() - started  # with others of these methods that it calls

        return call

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(DiodeChoices, name, ours(getattr(DiodeChoices, name))))
        for owner, each in ((InductorChoices, name), *others):
            timed, kind = inductors(getattr(owner, each)), type(vars(owner)[each])
            wrapped = staticmethod(timed) if kind is staticmethod else timed
            stack.enter_context(mock.patch.object(owner, each, wrapped))
        yield calls


if __name__ == "__main__":
    main()
