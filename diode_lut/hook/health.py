"""Whether the hook is installed in this process, as far as that can be seen without compiling anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import config as inductor_config

from diode_lut.errors import let_pass
from diode_lut.hook.install import FACTORY, PaddingQuestion, filter_choices
from diode_lut.settings import config


def what_is_missing() -> list[str]:
    """The parts of the hook that Inductor would not ask, or not first; none if it is installed."""
    try:
        return list(_missing())
    except Exception as error:
        let_pass(error)
        return [f"Inductor is not as it was: {error!r}"]


def _missing() -> Iterator[str]:
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.select_algorithm import get_algorithm_selector_cache
    from torch._inductor.virtualized import V

    from diode_lut.hook.handler import DiodeChoices

    if inductor_config.inductor_choices_class is not FACTORY:
        yield f"new threads get choices from {inductor_config.inductor_choices_class}"
    if not isinstance(V.choices, DiodeChoices):
        yield f"this thread gets choices from {type(V.choices).__name__}"
    if filter_choices not in get_algorithm_selector_cache().preprocessing_fns:
        yield "Inductor does not show its lists of choices"
    if not isinstance(pad_mm._should_pad, PaddingQuestion):
        yield "Inductor does not ask whether to pad"


def below() -> str:
    """The class of another library's choices handler below ours; empty if there is none."""
    from torch._inductor.virtualized import V

    handler = getattr(V.choices, "_below", None)
    return type(handler).__name__ if handler is not None else ""


def cache_fault() -> str:
    """Why the key of Inductor's cache for graphs does not follow the answers; empty if it does.

    The key of an empty graph is computed with one setting and with another.
    """
    try:
        with config.patch(policy="pick"):
            before = _key()
            with config.patch(policy="verify"):
                other = _key()
            again = _key()
    except Exception as error:
        let_pass(error)
        return f"the keys of Inductor's caches cannot be computed: {error!r}"
    return "" if before == again != other else "the keys of Inductor's caches do not follow the answers"


def _key() -> str:
    """The key of an empty graph."""
    from torch._inductor.codecache import compiled_fx_graph_hash

    no_arguments: Any = {}
    key, _ = compiled_fx_graph_hash(torch.fx.symbolic_trace(torch.nn.Identity()), [], no_arguments, [])
    return key
