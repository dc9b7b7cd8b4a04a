"""Whether compiles agree on padding, and how fast the result is: needs a GPU.

``python tools/bench_padding.py CASE --out padding.jsonl`` compiles a module again and again, each time in a new process
with cold caches, several at the same time, so that each sees a busy machine, and then three times alone. It prints how
often which matmuls were padded, and the times of the module in the processes that were alone. The tables are those that
``DIODE_LUT_TABLES`` names; with ``DIODE_LUT_POLICY=off`` Inductor's benchmark decides. Each compile is a line of the
results; run again with the same file, it goes on. ``--device cpu --tiny`` tries this out; nothing is padded there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from modelbench.records import append, read

CASES = ("mlp", "addmm")
LIMIT = 300
"""Seconds after which a compile counts as hung."""


def main() -> None:
    """Compile in processes, and say what they decided."""
    options = _parser().parse_args()
    if options.once:
        print(json.dumps(compile_once(options.case, options.device, options.tiny)))
        return
    key = {"case": options.case, "policy": os.environ.get("DIODE_LUT_POLICY", "")}
    until = time.monotonic() + options.seconds
    add = partial(add_compile, options, key, until)
    missing = partial(missing_compiles, options.out, key)
    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(add, [False] * missing(False, options.compiles)))
    for _ in range(missing(True, options.alone)):
        add(True)
    print(summary(options.case, found(options.out, key)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES, help="gated MLP 1000x2731 with adapters, or addmm 1434x1703x4492 tn")
    parser.add_argument("--out", type=Path, default=Path("padding.jsonl"))
    parser.add_argument("--compiles", type=int, default=128, help="number of compiles (default: %(default)s)")
    parser.add_argument("--alone", type=int, default=3, help="number that have the machine to themselves (default: 3)")
    parser.add_argument("--parallel", type=int, default=8, help="number at the same time (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=480, help="start no compile after this time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="try it out with small matrices")
    parser.add_argument("--once", action="store_true", help="compile in this process, and print JSON")
    return parser


def found(out: Path, key: dict[str, str]) -> list[dict[str, Any]]:
    """What the results have of a case and a policy."""
    lines = read([out]) if out.exists() else []
    return [line for line in lines if all(line[name] == value for name, value in key.items())]


def missing_compiles(out: Path, key: dict[str, str], alone: bool, wanted: int) -> int:
    """How many compiles, with the machine for themselves or not, the results lack."""
    return max(wanted - sum(line["alone"] is alone for line in found(out, key)), 0)


def add_compile(options: argparse.Namespace, key: dict[str, str], until: float, alone: bool) -> None:
    """Add a line of what ``compile_once`` returns in a new process with cold caches, or of its error."""
    if time.monotonic() >= until:
        return
    command = [sys.executable, __file__, options.case, "--once", "--device", options.device]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        # What is compiled is a handful of kernels, and the start of a process for each core would take longer.
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "2", **os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        try:
            command += ["--tiny"] * options.tiny
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
            line = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-2000:]}
        except subprocess.TimeoutExpired:
            line = {"error": f"took over {LIMIT} s"}
    append(options.out, {**key, "alone": alone, **line})


def summary(case: str, lines: Sequence[dict[str, Any]]) -> str:
    """How often which matmuls were padded, and the times of those that were alone."""
    right = [line for line in lines if "error" not in line]
    rows = []
    for decisions, count in Counter(json.dumps(line["decisions"]) for line in right).most_common():
        rows.append(f"{count} of {len(right)} compiles:")
        rows += [f"  {matmul}: {'padded' if padded else 'not padded'}" for matmul, padded in json.loads(decisions)]
    times = [line["ms"] for line in right if line["alone"]]
    if times:
        rows.append(f"{case}: {min(times):.4f} to {max(times):.4f} ms in {len(times)} processes, each alone")
    rows += [f"failed: {line['error']}" for line in lines if "error" in line]
    return "\n".join(rows)


def compile_once(case: str, device: str, tiny: bool) -> dict[str, Any]:
    """What Inductor decided for each matmul that it could pad, and milliseconds and error of the result."""
    import torch
    from modelbench.dynamic import milliseconds
    from modelbench.models import build
    from torch._inductor.fx_passes import pad_mm

    import diode_lut  # noqa: F401 (arms the hook)

    decisions: list[tuple[str, bool]] = []
    should_pad: Callable[..., bool] = pad_mm.should_pad

    def noted(match: Any, a: Any, b: Any, op: Any, *bias: Any, **named: Any) -> bool:
        padded = should_pad(match, a, b, op, *bias, **named)
        decisions.append((f"{op.__name__} {tuple(a.shape)} {a.stride()} by {tuple(b.shape)} {b.stride()}", padded))
        return padded

    vars(pad_mm)["should_pad"] = noted
    with torch.no_grad():
        workload = build("adapted-mlp", device, tiny) if case == "mlp" else None
        function, inputs = (workload.module, workload.inputs) if workload else (torch.addmm, _addmm(device, tiny))
        compiled = torch.compile(function)
        error = (compiled(*inputs).double() - function(*inputs).double()).abs().max().item()
        (ms,) = milliseconds({case: lambda: compiled(*inputs)}, device).values()
    return {"decisions": decisions, "ms": ms, "error_of_result": error}


def _addmm(device: str, tiny: bool) -> tuple[Any, ...]:
    import torch

    m, n, k = (14, 17, 44) if tiny else (1434, 1703, 4492)
    torch.manual_seed(0)
    bias, a, b = (torch.randn(*shape, device=device, dtype=torch.bfloat16) for shape in ((n,), (k, m), (k, n)))
    return bias, a.t(), b


if __name__ == "__main__":
    main()
