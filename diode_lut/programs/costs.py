"""Costs that no kernel's choice removes, read from the traces of a run, each with its remedy.

A cost is a time in the traces, and its share of the time of all GPU kernels, or of the traced time. Nothing is
estimated: without a trace of GPU kernels there are no costs but compiling.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from diode_lut.errors import counted
from diode_lut.probe import CALL, FIRST_CALL
from diode_lut.programs.times import Event, ProcessTrace, name_of, ns_of

LEAST_SHARE = 0.05  # smaller costs are not named
MOST = 3  # how many costs are named
GPU_TIME, TRACED_TIME = "GPU time", "traced time"  # the times of which a cost has a share


class Cost(NamedTuple):
    """A cost: its name, its time in nanoseconds, its share of a time that ``of`` names, and the remedy."""

    name: str
    ns: float
    share: float
    of: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.share:.0%} of {self.of}; {self.remedy}"


def costs_in(traces: Sequence[ProcessTrace], reports: Iterable[Mapping[str, Any]]) -> list[Cost]:
    """Return the costs in the traces of a run's processes, the largest first. ``reports`` are of these processes."""
    breaks: dict[str, int] = {}
    libraries: dict[str, None] = {}
    for report in reports:
        breaks |= report.get("graph_breaks") or {}
        libraries |= dict.fromkeys(report.get("libraries") or ())
    gpu_ns, windows_ns = 0.0, 0.0
    found: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for trace in traces:
        kind = CALL if trace.has(CALL) else FIRST_CALL
        begin = min((float(op.call["ts"]) for op in trace.ops(kind)), default=None)
        if begin is None:
            continue
        kernels = [event for event in trace.events if event.get("cat") == "kernel" and event["ts"] >= begin]
        gpu_ns += ns_of(kernels)
        ops = [op.event for op in trace.ops(kind)]
        end = max(float(event["ts"]) + float(event["dur"]) for event in (*ops, *kernels))
        windows_ns += (end - begin) * 1e3
        for parts in (
            _attention(trace, kind),
            _without_tf32(trace, kind),
            _without_cudnn(trace, kind, list(libraries)),
            _outside(trace, kernels, breaks),
            _compiling(trace, begin),
            _waiting(trace, kernels, begin, end),
        ):
            for name, of, remedy, ns in parts:
                found[name, of, remedy] += ns
    whole = {GPU_TIME: gpu_ns, TRACED_TIME: windows_ns}
    costs = [Cost(name, ns, ns / whole[of], of, remedy) for (name, of, remedy), ns in found.items() if ns]
    return sorted((cost for cost in costs if cost.share >= LEAST_SHARE), key=lambda cost: -cost.share)


def largest(runs: Sequence[Sequence[Cost]]) -> list[Cost]:
    """Return the largest costs that most of several runs have, with their medians."""
    by_name: defaultdict[str, list[Cost]] = defaultdict(list)
    for costs in runs:
        for cost in costs:
            by_name[cost.name].append(cost)
    common = [
        costs[0]._replace(ns=median(cost.ns for cost in costs), share=median(cost.share for cost in costs))
        for costs in by_name.values()
        if 2 * len(costs) > len(runs)
    ]
    return sorted(common, key=lambda cost: -cost.share)[:MOST]


_Share = tuple[str, str, str, float]  # a cost's name, the time of which it has a share, the remedy, and nanoseconds
_PRODUCT = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+) (\w+)")  # the name of a batched GEMM

_SOFTMAX = re.compile(r"(?<!log)(?:_|^|::)(?:safe_)?softmax", re.IGNORECASE)

_MASK = (
    "scaled_dot_product_attention takes no fused kernel: leave out a mask that hides nothing, sort or pack sentences "
    'so that no mask is needed (attn_implementation="flash_attention_2"), or use flex_attention'
)


def _attention(trace: ProcessTrace, kind: str) -> Iterator[_Share]:
    """Find attention that is two batched matmuls and a softmax: the second reads the first's result.

    Names of batched GEMMs are batch x M x N x K. A kernel that converts its operands has the name of their first type.
    """
    products: defaultdict[tuple[str, ...], list[Event]] = defaultdict(list)
    in_float32 = set[tuple[str, ...]]()
    for gemm, kernels in trace.gemm_kernels(kind):
        if (found := _PRODUCT.fullmatch(name_of(gemm))) is not None:
            *sizes, dtype = found.groups()
            products[tuple(sizes)] += kernels
            if dtype == "float32":
                in_float32.add(tuple(sizes))
    pairs = set[tuple[str, ...]]()
    for batch, m, n, k in products:
        other = batch, m, k, n
        if other in products and (n != k or m == n):
            pairs |= {(batch, m, n, k), other}
    softmax = [
        kernel for op in trace.ops(kind) for kernel in trace.kernels_of(op.event) if _SOFTMAX.search(kernel["name"])
    ]
    if not pairs or not softmax:
        return
    name = f"attention by matmuls and a softmax{' in float32' * bool(pairs & in_float32)}, not by a fused kernel"
    yield name, GPU_TIME, _MASK, sum(ns_of(products[each]) for each in pairs) + ns_of(softmax)


_FLOAT32_KERNEL = re.compile(r"simt|sgemm|f32f32_f32f32|gemmSN|gemmk1|gemv2T")  # without tensor cores


def _without_tf32(trace: ProcessTrace, kind: str) -> Iterator[_Share]:
    """Find the library's float32 matmuls without tensor cores. Batched matmuls are mostly attention's."""
    ns = 0.0
    for gemm, kernels in trace.gemm_kernels(kind):
        name = name_of(gemm)
        if name.endswith(" float32") and not _PRODUCT.fullmatch(name):
            ns += ns_of(kernel for kernel in kernels if _FLOAT32_KERNEL.search(kernel["name"]))
    remedy = 'torch.set_float32_matmul_precision("high") lets them use TF32, with errors of about 1e-3'
    yield "float32 matmuls without TF32", GPU_TIME, remedy, ns


_NO_CUDNN = ("aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention")


def _without_cudnn(trace: ProcessTrace, kind: str, libraries: Sequence[str]) -> Iterator[_Share]:
    """Find attention by other kernels than cuDNN's, where CUDA's libraries are not those of PyTorch."""
    if not libraries:
        return
    within = {id(event): event for op in trace.ops(kind) for event in [op.event] if event["name"].startswith(_NO_CUDNN)}
    spans = [(each["tid"], each["ts"], each["ts"] + each["dur"]) for each in within.values()]
    ns = sum(
        ns_of(trace.kernels_of(op.event))
        for op in trace.ops(kind)
        if any(tid == op.event["tid"] and begin <= op.event["ts"] < end for tid, begin, end in spans)
    )
    remedy = (
        f"LD_LIBRARY_PATH replaces PyTorch's libraries, so cuDNN attention may be missing: unset it ({libraries[0]})"
    )
    yield "attention without cuDNN", GPU_TIME, remedy, ns


def _outside(trace: ProcessTrace, kernels: Sequence[Event], breaks: Mapping[str, int]) -> Iterator[_Share]:
    """Find kernels of eager ops, where Dynamo has broken graphs."""
    if not breaks:
        return
    inside = {
        op.event["args"].get("External id")
        for kind in (CALL, FIRST_CALL)
        for op in trace.ops(kind)
        if op.event.get("args")
    }
    eager = [each for each in kernels if each.get("args", {}).get("External id", 0) not in {*inside, 0}]
    first = next(iter(breaks)).strip().splitlines()[0]
    found = f"{counted(sum(breaks.values()), 'graph break')}, such as: {first}"
    remedy = f"{found}; torch.compile(..., fullgraph=True) finds them"
    yield "kernels outside compiled graphs", GPU_TIME, remedy, ns_of(eager)


_COMPILING = "_compile.compile_inner (dynamo_timed)"


def _compiling(trace: ProcessTrace, begin: float) -> Iterator[_Share]:
    """Find compiling after the first graph was called again."""
    late = [each for each in trace.events if each["name"] == _COMPILING and each["ts"] > begin]
    remedy = (
        "sizes or values change: mark them with torch._dynamo.mark_dynamic, or compile with dynamic=True; "
        "TORCH_LOGS=recompiles says which"
    )
    yield "compiling again", TRACED_TIME, f"{counted(len(late), 'time')}: {remedy}", ns_of(late)


BETWEEN_NODES_US = 20.0  # kernels of a CUDA graph follow each other faster, whatever the CPU does


def _waiting(trace: ProcessTrace, kernels: Sequence[Event], begin: float, end: float) -> Iterator[_Share]:
    """Find the time in which the GPU has nothing to do, from the first call of a graph on. Compiling does not count.

    Where CUDA graphs are launched, short gaps do not count either.
    """
    if not kernels:
        return
    graphs = any("GraphLaunch" in each["name"] for each in trace.events if each.get("cat") != "kernel")
    busy = [(float(each["ts"]), float(each["ts"]) + float(each["dur"])) for each in kernels]
    busy += [
        (float(each["ts"]), float(each["ts"]) + float(each["dur"]))
        for each in trace.events
        if each["name"] == _COMPILING or each.get("cat") in ("gpu_memcpy", "gpu_memset")
    ]
    gaps, at = [], begin
    for start, stop in sorted([*busy, (end, end)]):
        gaps.append(start - at)
        at = max(at, stop)
    idle = sum(gap for gap in gaps if gap > (BETWEEN_NODES_US if graphs else 0.0))
    remedy = (
        "between CUDA graphs, Python and eager ops take longer than kernels: give each call more work, such as a "
        "larger batch, or compile what runs between the graphs"
        if graphs
        else 'its launches take longer than its kernels under the profiler: mode="reduce-overhead" launches them as '
        "CUDA graphs"
    )
    yield "the GPU waits for the CPU", TRACED_TIME, remedy, idle * 1e3
