"""Whether compiles agree on padding, and how fast the result is: needs a GPU.

``python tools/bench_padding.py CASE [--compiles 128] [--parallel 8]`` compiles a module again and again, each time in a
new process with cold caches, several at the same time, so that each sees a busy machine. It prints how often which
matmuls were padded, and afterwards the time of the module in a process of its own. The tables are those that
``DIODE_LUT_TABLES`` names; with ``DIODE_LUT_POLICY=off`` Inductor's benchmark decides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CASES = ("mlp", "addmm")
LAUNCHES = 200


def main() -> None:
    """Compile in processes, and say what they decided."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES, help="gated MLP 1000x2731 with adapters, or addmm 1434x1703x4492 tn")
    parser.add_argument("--compiles", type=int, default=128, help="number of compiles (default: 128)")
    parser.add_argument("--parallel", type=int, default=8, help="number at the same time (default: 8)")
    parser.add_argument("--once", action="store_true", help="compile in this process, and print JSON")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(compile_once(arguments.case)))
        return
    with ThreadPoolExecutor(arguments.parallel) as pool:
        found = list(pool.map(in_new_process, [arguments.case] * arguments.compiles))
    for decisions, count in Counter(json.dumps(each["decisions"]) for each in found).most_common():
        print(f"{count} of {len(found)} compiles:")
        for matmul, padded in json.loads(decisions):
            print(f"  {matmul}: {'padded' if padded else 'not padded'}")
    alone = [in_new_process(arguments.case)["ms"] for _ in range(3)]
    print(f"{arguments.case}: {min(alone):.4f} to {max(alone):.4f} ms in three processes, each alone")


def in_new_process(case: str) -> dict[str, Any]:
    """What ``compile_once`` returns in a new process with cold caches."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, case, "--once"]
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_once(case: str) -> dict[str, Any]:
    """What Inductor decided for each matmul that it could pad, and the median time of the result in milliseconds."""
    import torch
    from torch._inductor.fx_passes import pad_mm

    import diode_lut  # noqa: F401 (arms the hook)

    decisions: list[tuple[str, bool]] = []
    should_pad: Callable[..., bool] = pad_mm.should_pad

    def noted(match: Any, a: Any, b: Any, op: Any, *bias: Any, **named: Any) -> bool:
        padded = should_pad(match, a, b, op, *bias, **named)
        decisions.append((f"{op.__name__} {tuple(a.shape)} {a.stride()} by {tuple(b.shape)} {b.stride()}", padded))
        return padded

    vars(pad_mm)["should_pad"] = noted
    torch.manual_seed(0)
    with torch.no_grad():
        function, inputs = _mlp(torch) if case == "mlp" else _addmm(torch)
        compiled = torch.compile(function)
        error = (compiled(*inputs).double() - function(*inputs).double()).abs().max().item()
        milliseconds = _median(torch, lambda: compiled(*inputs))
    return {"decisions": decisions, "ms": milliseconds, "error": error}


def _mlp(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A gated MLP of 1000 by 2731 with adapters of rank 16, on 2048 rows in bfloat16."""

    class Adapted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.base = torch.nn.Linear(inputs, outputs, bias=False)
            self.down, self.up = torch.nn.Linear(inputs, 16, bias=False), torch.nn.Linear(16, outputs, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.up(self.down(x))

    class Gated(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.value, self.out = Adapted(1000, 2731), Adapted(1000, 2731), Adapted(2731, 1000)

        def forward(self, x: Any) -> Any:
            return self.out(torch.nn.functional.silu(self.gate(x)) * self.value(x))

    return Gated().to("cuda", torch.bfloat16), [torch.randn(2048, 1000, device="cuda", dtype=torch.bfloat16)]


def _addmm(torch: Any) -> tuple[Callable[..., Any], list[Any]]:
    shapes = (1703,), (4492, 1434), (4492, 1703)
    bias, a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    return torch.addmm, [bias, a.t(), b]


def _median(torch: Any, function: Callable[[], Any]) -> float:
    times: list[float] = []
    for _ in range(LAUNCHES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


if __name__ == "__main__":
    main()
