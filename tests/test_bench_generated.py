"""The programs of the benchmark of generated kernels, without their values, and what is done with its results."""

import bench_generated
import numpy as np
import pytest
from modelbench.corpus import PROGRAMS, build
from score_generated import DATA, FOLDS, Data, by_rules


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("drawn")])
def test_a_program_can_be_built(name: str) -> None:
    """One of transformers, timm or torchvision only where it is installed."""
    try:
        build(name, "meta")
    except ModuleNotFoundError as error:
        if error.name not in ("transformers", "timm", "torchvision"):
            raise
        pytest.skip(str(error))


def test_drawn_programs_can_be_built() -> None:
    """A tenth of them."""
    for name in [name for name in PROGRAMS if name.startswith("drawn")][::10]:
        build(name, "meta")


def test_each_program_is_captured_once_in_each_variant() -> None:
    """Those that are replayed are captured as Inductor would by the process that replays them."""
    kept = [name for name in PROGRAMS if name in bench_generated.REPLAYED]
    tasks = bench_generated.tasks_of(list(PROGRAMS), kept)
    assert len(set(tasks)) == len(tasks)
    assert {name for name, variant in tasks if not variant} == set(PROGRAMS) - set(kept)
    assert {name for name, variant in tasks if variant} >= set(kept)


def test_choices_are_scored() -> None:
    """The best config of each kernel scores 1, rules lose less than Inductor's first configs."""
    data = Data(DATA)
    kinds = ("pointwise", "reduction", "persistent")
    first, best = np.zeros(len(data.kernels), np.int64), data.loss.argmin(1)
    means = [
        float(np.mean(np.log([*data.score(np.broadcast_to(picks, data.held.shape), kinds).values()])))
        for picks in (best, by_rules(data, first), first)
    ]
    assert means[0] == 0 < means[1] < means[2]


def test_no_kernel_teaches_about_a_family_that_has_it() -> None:
    """Each kernel of a program is held out with the program's family, and each family once."""
    data = Data(DATA)
    assert set(data.fold.values()) == set(range(FOLDS))
    assert data.held.any(0).all()
