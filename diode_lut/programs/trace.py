"""Times of GEMMs in compiled graphs, from traces of torch's profiler, which ``hook/probe.py`` takes.

GEMMs are known by their sizes and type, whatever op or kernel computes them, so runs with other kernels can be
compared. A GEMM's time is the time of its kernels on the GPU, or of the op on the CPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import orjson

from diode_lut.hook.versions import UIDS
from diode_lut.probe import CALL, CPP_GEMM, FIRST_CALL, TRITON_GEMM
from diode_lut.problem import ITEMSIZES
from diode_lut.templates.config import ATEN, pad_multiple, padded_size

_OPERANDS = {
    name: (1, 2) if op in ("addmm", "baddbmm") else (0, 1)
    for op, names in UIDS[ATEN.template].items()
    for name in names
}
"""Of each op of the library the numbers of A and B among its inputs."""
_LINEAR = {"mkl::_mkl_linear": 2, "mkldnn::_linear_pointwise": 1}
"""Of each op of the CPU's library the number of the weight, of N rows."""

_DTYPES = {
    "double": "float64",
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "signed char": "int8",
}

Event = Mapping[str, Any]
"""An event of a trace."""


class GemmTime(NamedTuple):
    """A GEMM in a run: its number of traced calls, its median time in nanoseconds, and its most frequent kernel."""

    calls: int
    ns: float
    kernel: str


class GraphTimes(NamedTuple):
    """Times of compiled graphs in a run.

    ``gemms`` are by sizes and type, such as ``8x256x384 float32`` for M, N and K, with a batch in front. ``calls``
    counts calls of graphs. ``call_ns`` is the time of a call, the mean over the graphs' medians, and ``gemms_ns`` the
    time of its GEMMs. ``on_gpu`` is whether these are times of GPU kernels.
    """

    gemms: dict[str, GemmTime]
    calls: int
    call_ns: float
    gemms_ns: float
    on_gpu: bool


class _TracedOp(NamedTuple):
    """An op within a call of a graph, the call, and the op of a GEMM around it or itself."""

    event: Event
    call: Event
    gemm: Event | None


def read_traces(paths: Iterable[Path]) -> GraphTimes | None:
    """Return the times in the traces of a program's processes, or None without a traced call of a graph."""
    traces = [_ProcessTrace(orjson.loads(path.read_bytes())["traceEvents"]) for path in paths]
    kind = CALL if any(trace.has(CALL) for trace in traces) else FIRST_CALL
    on_gpu = any(trace.on_gpu for trace in traces)
    calls: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    gemms: defaultdict[str, list[float]] = defaultdict(list)
    kernels: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for number, trace in enumerate(traces):
        for name, ns in trace.calls(kind, on_gpu):
            calls[number, name].append(ns)
        for name, ns, kernel in trace.gemms(kind, on_gpu):
            gemms[name].append(ns)
            kernels[name][kernel] += 1
    count = sum(map(len, calls.values()))
    if not count:
        return None
    found = {name: GemmTime(len(ns), median(ns), kernels[name].most_common(1)[0][0]) for name, ns in gemms.items()}
    return GraphTimes(found, count, _typical(calls.values()) / count, _typical(gemms.values()) / count, on_gpu)


def _typical(times: Iterable[Sequence[float]]) -> float:
    """Return the sum of times without outliers."""
    return sum(median(each) * len(each) for each in times)


class _ProcessTrace:
    """The trace of a process."""

    def __init__(self, events: Iterable[Event]) -> None:
        timed = [event for event in events if event.get("ph") == "X" and "ts" in event]
        self._ops = list(_ops_in_calls(event for event in timed if event.get("cat") in ("cpu_op", "user_annotation")))
        self._kernels: defaultdict[Any, list[Event]] = defaultdict(list)
        for event in timed:
            if event.get("cat") == "kernel":
                self._kernels[event.get("args", {}).get("External id")].append(event)

    @property
    def on_gpu(self) -> bool:
        """Whether kernels ran on a GPU."""
        return bool(self._kernels)

    def has(self, kind: str) -> bool:
        """Whether there are calls of this kind."""
        return any(True for _ in self._of(kind))

    def calls(self, kind: str, on_gpu: bool) -> Iterator[tuple[str, float]]:
        """For each such call its name and its nanoseconds."""
        kernels: defaultdict[int, float] = defaultdict(float)
        for op in self._of(kind):
            kernels[id(op.call)] += _ns(self._kernels_of(op.event))
        for op in self._of(kind):
            if op.event is op.call:
                yield op.call["name"], kernels[id(op.call)] if on_gpu else _ns([op.call])

    def gemms(self, kind: str, on_gpu: bool) -> Iterator[tuple[str, float, str]]:
        """For each execution of a GEMM in such calls its name, its nanoseconds, and its kernel."""
        kernels: defaultdict[int, list[Event]] = defaultdict(list)
        gemms: dict[int, Event] = {}
        for op in self._of(kind):
            if op.gemm is not None:
                gemms[id(op.gemm)] = op.gemm
                kernels[id(op.gemm)] += self._kernels_of(op.event)
        for number, gemm in gemms.items():
            if not on_gpu:
                yield _name(gemm), _ns([gemm]), gemm["name"]
            elif kernels[number]:
                longest = max(kernels[number], key=lambda kernel: float(kernel["dur"]))
                yield _name(gemm), _ns(kernels[number]), longest["name"]

    def _of(self, kind: str) -> Iterator[_TracedOp]:
        return (op for op in self._ops if op.call["name"].startswith(kind))

    def _kernels_of(self, op: Event) -> list[Event]:
        return self._kernels.get(op.get("args", {}).get("External id", object()), [])


def _ops_in_calls(events: Iterable[Event]) -> Iterator[_TracedOp]:
    """Yield the ops within calls of graphs.

    Ops of a thread are nested. If two begin together, the longer is outside.
    """
    within: list[tuple[float, Event | None, Event | None]] = []
    thread: object = None
    for event in sorted(events, key=lambda each: (str(each["pid"]), str(each["tid"]), each["ts"], -each["dur"])):
        if thread != (event["pid"], event["tid"]):
            thread, within = (event["pid"], event["tid"]), []
        while within and within[-1][0] <= event["ts"]:
            within.pop()
        _, call, gemm = within[-1] if within else (0.0, None, None)
        if event["name"].startswith((FIRST_CALL, CALL)):
            call = event
        name = event["name"]
        if gemm is None and (name in _OPERANDS or name in _LINEAR or name.startswith((TRITON_GEMM, CPP_GEMM))):
            gemm = event
        within.append((event["ts"] + event["dur"], call, gemm))
        if call is not None:
            yield _TracedOp(event, call, gemm)


def _ns(events: Iterable[Event]) -> float:
    return sum(float(event["dur"]) for event in events) * 1e3


def _name(gemm: Event) -> str:
    """The sizes and the type of a GEMM, or the name of its op where the trace does not say them."""
    args = gemm.get("args", {})
    types = [_DTYPES[each] for each in args.get("Input type", ()) if each in _DTYPES]
    with suppress(IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        b, m, n, k = _sizes(gemm["name"], args)
        return f"{f'{b}x' if b > 1 else ''}{m}x{n}x{k} {types[0]}"
    return str(gemm["name"])


def unpadded(runs: Sequence[Mapping[str, GemmTime]]) -> dict[str, str]:
    """Return for each name of a GEMM in some runs the name to show: the name of the GEMM without padding.

    GEMMs are the same if their sizes are equal when rounded up to 16 bytes, and no run has more than one of them.
    """
    groups: defaultdict[object, list[str]] = defaultdict(list)
    for name in dict.fromkeys(name for run in runs for name in run):
        *batch, m, n, k = _numbers(name) or (0, 0, 0)
        dtype = name.rpartition(" ")[2]
        rounded = (*batch, *(padded_size(size, pad_multiple(dtype)) for size in (m, n, k)), dtype) if m else (name,)
        groups[rounded].append(name)
    shown = {}
    for names in groups.values():
        is_one = all(len(run.keys() & names) <= 1 for run in runs)
        shown.update({name: min(names, key=_numbers) if is_one else name for name in names})
    return shown


def _numbers(name: str) -> list[int]:
    """Return the sizes in a GEMM's name, none for a kernel's name."""
    sizes, _, dtype = name.rpartition(" ")
    return [int(size) for size in sizes.split("x")] if dtype in ITEMSIZES else []


def _sizes(name: str, args: Event) -> tuple[int, int, int, int]:
    """Return B, M, N and K. ValueError if they are not known."""
    shapes: list[list[int]] = args["Input Dims"]
    if name in _OPERANDS:
        a, b = (shapes[number] for number in _OPERANDS[name])
        return prod(a[:-2]), a[-2], b[-1], a[-1]
    if name in _LINEAR:
        a, weight = shapes[0], shapes[_LINEAR[name]]
        return 1, prod(a[:-1]), weight[0], a[-1]
    m, n, k = name.split()[-3:]
    result = prod([shape for shape in shapes if shape][-1])
    rows = int(m) if m != "?" else result // int(n)
    return result // (rows * int(n)), rows, int(n), int(k)
