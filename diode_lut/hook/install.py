"""Putting the hook into Inductor, for every thread, and what its answers depend on into the keys of Inductor's caches.

The way in is a configuration value, a factory of choices handlers. The caches are keyed by its pickle or by the
``uuid()`` of the handlers that it makes, depending on the release.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from diode_lut.hook.switch import cache_identity, leave, saving, turn_off
from diode_lut.hook.versions import require_same_parameters, set_choices_factory
from diode_lut.process import in_forked_children, when_imported


class Factory:
    """Makes the choices handler of a thread: ours, on top of what ``previous`` makes, the user's own factory."""

    __name__ = "FACTORY"  # Inductor's repro scripts set configuration by the names of its callables

    previous: Any = None

    def __call__(self) -> Any:
        """A new handler; without ours if that cannot be loaded."""
        try:
            from diode_lut.hook.handler import DiodeChoices, on_top_of

            return DiodeChoices() if self.previous is None else on_top_of(self.previous())
        except Exception as error:
            turn_off(error)
            return _inductors_own() if self.previous is None else self.previous()

    def __repr__(self) -> str:
        """The same in every process that decides the same: vLLM hashes Inductor's configuration as text."""
        return f"Factory({self.previous!r}, {cache_identity()!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Factory:
        """Itself, whatever tables there are: Inductor copies it for each thread, and keys its caches by a copy."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """What the answers depend on is part of the pickle, by which Inductor may key its caches."""
        return _restore, (self.previous, cache_identity())


FACTORY = Factory()
"""The factory of this process."""


def _inductors_own() -> Any:
    """Inductor's own handler, with the identity that a factory's handlers must have."""
    from torch._inductor.choices import InductorChoices

    class Plain(InductorChoices):
        def uuid(self) -> str:
            return "diode_lut is off"

    return Plain()


def _restore(*_identity: Any) -> Factory:
    return FACTORY


def install(config: ModuleType) -> None:
    """Arm the hook in Inductor, given ``torch._inductor.config``; called right after that is imported.

    An Inductor that has no place for it leaves the hook off, with a warning.
    """
    try:
        if config.inductor_choices_class is FACTORY:
            return  # this package has been reloaded
        _install_factory(config)
        _take_over_this_thread()
        when_imported("torch._inductor.select_algorithm", f"{__name__}:install_filter")
        when_imported("torch._inductor.codegen.subgraph", f"{__name__}:install_subgraphs")
        when_imported("torch._inductor.kernel.mm", f"{__name__}:install_native")
        when_imported("torch._inductor.kernel.bmm", f"{__name__}:install_native")
        when_imported("torch._inductor.async_compile", f"{__name__}:renew_pool_in_forks")
        when_imported("torch._inductor.fx_passes.pad_mm", f"{__name__}:install_padding")
        when_imported("torch._inductor.compile_fx", f"{__name__}:install_provenance")
        when_imported("torch._inductor.codecache", f"{__name__}:install_provenance")
        when_imported("torch._inductor.compile_fx_ext", f"{__name__}:install_provenance")
        when_imported("torch._inductor.codecache", f"{__name__}:install_saving_of_graphs")
        when_imported("torch._functorch._aot_autograd.autograd_cache", f"{__name__}:install_saving_of_entries")
        when_imported("torch._dynamo.precompile_context", "diode_lut.hook.kept:mark_what_is_kept")
        when_imported("torch._dynamo.package", "diode_lut.hook.kept:check_what_is_served")
    except Exception as error:
        turn_off(error)


def _install_factory(config: Any) -> None:
    FACTORY.previous = config.inductor_choices_class
    set_choices_factory(config, FACTORY)


def _take_over_this_thread() -> None:
    """Replace the handler of this thread, if it has compiled before."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None or not hasattr(virtualized.threadlocal, virtualized._choices._key):
        return
    from diode_lut.hook.handler import on_top_of

    virtualized.V.set_choices_handler(on_top_of(virtualized.V.choices))


def install_filter(select_algorithm: Any) -> None:
    """Have Inductor show us each list of choices, given ``torch._inductor.select_algorithm``."""
    try:
        select_algorithm.add_preprocessing_fn(filter_choices)
    except Exception as error:
        turn_off(error)


def filter_choices(choices: list[Any]) -> list[Any]:
    """What ``choice_filter`` says, imported only now because the parts of Inductor that it needs import each other."""
    try:
        from diode_lut.hook import handler as choice_filter
    except Exception as error:
        turn_off(error)
        return choices
    return choice_filter.filter_choices(choices)


def install_subgraphs(subgraph: Any) -> None:
    """Have Inductor choose alone in graphs that are choices, given ``torch._inductor.codegen.subgraph``."""
    try:
        caller = subgraph.SubgraphChoiceCaller
        caller.output_node = _lowered_without_tables(caller.output_node)
        caller._compile_for_benchmarking = _lowered_without_tables(caller._compile_for_benchmarking)
    except Exception as error:
        turn_off(error)


def _lowered_without_tables(lower: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def lower_without_tables(choice: Any) -> Any:
        try:
            from diode_lut.hook.choices import without_tables
        except Exception as error:
            turn_off(error)
            return lower(choice)
        with without_tables():
            return lower(choice)

    return lower_without_tables


def install_native(kernel: Any) -> None:
    """Have Inductor say which matmuls it asks nobody about, given ``torch._inductor.kernel.mm`` or ``bmm``."""
    try:
        kernel.use_native_matmul = _recording(kernel.use_native_matmul)
    except Exception as error:
        turn_off(error)


def _recording(is_native: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def use_native_matmul(mat1: Any, mat2: Any) -> bool:
        native = is_native(mat1, mat2)
        try:
            if native:
                from diode_lut.hook.handler import record_native

                record_native()
        except Exception as error:
            leave("a native matmul", error)
        return native

    return use_native_matmul


def renew_pool_in_forks(async_compile: Any) -> None:
    """Give each forked process a pool of threads of its own, given ``torch._inductor.async_compile``.

    Inductor compiles C++ in these threads. It renews its other pools, and would wait for ever for those of this one,
    which are not in the forked process.
    """
    try:
        in_forked_children(async_compile.AsyncCompile.pool.cache_clear)
    except Exception as error:
        turn_off(error)


def install_padding(pad_mm: Any) -> None:
    """Have Inductor ask us whether to pad a matmul, given ``torch._inductor.fx_passes.pad_mm``."""
    try:
        if not isinstance(pad_mm._should_pad, PaddingQuestion):
            pad_mm._should_pad = PaddingQuestion(pad_mm._should_pad)
    except Exception as error:
        turn_off(error)


def install_provenance(module: ModuleType) -> None:
    """Have compiled graphs keep what was decided for them, given a module of ``WRAPPERS``."""
    try:
        from diode_lut.hook.kept import WRAPPERS

        WRAPPERS[module.__name__](module)
    except Exception as error:
        turn_off(error)


def install_saving_of_graphs(codecache: Any) -> None:
    """Have Inductor save answered graphs only, given ``torch._inductor.codecache``."""
    try:
        cache = codecache.FxGraphCache
        cache._save_graph = staticmethod(saving(cache._save_graph))
    except Exception as error:
        turn_off(error)


def install_saving_of_entries(autograd_cache: Any) -> None:
    """Have AOTAutograd save answered graphs only, given ``torch._functorch._aot_autograd.autograd_cache``."""
    try:
        cache = autograd_cache.AOTAutogradCache
        cache.save = staticmethod(saving(cache.save))
    except Exception as error:
        turn_off(error)


def complete_factors(compiler_interface: ModuleType) -> None:
    """Have vLLM key its own cache by what answers depend on, given ``vllm.compilation.compiler_interface``.

    It loads graphs from that cache without asking Inductor. Releases that hash Inductor's configuration know what
    answers depend on; earlier ones hash PyTorch's release and the device only.
    """
    vllms = getattr(compiler_interface, "get_inductor_factors", None)
    if vllms is not None and not isinstance(vllms, Factors):
        vars(compiler_interface)["get_inductor_factors"] = Factors(vllms)


class Factors:
    """What vLLM computes a key of; ``vllms`` is the function that it has for that."""

    def __init__(self, vllms: Callable[..., list[Any]]) -> None:
        self._vllms = vllms

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Also what answers depend on; the arguments differ between vLLM's releases."""
        return [*self._vllms(*args, **kwargs), repr(cache_identity())]


class PaddingQuestion:
    """What Inductor asks whether padding a matmul makes it faster; ``inductors`` is the function that benchmarks it."""

    def __init__(self, inductors: Callable[..., bool]) -> None:
        self._inductors = inductors
        require_same_parameters(self, inductors)

    def __call__(self, match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:  # noqa: A002
        """What ``padding`` says, imported only now because the parts of Inductor that it needs import each other."""
        try:
            from diode_lut.hook.handler import is_answered_with_padding

            answered = is_answered_with_padding(match, mat1, mat2, op, input)
        except Exception as error:
            leave(f"padding {op}", error)
            answered = None
        return self._inductors(match, mat1, mat2, op, input) if answered is None else answered
