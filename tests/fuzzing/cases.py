"""Cases: a table and a GEMM or a graph, drawn from a seed and a number, the same on every machine."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from diode_lut.hardware import Hardware
from tests.fuzzing.gemms import Gemm, draw_gemm
from tests.fuzzing.graphs import Graph, bounded, draw_graph
from tests.fuzzing.options import draw_options
from tests.fuzzing.rows import Row, draw_graph_rows, draw_parts, draw_rows

MODES = ("default", "max-autotune-no-cudagraphs", "reduce-overhead")

BOUNDED = 0.4  # the share of graphs in which sizes change within bounds


@dataclass(frozen=True, kw_only=True)
class TableCase:
    """The rows with which something is compiled, in which mode of ``torch.compile``, and with which of our settings."""

    seed: int
    number: int
    rows: list[Row]
    mode: str
    settings: dict[str, Any]

    @property
    def tunables(self) -> tuple[str, ...]:
        """What a kernel has from its row as it is; Inductor lets small blocks have fewer warps."""
        return ("block_m", "block_n", "block_k", "group_m", "num_stages")

    @property
    def other_tunables(self) -> tuple[tuple[str, ...], ...]:
        """The same of kernels from other templates that go with it."""
        return ()

    @property
    def names_kernels(self) -> bool:
        """Whether each Triton template that is used after an answer must be one of the rows'."""
        return self.mode != "max-autotune-no-cudagraphs"

    @property
    def times_candidates(self) -> bool:
        """Whether the settings ask Inductor to time several candidates."""
        return self.settings.get("policy") == "verify" or self.settings.get("top_k", 1) > 1

    @property
    def tf32(self) -> bool:
        """Whether GEMMs of float32 may be computed in TF32."""
        raise NotImplementedError

    def has_kernel(self, code: str) -> bool:
        """Whether a kernel that is not made from a template has a config of a row."""
        return False

    def write_table(self, path: Path, hardware: Hardware) -> None:
        """Make a file of the rows, as a person might have written it, for some hardware."""
        document = {
            "schema_version": 2,
            "hardware": {"name": hardware.name, "arch": hardware.arch, "sm_count": hardware.sm_count},
            "entries": self.rows,
        }
        path.write_text(json.dumps(document), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Case(TableCase):
    """A GEMM that is compiled. ``frozen``: where it is run, all operands but the first are a module's constants."""

    gemm: Gemm
    frozen: bool

    @property
    def tf32(self) -> bool:
        return self.gemm.precision.tf32

    def __str__(self) -> str:
        how = f"{self.mode}{' frozen' if self.frozen else ''} {self.settings}"
        return f"seed {self.seed} case {self.number}: {self.gemm} {how} {json.dumps(self.rows)}"


@dataclass(frozen=True, kw_only=True)
class GraphCase(TableCase):
    """A graph that is compiled, with options of Inductor."""

    graph: Graph
    options: dict[str, Any]

    @property
    def tf32(self) -> bool:
        return self.graph.tf32

    def __str__(self) -> str:
        how = f"{self.mode} {self.settings} {self.options}"
        return f"seed {self.seed} graph {self.number}: {how}\n  {json.dumps(self.rows)}\n  {self.graph}"


def draw_case(seed: int, number: int) -> Case:
    """Case ``number`` of a seed."""
    random = Random(f"{seed}/{number}")
    gemm = draw_gemm(random)
    rows = draw_rows(random, gemm)
    mode = random.choices(MODES, [7, 2, 1])[0]
    settings: dict[str, Any] = {"fallback_to_autotune": random.random() < 0.02}
    if random.random() < 0.03:
        settings.update(random.choice([{"policy": "verify"}, {"top_k": 3}]))
    frozen = gemm.op.startswith("linear") and not gemm.dynamic and random.random() < 0.3
    return Case(seed=seed, number=number, gemm=gemm, rows=rows, mode=mode, settings=settings, frozen=frozen)


def draw_graph_case(seed: int, number: int) -> GraphCase:
    """Graph ``number`` of a seed."""
    random = Random(f"graph {seed}/{number}")
    graph = draw_graph(random)
    changing = Random(f"bounds {seed}/{number}")
    graph = bounded(changing, graph) if changing.random() < BOUNDED else graph
    settings: dict[str, Any] = {}
    if graph.bounds:
        settings["dynamic_kernels"] = changing.choice([1, 2, 3, 3, 3, 8])
    if random.random() < 0.1:
        settings.update(random.choice([{"policy": "verify"}, {"top_k": 2}, {"top_k": 3}]))
    return GraphCase(
        seed=seed,
        number=number,
        graph=graph,
        rows=[*draw_graph_rows(random, graph), *draw_parts(changing, graph)],
        mode=random.choices(MODES[:2], [8, 2])[0],
        settings=settings,
        options=draw_options(random),
    )
