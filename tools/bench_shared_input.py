"""What a GPU could gain from GEMMs of one input computed as one, and from work before a GEMM done in its kernel.

``python tools/bench_shared_input.py --out shared.jsonl --budget 480`` compiles each case in several ways, captures each
way in a CUDA graph, and times the graphs in interleaved rounds with a cold L2 cache; a time is the median.

- Shared inputs: two or three linear layers of one input, such as q, k and v, or gate and up, ``apart`` and as ``one``
  with their weights joined, whose result is cut into parts without a copy; in default mode and with diode_lut.
- Prologues: a cast or an activation before a GEMM. ``fused`` has Inductor choose the fastest of Triton's kernels, of
  which it fuses the prologue where it can; ``triton`` chooses in the same way without that.

Each case is a line of the results; run again with the same file, it goes on with the cases that are missing. A case
that runs out of memory, or does not compile, has its error in the place of times. ``--table`` prints what the file has.
``--device cpu --tiny`` tries this out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from modelbench.dynamic import milliseconds
from modelbench.ways import Line, Results, Way, compiled, difference, measure_missing, read
from torch import Tensor
from torch._inductor.utils import fresh_cache
from torch.nn import functional


class Case(NamedTuple):
    """Sizes of an input (M, K) and of the layers behind it (each N, K), and the name of the prologue, if it has one."""

    m: int
    k: int
    n: tuple[int, ...]
    prologue: str = ""

    def before(self, x: Tensor) -> Tensor:
        """The input of the layers."""
        return PROLOGUES[self.prologue](x) if self.prologue else x

    def combine(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The results: of a gate and an up projection their product, of others all."""
        return [functional.silu(parts[0]) * parts[1]] if len(parts) == 2 else list(parts)


_TRITON = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
SHARED_WAYS = {
    "apart": Way("apart"),
    "one": Way("one"),
    "apart, diode_lut": Way("apart", "pick"),
    "one, diode_lut": Way("one", "pick"),
}
PROLOGUE_WAYS = {
    "default": Way("apart"),
    "diode_lut": Way("apart", "pick"),
    "triton": Way("apart", options={**_TRITON, "prologue_fusion": False}),
    "fused": Way("apart", options={**_TRITON, "prologue_fusion": True}),
}
PROLOGUES: dict[str, Callable[[Tensor], Tensor]] = {
    "cast": lambda x: x.to(torch.bfloat16),
    "relu": torch.relu,
    "scale": lambda x: x * 0.5,
    "silu": functional.silu,
}
SHARED = {
    "q, k, v of BERT-base, 16x384": Case(6144, 768, (768, 768, 768)),
    "q, k, v of ViT-B, 32x197": Case(6304, 768, (768, 768, 768)),
    "q, k, v of Llama 8B, 2048 tokens": Case(2048, 4096, (4096, 1024, 1024)),
    "q, k, v of Llama 8B, 8 tokens": Case(8, 4096, (4096, 1024, 1024)),
    "gate, up of Llama 8B, 2048 tokens": Case(2048, 4096, (14336, 14336)),
    "gate, up of Llama 8B, 8 tokens": Case(8, 4096, (14336, 14336)),
    "gate, up of Llama 1B, 512 tokens": Case(512, 2048, (8192, 8192)),
    "two small layers, 4096 rows": Case(4096, 256, (128, 128)),
}
PROLOGUE_SIZES = {
    "4096 rows, 256 to 512": Case(4096, 256, (512,)),
    "2048 rows, 4096 to 4096": Case(2048, 4096, (4096,)),
    "8 rows, 4096 to 4096": Case(8, 4096, (4096,)),
}
THEN = ("one", "fused")
"""What the names of ways begin with that Inductor does not take by itself."""

LIMIT = 120.0
"""Seconds after which a case counts as hung."""

CASES = {
    **SHARED,
    **{
        f"{name} before {sizes}": case._replace(prologue=name)
        for sizes, case in PROLOGUE_SIZES.items()
        for name in PROLOGUES
    },
}


def main() -> None:
    """Measure what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("shared.jsonl"))
    parser.add_argument("--budget", type=float, default=480, metavar="SECONDS", help="start no case after this time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="try it out with a few small cases")
    parser.add_argument("--table", action="store_true", help="print the results that are there, and measure nothing")
    arguments = parser.parse_args()
    if not arguments.table:
        measure(arguments.out, arguments.budget, arguments.device, tiny=arguments.tiny)
    print(table(read(arguments.out)))


def measure(out: Path, budget: float, device: str, *, tiny: bool = False) -> None:
    """Add a line for each case that has none yet, until ``budget`` seconds are over."""
    cases = tiny_cases() if tiny else CASES
    measure_missing(out, cases, lambda name: measured(cases[name], device), device, budget, LIMIT)


def tiny_cases() -> dict[str, Case]:
    """One case of each kind, which compiles within seconds on a CPU."""
    return {
        "q, k, v": Case(16, 32, (32, 16, 16)),
        "gate, up": Case(16, 32, (48, 48)),
        "cast": Case(16, 32, (32,), "cast"),
    }


def measured(case: Case, device: str) -> Line:
    """Milliseconds, kernels and relative differences from float64 of each way; RuntimeError where one fails."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    x = torch.randn(case.m, case.k, device=device, dtype=torch.float32 if case.prologue == "cast" else torch.bfloat16)
    weights = [torch.randn(n, case.k, device=device, dtype=torch.bfloat16) / case.k**0.5 for n in case.n]
    functions = functions_of(case, x, weights)
    exact = case.combine([case.before(x).double() @ weight.double().t() for weight in weights])
    with fresh_cache(), torch.no_grad():
        ways = {name: compiled(*functions[way.function], way) for name, way in ways_of(case, device).items()}
        return {
            "ms": milliseconds({name: way.step for name, way in ways.items()}, device),
            "kernels": {name: way.kernels for name, way in ways.items()},
            "difference": {name: max(map(difference, way.results, exact)) for name, way in ways.items()},
        }


def ways_of(case: Case, device: str) -> dict[str, Way]:
    """The ways of a case: without those of Triton on a CPU."""
    if not case.prologue:
        return SHARED_WAYS
    return {name: way for name, way in PROLOGUE_WAYS.items() if device == "cuda" or not way.options}


def functions_of(
    case: Case, x: Tensor, weights: Sequence[Tensor]
) -> dict[str, tuple[Callable[..., Results], Sequence[Tensor]]]:
    """The layers one by one, and as one, each with its operands."""

    def apart(x: Tensor, *weights: Tensor) -> Results:
        x = case.before(x)
        return case.combine([x @ weight.t() for weight in weights])

    def one(x: Tensor, weight: Tensor) -> Results:
        return case.combine(torch.split(case.before(x) @ weight.t(), list(case.n), dim=1))

    return {"apart": (apart, (x, *weights)), "one": (one, (x, torch.cat(list(weights))))}


def table(lines: Sequence[Line]) -> str:
    """Of each case the fastest way of today, the fastest with GEMMs as one or the prologue fused, and the gain."""
    rows = [f"{'case':44}  today ms    then ms   gain  kernels  saved us"]
    for line in lines:
        if "error" in line:
            rows.append(f"{line['case']:44}  {line['error']}")
            continue
        then = [name for name in line["ms"] if name.startswith(THEN)]
        today = [name for name in line["ms"] if name not in then]
        if not then:
            continue
        old, new = (min(names, key=line["ms"].__getitem__) for names in (today, then))
        before, after = line["ms"][old], line["ms"][new]
        times = f"{before:9.4f} {after:10.4f} {before / after:6.3f}"
        kernels = f"{line['kernels'][old]} to {line['kernels'][new]}"
        rows.append(f"{line['case']:44} {times} {kernels:>8} {(before - after) * 1e3:9.2f}  {old}; {new}")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
