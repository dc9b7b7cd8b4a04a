"""Times of GEMMs and generated kernels in compiled graphs, and verdicts: differences that are larger than the noise.

The times come from traces of torch's profiler, which ``hook/graphs.py`` takes. GEMMs are known by their sizes and type,
not by the op or kernel that computes them, and generated kernels by their problem and the ops that they fuse, so runs
with other kernels can be compared. A GEMM's time is the time of its kernels on the GPU, or of the op on the CPU.

A comparison looks at its times several times, and at several times at once. Each look may err half as often as the one
before it, and its share is divided among the times and GEMMs (Bonferroni, Holm), so all verdicts together keep to
``TIMES_ERR`` and ``GEMMS_ERR``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import orjson

from diode_lut.hook.versions import UIDS
from diode_lut.probe import CALL, CPP_GEMM, FIRST_CALL, GENERATED_KERNEL, TRITON_GEMM
from diode_lut.problem import ITEMSIZES
from diode_lut.templates.config import ATEN, pad_multiple, padded_size

_OPERANDS = {
    name: (1, 2) if op in ("addmm", "baddbmm") else (0, 1)
    for op, names in UIDS[ATEN.template].items()
    for name in names
}
"""Of each op of the library the numbers of A and B among its inputs."""
_LINEAR = {"mkl::_mkl_linear": 2, "mkldnn::_linear_pointwise": 1}  # the number of the weight, of N rows, by op

_DTYPES = {
    "double": "float64",
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "signed char": "int8",
}

_NAMED = (TRITON_GEMM, CPP_GEMM, GENERATED_KERNEL)  # how names of ops begin that the hook adds to a trace
Event = Mapping[str, Any]  # an event of a trace


class GemmTime(NamedTuple):
    """A GEMM or a generated kernel in a run: the number of its calls, its median time, and its usual kernel."""

    calls: int
    ns: float
    kernel: str


class GraphTimes(NamedTuple):
    """Times of compiled graphs in a run.

    ``gemms`` are by sizes and type, such as ``8x256x384 float32`` for M, N and K, with a batch in front. ``generated``
    are by problem and ops, such as ``reduction inner x 64 r 384: mean``. ``calls`` counts calls of graphs. ``call_ns``
    is the time of a call, the mean over the graphs' medians, and ``gemms_ns`` the time of its GEMMs. ``on_gpu`` is
    whether these are times of GPU kernels.
    """

    gemms: dict[str, GemmTime]
    generated: dict[str, GemmTime]
    calls: int
    call_ns: float
    gemms_ns: float
    on_gpu: bool


class TracedOp(NamedTuple):
    """An op within a call of a graph, the call, and the op of a GEMM or a generated kernel around it or itself."""

    event: Event
    call: Event
    gemm: Event | None


def read_traces(paths: Iterable[Path]) -> list[ProcessTrace]:
    """Read the traces of a program's processes."""
    return [ProcessTrace(orjson.loads(path.read_bytes())["traceEvents"]) for path in paths]


def graph_times(traces: Sequence[ProcessTrace]) -> GraphTimes | None:
    """Return the times in the traces of a program's processes, or None without a traced call of a graph."""
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
    generated = {
        name.removeprefix(GENERATED_KERNEL): found.pop(name) for name in gemms if name.startswith(GENERATED_KERNEL)
    }
    gemms_ns = _typical(gemms[name] for name in found) / count
    return GraphTimes(found, generated, count, _typical(calls.values()) / count, gemms_ns, on_gpu)


def _typical(times: Iterable[Sequence[float]]) -> float:
    """Return the sum of times without outliers."""
    return sum(median(each) * len(each) for each in times)


class ProcessTrace:
    """The trace of a process. ``events`` are those with a duration."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = timed = [event for event in events if event.get("ph") == "X" and "ts" in event]
        # The ops within calls of graphs, nested in a thread: of two that begin together the longer is outside
        self._ops: list[TracedOp] = []
        within: list[tuple[float, Event | None, Event | None]] = []
        thread: object = None
        ops = (event for event in timed if event.get("cat") in ("cpu_op", "user_annotation"))
        for event in sorted(ops, key=lambda each: (str(each["pid"]), str(each["tid"]), each["ts"], -each["dur"])):
            if thread != (event["pid"], event["tid"]):
                thread, within = (event["pid"], event["tid"]), []
            while within and within[-1][0] <= event["ts"]:
                within.pop()
            _, call, gemm = within[-1] if within else (0.0, None, None)
            name = event["name"]
            if name.startswith((FIRST_CALL, CALL)):
                call = event
            if gemm is None and (name in _OPERANDS or name in _LINEAR or name.startswith(_NAMED)):
                gemm = event
            within.append((event["ts"] + event["dur"], call, gemm))
            if call is not None:
                self._ops.append(TracedOp(event, call, gemm))
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
        return any(True for _ in self.ops(kind))

    def calls(self, kind: str, on_gpu: bool) -> Iterator[tuple[str, float]]:
        """For each such call its name and its nanoseconds."""
        kernels: defaultdict[int, float] = defaultdict(float)
        for op in self.ops(kind):
            kernels[id(op.call)] += ns_of(self.kernels_of(op.event))
        for op in self.ops(kind):
            if op.event is op.call:
                yield op.call["name"], kernels[id(op.call)] if on_gpu else ns_of([op.call])

    def gemms(self, kind: str, on_gpu: bool) -> Iterator[tuple[str, float, str]]:
        """For each execution of a GEMM or generated kernel in such calls its name, its nanoseconds, and its kernel."""
        for gemm, kernels in self.gemm_kernels(kind):
            if not on_gpu:
                yield name_of(gemm), ns_of([gemm]), gemm["name"]
            elif kernels:
                longest = max(kernels, key=lambda kernel: float(kernel["dur"]))
                yield name_of(gemm), ns_of(kernels), longest["name"]

    def gemm_kernels(self, kind: str) -> Iterator[tuple[Event, list[Event]]]:
        """For each execution of a GEMM or generated kernel in such calls its op and its kernels on the GPU."""
        found: dict[int, tuple[Event, list[Event]]] = {}
        for op in self.ops(kind):
            if op.gemm is not None:
                _, kernels = found.setdefault(id(op.gemm), (op.gemm, []))
                kernels += self.kernels_of(op.event)
        yield from found.values()

    def ops(self, kind: str) -> Iterator[TracedOp]:
        """The ops in such calls."""
        return (op for op in self._ops if op.call["name"].startswith(kind))

    def kernels_of(self, op: Event) -> list[Event]:
        """The kernels that an op launched."""
        return self._kernels.get(op.get("args", {}).get("External id", object()), [])


def ns_of(events: Iterable[Event]) -> float:
    """Return the sum of the events' nanoseconds."""
    return sum(float(event["dur"]) for event in events) * 1e3


def name_of(gemm: Event) -> str:
    """The sizes and the type of a GEMM, or the name of its op where the trace does not say them, or needs not to."""
    args = gemm.get("args", {})
    types = [_DTYPES[each] for each in args.get("Input type", ()) if each in _DTYPES]
    name = str(gemm["name"])
    if name.startswith(GENERATED_KERNEL):
        return name
    with suppress(IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        shapes: list[list[int]] = args["Input Dims"]
        if name in _OPERANDS:
            a, b = (shapes[number] for number in _OPERANDS[name])
            batch, m, n, k = prod(a[:-2]), a[-2], b[-1], a[-1]
        elif name in _LINEAR:
            a, weight = shapes[0], shapes[_LINEAR[name]]
            batch, m, n, k = 1, prod(a[:-1]), weight[0], a[-1]
        else:  # a template's name has the sizes, and ``?`` for an M or N that is an argument
            rows, columns, steps = name.split()[-3:]
            result = prod([shape for shape in shapes if shape][-1])
            m = result // int(columns) if rows == "?" else int(rows)
            n = result // m if columns == "?" else int(columns)
            batch, k = result // (m * n), int(steps)
        return gemm_name((batch, m, n, k), types[0])
    return name


def gemm_name(sizes: Sequence[int], dtype: str) -> str:
    """Return the name of a GEMM in a trace: ``8x256x384 float32`` for M, N and K, with a batch above 1 in front."""
    batch, *others = sizes
    return f"{'x'.join(map(str, sizes if batch > 1 else others))} {'float32' if dtype == 'tf32' else dtype}"


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


TIMES_ERR, GEMMS_ERR = 0.01, 0.05  # chance that any time, or any kernel, is called faster or slower by mistake
LEAST_GEMM_RUNS = 5  # no GEMM is called faster or slower with fewer traced runs of each kind
_SAME = 1.03  # ratios within this factor need no further runs
_GEMM_INTERVAL_ERR = 0.05  # the chance that the interval of a single GEMM does not contain its ratio
_TRITON = "triton_"  # the beginning of the names of Inductor's Triton kernels, which do not tell the config


class Speedup(NamedTuple):
    """Times in seconds without and with tables, a pair for each repetition, and the speed-up.

    ``gain`` is the geometric mean of the ratios without / with. ``low`` and ``high`` are the ends of its confidence
    interval, for normally distributed logarithms of the ratios.
    """

    without: Sequence[float]
    tuned: Sequence[float]
    gain: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is beyond noise: the interval does not contain 1 as it is printed."""
        return round(self.low, 2) > 1 or round(self.high, 2) < 1

    @property
    def is_told(self) -> bool:
        """Whether more runs would say little more: the difference is clear, or none of 3 % is possible."""
        return self.is_clear or (self.low > 1 / _SAME and self.high < _SAME)

    @property
    def verdict(self) -> str:
        """The verdict as text."""
        if not self.is_told:
            return "open"
        if not self.is_clear:
            return f"the same within {_SAME - 1:.0%}"
        return f"{'faster' if self.gain > 1 else 'slower'}, {ratio_text(self.gain)}"

    @property
    def interval(self) -> str:
        """The confidence interval, for people."""
        return f"{ratio_text(self.low)} to {ratio_text(self.high)}"


def change_of(without: Sequence[float], tuned: Sequence[float], *, error: float = TIMES_ERR) -> Speedup:
    """The change from at least two pairs of positive times, with an interval that errs with this chance."""
    ratios = [math.log(one / other) for one, other in zip(without, tuned, strict=True)]
    middle, margin = fmean(ratios), student(error, len(ratios) - 1) * stdev(ratios) / math.sqrt(len(ratios))
    logarithms = (min(max(middle + each, -700.0), 700.0) for each in (0.0, -margin, margin))  # finite for two pairs
    return Speedup(without, tuned, *map(math.exp, logarithms))


def ratio_text(ratio: float) -> str:
    """Return a ratio such as ``1.23x``."""
    if ratio >= 100:
        return "over 100x"
    return f"{ratio:.2f}x" if ratio >= 0.01 else "under 0.01x"


def error_of(look: int, error: float) -> float:
    """The share of this look, from 1 on, in the chance of an error. A comparison of one look only has look 0."""
    return error * 0.5**look


@cache
def student(error: float, freedom: int) -> float:
    """Return Student's t that is exceeded, on either side, with this chance."""

    def beyond(t: float) -> float:  # the chance to be farther from 0: Abramowitz and Stegun, 26.7.3 and 26.7.4
        angle = math.atan2(t, math.sqrt(freedom))
        square = math.cos(angle) * math.cos(angle)
        odd = freedom % 2
        term, total = math.cos(angle) if odd else 1.0, 0.0
        for number in range(odd, freedom - odd, 2):
            total += term
            term *= square * (number + 1) / (number + 2)
        if not odd:
            return 1 - math.sin(angle) * total
        return 1 - 2 / math.pi * (angle + math.sin(angle) * total)

    low, high = 0.0, 1e12
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > error else (low, middle)
    return high


class GemmChange(NamedTuple):
    """The times of a GEMM or a generated kernel with and without tables, and if their difference is beyond noise."""

    name: str
    without: Sequence[GemmTime]
    tuned: Sequence[GemmTime]
    is_clear: bool = False

    @property
    def saved_ns(self) -> float:
        """The time saved in a traced run, 0 without a comparison."""
        if not self.without or not self.tuned:
            return 0.0
        calls = min(time.calls for time in (*self.without, *self.tuned))
        return calls * (middle_ns(self.without) - middle_ns(self.tuned))

    @property
    def ratios(self) -> tuple[float, float, float] | None:
        """The median ratio without / with, and the ends of its rank-based 95 % interval, None without a comparison.

        Below four runs of each kind, the ends are the extremes.
        """
        ratios = sorted(one.ns / other.ns for one in self.without for other in self.tuned)
        if not ratios:
            return None
        chances = _chances(len(self.without), len(self.tuned))
        cut = max(sum(2 * chance <= _GEMM_INTERVAL_ERR for chance in chances) - 1, 0)
        return median(ratios), ratios[cut], ratios[-1 - cut]

    @property
    def is_comparable(self) -> bool:
        """Whether there are enough runs, and the kernels differ, as Triton's of the same name may."""
        if min(len(self.without), len(self.tuned)) < LEAST_GEMM_RUNS:
            return False
        kernels = {time.kernel for time in (*self.without, *self.tuned)}
        return len(kernels) > 1 or kernels.pop().startswith(_TRITON)

    @property
    def is_open(self) -> bool:
        """Whether every run of one kind is faster than every run of the other, and more runs may make that clear."""
        return self.is_comparable and self._crossing == 0 and not self.is_clear

    @property
    def chance(self) -> float:
        """The chance of a difference like this where there is none, by the exact rank-sum test. Ties count against."""
        return min(2 * _chances(len(self.without), len(self.tuned))[self._crossing], 1.0)

    @property
    def _crossing(self) -> int:
        """The pairs of runs that contradict the others."""
        pairs = [(one.ns, other.ns) for one in self.without for other in self.tuned]
        return min(sum(one <= other for one, other in pairs), sum(one >= other for one, other in pairs))


@cache
def _chances(one: int, other: int) -> tuple[float, ...]:
    """The chances that at most 0, 1, ... pairs of two samples of the same distribution are in one given order.

    The numbers of orders are the coefficients of a Gaussian binomial.
    """
    counts = [1] + [0] * (one * other)
    for number in range(1, one + 1):
        for place in range(len(counts) - 1, other + number - 1, -1):
            counts[place] -= counts[place - other - number]
        for place in range(number, len(counts)):
            counts[place] += counts[place - number]
    orders, total, found = math.comb(one + other, one), 0, []
    for count in counts:
        total += count
        found.append(total / orders)
    return tuple(found)


def judge(changes: Sequence[GemmChange], error: float = GEMMS_ERR) -> list[GemmChange]:
    """Return the changes in the same order, with those clear that Holm's correction leaves."""
    compared = sorted((change.chance, number) for number, change in enumerate(changes) if change.is_comparable)
    clear = set[int]()
    for place, (chance, number) in enumerate(compared):
        if chance > error / (len(compared) - place):
            break
        clear.add(number)
    return [change._replace(is_clear=number in clear) for number, change in enumerate(changes)]


def judged(
    without: Sequence[GraphTimes], tuned: Sequence[GraphTimes], error: float = GEMMS_ERR
) -> tuple[list[GemmChange], list[GemmChange]]:
    """Return the GEMMs of runs, and the generated kernels that both kinds of runs have, the largest gain first.

    A kernel of one kind of runs alone is fused otherwise there.
    """
    shown = unpadded([times.gemms for times in (*without, *tuned)])
    changes: list[list[GemmChange]] = []
    for found in (
        [[(shown[name], time) for name, time in times.gemms.items()] for times in (*without, *tuned)],
        [[*times.generated.items()] for times in (*without, *tuned)],
    ):
        by_name: defaultdict[str, tuple[list[GemmTime], list[GemmTime]]] = defaultdict(lambda: ([], []))
        for number, run in enumerate(found):
            for name, time in run:
                by_name[name][number >= len(without)].append(time)
        changes.append([GemmChange(name, *times) for name, times in by_name.items()])
    gemms, generated = changes
    both = judge([*gemms, *(change for change in generated if change.without and change.tuned)], error)

    def by_gain(change: GemmChange) -> tuple[float, str]:
        return -change.saved_ns, change.name

    return sorted(both[: len(gemms)], key=by_gain), sorted(both[len(gemms) :], key=by_gain)


def middle_ns(times: Sequence[GemmTime]) -> float:
    """The median over runs."""
    return median(time.ns for time in times)


def is_all_told(changes: Sequence[Speedup], gemms: Sequence[GemmChange]) -> bool:
    """Whether more runs would say little more: of each time, and of each kernel whose runs do not overlap."""
    return all(change.is_told for change in changes) and not any(gemm.is_open for gemm in gemms)
