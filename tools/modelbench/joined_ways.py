"""Ways to compute the tasks of ``joined_tasks``, checked against float32 or float64, and timed in CUDA graphs."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import torch
from modelbench.joined_kernels import launcher
from modelbench.joined_tasks import Candidate, Task
from torch import Tensor
from torch.nn import functional

Line = dict[str, Any]

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WRONG = 0.01
ROTATED = 160e6  # bytes of weights, which an L2 cache does not hold
ROUNDS, QUICK = 25, 4  # rounds of the fastest ways, and of all


class Way(NamedTuple):
    """Computes a copy of the task, given its number, and returns the results."""

    call: Callable[[int], Any]
    group: str
    config: str = ""


class Clock:
    """Times ways; on a CPU, only tries them out."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.order = torch.Generator().manual_seed(0)
        if device == "cuda":
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()
            self.kept = torch.cuda.CUDAGraph()  # keeps the pool
            self.cold = torch.ones(64 << 20, device=device)  # 256 MB, only read, so that nothing has to be written back
            torch.cuda.synchronize()
            with torch.cuda.stream(self.stream):
                self.cold.sum()  # loads the kernel, which is not to be captured
                self.kept.capture_begin(pool=self.pool)
                self.cold.sum()
                self.kept.capture_end()

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Everything runs on the stream on which graphs are captured."""
        if self.device == "cpu":
            yield
            return
        with torch.cuda.stream(self.stream):
            yield

    def times(self, ways: Sequence[Way], copies: int, rounds: int, repeats: int = 1) -> list[list[float]]:
        """Microseconds of a call of each way, in each round."""
        calls = copies * repeats
        if self.device == "cpu":
            return [[self._seconds(way) * 1e6 for _ in range(2)] for way in ways]
        graphs = []
        for way in ways:
            way.call(0)
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=self.pool)  # torch.cuda.graph collects garbage each time, which takes longer
            for index in range(calls):
                way.call(index % copies)
            graph.capture_end()
            graphs.append(graph)
            graph.replay()
        event = partial(torch.cuda.Event, enable_timing=True)
        events = [(event(), event()) for _ in ways]
        found: list[list[float]] = [[] for _ in ways]
        for _ in range(rounds):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
            for index in torch.randperm(len(ways), generator=self.order).tolist():
                self.cold.sum()
                events[index][0].record()
                graphs[index].replay()
                events[index][1].record()
            torch.cuda.synchronize()
            for (start, end), times in zip(events, found, strict=True):
                times.append(start.elapsed_time(end) * 1000 / calls)
        return found

    def _seconds(self, way: Way) -> float:
        begun = time.perf_counter()
        way.call(0)
        return time.perf_counter() - begun

    def bandwidth(self) -> float:
        """Bytes a microsecond of a large copy, read and written."""
        if self.device == "cpu":
            return 1e4
        source = torch.ones(1 << 28, device=self.device)
        target = torch.empty_like(source)
        (times,) = self.times([Way(lambda _: target.copy_(source), "")], 1, 10)
        return 2 * source.nbytes / min(times)


class Race:
    """The ways of a task: wrong ones leave, the fastest of each group go into the last rounds."""

    def __init__(self, clock: Clock, copies: int) -> None:
        self.clock, self.copies = clock, copies
        self.failed: dict[str, str] = {}
        self.quick: dict[str, dict[str, float]] = {}

    def fastest(self, ways: Sequence[Way], exact: Sequence[Tensor]) -> dict[str, list[Way]]:
        """The ways of each group that give these results, the fastest first."""
        right = []
        for way in ways:
            try:
                results = way.call(0)
                for each in results:
                    each.fill_(float("nan"))
                results = way.call(0)
                error = max(difference(*pair) for pair in zip(results, exact, strict=True))
                if not error <= WRONG:
                    raise ValueError(f"differs by {error:.1e}")
                right.append(way)
            except Exception as error:  # noqa: PERF203 - such as a config that takes too much memory
                if "CUDA error" in str(error):
                    raise
                self.failed[f"{way.group} {way.config}"] = f"{type(error).__name__}: {error}".splitlines()[0][:150]
        by_group: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for index, times in enumerate(self.clock.times(right, self.copies, QUICK)):
            by_group[right[index].group].append((median(times), index))
            self.quick.setdefault(right[index].group, {})[right[index].config] = round(median(times), 3)
        return {group: [right[index] for _, index in sorted(found)] for group, found in by_group.items()}

    def last(self, ways: Mapping[str, Way]) -> Line:
        """Fields of the line: medians, spreads, configs."""
        shortest = min(us for times in self.quick.values() for us in times.values())
        repeats = min(max(ceil(1000 / (shortest * self.copies)), 1), 8)  # a graph's start takes some microseconds
        times = self.clock.times(list(ways.values()), self.copies, ROUNDS, repeats)
        return {
            "us": {name: round(median(found), 3) for name, found in zip(ways, times, strict=True)},
            "spread": {name: round(spread(found), 4) for name, found in zip(ways, times, strict=True)},
            "config": {name: way.config for name, way in ways.items()},
            "copies": self.copies,
            "quick": self.quick,
            "failed": self.failed,
        }


def spread(times: Sequence[float]) -> float:
    """The distance of the quartiles, relative to the median."""
    ordered = sorted(times)
    return (ordered[3 * len(ordered) // 4] - ordered[len(ordered) // 4]) / median(ordered)


def difference(result: Tensor, exact: Tensor) -> float:
    """Relative to the norm of the exact result."""
    return float((result.float() - exact).norm() / exact.norm())


def copies_for(nbytes: float, m: int) -> int:
    """How many copies of the weights the L2 cache does not hold."""
    return max(min(ceil(ROTATED / nbytes), 64 if m <= 256 else 12), 4)


def one_after_the_other(*ways: Way) -> Way:
    """Ways that follow each other."""
    return Way(lambda i: [r for way in ways for r in way.call(i)], ways[0].group, "; ".join(way.config for way in ways))


def launching(
    runs: Sequence[Sequence[Callable[[], object]]], results: list[Tensor], group: str, config: str = ""
) -> Way:
    """A way that calls all of ``runs`` of a copy, which write the results."""

    def call(i: int) -> list[Tensor]:
        for run in runs[i]:
            run()
        return results

    return Way(call, group, config)


def measure_siblings(task: Task, clock: Clock) -> Line:
    """Apart, joined by a copied weight, joined without a copy, gated."""
    m, ns, k, bias = task.sizes
    device, total = clock.device, sum(ns)
    copies = copies_for(2 * total * k, m) if device == "cuda" else 2
    a = torch.randn(m, k, device=device).bfloat16()
    weights = [(torch.randn(total, k, device=device) / k**0.5).bfloat16() for _ in range(copies)]
    biases = torch.randn(total, device=device).bfloat16()
    out = torch.empty(m, total, device=device, dtype=torch.bfloat16)
    outs = [torch.empty(m, n, device=device, dtype=torch.bfloat16) for n in ns]
    result = torch.empty(m, ns[0], device=device, dtype=torch.bfloat16)
    parts, vectors = [torch.split(each, list(ns)) for each in weights], torch.split(biases, list(ns))
    exact = a.float() @ weights[0].float().t() + (biases.float() if bias else 0)
    exacts = torch.split(exact, list(ns), 1)
    race = Race(clock, copies)

    def library(b: Tensor, vector: Tensor, c: Tensor) -> None:
        if bias:
            torch.addmm(vector, a, b.t(), out=c)
        else:
            torch.mm(a, b.t(), out=c)

    def kernel(each: Candidate, members: Sequence[int]) -> Way:
        """The products of ``members``, each with a launch of this kernel."""

        def bound(i: int, j: int) -> Callable[[], object]:
            return launcher(each.specs[0], each.grids[0], a, *[parts[i][j]] * 3, *[outs[j]] * 3, *[vectors[j]] * 3)

        runs = [[bound(i, j) for j in members] for i in range(copies)]
        return launching(runs, [outs[j] for j in members], each.group, each.config)

    def library_of(members: Sequence[int], group: str) -> Way:
        runs = [[partial(library, parts[i][j], vectors[j], outs[j]) for j in members] for i in range(copies)]
        return launching(runs, [outs[j] for j in members], group, "library")

    def single(each: Candidate, tensors: Callable[[int], Sequence[Tensor]], results: list[Tensor]) -> Way:
        runs = [[launcher(each.specs[0], each.grids[0], *tensors(i))] for i in range(copies)]
        return launching(runs, results, each.group, each.config)

    def three(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [*tensors, tensors[0]][:3] if len(tensors) < 3 else list(tensors)

    by_group: dict[str, list[Candidate]] = defaultdict(list)
    for each in task.candidates:
        by_group[each.group].append(each)
    best: dict[int, list[Way]] = {}
    for n in dict.fromkeys(ns):
        members = [j for j, own in enumerate(ns) if own == n]
        ways = [kernel(each, members) for each in by_group[f"apart {n}"]] + [library_of(members, f"apart {n}")]
        best[n] = race.fastest(ways, [exacts[j] for j in members]).get(f"apart {n}", [])
    triton = {n: [way for way in found if way.config != "library"] for n, found in best.items()}
    last = {"apart library": library_of(range(len(ns)), "apart")}
    last["apart best"] = one_after_the_other(*(found[0] for found in best.values()))
    if all(triton.values()):
        last["apart triton"] = one_after_the_other(*(found[0] for found in triton.values()))

    whole = launching([[partial(library, each, biases, out)] for each in weights], [out], "copied library", "library")

    def of_one(i: int) -> Sequence[Tensor]:
        return (a, *[weights[i]] * 3, *[out] * 3, *[biases] * 3)

    def of_some(i: int) -> Sequence[Tensor]:
        return (a, *three(parts[i]), *three(outs), *three(vectors))

    copied = [single(each, of_one, [out]) for each in by_group["copied"]]
    found = race.fastest([*copied, whole], [exact])
    found |= race.fastest([single(each, of_some, outs) for each in by_group["joined"]], exacts)
    if by_group["gated"]:
        product = [functional.silu(exacts[0]) * exacts[1]]
        found |= race.fastest(
            [single(each, lambda i: (a, *parts[i], result), [result]) for each in by_group["gated"]], product
        )
        silu = single(by_group["silu_times"][0], lambda _: (*outs, result), [result])
        last["apart best, silu"] = one_after_the_other(last["apart best"], silu)
        if found.get("joined"):
            last["joined, silu"] = one_after_the_other(found["joined"][0], silu)
    for group, ways in found.items():
        last |= {group + (" 2" if index else ""): way for index, way in enumerate(ways[:2])}
    return race.last(last)


def measure_few(task: Task, clock: Clock) -> Line:
    """The library, Triton's kernels, and parts of K by the library."""
    m, n, k = task.sizes
    device, dtype = clock.device, torch.bfloat16
    copies = copies_for(2 * n * k, m) if device == "cuda" else 2
    a = torch.randn(m, k, device=device).to(dtype)
    weights = [(torch.randn(n, k, device=device) / k**0.5).to(dtype) for _ in range(copies)]
    out, parts = torch.empty(m, n, device=device, dtype=dtype), torch.empty(8 * m * n, device=device)
    race, exact = Race(clock, copies), a.float() @ weights[0].float().t()

    def kernel(each: Candidate) -> Way:
        runs = []
        for b in weights:
            first = (a, b, out) if each.specs[0].kernel == "reduction" else (a, *[b] * 3, *[out] * 3, *[a] * 3)
            if len(each.specs) > 1:
                first = (a, *[b] * 3, *[parts] * 3, *[a] * 3)
            tensors = (first, (parts, out))
            runs.append([launcher(s, g, *t) for s, g, t in zip(each.specs, each.grids, tensors, strict=False)])
        return launching(runs, [out], each.group, each.config)

    def decomposed(each: Candidate) -> Way:
        split = each.specs[0].constants[1]
        left = a.view(m, split, -1).transpose(0, 1)
        rights = [b.view(n, split, -1).permute(1, 2, 0) for b in weights]
        options: dict[str, Any] = {"out_dtype": torch.float32} if device == "cuda" else {}

        def call(i: int) -> list[Tensor]:
            products = torch.bmm(left, rights[i], **options)
            launcher(each.specs[0], each.grids[0], products.float(), out)()
            return [out]

        return Way(call, each.group, each.config)

    ways = [launching([[partial(torch.mm, a, b.t(), out=out)] for b in weights], [out], "library")]
    ways += [decomposed(each) if each.group == "decompose_k" else kernel(each) for each in task.candidates]
    found = race.fastest(ways, [exact])
    best = {group: ways[0] for group, ways in found.items()}
    return race.last(best) | {"bytes": 2 * (n * k + m * n + m * k)}


def measure_convolution(task: Task, clock: Clock) -> Line:
    """CuDNN in both layouts, benchmarking or not; matmuls; each with what follows."""
    kind, images, h, w, c, o = task.sizes
    device, dtype = clock.device, TYPES[kind]
    rows = images * h * w
    nbytes = dtype.itemsize * (rows * (c + o) + c * o)
    copies = min(copies_for(nbytes, rows), 6) if device == "cuda" else 2
    xs = [torch.randn(rows, c, device=device).to(dtype) for _ in range(copies)]
    weights = [(torch.randn(o, c, device=device) / c**0.5).to(dtype) for _ in range(copies)]
    scale, shift = (torch.rand(o, device=device).to(dtype) for _ in range(2))
    out, final = (torch.empty(rows, o, device=device, dtype=dtype) for _ in range(2))
    exact = xs[0].double() @ weights[0].double().t()
    after = (exact * scale + shift).clamp(min=0).float()
    exact = exact.float()
    race, check = Race(clock, copies), True
    other = (2 * h, w // 2) if w % 2 == 0 else (h * w, 1)  # another shape, else cuDNN's plan would come from its cache

    def cudnn(group: str, channels_last: bool, benchmark: bool) -> Way:
        height, width = other if benchmark else (h, w)
        if channels_last:
            inputs = [x.view(images, height, width, c).permute(0, 3, 1, 2) for x in xs]
            kernels = [b.view(o, c, 1, 1).contiguous(memory_format=torch.channels_last) for b in weights]
        else:
            inputs = [x.view(images, height, width, c).permute(0, 3, 1, 2).contiguous() for x in xs]
            kernels = [b.view(o, c, 1, 1) for b in weights]

        def call(i: int) -> list[Tensor]:
            torch.backends.cudnn.benchmark = benchmark
            result = functional.conv2d(inputs[i], kernels[i])
            torch.backends.cudnn.benchmark = False
            return [result.permute(0, 2, 3, 1).reshape(rows, o) if check else result]

        return Way(call, group, "benchmark" if benchmark else "")

    ways = [cudnn("cudnn channels_last", True, False), cudnn("cudnn contiguous", False, False)]
    if h * w > 1:
        ways += [cudnn("cudnn channels_last, benchmark", True, True), cudnn("cudnn contiguous, benchmark", False, True)]

    both = [*zip(xs, weights, strict=True)]
    library = launching([[partial(torch.mm, x, b.t(), out=out)] for x, b in both], [out], "library mm")

    def kernel(each: Candidate) -> Way:
        last = final if each.group == "fused" else out
        launch = partial(launcher, each.specs[0], each.grids[0])
        runs = [[launch(x, *[b] * 3, *[last] * 3, scale, shift, shift)] for x, b in both]
        return launching(runs, [last], each.group, each.config)

    def followed(group: str, way: Way) -> Way:
        (follower,) = (each for each in task.candidates if each.group == "scale_relu")
        spec, grid = follower.specs[0], follower.grids[0]

        def call(i: int) -> list[Tensor]:
            (result,) = way.call(i)
            launcher(spec, grid, result, scale, shift, final)()
            return [final]

        return Way(call, group, way.config)

    kernels = [kernel(each) for each in task.candidates if each.group in ("mm", "fused")]
    ways += [library, *(way for way in kernels if way.group == "mm")]
    fused = [way for way in kernels if way.group == "fused"]
    fused += [followed("cudnn channels_last, then", ways[0]), followed("library mm, then", library)]
    found = race.fastest(ways, [exact]) | race.fastest(fused, [after])
    check = False
    return race.last({group: ways[0] for group, ways in found.items()}) | {"bytes": nbytes}


MEASURES = {"siblings": measure_siblings, "few": measure_few, "convolution": measure_convolution}
