"""What a model answers at sizes all over: the page looks sizes that nobody measured up there, as it cannot ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Any

from diode_lut.domain.ops import BATCHED, GEMMS, OP_SIZES
from diode_lut.domain.problem import Problem
from diode_lut.kernels.config import Config
from diode_lut.model.ranking import Model
from diode_lut.selection.selector import Decision, Selector, Tier
from diode_lut.selection.sources import Threshold
from diode_lut.selection.tiers import source_of
from diode_lut.settings import MODEL, config

MAX_KINDS = 16
"""Number of ops, types and layouts of which a model is asked: that takes up to 9 s and 0.44 MB of the page."""


def _powers(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(first, last + 1, step))


_ALONE = {"m": _powers(0, 14), "n": _powers(5, 15), "k": _powers(5, 14)}
_BATCHED = {"b": _powers(1, 7, 2), "m": _powers(0, 12), "n": _powers(5, 12), "k": _powers(5, 12)}

Track = Callable[[Sequence[Problem]], Iterable[Problem]]
"""Passes problems on, and may show progress."""


def as_grid(
    model: Model, kinds: Iterable[tuple[str | None, str | None, str | None]], track: Track = iter
) -> dict[str, Any]:
    """The model's answers, for the first MAX_KINDS of ``kinds`` (op, dtype, layout) that it knows, open ones left out.

    Each of ``kinds`` of the result has the ``sizes`` asked, by name. ``answers`` and ``gains`` have an item for each
    combination of sizes, the last size changing fastest: an index into ``configs``, None where the model abstains; and
    the expected gain over aten of its first config, in permille, None for what it was not trained for.
    """
    known = {(kind.op, kind.dtype, kind.layout) for kind in model.kinds}
    asked = [(op, dtype, layout) for op, dtype, layout in kinds if op and dtype and layout and op in GEMMS]
    asked = [kind for kind in asked if kind in known][:MAX_KINDS]
    problems = [problem for kind in asked for problem in _problems(*kind)]
    answers = _answers(model, track(problems))
    configs: dict[Config, int] = {}
    parts = []
    for op, dtype, layout in asked:
        sizes = _sizes(op)
        found = list(islice(answers, prod(map(len, sizes.values()))))
        numbers = [None if first is None else configs.setdefault(first, len(configs)) for first, _ in found]
        part = {"op": op, "dtype": dtype, "layout": layout, "sizes": sizes}
        parts.append({**part, "answers": numbers, "gains": [gain for _, gain in found]})
    return {"configs": list(map(str, configs)), "kinds": parts}


def _sizes(op: str) -> Mapping[str, Sequence[int]]:
    return _BATCHED if op in BATCHED else _ALONE


def _problems(op: str, dtype: str, layout: str) -> Iterator[Problem]:
    sizes = _sizes(op)
    assert tuple(sizes) == OP_SIZES[op]
    for values in product(*sizes.values()):
        named: dict[str, Any] = dict(zip(sizes, values, strict=True))
        yield Problem.of(op, **named, dtype=dtype, layout=layout, align=16)


def _answers(model: Model, problems: Iterable[Problem]) -> Iterator[tuple[Config | None, int | None]]:
    """The first config, None for none, and the gain in permille."""
    selector, threshold = Selector(model.hardware, [Tier(MODEL, (source_of(model),))]), Threshold.of(config)
    for problem in problems:
        yield _answer(selector.select(problem, threshold, padding=config.pad))


def _answer(decision: Decision) -> tuple[Config | None, int | None]:
    if decision.answer is None or decision.answer.ranking is None:
        return None, None
    ranking = decision.answer.ranking
    first = decision.configs[0] if decision.configs else None
    times = dict(zip(ranking.configs, ranking.times, strict=True))
    return first, round(1000 / times[first or ranking.configs[0]])
