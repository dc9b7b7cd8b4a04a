"""What a model answers at sizes that nobody measured, as the page looks it up."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import pytest

from diode_lut.decide.catalog import find_path, open_model, sources_for
from diode_lut.decide.decide import Sources, Tier, decide
from diode_lut.decide.sources import Threshold
from diode_lut.model.ranking import Model
from diode_lut.problem import OP_SIZES, Problem
from diode_lut.report import MAX_KINDS, as_grid
from diode_lut.settings import MODEL, config

EVERY = 37  # the answer for every 37th combination of sizes is compared


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model(find_path("nvidia-h200.mlp"))


def looked_up(grid: dict[str, Any]) -> Iterator[tuple[Problem, str | None, int | None]]:
    """Each problem asked of the only kind, the first config, and the gain over aten in permille."""
    (part,) = grid["kinds"]
    op, sizes = part["op"], part["sizes"]
    assert tuple(sizes) == OP_SIZES[op]
    for values, number, gain in zip(product(*sizes.values()), part["answers"], part["gains"], strict=True):
        named = dict(zip(sizes, values, strict=True))
        problem = Problem.of(op, **named, dtype=part["dtype"], layout=part["layout"], align=16)
        yield problem, None if number is None else grid["configs"][number], gain


def decided(model: Model, problem: Problem) -> tuple[str | None, int | None]:
    """The first config and the gain in permille of the decision that the shipped model makes alone."""
    settings = config.copy()
    sources = sources_for(model.hardware, settings, ())
    own = [each for tier in sources.tiers for each in tier.sources if each.path == find_path("nvidia-h200.mlp")]
    alone = Sources(model.hardware, (Tier(MODEL, tuple(own)),))
    decision = decide(alone, problem, Threshold.of(settings), padding=settings.pad).decision
    if decision.answer is None or decision.answer.ranking is None:
        return None, None
    ranking = decision.answer.ranking
    first = (decision.configs or ranking.configs)[0]
    gain = 1000 / ranking.times[ranking.configs.index(first)]
    return str(first) if decision.configs else None, round(gain)


@pytest.mark.parametrize(
    ("kind", "settings", "abstains"),
    [
        pytest.param(("bmm", "float16", "tn"), {}, False, marks=pytest.mark.slow),
        (("mm", "bfloat16", "nt"), {"confidence_threshold": 0.999, "gain_threshold": 0.3}, True),
        pytest.param(("mm", "float32", "nn"), {"min_gain": 0.2}, False, marks=pytest.mark.slow),
    ],
)
def test_it_is_what_the_model_decides(
    model: Model, kind: tuple[str, str, str], settings: dict[str, float], abstains: bool
) -> None:
    """The config and the gain are those of the decision with the same settings, and so are abstentions."""
    with config.patch(**settings):
        found = list(looked_up(as_grid(model, [kind])))
        for problem, first, gain in found[::EVERY]:
            assert (first, gain) == decided(model, problem)
    assert any(first is not None for _, first, _ in found)
    assert any(first is None and gain is not None for _, first, gain in found) >= abstains


def test_of_which_kinds_a_model_is_asked(model: Model) -> None:
    """Of those that it knows, in their order, at most MAX_KINDS; not of open ones and other ops."""
    unknown = [("scaled_mm", "float8_e4m3fn", "nt"), ("mm", None, "nn"), (None, None, None)]
    known = list(dict.fromkeys(kind.key[:3] for kind in model.kinds))
    asked: list[Problem] = []

    def note(problems: Iterable[Problem]) -> Iterable[Problem]:
        asked.extend(problems)
        return ()

    parts = as_grid(model, [*unknown, *known], note)["kinds"]
    assert [(part["op"], part["dtype"], part["layout"]) for part in parts] == known[:MAX_KINDS]
    assert list(dict.fromkeys(problem.kind[:3] for problem in asked)) == known[:MAX_KINDS]
