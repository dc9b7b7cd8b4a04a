"""The programs of the benchmark of generated kernels, without their values, and what is done with its results."""

from pathlib import Path

import bench_generated
import numpy as np
import pytest
from modelbench.corpus import PROGRAMS, build
from own_generated_rows import faster_rows, row_of
from score_generated import DATA, FOLDS, Data, timings

from diode_lut.dataset import read_dataset
from diode_lut.problem import GENERATED, Problem
from diode_lut.table import Candidate, Entry, read_table
from diode_lut.templates.config import DEFAULT, Config

TABLES = Path(__file__).parent.parent / "tables"


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
    """The best config of each kernel scores 1, and Inductor's benchmarks lose less than its first configs."""
    data = Data(DATA)
    kinds = ("pointwise", "reduction", "persistent")
    first, best = np.zeros(len(data.kernels), np.int64), data.loss.argmin(1)
    own = np.array([np.argmin(record["warm"][: record["own"]]) for record in data.kernels])
    means = [
        float(np.mean(np.log([*data.score(np.broadcast_to(picks, data.held.shape), kinds).values()])))
        for picks in (best, own, first)
    ]
    assert means[0] == 0 < means[1] < means[2]


def test_no_kernel_teaches_about_a_family_that_has_it() -> None:
    """Each kernel of a program is held out with the program's family, and each family once."""
    data = Data(DATA)
    assert set(data.fold.values()) == set(range(FOLDS))
    assert data.held.any(0).all()


def test_shipped_rows_are_those_that_are_faster_than_another_gpus() -> None:
    """The H200's rows for generated kernels are made of its dataset, the H100's rows and nothing else."""
    dataset, table = (TABLES / name for name in ("datasets/generated/nvidia-h200.msgpack.zst", "nvidia-h200.json"))
    made = faster_rows(read_table(TABLES / "nvidia-h100.json"), read_dataset(dataset))
    shipped = [entry for entry in read_table(table).entries if entry.op in GENERATED]
    assert set(made) == set(shipped) != set()


def test_a_row_for_one_size_has_the_fastest_config_first() -> None:
    """Kernels of one size count together. The other table's configs stay, behind it; a gain of 1 % makes no row."""
    usual, fast, other = (Config.make("pointwise", {"block_x": x, "num_warps": 4}) for x in (256, 512, 1024))
    problem = Problem.generated("pointwise", "flat", x=1 << 20, loads=3)
    candidates = (Candidate(usual, 1100), Candidate(other, 1050))
    row = Entry("pointwise", *(None,) * 7, candidates, variant="flat", x=(1, 1 << 24), loads=(1, 8))
    times = [{DEFAULT: 11.0, usual: 10.0, fast: 9.0, other: 12.0}, {DEFAULT: 11.0, usual: 10.0, fast: 9.9}]
    found = row_of(problem, row, times)
    assert found is not None
    assert found.configs == (fast, usual, other)
    assert (found.x, found.loads, found.problems) == ((1 << 20,) * 2, (3, 3), 2)
    assert [candidate.gain_permille for candidate in found.candidates] == [1165, 1100, None]
    assert row_of(problem, row, times[1:]) is None


def test_kernels_of_programs_captured_in_part_are_packed() -> None:
    """On an H200, programs were captured in the order of their worth, some in another form alone."""
    assert len(timings(Data(DATA.with_name("generated-nvidia-h200.jsonl.zst")))) > 300
