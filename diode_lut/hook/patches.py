"""The hook's way into PyTorch: all functions that it replaces there, and all that it registers.

PATCHES lists them. Everything is put in place from this list, ``doctor`` checks it, and docs/hook.md shows it. This
module imports nothing of PyTorch at its own import, because ``torch._inductor.config`` is being imported meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, reduce, wraps
from importlib import import_module
from inspect import getattr_static
from sys import modules
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from diode_lut.errors import let_pass
from diode_lut.hook.switch import cache_identity, leave, turn_off
from diode_lut.hook.versions import release, require_same_parameters, set_choices_factory
from diode_lut.log import warn_once
from diode_lut.process import in_forked_children, when_imported

Undo = Callable[[], object]

ALWAYS, TRACING, RECORDING, MEASURING, SERVING = "always", "tracing", "recording", "measuring", "serving"
"""When patches are in place: in all programs with the hook, in programs that ``compare`` traces or ``tune`` runs, while
this package measures Inductor's own choices, and in vLLM."""


class Patch(NamedTuple):
    """An attribute of PyTorch to replace, or a function to register with PyTorch.

    ``name`` is the attribute in ``module``, and ``why`` says why nothing public serves. ``by`` is ``module:function``,
    imported when it is needed. A function in place of an attribute gets the original as its first argument. A function
    that registers gets the module, and returns a function to undo it. If ``by`` is empty, the caller of ``measuring``
    gives the function. ``until`` is the last release of PyTorch that needs the patch, and None if all releases do.
    ``same_parameters`` says that the original must have the parameters of our function.
    """

    module: str
    name: str
    by: str
    why: str
    during: str = ALWAYS
    registers: bool = False
    until: tuple[int, int] | None = None
    same_parameters: bool = False

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


_HERE, _CHOICES, _EPILOGUES = __name__, "diode_lut.hook.choices", "diode_lut.hook.epilogues"
_SWITCH, _GRAPHS = "diode_lut.hook.switch", "diode_lut.hook.graphs"

PATCHES = (
    Patch(
        *("torch._inductor.config", "inductor_choices_class", f"{_HERE}:set_factory"),
        "the setting is public, but threads that start later read its default, which nothing public sets",
        registers=True,
    ),
    Patch(
        *("torch._inductor.virtualized", "V.choices", f"{_HERE}:take_over_this_thread"),
        "a thread that has compiled before keeps its choices handler, whatever the setting is",
        registers=True,
    ),
    Patch(
        *(
            "torch._inductor.select_algorithm",
            "AlgorithmSelectorCache._register_default_preprocessing_fns",
            f"{_HERE}:register_filter",
        ),
        "C++ kernels and grouped matmuls are offered without asking the choices handler; who registers with "
        "add_preprocessing_fn makes the cache of timings, which initialises CUDA in PyTorch 2.11",
    ),
    Patch(
        *("torch._inductor.select_algorithm", "add_preprocessing_fn", f"{_HERE}:add_filter"),
        "the same, for a cache of timings that was made before",
        registers=True,
    ),
    Patch(
        *("torch._inductor.async_compile", "AsyncCompile.pool", f"{_HERE}:renew_pool_in_forks"),
        "a forked process would wait for ever for the threads that compile C++, which are not in it",
        registers=True,
    ),
    Patch(
        *("torch._inductor.codegen.subgraph", "SubgraphChoiceCaller.output_node", f"{_CHOICES}:lower_without_tables"),
        "a choice that is a graph is lowered as the program's graphs are, and would ask for its own matmuls",
    ),
    Patch(
        "torch._inductor.codegen.subgraph",
        "SubgraphChoiceCaller._compile_for_benchmarking",
        f"{_CHOICES}:lower_without_tables",
        "the same, when such a choice is benchmarked",
    ),
    Patch(
        *("torch._inductor.kernel.mm", "use_native_matmul", f"{_HERE}:use_native_matmul"),
        "with the setting triton.native_matmul nobody is asked, and receipts would not list the matmul",
    ),
    Patch(
        *("torch._inductor.kernel.bmm", "use_native_matmul", f"{_HERE}:use_native_matmul"),
        "the same, for batched matmuls",
    ),
    Patch(
        *("torch._inductor.kernel.conv", "lowerings", f"{_HERE}:register_convolution"),
        "a setting lowers all 1x1 convolutions to matmuls or none, and has each reader compute what they read",
        registers=True,
    ),
    Patch(
        *("torch._inductor.fx_passes.pad_mm", "_should_pad", f"{_HERE}:should_pad"),
        "a benchmark decides whether operands are padded, before the choices handler is asked",
        same_parameters=True,
    ),
    Patch(
        *("torch._inductor.fx_passes.post_grad", "reinplace_inplaceable_ops", f"{_HERE}:reinplace_inplaceable_ops"),
        "matmuls are joined before anything is changed in place, and the one slot for such a pass on a GPU may be "
        "another library's",
        same_parameters=True,
    ),
    Patch(
        *("torch._inductor.codecache", "torch.ops.diode_lut", "diode_lut.hook.quack:register"),
        "a graph from a cache calls the operator of matmuls with the work after them",
        registers=True,
    ),
    Patch(
        *(
            "torch._inductor.ir",
            "ConcatKernel.can_realize_into_without_copy",
            f"{_EPILOGUES}:can_realize_into_without_copy",
        ),
        "only a result whose layout is open is written into a concatenation, and that of a template is not",
    ),
    Patch(
        *("torch._inductor.scheduler", "Scheduler.speedup_by_fusion", f"{_EPILOGUES}:speedup_by_fusion"),
        "the scheduler fuses by a benchmark, or without asking if a matmul has a single choice",
    ),
    Patch(
        *("torch._inductor.scheduler", "Scheduler.score_fusion_memory", f"{_EPILOGUES}:score_fusion_memory"),
        "the scheduler sees no data that a template shares with an epilogue that reads it through a view",
        until=(2, 11),
    ),
    Patch(
        "torch._inductor.scheduler",
        "Scheduler.finalize_multi_template_buffers",
        f"{_EPILOGUES}:finalize_multi_template_buffers",
        "nothing tells when fusion is over, which is when a matmul's kernel is known",
    ),
    Patch(
        *("torch._inductor.codegen.simd", "SIMDScheduling.codegen_template", f"{_EPILOGUES}:codegen_template"),
        "a template has one kernel, and a matmul with a dynamic size may have one for each part of its range",
    ),
    Patch(
        *("torch._inductor.select_algorithm", "TritonTemplateKernel.indexing", f"{_EPILOGUES}:indexing"),
        "a template reads a row, such as a batch norm's factors, for each element, and computes with it as often",
    ),
    Patch(
        *("torch._inductor.codegen.triton", "TritonScheduling.define_kernel", f"{_HERE}:define_kernel"),
        "a template's kernel is compiled twice, because its source changes by spaces in empty lines",
    ),
    Patch(
        *("torch._inductor.select_algorithm", "PyCodeCache", f"{_HERE}:write_only"),
        "the code of each choice is loaded for a benchmark, which a single choice does not have",
        registers=True,
    ),
    Patch(
        *("torch._inductor.runtime.triton_compat", "triton_key", f"{_GRAPHS}:triton_key"),
        "this process hashes Triton's files, and waits for a C compiler later, although others could do both",
    ),
    Patch(
        *("torch._inductor.compile_fx", "_InProcessFxCompile.codegen_and_compile", f"{_GRAPHS}:codegen_and_compile"),
        "receipts go into Inductor's caches with the graph, and nothing public runs before it is saved",
    ),
    Patch(
        *("torch._inductor.codecache", "FxGraphCache.cache_hit_post_compile", f"{_GRAPHS}:cache_hit_post_compile"),
        "nothing tells that a graph came from a cache",
    ),
    Patch(
        *("torch._inductor.compile_fx_ext", "_OutOfProcessFxCompile._postprocess", f"{_GRAPHS}:postprocess"),
        "nothing tells that a graph came from another process",
    ),
    Patch(
        *("torch._inductor.codecache", "FxGraphCache._save_graph", f"{_SWITCH}:save"),
        "a key is computed before a graph is compiled, and stands for answers that an error may have prevented",
    ),
    Patch(
        *("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache.save", f"{_SWITCH}:save"),
        "the same, for what AOTAutograd adds to a graph",
    ),
    Patch(
        *("torch._dynamo.precompile_context", "PrecompileContext.record_artifact", f"{_GRAPHS}:record_artifact"),
        "keys of Dynamo's packages are names and lines of functions, so each graph is marked with its tables",
    ),
    Patch(
        *("torch._dynamo.package", "DynamoCache.read", f"{_GRAPHS}:read_package"),
        "graphs of a package that was made without the hook have no mark",
    ),
    Patch(
        *("torch._dynamo.package", "DynamoCache.load", f"{_GRAPHS}:load_package"),
        "a package must not be served where other tables would be asked",
    ),
    Patch(
        *("torch._inductor.output_code", "CompiledFxGraph.__call__", f"{_GRAPHS}:call_graph"),
        "nothing tells when a compiled graph is called",
        TRACING,
    ),
    Patch(
        "torch._inductor.codecache",
        "CppPythonBindingsCodeCache.load_pybinding_async",
        f"{_GRAPHS}:load_pybinding_async",
        "traces name C++ kernels without their sizes",
        TRACING,
    ),
    Patch(
        *("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.run", f"{_GRAPHS}:trace_kernel"),
        "traces name Triton kernels without their sizes",
        TRACING,
    ),
    Patch(
        *("torch._inductor.runtime.triton_heuristics", "CachingAutotuner.run", f"{_GRAPHS}:record_kernel"),
        "nothing tells which kernels a program launches, and with what arguments",
        RECORDING,
    ),
    Patch(
        *("torch._inductor.select_algorithm", "AlgorithmSelectorCache.benchmark_choices", ""),
        "Inductor benchmarks each choice once, which on a CPU is not enough",
        MEASURING,
    ),
    Patch(
        *("torch._inductor.select_algorithm", "add_preprocessing_fn", ""),
        "a grouped matmul is measured with one config, and the choices handler is not asked about it",
        MEASURING,
        registers=True,
    ),
    Patch(
        *("torch._inductor.select_algorithm", "add_feedback_saver", ""),
        "this is the public way to Inductor's timings",
        MEASURING,
        registers=True,
    ),
    Patch(
        *("vllm.compilation.compiler_interface", "get_inductor_factors", f"{_HERE}:get_inductor_factors"),
        "vLLM loads graphs by a key of its own, and before it hashed Inductor's settings tables were not in it",
        SERVING,
    ),
)
"""Everything of PyTorch that this package replaces or registers, and a function of vLLM."""


def install(_config: ModuleType) -> None:
    """Put the hook into Inductor, when ``torch._inductor.config`` was just imported. Patches wait for their modules."""
    _put_when_imported(ALWAYS)


def install_probe(_config: ModuleType) -> None:
    """Have this process report to ``compare``. It is called like ``install``, in programs that ``compare`` starts."""
    from diode_lut import probe

    def compile_s() -> float | None:  # in all threads; None if Dynamo does not tell
        try:
            from torch._dynamo.utils import calculate_time_spent

            return float(calculate_time_spent()["total_wall_time"])
        except Exception as error:
            let_pass(error)
            return None

    def graph_breaks() -> dict[str, int]:  # each reason with its number
        dynamo = modules.get("torch._dynamo.utils")
        return {str(why): count for why, count in dynamo.counters["graph_break"].items()} if dynamo else {}

    def copies() -> int | None:  # how many such programs have room in the memory of the GPUs and of the host
        try:
            cuda = modules["torch"].cuda
            devices = range(cuda.device_count() if cuda.is_initialized() else 0)
            most = {device: held for device in devices if (held := cuda.max_memory_reserved(device))}
            on_gpus = min(
                int((cuda.mem_get_info(device)[0] + cuda.memory_reserved(device)) / (held + probe.CONTEXT_BYTES))
                for device, held in most.items()
            )
            return min(on_gpus, probe.copies_on_host())
        except Exception as error:  # ValueError without a GPU
            let_pass(error)
            return None

    probe.add("compile_s", compile_s)
    probe.add("copies", copies)
    probe.add("graph_breaks", graph_breaks)
    probe.add("libraries", probe.replaced_libraries)
    _put_when_imported(TRACING)


def install_recording(_config: ModuleType) -> None:
    """Have this process record generated kernels for ``tune``. Called like ``install``, in programs that it runs."""
    _put_when_imported(RECORDING)


def install_in_vllm(_compiler_interface: ModuleType) -> None:
    """Complete the keys of vLLM's own cache, from which vLLM loads graphs without asking Inductor."""
    _put_when_imported(SERVING)


_wanted: set[str] = set()
_undo: dict[Patch, Undo] = {}  # the functions to undo the patches in place
_MARK = "_diode_lut_patch"  # attribute of our functions, and of functions that others have wrapped around them


def _put_when_imported(during: str) -> None:
    _wanted.add(during)
    for module in dict.fromkeys(patch.module for patch in PATCHES if patch.during == during):
        when_imported(module, f"{_HERE}:put_those_of")


def put_those_of(module: ModuleType) -> None:
    """Put the wanted patches of a module in place, unless they already are."""
    for patch in PATCHES:
        if patch.module == module.__name__ and patch.during in _wanted and is_needed(patch):
            try:
                if not is_in_place(patch):
                    _undo[patch] = _function(patch.by)(module) if patch.registers else _replace(patch, module)
            except Exception as error:
                if patch.during == ALWAYS:
                    turn_off(error)
                elif patch.during == TRACING:
                    warn_once(f"this run is not traced in full: {error!r}")


def is_needed(patch: Patch) -> bool:
    """Return whether this release of PyTorch needs the patch."""
    return patch.until is None or release() <= patch.until


def is_in_place(patch: Patch) -> bool:
    """Return whether the function is registered, or the attribute, which must exist, is ours or wraps ours."""
    if patch.registers:
        return patch in _undo
    return hasattr(reduce(getattr, patch.name.split("."), modules[patch.module]), _MARK)


def remove() -> None:
    """Undo all patches. Threads keep the choices handlers that they have."""
    _wanted.clear()
    while _undo:
        _, undo = _undo.popitem()
        undo()


@contextmanager
def measuring(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Put ``function`` in place by the patch of this name, for a block. It gets an original that it replaces first."""
    patch = next(patch for patch in PATCHES if patch.during == MEASURING and patch.name == name)
    module: Any = import_module(patch.module)
    if patch.registers:  # in Inductor's cache of timings, which could itself only remove all functions
        getattr(module, name)(function)
        cache_of_timings = module.get_algorithm_selector_cache()
        lists = {
            "add_preprocessing_fn": cache_of_timings.preprocessing_fns,
            "add_feedback_saver": cache_of_timings.feedback_saver_fns,
        }
        undo: Undo = partial(lists[name].remove, function)
    else:
        undo = _replace(patch, module, function)
    try:
        yield
    finally:
        undo()


def _replace(patch: Patch, module: ModuleType, function: Callable[..., Any] | None = None) -> Undo:
    """Replace the attribute. A static method or a class method stays one."""
    *path, name = patch.name.split(".")
    owner = reduce(getattr, path, module)
    static = getattr_static(owner, name)
    if isinstance(static, (staticmethod, classmethod)):
        ours: Any = type(static)(replacement(patch, static.__func__, function))
    else:
        ours = replacement(patch, getattr(owner, name), function)
    was_its_own = name in vars(owner)
    setattr(owner, name, ours)
    return partial(setattr, owner, name, static) if was_its_own else partial(delattr, owner, name)


def replacement(
    patch: Patch, original: Callable[..., Any], function: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return a function to replace ``original``. If ``patch.by`` cannot be imported, the hook goes off."""
    if patch.same_parameters:
        require_same_parameters(partial(_function(patch.by), original), original)

    @wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            ours = function or _function(patch.by)
        except Exception as error:
            turn_off(error)
            return original(*arguments, **named)
        return ours(original, *arguments, **named)

    setattr(call, _MARK, patch)
    return call


@cache
def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


class Factory:
    """Make the choices handler of a thread: ours, on top of the handler of the user's own factory."""

    __name__ = "FACTORY"  # Inductor's repro scripts set configuration by the names of its callables
    previous: Any = None  # the user's own factory, or None

    def __call__(self) -> Any:
        """Return a new handler, or Inductor's own if ours cannot be loaded."""
        try:
            from diode_lut.hook.handler import DiodeChoices, on_top_of

            return DiodeChoices() if self.previous is None else on_top_of(self.previous())
        except Exception as error:
            turn_off(error)
            return _inductors_own() if self.previous is None else self.previous()

    def __repr__(self) -> str:
        """Return the same text in all processes with the same answers: vLLM hashes Inductor's configuration as text."""
        return f"Factory({self.previous!r}, {cache_identity()!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Factory:
        """Return the factory itself, although Inductor copies it for each thread, and keys its caches by a copy."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Put the identity of answers into the pickle, by which torch 2.11 keys its caches."""
        return _restore, (self.previous, cache_identity())


FACTORY = Factory()  # the factory of this process


def _inductors_own() -> Any:
    """Return Inductor's own handler, with the ``uuid`` that a factory's handlers must have."""
    from torch._inductor.choices import InductorChoices

    class Plain(InductorChoices):
        def uuid(self) -> str:
            return "diode_lut is off"

    return Plain()


def _restore(*_identity: Any) -> Factory:
    return FACTORY


def set_factory(config: Any) -> Undo:
    """Have new threads ask FACTORY for their choices handlers."""
    FACTORY.previous = config.inductor_choices_class
    set_choices_factory(config, FACTORY)
    return partial(set_choices_factory, config, FACTORY.previous)


def take_over_this_thread(virtualized: Any) -> Undo:
    """Replace the handler of this thread, if it has compiled before."""
    if not hasattr(virtualized.threadlocal, virtualized._choices._key):
        return lambda: None
    from diode_lut.hook.handler import on_top_of

    before = virtualized.V.choices
    virtualized.V.set_choices_handler(on_top_of(before))
    return partial(virtualized.V.set_choices_handler, before)


def register_filter(register_defaults: Callable[[Any], None], cache_of_timings: Any) -> None:
    """Have Inductor show us each list of choices, after its own functions."""
    register_defaults(cache_of_timings)
    cache_of_timings.add_preprocessing_fn(filter_choices)


def add_filter(select_algorithm: Any) -> Undo:
    """Have Inductor show us each list of choices, if its cache of timings exists. The undo is for a later cache too."""

    def registered() -> list[Any]:
        cache_of_timings = select_algorithm._ALGORITHM_SELECTOR_CACHE
        return [] if cache_of_timings is None else [cache_of_timings.preprocessing_fns]

    def undo() -> None:
        for functions in registered():
            if filter_choices in functions:
                functions.remove(filter_choices)

    for functions in registered():
        functions.append(filter_choices)
    return undo


def filter_choices(choices: list[Any]) -> list[Any]:
    """Return those of Inductor's choices that it may compare."""
    try:
        filtered = _function("diode_lut.hook.handler:filter_choices")
    except Exception as error:
        turn_off(error)
        return choices
    found: list[Any] = filtered(choices)
    return found


def renew_pool_in_forks(async_compile: Any) -> Undo:
    """Give each forked process a pool of threads of its own, as Inductor does with its other pools."""
    in_forked_children(async_compile.AsyncCompile.pool.cache_clear)
    return lambda: None  # there is nothing to undo: without such a pool, clearing does nothing


def use_native_matmul(is_native: Callable[[Any, Any], bool], mat1: Any, mat2: Any) -> bool:
    """Record a matmul whose kernel Inductor generates without asking."""
    native = is_native(mat1, mat2)
    try:
        if native:
            _function("diode_lut.hook.handler:record_native")()
    except Exception as error:
        leave("a native matmul", error)
    return native


def register_convolution(conv: Any) -> Undo:
    """Have Inductor ask us first how to lower a convolution."""
    target = conv.aten.convolution.default
    lower = conv.L[target]

    @wraps(lower)
    def lower_convolution(*arguments: Any, **named: Any) -> Any:
        try:
            found = _function("diode_lut.hook.unasked:as_matmul")(*arguments, **named)
        except Exception as error:
            leave("a convolution", error)
            found = None
        return lower(*arguments, **named) if found is None else found

    conv.L[target] = lower_convolution
    return partial(conv.L.__setitem__, target, lower)


def define_kernel(define: Callable[..., str], scheduling: Any, src_code: str, *arguments: Any, **named: Any) -> str:
    """Define a kernel with the source that it will have in the graph's code, without spaces in empty lines.

    Inductor has workers compile the source at once, and finds the result by the source when the graph's code asks for
    the kernel. The graph's code loses the spaces of a template's empty lines, so the kernel would be compiled again.
    """
    if "triton_heuristics.template(" in src_code:
        src_code = f"\n{dedent(src_code).strip()}\n"
    return define(scheduling, src_code, *arguments, **named)


def write_only(select_algorithm: Any) -> Undo:
    """Have the code of templates' choices written, but not loaded. A benchmark loads it when it needs it."""
    original: Any = select_algorithm.PyCodeCache

    class Written(original):  # type: ignore[misc]
        @classmethod
        def load(cls, source_code: str, extra: str = "", **_options: Any) -> Any:
            key, path = original.write(source_code, extra)
            return SimpleNamespace(key=key, __file__=path)

    select_algorithm.PyCodeCache = Written
    return partial(setattr, select_algorithm, "PyCodeCache", original)


def should_pad(benchmark: Callable[..., bool], match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:  # noqa: A002
    """Return whether to pad the operands of a matmul. Inductor's own function runs a benchmark for this."""
    try:
        answered = _function("diode_lut.hook.handler:is_answered_with_padding")(match, mat1, mat2, op, input)
    except Exception as error:
        leave(f"padding {op}", error)
        answered = None
    return bool(benchmark(match, mat1, mat2, op, input) if answered is None else answered)


def reinplace_inplaceable_ops(reinplace: Callable[..., None], fake_tensor_updater: Any, graph: Any) -> None:
    """Join matmuls with the same A, and others with the work after them, before Inductor changes tensors in place."""
    for name, function in (("joined matmuls", "joined:join"), ("work after matmuls", "fused:fuse")):
        try:
            _function(f"diode_lut.hook.{function}")(graph)
        except Exception as error:  # noqa: PERF203
            leave(name, error)
    reinplace(fake_tensor_updater, graph)


def get_inductor_factors(factors: Callable[..., list[Any]], *arguments: Any, **named: Any) -> list[Any]:
    """Return the factors in the keys of vLLM's cache. The arguments differ between vLLM's releases."""
    return [*factors(*arguments, **named), repr(cache_identity())]


def what_is_missing() -> list[str]:
    """Return the parts of the hook that Inductor would not ask, or not first, or nothing if all are in place."""
    try:
        for module in dict.fromkeys(patch.module for patch in PATCHES if patch.during == ALWAYS):
            import_module(module)
        from torch._inductor import config, select_algorithm
        from torch._inductor.virtualized import V

        from diode_lut.hook.handler import DiodeChoices

        missing = []
        if config.inductor_choices_class is not FACTORY:
            missing.append(f"new threads get choices from {config.inductor_choices_class}")
        if not isinstance(V.choices, DiodeChoices):
            missing.append(f"this thread gets choices from {type(V.choices).__name__}")
        cache_of_timings = select_algorithm._ALGORITHM_SELECTOR_CACHE
        if cache_of_timings is not None and filter_choices not in cache_of_timings.preprocessing_fns:
            missing.append("Inductor does not show its lists of choices")
        needed = (patch for patch in PATCHES if patch.during == ALWAYS and is_needed(patch))
        return missing + [f"another package has replaced {patch}" for patch in needed if not is_in_place(patch)]
    except Exception as error:
        let_pass(error)
        return [f"Inductor is not as it was: {error!r}"]


def below() -> str:
    """Return the class of another library's choices handler below ours, or an empty text."""
    from torch._inductor.virtualized import V

    handler = getattr(V.choices, "_below", None)
    return type(handler).__name__ if handler is not None else ""
