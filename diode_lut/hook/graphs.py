"""Keep compiled graphs with their decisions in all caches, trace them for ``compare``, and record kernels for ``tune``.

The functions replace those of Inductor and Dynamo that ``patches`` lists. Each gets the original first.

A graph in Inductor's caches has its counts and its receipt as attributes, for the process that loads it. The keys of
Dynamo's packages (``torch._dynamo.config.caching_precompile``) are the name and the line of a function, without tables
and settings. So each graph of a package is marked with the identity of its snapshot, and a package is served only if
all marks are the present identity.

In traces, GEMMs of Inductor's templates have names with their sizes, which Inductor's own names lack. The record of a
generated kernel serves to measure it: its problem, its source, and the types, shapes and strides of its arguments.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, get_compile_threads

from diode_lut import probe
from diode_lut.errors import let_pass
from diode_lut.files import write_atomically
from diode_lut.hook.choices import in_force
from diode_lut.hook.snapshot import compiles_for_another, trace_graph
from diode_lut.hook.switch import Unanswered, cache_identity, is_answered, off_because
from diode_lut.hook.versions import FIXED, FORMS, KWARGS
from diode_lut.log import log, warn_once
from diode_lut.probe import CALL, CPP_GEMM, FIRST_CALL, GENERATED_KERNEL, RECORDING, TRITON_GEMM
from diode_lut.problem import Problem
from diode_lut.receipts import Receipt, decode_receipt, receipt_bytes, recorder
from diode_lut.receipts.receipt_file import write_after_graph

_KEPT = "_diode_lut"  # the attribute of a graph with its counts and its receipt
_MARK = "_diode_lut"  # attribute of a package's graph: the snapshot's identity, or None if it was not answered
_UNANSWERED = "_diode_lut_unanswered"  # attribute of a graph whose kernels are not those its key stands for


def codegen_and_compile(compile_graph: Callable[..., Any], scheme: Any, gm: Any, *arguments: Any, **named: Any) -> Any:
    """Compile a graph, and keep with it the decisions about it."""
    try:
        prepare_workers(gm)
    except Exception as error:
        let_pass(error)
    with recorder.collecting() as collected:
        graph = compile_graph(scheme, gm, *arguments, **named)
    with _or_warn(_GAP):
        _keep(graph, collected)
        write_after_graph(recorder.own_receipt)
    return graph


_KEY_S = 0.25  # seconds to wait for Triton's key, which takes this process as long


@cache
def triton_key(compute: Callable[[], str]) -> str:
    """Return Triton's key, and have a thread make Triton's driver, before the first graph for a GPU is compiled.

    Inductor asks for the key when it looks a graph up, and for the driver when it lowers the graph. For the key, Triton
    hashes itself. Compile workers have done so at their start, so one tells it, unless they are forks of this process,
    which has then done so. For the driver, Triton runs a C compiler if its cache is empty.
    """
    try:
        if torch.cuda.is_initialized() and in_force() is not None:  # type: ignore[no-untyped-call]
            threading.Thread(target=_make_driver, name="diode_lut", daemon=True).start()
            is_told = inductor_config.worker_start_method == "subprocess"
            if is_told and AsyncCompile.use_process_pool():  # type: ignore[no-untyped-call]
                found: str = AsyncCompile.process_pool().submit(compute).result(_KEY_S)
                return found
    except Exception as error:
        let_pass(error)
    return compute()


def _make_driver() -> None:
    from triton.runtime import driver

    try:
        _ = driver.default
    except Exception as error:
        let_pass(error)


_BEFORE_A_KERNEL = """
from torch._inductor.runtime.triton_compat import triton_key
triton_key()
import triton.compiler.code_generator
"""
"""Code that prepares a process for its first kernel: Triton hashes itself, in 0.4 s, and loads modules."""


def prepare_workers(gm: Any) -> None:
    """Have compile workers run ``_BEFORE_A_KERNEL`` while this process lowers a graph for a GPU.

    Otherwise each would run it before its first kernel. A worker that has run it returns at once. A graph has fewer
    kernels than a quarter of its nodes, and needs no more workers.
    """
    on_gpu = any(getattr(node.meta.get("val"), "is_cuda", False) for node in gm.graph.nodes)
    if on_gpu and get_compile_threads() > 1 and in_force() is not None:
        AsyncCompile.use_process_pool()  # type: ignore[no-untyped-call]
        for _ in range(min(len(gm.graph.nodes) // 4, get_compile_threads())):
            AsyncCompile.process_pool().submit(exec, _BEFORE_A_KERNEL)


def cache_hit_post_compile(load: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Load a graph from a cache, and record the decisions about it."""
    loaded = load(*arguments, **named)
    with _or_warn(_GAP):
        graph, *_ = loaded
        if graph is not None and not off_because:
            _tell(graph, cached=True)
    return loaded


def postprocess(postprocess_output: Callable[..., None], scheme: Any, output: Any) -> None:
    """Receive a graph that another process has compiled, and record the decisions about it."""
    postprocess_output(scheme, output)
    with _or_warn(_GAP):
        _tell(output.graph, cached=False)


def _keep(graph: Any, collected: recorder.Collected) -> None:
    if not hasattr(graph, "__dict__"):
        return  # AOTInductor's are paths
    if collected.devices:
        counts, receipt = collected.counts.as_dict(), receipt_bytes(Receipt(1, devices=collected.devices))
        vars(graph)[_KEPT] = counts, receipt
        trace_graph(counts, receipt, cached=False)
    if compiles_for_another() and not is_answered():
        vars(graph)[_UNANSWERED] = Unanswered()


def _tell(graph: Any, *, cached: bool) -> None:
    kept = getattr(graph, _KEPT, None)
    if kept is not None:
        counts, receipt = kept
        devices = decode_receipt(orjson.loads(receipt), "a compiled graph").devices
        trace_graph(counts, receipt, cached=cached)
        recorder.told(recorder.Counts(**counts), devices, cached=cached)
    write_after_graph(recorder.own_receipt)


_GAP = "what was decided for a graph is not recorded"


@contextmanager
def _or_warn(gap: str) -> Iterator[None]:
    """Warn about a gap in records. The compile, or the program, goes on."""
    try:
        yield
    except Exception as error:
        let_pass(error)
        warn_once(f"{gap}: {error!r}")


def record_artifact(record: Callable[..., None], cls: Any, artifact: Any) -> None:
    """Mark a graph for a package, in the compile that made it. A graph that was read from a package keeps its mark."""
    vars(artifact).setdefault(_MARK, repr(cache_identity()) if is_answered() else None)
    record(cls, artifact)


def read_package(read: Callable[[str], Any], path: str) -> Any:
    """Read a package. Graphs that a process without the hook has made get the mark None."""
    entry = read(path)
    for artifact in entry.backends.values():
        vars(artifact).setdefault(_MARK, None)
    return entry


def load_package(load: Callable[[Any], Any], function: Any) -> Any:
    """Load the package of a function, or none if it was made with other settings or tables."""
    entry = load(function)
    current = None if entry is None else repr(cache_identity())
    if entry is None or all(getattr(artifact, _MARK, None) == current for artifact in entry.backends.values()):
        return entry
    log.info("%s is compiled again: its package was made with other settings or tables", function)
    return None


_LEAST_CALLS, _LEAST_SECONDS = 25, 0.25  # repeated calls of each graph to trace, and seconds to trace them for
_MAX_CALLS, _MAX_SECONDS = 500, 20.0  # the trace ends with the step in which it reaches either


def call_graph(call: Callable[..., Any], graph: Any, inputs: Any) -> Any:
    """Call a compiled graph, and trace the call."""
    with _TRACE.calling(graph):
        return call(graph, inputs)


class _Tracer:
    """A profiler for the first calls."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._calls = 0
        self._began = self._repeated = 0.0  # the starts of the first call, and of the first repeated call
        self._cycle: int | None = None  # the graph of the first repeated call: steps of a program begin with it
        self._thread = 0
        self._profile: torch.profiler.profile | None = None
        self._is_ended = False

    def calling(self, graph: Any) -> torch.profiler.record_function:
        """Return the context of a call of the graph."""
        first = id(graph) not in self._numbers
        number = self._numbers.setdefault(id(graph), len(self._numbers))
        try:
            if not self._thread:
                self._thread = threading.get_ident()
                self._profile = torch.profiler.profile(record_shapes=True, acc_events=True)  # else 2.11 warns
                self._profile.start()
                probe.await_turn()
                probe.add("trace", self.finish)
                self._began = time.monotonic()
            self._calls += not first
            if not first and self._is_over(number, time.monotonic()) and threading.get_ident() == self._thread:
                self._stop()
                probe.forget_steps()  # the profiler made them longer
        except Exception as error:
            let_pass(error)
            self._profile = None
            warn_once(f"this run is not traced: {error!r}")
        return torch.profiler.record_function(f"{FIRST_CALL if first else CALL} {number}")

    def _is_over(self, number: int, now: float) -> bool:
        """Return whether the trace ends before this repeated call.

        It ends after a whole step, or in the middle of one if it is twice too long.
        """
        if self._cycle is None:
            self._cycle, self._repeated = number, now
        is_enough = self._calls > _LEAST_CALLS * len(self._numbers) and now > self._repeated + _LEAST_SECONDS
        is_whole = number == self._cycle
        most = 1 if is_whole else 2
        is_long = self._calls > most * _MAX_CALLS or (self._calls > 1 and now > self._began + most * _MAX_SECONDS)
        return self._profile is not None and not self._is_ended and (is_long or (is_enough and is_whole))

    def _stop(self) -> None:
        self._is_ended = True
        if self._profile is not None and torch.autograd.profiler._is_profiler_enabled:
            self._profile.stop()
        else:
            self._profile = None  # a profiler of the program has ended ours, and to export it would crash

    def finish(self) -> str | None:
        """Stop and write the trace. Return the name of its file, or None if nothing was traced."""
        if not self._is_ended:
            self._stop()
        directory = probe.directory()
        if self._profile is None or directory is None:
            return None
        file = f"{os.getpid()}.trace.json"
        self._profile.export_chrome_trace(str(directory / file))
        return file


_TRACE = _Tracer()  # the trace of this process


def load_pybinding_async(load: Callable[..., Any], cls: Any, *arguments: Any, **named: Any) -> Callable[[], Any]:
    """Load a C++ kernel, and trace its calls by name if it is a GEMM. The second argument is its source."""
    loaded: Callable[[], Any] = load(cls, *arguments, **named)
    source = arguments[1] if len(arguments) > 1 else ""
    if cls.__name__ != "CppPythonBindingsCodeCache" or "micro_gemm" not in source:
        return loaded
    found = (re.search(rf"\b{size} = (?:static_cast<int64_t>\()?(\d+)", source) for size in "MNK")
    name = " ".join([CPP_GEMM, *(size[1] if size else "?" for size in found)])

    def load_recorded() -> Callable[..., Any]:
        kernel = loaded()

        def call(*operands: Any) -> Any:
            if not torch.autograd.profiler._is_profiler_enabled:
                return kernel(*operands)
            with torch._C._profiler._RecordFunctionFast(name, operands, {}):
                return kernel(*operands)

        return call

    return load_recorded


def trace_kernel(run: Callable[..., Any], kernel: Any, *arguments: Any, **named: Any) -> Any:
    """Run a Triton kernel. Trace the call by name if it is a template's GEMM, or if tables may have rows for it."""
    name = None
    if torch.autograd.profiler._is_profiler_enabled:
        with _or_warn("a generated kernel is not traced by name"):
            name = _triton_name(getattr(getattr(kernel, "fn", None), "src", "")) or _generated_name(kernel, arguments)
    if name is None:
        return run(kernel, *arguments, **named)
    with torch._C._profiler._RecordFunctionFast(name, arguments, {}):
        return run(kernel, *arguments, **named)


@cache
def _triton_name(source: str) -> str | None:
    """Return the name of a Triton template's GEMM by its source, or None for any other kernel."""
    found = [re.search(rf"^ +{size} = (.+)$", source, flags=re.MULTILINE) for size in "MNK"]
    sizes = [size[1] if size[1].isdigit() else "?" for size in found if size]
    return " ".join([TRITON_GEMM, *sizes]) if len(sizes) == len(found) else None


_NAMED = "_diode_lut_name"  # the attribute of a generated kernel with its name in a trace


def _generated_name(kernel: Any, arguments: Sequence[Any]) -> str | None:
    """Return a generated kernel's name, the same in all runs: its problem, and the ops it fuses."""
    if _NAMED not in vars(kernel):
        problem = _problem_of(kernel, arguments)
        fused = re.sub(r"^triton_[a-z]+_(fused_)?|_\d+$", "", str(kernel.inductor_meta.get("kernel_name", "")))
        setattr(kernel, _NAMED, None if problem is None else f"{GENERATED_KERNEL}{problem}: {fused}")
    name: str | None = vars(kernel)[_NAMED]
    return name


_RECORDED = "_diode_lut_recorded"  # the attribute of a kernel that is recorded


def record_kernel(run: Callable[..., Any], kernel: Any, *arguments: Any, **named: Any) -> Any:
    """Run a Triton kernel, and record it the first time."""
    if not hasattr(kernel, _RECORDED):
        setattr(kernel, _RECORDED, True)
        with _or_warn("a generated kernel is not recorded"):
            _record(kernel, arguments)
    return run(kernel, *arguments, **named)


def _record(kernel: Any, arguments: Sequence[Any]) -> None:
    """Write a record from which ``tune`` measures the kernel, if no table answers, and tables can have rows for it."""
    problem = _problem_of(kernel, arguments)
    form = FORMS.get(kernel.heuristic_type.name)
    if problem is None or form is None:
        return
    blocks = {name for name in KWARGS[form].values() if name.endswith("BLOCK")}
    compiled = (each.config for each in (*kernel.launchers, *kernel.compile_results))  # there are no ``configs`` then
    kwargs = next(iter(kernel.configs or compiled)).kwargs
    if set(kwargs) not in (blocks, blocks - {"YBLOCK"}):
        return
    described = [
        [str(each.dtype).removeprefix("torch."), list(each.shape), list(each.stride())]
        if isinstance(each, torch.Tensor)
        else each
        for each in arguments
    ]
    source = Path(kernel.filename).read_text(encoding="utf-8")
    record = orjson.dumps({**problem.to_json(), "source": source, "arguments": described})
    name = hashlib.sha256(record).hexdigest()[:16]
    write_atomically(Path(os.environ[RECORDING]) / f"{name}.json", record)


def _problem_of(kernel: Any, arguments: Sequence[Any]) -> Problem | None:
    """Return the problem of a generated kernel, or None for other kernels, and for sizes or types not in tables."""
    from diode_lut.hook.generated import variant_of_reduction, variant_of_tiles  # with Inductor's code generation

    form, is_fixed = FORMS.get(kernel.heuristic_type.name), kernel.heuristic_type.name == FIXED
    if (form is None and not is_fixed) or "*fp64" in kernel.triton_meta["signature"].values():
        return None
    sizes = {name: value for name, value in zip(kernel.fn.arg_names, arguments, strict=False) if name.endswith("numel")}
    is_pointwise = "r0_numel" not in sizes if is_fixed else form == "pointwise"
    if not sizes.keys() <= ({"xnumel", "ynumel"} if is_pointwise else {"xnumel", "r0_numel"}):
        return None
    meta, x, y = kernel.inductor_meta, sizes["xnumel"], sizes.get("ynumel", 1)
    scores = meta.get("tiling_scores") or {}
    if is_pointwise:
        variant = variant_of_tiles(scores) if "ynumel" in sizes else "flat"
        return Problem.generated("pointwise", variant, x=x, y=y, loads=max(meta["num_load"], 1))
    r = sizes["r0_numel"]
    if not is_fixed:
        return Problem.generated("reduction", variant_of_reduction(meta["reduction_hint"], scores), x=x, r=r)
    variants = {  # code for a fixed config has no hint, but the answer is recorded
        each.problem.variant
        for device in recorder.own_receipt().devices.values()
        for each in device.generated
        if each.config and each.problem.op == "reduction" and each.problem.r == r and (each.over or each.problem.x == x)
    }
    return Problem.generated("reduction", variants.pop(), x=x, r=r) if len(variants) == 1 else None
