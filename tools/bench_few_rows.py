"""Measure the package's kernels for few rows, and its joined kernels, on layers of decoders: needs a GPU.

``python tools/bench_few_rows.py --out few.jsonl --seconds 200`` times ``triton_few_rows`` with several configs beside
the library and plain Triton kernels, and joined matmuls beside the fastest of these one after the other. ``--share
0/2`` measures every other task, so that two GPUs share the work. Times are medians of a call in CUDA graphs, each call
with other weights, in interleaved rounds with a cold L2 cache; results are compared with float32.
``tools/pack_joined.py`` makes a dataset of the results.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parent.parent))

import torch
from modelbench.joined_kernels import BLOCK, Spec, launcher
from modelbench.joined_ways import Clock, Line, Race, Way, copies_for, one_after_the_other
from modelbench.records import append
from torch import Tensor
from torch._inductor import ir
from torch._inductor.select_algorithm import TritonTemplateCaller
from torch.nn import functional

from diode_lut.hook.joined_kernel import joined_template, options_of
from diode_lut.measure.kernels import Kernel, Lowering, Subgraph, lowering
from diode_lut.problem import GATED, Problem
from diode_lut.templates.config import Config

AHEAD = 8  # tasks whose kernels are compiled while others are measured

FEW: tuple[str, ...] = (
    *("2x1024 s3 w4", "4x512 s3 w8", "1x1024 s3 w4", "1x2048 s3 w4", "2x512 s4 w4", "2x1024 s4 w4", "2x2048 s3 w8"),
    *("4x512 s3 w4", "4x1024 s3 w8", "8x256 s4 w4", "2x512 s3 w2", "8x512 s3 w8", "2x256 s4 w2", "4x256 s4 w4"),
    *("1x512 s3 w2", "2x1024 s2 w4", "4x1024 s2 w4", "1x4096 s2 w8"),
)
DOT: tuple[str, ...] = (
    *("16x32x256 g8 s6 w4", "16x64x128 g8 s8 w4", "16x256x128 g8 s3 w4", "16x32x128 g8 s8 w4", "16x16x128 g8 s8 w2"),
    *("16x32x128 g8 s6 w2", "16x32x256 g8 s4 w4", "16x32x256 g8 s5 w4", "16x32x256 g8 s6 w8", "16x16x256 g8 s8 w4"),
    *("16x64x256 g8 s4 w4", "16x64x256 g8 s5 w4", "16x128x128 g8 s5 w4"),
)
JOINED: tuple[str, ...] = (
    *("16x64x128 g8 s4 w4", "16x32x128 g8 s6 w4", "16x32x128 g8 s8 w4", "16x32x256 g8 s4 w4", "16x64x256 g8 s3 w4"),
    *("16x64x128 g8 s6 w4", "16x64x128 g8 s3 w4", "16x32x256 g8 s5 w4", "16x32x128 g8 s5 w2", "16x64x64 g8 s8 w4"),
    *("16x128x128 g8 s3 w8", "16x32x64 g8 s8 w4", "16x16x128 g8 s4 w2", "16x16x256 g8 s6 w4", "16x128x64 g8 s6 w4"),
)
TALL_DOT: tuple[str, ...] = (
    *("64x32x128 g8 s5 w4", "64x64x128 g8 s4 w4", "64x128x64 g8 s5 w4", "64x32x128 g8 s8 w4", "64x32x128 g8 s6 w4"),
    *("64x64x128 g8 s3 w4", "64x128x64 g8 s8 w4", "64x128x128 g8 s4 w8", "64x32x256 g8 s4 w4", "64x256x64 g8 s5 w8"),
    *("64x128x128 g8 s3 w4", "64x16x256 g8 s5 w4", "32x32x256 g8 s5 w4"),
)
TALL_JOINED: tuple[str, ...] = (
    *("64x64x128 g8 s4 w4", "64x32x128 g8 s4 w4", "64x64x128 g8 s3 w4", "64x32x64 g8 s5 w4", "64x64x64 g8 s6 w4"),
    *("64x32x128 g8 s5 w4", "64x128x64 g8 s4 w4", "64x64x64 g8 s4 w4", "64x128x64 g8 s5 w8", "32x64x128 g8 s4 w4"),
    *("64x16x128 g8 s4 w4", "64x32x256 g8 s3 w4", "64x64x64 g8 s8 w4", "64x64x128 g8 s4 w8", "64x128x128 g8 s3 w8"),
)
"""The last two are for more than 16 rows. Matmuls of a group are tried with the first APART of DOT and FEW."""

APART = 3

MATMULS = (
    *((4096, 4096, "mm", "nt", 4), (4096, 14336, "mm", "nt", 2), (1024, 4096, "mm", "nt", 4)),
    *((14336, 4096, "mm", "nt", 2), (128256, 4096, "mm", "nt", 2), (3072, 3072, "mm", "nt", 4)),
    *((3072, 8192, "mm", "nt", 2), (8192, 3072, "mm", "nt", 1), (1024, 3072, "mm", "nt", 1)),
    *((2048, 2048, "mm", "nt", 4), (2048, 8192, "mm", "nt", 4), (8192, 2048, "mm", "nt", 2)),
    *((512, 2048, "mm", "nt", 2), (128256, 2048, "mm", "nt", 1), (896, 4864, "mm", "nt", 4)),
    *((896, 896, "mm", "nt", 4), (896, 896, "addmm", "nt", 1), (128, 896, "addmm", "nt", 2)),
    *((4864, 896, "mm", "nt", 2), (151936, 896, "mm", "nt", 2), (3584, 3584, "mm", "nt", 2)),
    *((3584, 3584, "addmm", "nt", 1), (512, 3584, "addmm", "nt", 2), (3584, 18944, "mm", "nt", 2)),
    *((18944, 3584, "mm", "nt", 1), (2304, 2048, "mm", "nt", 2), (2304, 9216, "mm", "nt", 2)),
    *((9216, 2304, "mm", "nt", 1), (2048, 2304, "mm", "nt", 1), (9216, 3072, "mm", "nt", 2)),
    *((16384, 3072, "mm", "nt", 1), (768, 768, "addmm", "nt", 4), (3072, 768, "addmm", "nt", 4)),
    *((768, 3072, "addmm", "nt", 4), (768, 768, "mm", "nt", 2), (2304, 768, "addmm", "nn", 2)),
    *((768, 768, "addmm", "nn", 2), (3072, 768, "addmm", "nn", 2), (768, 3072, "addmm", "nn", 2)),
    *((51865, 768, "mm", "nt", 2), (1280, 1280, "addmm", "nt", 1), (1280, 5120, "addmm", "nt", 1)),
    *((5120, 1280, "addmm", "nt", 1), (1024, 8192, "mm", "nt", 2), (8192, 1024, "mm", "nt", 2)),
    *((8192, 3584, "mm", "nt", 2), (5120, 4096, "mm", "nt", 2), (5120, 14336, "mm", "nt", 2)),
    *((1536, 1536, "mm", "nt", 2), (1536, 8960, "mm", "nt", 2), (256, 1536, "addmm", "nt", 2)),
    *((1024, 2048, "mm", "nt", 2), (1024, 3072, "mm", "nt", 2), (2560, 4096, "mm", "nt", 2)),
    *((2560, 9728, "mm", "nt", 2), (4096, 12288, "mm", "nt", 2), (5120, 5120, "mm", "nt", 2)),
    *((5120, 17920, "mm", "nt", 2), (5120, 27648, "mm", "nt", 2), (2048, 11008, "mm", "nt", 2)),
    *((8192, 8192, "mm", "nt", 2), (3584, 4096, "mm", "nt", 2), (3584, 14336, "mm", "nt", 2)),
    *((1152, 1024, "mm", "nt", 2), (1152, 6912, "mm", "nt", 2), (2560, 2048, "mm", "nt", 2)),
    *((2560, 10240, "mm", "nt", 2), (32000, 4096, "mm", "nt", 2), (151936, 1536, "mm", "nt", 1)),
    *((152064, 3584, "mm", "nt", 1), (256000, 2304, "mm", "nt", 1), (32064, 3072, "mm", "nt", 2)),
    *((1024, 1024, "addmm", "nt", 4), (4096, 1024, "addmm", "nt", 2), (1024, 4096, "addmm", "nt", 4)),
    *((768, 768, "mm", "nt", 4), (3072, 768, "mm", "nt", 2), (768, 3072, "mm", "nt", 4)),
)
"""N, K, op, layout, and the most rows, of layers of Llama, Mistral, Qwen, Gemma, Phi, BERT, GPT-2 and Whisper."""

GROUPS = (
    *(((4096, 1024, 1024), 4096, "three"), ((14336, 14336), 4096, "swiglu"), ((2048, 512, 512), 2048, "three")),
    *(((8192, 8192), 2048, "swiglu"), ((3072, 1024, 1024), 3072, "three"), ((8192, 8192), 3072, "swiglu")),
    *(((896, 128, 128), 896, "three"), ((4864, 4864), 896, "swiglu"), ((3584, 512, 512), 3584, "three")),
    *(((18944, 18944), 3584, "swiglu"), ((2048, 1024, 1024), 2304, "three"), ((9216, 9216), 2304, "geglu")),
    *(((768, 768, 768), 768, "three"), ((1024, 128, 128), 8192, "three"), ((3584, 3584), 8192, "swiglu")),
    *(((4096, 1024, 1024), 5120, "three"), ((14336, 14336), 5120, "swiglu"), ((1536, 256, 256), 1536, "three")),
    *(((8960, 8960), 1536, "swiglu"), ((2048, 1024, 1024), 1024, "three"), ((3072, 3072), 1024, "swiglu")),
    *(((4096, 1024, 1024), 2560, "three"), ((9728, 9728), 2560, "swiglu"), ((12288, 12288), 4096, "swiglu")),
    *(((4096, 2048, 2048), 3584, "three"), ((1024, 1024, 1024), 1024, "three"), ((1024, 256, 256), 1152, "three")),
    *(((2560, 2560, 2560), 2560, "three"), ((6912, 6912), 2560, "swiglu")),
)
"""Columns of each B, K, and the variant."""

GEGLU = tuple(((n, n), k, "geglu") for n, k in ((9216, 2304), (14336, 3584), (6912, 1152), (10240, 2560)))
"""Gated networks of Gemma: columns of each B, K, and the variant."""

MORE_ROWS = (16, 64, 8, 32)

TALL = (
    *((4096, 4096), (4096, 14336), (128256, 4096), (3072, 3072), (3072, 8192), (128256, 3072), (2048, 2048)),
    *((2048, 8192), (3584, 3584), (3584, 18944), (2304, 2048), (2304, 9216), (2560, 2560), (2560, 6912)),
    *((5120, 4096), (5120, 14336), (1536, 1536), (1536, 8960), (896, 896), (896, 4864), (768, 768), (768, 3072)),
    *((3584, 4096), (3584, 14336), (8192, 1024), (8192, 3584)),
)
"""N and K of matmuls that are measured with more rows."""


class Task(NamedTuple):
    """Columns of each B, and a variant, or the op of a single matmul."""

    m: int
    columns: tuple[int, ...]
    k: int
    kind: str
    layout: str = "nt"


def tasks() -> list[Task]:
    """Return all tasks, the most telling first."""
    single = [Task(m, (n,), k, op, layout) for m in (1, 2, 4) for n, k, op, layout, most in MATMULS if m <= most]
    single += [Task(m, (n,), k, "mm") for m in MORE_ROWS for n, k in TALL]
    joined = [Task(m, *group) for group in GEGLU for m in (1, 4)]
    joined += [Task(m, *group) for m in (1, 2, 4, *MORE_ROWS) for group in (*GROUPS, *GEGLU)]
    found = []
    while single or joined:
        found += [*single[:3], *joined[:1]]
        single, joined = single[3:], joined[1:]
    return list(dict.fromkeys(found))


def tensor(*shape: int) -> Tensor:
    """Return random numbers."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def weight(n: int, k: int, layout: str) -> Tensor:
    """Return a B whose products with random numbers are about 1."""
    drawn: Tensor = (torch.randn((n, k) if layout == "nt" else (k, n), device="cuda") / k**0.5).to(torch.bfloat16)
    return drawn.t() if layout == "nt" else drawn


Made = list[tuple[str, str, Kernel | Subgraph]]  # kernels that are being compiled, with their group and config


def made(lowered: Lowering, task: Task) -> Made:
    """Return the kernels of a task."""
    few, dot, joined = (FEW if task.m <= 4 else ()), DOT, JOINED
    if task.m > 16:
        dot, joined = TALL_DOT, TALL_JOINED
    found: list[tuple[str, str, Any]] = []
    for n in dict.fromkeys(task.columns):
        op = task.kind if len(task.columns) == 1 else "mm"
        problem = Problem.of(op, task.m, n, task.k, dtype="bfloat16", layout=task.layout)
        operands = [*([tensor(n)] if op == "addmm" else []), tensor(task.m, task.k), weight(n, task.k, task.layout)]
        count = None if len(task.columns) == 1 else APART
        for config in [f"triton_few_rows {each}" for each in few[:count]] + [
            f"triton_mm {each}" for each in dot[:count]
        ]:
            kernel = lowered.for_problem(problem, Config.parse(config), operands)
            found.append((f"apart {n}", config, kernel))
    if len(task.columns) > 1:
        configs = [f"triton_few_rows {each}" for each in few] + [f"triton_joined_mm {each}" for each in joined]
        found += [("joined", each, joined_kernel(lowered, task, Config.parse(each))) for each in configs]
    kernels = [(group, text, kernel) for group, text, kernel in found if kernel is not None]
    for _, _, kernel in kernels:
        kernel.compile()
    return kernels


def joined_kernel(lowered: Lowering, task: Task, config: Config) -> Kernel | None:
    """Return a joined kernel of a config, if Inductor makes one."""
    m, columns, k, kind, _ = task
    gated = kind in GATED
    nodes = [lowered._node(torch.bfloat16, (m, k), (k, 1))]
    nodes += [lowered._node(torch.bfloat16, (k, n), (1, k)) for n in columns]
    others = [] if gated else [lowered._node(torch.bfloat16, (m, n), (n, 1)) for n in columns[1:]]
    options = options_of(config, m, list(columns), k) | {"SAME_STRIDES": True, "ALLOW_TF32": False}
    if gated:
        options |= {"AT_ONCE": 2, "GATED": True, "GELU": kind == "geglu", "TILES_N": options["TILES_N"] // 2}
    layout = ir.FixedLayout(lowered.device, torch.bfloat16, [m, columns[0]], [columns[0], 1])
    template = joined_template(len(columns), 0, gated=gated)
    caller = template.generate((*nodes, *others), layout, mutated_inputs=others or None, **options)
    return Kernel(caller) if isinstance(caller, TritonTemplateCaller) else None


def measure(task: Task, kernels: Made, clock: Clock) -> Line:
    """Return the fields of a line: medians of the fastest, their configs, and times of the first rounds."""
    m, columns, k, kind, layout = task
    copies = copies_for(2 * sum(columns) * k, m)
    a, bias = tensor(m, k), tensor(columns[0])
    weights = [[weight(n, k, layout) for n in columns] for _ in range(copies)]
    outs = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for n in columns]
    race = Race(clock, copies)
    loaded = []
    for group, text, kernel in kernels:
        reason = kernel.load()
        if reason is None:
            loaded.append((group, text, kernel))
        else:
            race.failed[text] = reason
    single = len(columns) == 1
    extra = [bias] if kind == "addmm" else []
    exacts = [a.float() @ b.float() + (bias.float() if extra else 0) for b in weights[0]]

    def library(members: Sequence[int]) -> Callable[[int], list[Tensor]]:
        def call(i: int) -> list[Tensor]:
            for j in members:
                if extra:
                    torch.addmm(bias, a, weights[i][j], out=outs[j])
                else:
                    torch.mm(a, weights[i][j], out=outs[j])
            return [outs[j] for j in members]

        return call

    def apart(kernel: Any, problem: Problem, members: Sequence[int]) -> Callable[[int], list[Tensor]]:
        runs = [kernel.bind(problem, outs[j]) for j in members]

        def call(i: int) -> list[Tensor]:
            for run, j in zip(runs, members, strict=True):
                run([*extra, a, weights[i][j]])
            return [outs[j] for j in members]

        return call

    def joined(kernel: Any) -> Callable[[int], list[Tensor]]:
        run = kernel.bind(Problem.of("mm", m, columns[0], k, dtype="bfloat16", layout="nt"), outs[0])
        others = [] if kind in GATED else outs[1:]

        def call(i: int) -> list[Tensor]:
            run([a, *weights[i], *others])
            return [outs[0], *others]

        return call

    best, last = list[Way](), dict[str, Way]()
    for n in dict.fromkeys(columns):
        members, group = [j for j, own in enumerate(columns) if own == n], f"apart {n}"
        problem = Problem.of(kind if single else "mm", m, n, k, dtype="bfloat16", layout=layout)
        ways = [Way(library(members), group, "aten")]
        ways += [Way(apart(kernel, problem, members), group, text) for each, text, kernel in loaded if each == group]
        fastest = race.fastest(ways, [exacts[j] for j in members])[group]
        best.append(fastest[0])
        if single:
            wanted = dict.fromkeys([*fastest[:4], ways[0]])
            last = {each.config: each for each in wanted}
    if not single:
        last["apart"], exact = one_after_the_other(*best), exacts
        if kind in GATED:
            last["apart"] = one_after_the_other(last["apart"], silu(outs))
            gate = functional.silu(exacts[0]) if kind == "swiglu" else functional.gelu(exacts[0], approximate="tanh")
            exact = [gate * exacts[1]]
        ways = [Way(joined(kernel), group, text) for group, text, kernel in loaded if group == "joined"]
        last |= {each.config: each for each in race.fastest(ways, exact)["joined"][:4]}
    return race.last(last)


def silu(outs: Sequence[Tensor]) -> Way:
    """Return a kernel for the activation, whose time does not depend on which it is."""
    result, size = torch.empty_like(outs[0]), outs[0].numel()
    run = launcher(Spec("silu_times", ("bf16",) * 3, (size, BLOCK)), (-(-size // BLOCK), 1, 1), *outs, result)

    def call(_: int) -> list[Tensor]:
        run()
        return [result]

    return Way(call, "silu", "silu")


def lines(todo: Sequence[Task], until: float) -> Iterator[Line]:
    """Yield the line of each task, until the time is over."""
    clock, ahead = Clock("cuda"), list[Made]()
    with lowering(torch.device("cuda", torch.cuda.current_device())) as lowered, torch.no_grad():
        for place, task in enumerate(todo):
            while len(ahead) < min(AHEAD, len(todo) - place):
                ahead.append(made(lowered, todo[place + len(ahead)]))
            if time.monotonic() > until:
                return
            line: Line = {"task": list(task)}
            try:
                with clock.on_stream():
                    line |= measure(task, ahead.pop(0), clock)
            except Exception as error:  # noqa: BLE001 - the next task may do
                traceback.print_exc()
                line["error"] = repr(error)[:300]
            yield line
            torch.cuda.empty_cache()


def main() -> None:
    """Measure the share of the tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200, help="end after this time; default: %(default)s")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th task; default: all")
    options = parser.parse_args()
    number, of = map(int, options.share.split("/"))
    for line in lines(tasks()[number::of], time.monotonic() + options.seconds):
        append(options.out, line)
    os._exit(0)  # compile workers have nothing more to do


if __name__ == "__main__":
    main()
