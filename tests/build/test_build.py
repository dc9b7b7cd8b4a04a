"""The promise of build, checked by brute force through Table.lookup, and everything that it counts."""

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut import __version__
from diode_lut.build import CLEAR, EPSILON, NOISE, BuildResult, build, measurements
from diode_lut.build.measurements import Columns
from diode_lut.dataset import SWEEP, Dataset, DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.table import Candidate, Entry, Table, read_table, to_bytes, write_table
from diode_lut.table.lint import check_file
from diode_lut.templates.config import ATEN, Config
from tests.strategies import share

H200 = Hardware("NVIDIA H200", "sm_90", 132)
HEADER = Header(H200, "2.13.0", "3.7.0", "13.0", "580.1", "a clock", "2026-11-21")
A, B, C = (Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 64, 128))


def on(op: str, config: Config) -> Config:
    """The config with the template that the op has."""
    return config if config == ATEN or op == "mm" else config._replace(template="triton_bmm")


sizes = st.integers(1, 12) | st.sampled_from((64, 100, 128, 4096))
problems = st.tuples(st.sampled_from(("mm", "bmm")), st.integers(1, 3), sizes, sizes, st.just(8)).map(
    lambda p: Problem(p[0], "float16", "nn", 16, p[1] if p[0] == "bmm" else 1, p[2], p[3], p[4])
)
outcomes = st.sampled_from((100.0, 100.5, 101.0, 101.9, 103.0, 110.0, 200.0, None))
timings = st.lists(st.tuples(st.sampled_from((ATEN, A, B, C)), outcomes), min_size=1, max_size=6).map(
    lambda items: tuple(Timing(config, ns, None if ns else "compile") for config, ns in items)
)
records_of_runs = st.tuples(problems, timings, st.sampled_from(("sweep", "sweep", "final"))).map(
    lambda run: Record(run[0], tuple(timing._replace(config=on(run[0].op, timing.config)) for timing in run[1]), run[2])
)
runs = st.lists(records_of_runs, min_size=1, max_size=25).filter(
    lambda records: any(times for times in combined(records).values())
)


@pytest.fixture(scope="module")
def some_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("build") / "d"
    path.write_bytes(b"what a digest is taken of")
    return path


def dataset(path: Path, records: Sequence[Record], header: Header = HEADER) -> Dataset:
    return Dataset(path, header, lambda *_: iter(records))


def stored(path: Path, records: Iterable[Record], header: Header = HEADER) -> Dataset:
    with DatasetWriter(path, header) as writer:
        for record in records:
            writer.append(record)
    return read_dataset(path)


def record(m: int, times: dict[Config, float | None], op: str = "mm", n: int = 8) -> Record:
    problem = Problem(op, "float16", "nn", 16, 1, m, n, 8)
    return Record(problem, tuple(Timing(config, ns, None if ns else "launch") for config, ns in times.items()))


def combined(records: Iterable[Record]) -> dict[Problem, dict[Config, float]]:
    """The median of all runs of a config that count, scaled by aten's, unless one of them failed."""
    records = list(records)
    final = {record.problem for record in records if record.stage == "final"}
    counting = [record for record in records if (record.stage == "final") == (record.problem in final)]
    atens: dict[Problem, list[float | None]] = defaultdict(list)
    for each in counting:
        atens[each.problem] += of_aten(each)
    all_times: dict[Problem, dict[Config, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for each in counting:
        scale = 1.0
        if (own := of_aten(each)) and None not in atens[each.problem]:
            scale = statistics.median(atens[each.problem]) / statistics.median(own)  # type: ignore[type-var, operator]
        all_times[each.problem].update({})
        for config, ns, _ in each.timings:
            all_times[each.problem][config].append(None if ns is None else ns * scale)
    return {
        problem: {config: statistics.median(ns) for config, ns in times.items() if None not in ns}  # type: ignore[type-var]
        for problem, times in all_times.items()
    }


def of_aten(record: Record) -> list[float | None]:
    """What the timings of aten in the record say, None for failures."""
    return [timing.ns for timing in record.timings if timing.config == ATEN]


def keeps_promise(table: Table, problem: Problem, times: dict[Config, float]) -> bool:
    entry = table.lookup(problem)
    if entry is None or entry.configs[0] not in times:
        return False
    choice = entry.configs[0]
    time, best = times[choice], min(times.values())
    ahead = choice == ATEN or time / best <= times.get(ATEN, math.inf) / best / (1 + NOISE)
    return time / best <= 1 + EPSILON and ahead


def solved(records: Iterable[Record]) -> dict[Problem, dict[Config, float]]:
    return {problem: times for problem, times in combined(records).items() if times}


@given(runs)
def test_the_promise_is_kept(some_file: Path, records: list[Record]) -> None:
    """Every problem on which something succeeded gets a config near its best, and aten or what is faster."""
    result = build([dataset(some_file, records)])
    for problem, times in solved(records).items():
        assert keeps_promise(result.table, problem, times), problem
    assert result.problems == len(result.regrets) == len(solved(records))
    assert result.worst_regret <= EPSILON + 1e-9


def test_runs_are_compared_by_aten(some_file: Path) -> None:
    """A config that was timed only in the faster of two runs is not taken for faster than aten."""
    runs = [record(8, {ATEN: 8.0, A: 9.3}), record(8, {ATEN: 6.0, B: 7.0}), record(8, {ATEN: 8.2})]
    (entry,) = build([dataset(some_file, runs)]).table.entries
    assert entry.configs[0] == ATEN


@given(runs)
def test_no_row_can_be_removed(some_file: Path, records: list[Record]) -> None:
    """The promise breaks without any one of the rows."""
    table = build([dataset(some_file, records)]).table
    for number in range(len(table.entries)):
        rest = Table(H200, table.entries[:number] + table.entries[number + 1 :])
        assert not all(keeps_promise(rest, problem, times) for problem, times in solved(records).items())


def test_small_gains_are_for_one_problem(some_file: Path) -> None:
    """A row of two problems has a config that is clearly faster than aten on both."""
    for aten, rows in ((100 * CLEAR, 1), (109.0, 2)):
        records = [record(8, {ATEN: 120.0, A: 100.0}), record(9, {ATEN: aten, A: 100.0})]
        entries = build([dataset(some_file, records)]).table.entries
        assert [entry.configs[0] for entry in entries] == [A] * rows


@given(runs, st.randoms())
def test_order_does_not_matter(some_file: Path, records: list[Record], shuffled: random.Random) -> None:
    """Files, records and timings in any order give the same bytes."""
    other = [record._replace(timings=tuple(shuffled.sample(record.timings, len(record.timings)))) for record in records]
    shuffled.shuffle(other)
    cut = len(other) // 2
    parts = [dataset(some_file, other[cut:]), dataset(some_file, other[:cut])]
    assert to_bytes(build(parts).table) == to_bytes(build([dataset(some_file, records)]).table)


@given(runs)
def test_rebuilding_changes_nothing(some_file: Path, records: list[Record]) -> None:
    """A table rebuilt from the same timings keeps the promise with the same number of rows, and then stays as it is."""
    once = build([dataset(some_file, records)]).table
    twice = build([dataset(some_file, records)], previous=once).table
    assert to_bytes(twice) == to_bytes(once)


@given(runs)
def test_rows_count_the_problems_they_answer(some_file: Path, records: list[Record]) -> None:
    """``problems`` of a row is the number of measured problems for which lookup answers with it."""
    table = build([dataset(some_file, records)]).table
    answers = [table.lookup(problem) for problem in solved(records)]
    assert all(entry.problems == answers.count(entry) for entry in table.entries)


@settings(max_examples=share(40))
@given(runs)
def test_the_file_passes_the_check(some_file: Path, records: list[Record]) -> None:
    """What is built is a valid table without contradictions, and reads back equal."""
    table = build([dataset(some_file, records)]).table
    path = some_file.with_name("table.json")
    write_table(table, path)
    assert check_file(path) == []
    assert read_table(path) == table


def rows(result: BuildResult) -> list[tuple[object, ...]]:
    """The range of m and the configs of each row, exact rows last."""
    entries = sorted(result.table.entries, key=lambda entry: -entry.volume)
    return [(entry.m, *map(str, entry.configs)) for entry in entries]


def test_a_row_is_shared_by_problems_that_agree(some_file: Path) -> None:
    """Problems with the same winner become one range, which ends where the measurements end."""
    result = build([dataset(some_file, [record(m, {A: 100.0, ATEN: 150.0}) for m in (100, 200, 300)])])
    (entry,) = result.table.entries
    expected = Entry("mm", "float16", "nn", 16, None, (100, 300), (8, 8), (8, 8), (Candidate(A, 1500),), 3)
    assert entry == expected
    assert (result.exact_rows, result.range_rows) == (0, 1)


def test_an_exception_becomes_an_exact_row(some_file: Path) -> None:
    """A problem that the row around it would serve badly has its own, exact one."""
    records = [record(m, {A: 100.0, B: 120.0}) for m in (100, 200, 300)] + [record(250, {A: 120.0, B: 100.0})]
    result = build([dataset(some_file, records)])
    assert rows(result) == [((100, 300), str(A)), ((250, 250), str(B))]
    assert sorted(entry.problems or 0 for entry in result.table.entries) == [1, 3]
    assert (result.exact_rows, result.range_rows) == (1, 1)


def test_results_that_are_not_aligned_have_rows_of_their_own(some_file: Path) -> None:
    """Between GEMMs whose results have rows of multiples of 16 bytes, nothing is said about others, counted or not."""
    records = [record(8, {A: 100.0, ATEN: 150.0}, n=n) for n in (64, 67, 96, 101, 128)]
    table = build([dataset(some_file, records)]).table
    assert sorted((entry.n, entry.n_align) for entry in table.entries) == [((64, 128), 16), ((67, 101), 2)]
    table = Table(table.hardware, [entry._replace(problems=None) for entry in table.entries])
    found = [table.lookup(Problem("mm", "float16", "nn", 16, 1, 8, n, 8)) for n in (68, 72)]
    assert [entry and entry.n for entry in found] == [(67, 101), (64, 128)]


def test_configs_are_listed_best_first_down_to_aten(some_file: Path) -> None:
    """After the winner come at most two configs within a tenth of the best, none of them after aten."""
    near = {A: 100.0, B: 104.0, C: 109.0}
    assert rows(build([dataset(some_file, [record(8, {**near, ATEN: 150.0})])])) == [((8, 8), str(A), str(B), str(C))]
    assert rows(build([dataset(some_file, [record(8, {**near, ATEN: 106.0})])])) == [((8, 8), str(A), str(B), "aten")]
    assert rows(build([dataset(some_file, [record(8, {**near, ATEN: 102.0})])])) == [((8, 8), str(A), "aten")]
    assert rows(build([dataset(some_file, [record(8, {**near, ATEN: 99.0})])])) == [((8, 8), "aten")]
    assert rows(build([dataset(some_file, [record(8, {A: 100.0, B: 111.0})])])) == [((8, 8), str(A))]


def test_a_runner_up_was_measured_on_all_problems(some_file: Path) -> None:
    """A config that is missing, or slow, on one of the row's problems is no runner-up."""
    records = [
        record(8, {A: 100.0, B: 103.0, C: 103.0}),
        record(9, {A: 100.0, B: 103.0}),
        record(10, {A: 100.0, B: 109.0}),
    ]
    assert rows(build([dataset(some_file, records)])) == [((8, 10), str(A), str(B))]


def test_the_gain_is_the_geometric_mean(some_file: Path) -> None:
    """gain_permille is the mean of aten's time over the config's, and absent where aten was not measured."""
    records = [record(8, {A: 100.0, ATEN: 200.0}), record(9, {A: 100.0, ATEN: 800.0})]
    (entry,) = build([dataset(some_file, records)]).table.entries
    assert entry.candidates == (Candidate(A, 4000),)
    (entry,) = build([dataset(some_file, [*records, record(10, {A: 100.0})])]).table.entries
    assert entry.candidates == (Candidate(A),)


def test_aten_wins_within_the_noise(some_file: Path) -> None:
    """If a config is faster than aten by less than noise, the row has aten."""
    assert rows(build([dataset(some_file, [record(8, {A: 100.0, ATEN: 100.4})])])) == [((8, 8), "aten")]
    assert rows(build([dataset(some_file, [record(8, {A: 100.0, ATEN: 101.1})])])) == [((8, 8), str(A), "aten")]


def test_no_epsilon_leaves_the_fastest(some_file: Path) -> None:
    """Without tolerance, a config that is faster than aten by a hair has no rival, and is chosen."""
    result = build([dataset(some_file, [record(8, {A: 100.0, ATEN: 100.4})])], epsilon=0)
    assert rows(result) == [((8, 8), str(A), "aten")]


def test_what_only_equals_aten_has_its_own_row(some_file: Path) -> None:
    """A config within epsilon of the best does not serve where it is not faster than aten by the noise."""
    shared: dict[Config, float | None] = {A: 100.0, ATEN: 200.0}
    records = [record(8, shared), record(9, {A: 99.9, ATEN: 100.0}), record(10, shared)]
    assert rows(build([dataset(some_file, records)])) == [((8, 10), str(A)), ((9, 9), "aten")]
    records[1] = record(9, {A: 98.9, ATEN: 100.0})
    assert len(build([dataset(some_file, records)]).table.entries) == 1


def test_the_previous_answer_wins_within_the_noise(some_file: Path) -> None:
    """A winner stays until another config is faster by more than the noise."""
    previous = build([dataset(some_file, [record(8, {A: 100.0, B: 150.0})])]).table
    closer = [record(8, {A: 100.9, B: 100.0})]
    assert rows(build([dataset(some_file, closer)], previous=previous))[0][1] == str(A)
    assert rows(build([dataset(some_file, closer)]))[0][1] == str(B)
    overtaken = [record(8, {A: 101.1, B: 100.0})]
    assert rows(build([dataset(some_file, overtaken)], previous=previous))[0][1] == str(B)


def test_epsilon_trades_speed_for_rows(some_file: Path) -> None:
    """A larger epsilon lets one row serve what a smaller one splits."""
    records = [record(8, {A: 100.0, B: 103.0}), record(9, {A: 103.0, B: 100.0})]
    assert len(build([dataset(some_file, records)]).table.entries) == 2
    assert len(build([dataset(some_file, records)], epsilon=0.03).table.entries) == 1


def test_runs_are_combined_by_their_median(some_file: Path) -> None:
    """One odd run changes nothing; a failure in any run rules the config out on that problem."""
    odd = [record(8, {A: 100.0, B: 120.0}), record(8, {A: 100.0, B: 120.0}), record(8, {A: 900.0, B: 1.0})]
    assert rows(build([dataset(some_file, odd)])) == [((8, 8), str(A))]
    failing = [record(8, {A: 100.0, B: 120.0}), record(8, {A: None})]
    result = build([dataset(some_file, failing)])
    assert rows(result) == [((8, 8), str(B))]
    assert result.failures == {"launch": 1}


def test_final_timings_decide(some_file: Path) -> None:
    """Where a problem has final timings, those of other stages neither win nor count as failed; elsewhere they do."""
    sweep = [record(m, {A: 100.0, B: 200.0, C: None})._replace(stage="sweep") for m in (8, 9)]
    final = record(8, {B: 150.0, C: 300.0})._replace(stage="final")
    result = build([dataset(some_file, [*sweep, final])])
    assert rows(result) == [((8, 8), str(B)), ((9, 9), str(A))]
    assert (result.timings, result.outdone, result.failures) == (8, 3, {"launch": 2})
    assert rows(build([dataset(some_file, [sweep[0]._replace(stage="autotune")])]))[0][1] == str(A)


def test_what_failed_finally_has_no_row(some_file: Path) -> None:
    """A problem of which all final timings failed is unsolved, whatever the sweep said."""
    records = [record(8, {A: 100.0})._replace(stage="sweep"), record(8, {A: None})._replace(stage="final")]
    result = build([dataset(some_file, [*records, record(9, {A: 100.0})])])
    assert (result.problems, result.unsolved, rows(result)) == (1, 1, [((9, 9), str(A))])


def test_what_failed_is_counted(some_file: Path) -> None:
    """Problems on which nothing succeeded get no row; problems without aten are counted as not compared."""
    records = [
        record(8, {A: 100.0, ATEN: 120.0}),
        record(9, {A: None, B: None}),
        record(10, {A: 100.0}),
        record(11, {}),
    ]
    result = build([dataset(some_file, records)])
    counts = (result.timings, result.problems, result.unsolved, result.without_aten, result.failures["launch"])
    assert counts == (5, 2, 2, 1, 2)


def test_rows_with_a_note_are_kept(some_file: Path) -> None:
    """A person's own rows stay, answer where they are more specific, and built rows with nothing left go."""
    own = Entry("mm", "float16", "nn", 16, None, (9, 9), (8, 8), (8, 8), (Candidate(C),), None, "mine")
    wide = own._replace(m=None, n=None, k=None)
    generated = own._replace(note=None, m=(50, 60))
    records = [record(m, {A: 100.0 + m, B: 200.0}) for m in (8, 10)] + [record(9, {B: 100.0})]
    result = build([dataset(some_file, records)], previous=Table(H200, [own, wide, generated]))
    assert result.kept == [own, wide]
    assert rows(result) == [(None, str(C)), ((8, 10), str(A)), ((9, 9), str(C))]
    assert (result.problems, len(result.regrets), result.range_rows, result.exact_rows) == (3, 2, 1, 0)


def test_rows_with_a_note_replace_built_ones(some_file: Path) -> None:
    """A person's row stands in for a built one that covers the same, also if only the former says that b is 1."""
    own = Entry("mm", "float16", "nn", 16, (1, 1), (9, 9), (8, 8), (8, 8), (Candidate(C),), None, "mine")
    result = build([dataset(some_file, [record(9, {A: 100.0})])], previous=Table(H200, [own]))
    assert result.table.entries == (own,)


def test_provenance_comes_from_the_headers(tmp_path: Path) -> None:
    """Versions that differ are all named, the date is the latest, files are named by their digests."""
    one = stored(tmp_path / "one", [record(8, {A: 100.0})])
    two = stored(
        tmp_path / "two", [record(9, {A: 100.0})], HEADER._replace(torch="2.11.0", cuda="", measured_on="2026-12-01")
    )
    table = build([one, two]).table
    assert table.hardware == H200
    assert table.provenance == {
        "torch": "2.11.0, 2.13.0",
        "triton": "3.7.0",
        "cuda": "13.0",
        "driver": "580.1",
        "benchmarker": "a clock",
        "measured_on": "2026-12-01",
        "datasets": sorted(f"sha256:{each.digest}" for each in (one, two)),
        "diode_lut": __version__,
    }


def test_another_gpu_mixed_in_is_refused(some_file: Path) -> None:
    """Datasets of two kinds of hardware are an error that names both, and what they come from."""
    other = Hardware("NVIDIA H100", "sm_90", 132)
    datasets = [dataset(some_file, [record(8, {A: 1.0})]), dataset(Path("other"), [], HEADER._replace(hardware=other))]
    for given_order in (datasets, datasets[::-1]):
        with pytest.raises(DatasetError, match=f"{some_file}: NVIDIA H200 .* but other: NVIDIA H100 "):
            build(given_order)
    with pytest.raises(DatasetError, match=r"NVIDIA H200 .*, but the previous table: NVIDIA H100 "):
        build(datasets[:1], previous=Table(other, []))
    with pytest.raises(DatasetError, match=r"NVIDIA H200 .*, but the hardware asked for: NVIDIA H100 "):
        build(datasets[:1], hardware=other)


def test_aliases_of_the_previous_table_stay(some_file: Path) -> None:
    """The previous table's hardware, with its aliases, goes before the datasets', and the one given before all."""
    named = H200._replace(aliases=("h200-141gb",))
    datasets = [dataset(some_file, [record(8, {A: 1.0})])]
    assert build(datasets, previous=Table(named, [])).table.hardware == named
    renamed = Hardware("Big", "sm_90", 132, ("NVIDIA H200",))
    assert build(datasets, hardware=renamed, previous=Table(named, [])).table.hardware == renamed


def test_no_usable_timing_is_an_error(some_file: Path) -> None:
    """Datasets in which nothing succeeded, or no datasets at all, make no table."""
    for records, why in (([], "it holds none"), ([record(8, {A: None})], "failed, launch: 1")):
        with pytest.raises(DatasetError, match=rf"{some_file}: no usable timing \({why}\)"):
            build([dataset(some_file, records)])
    with pytest.raises(DatasetError, match="no dataset was given"):
        build([])


def test_padding_that_was_compared_is_said(tmp_path: Path) -> None:
    """A row whose best config pads nothing ends with the best one that does, however slow, where one was measured."""
    padded = Config.parse("aten pad8")
    times = {ATEN: 100.0, padded: 150.0, A._replace(template="triton_mm"): 300.0}
    (entry,) = build([stored(tmp_path / "d", [record(7, times, n=7)])]).table.entries
    assert entry.configs == (ATEN, padded)
    (entry,) = build([stored(tmp_path / "e", [record(7, {ATEN: 100.0, A: 90.0}, n=7)])]).table.entries
    assert entry.configs == (A,)
    (entry,) = build([stored(tmp_path / "f", [record(7, {ATEN: 100.0, padded: 40.0}, n=7)])]).table.entries
    assert entry.configs == (padded,)


def test_padding_is_said_where_each_problem_has_another_best_one(tmp_path: Path) -> None:
    """Of a range whose problems were timed with different padded configs, the one that was timed at most is named."""
    often, once = Config.parse("aten pad8"), A.padded(8)
    times = {ATEN: 100.0, A: 50.0}
    records = [record(m, {**times, often if m < 9 else once: 200.0 if m < 9 else 110.0}, n=7) for m in (7, 8, 9)]
    (entry,) = build([stored(tmp_path / "d", records)]).table.entries
    assert [(each.config, each.gain_permille) for each in entry.candidates] == [(A, 2000), (often, 500)]
    records = [record(m, {**times, **({often: 200.0} if m < 9 else {})}, n=7) for m in (7, 8, 9)]
    (entry,) = build([stored(tmp_path / "e", records)]).table.entries
    assert entry.configs == (A,)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("m", "found"), [(7, (B, 80.0)), (16, (A, 60.0))])
def test_kernels_that_changed_count_as_they_were_timed_since(
    tmp_path: Path, order: int, m: int, found: tuple[Config, float]
) -> None:
    """Of kernels that mask rows, older times do not count if the problem was timed again, in any file."""
    unmasked = Config("triton_mm", (16, 64, 256, 8, 3, 4))
    old = [record(size, {ATEN: 100.0, A: 50.0, B: 80.0, unmasked: 85.0}) for size in (m, 500)]
    new = [record(m, {ATEN: 100.0, A: 90.0 if m % 16 else 70.0})]
    before = stored(tmp_path / "old", old, HEADER._replace(benchmarker="diode_lut sweep 1"))
    datasets = [before, stored(tmp_path / "new", new, HEADER._replace(benchmarker=SWEEP))][::order]
    again, once = (build(datasets).table.lookup(each.problem) for each in old)
    best, ns = found
    assert again is not None
    assert again.best == Candidate(best, round(100_000 / ns))
    assert (unmasked in again.configs) == (best == B)  # 85 is near 80, but not near 60
    assert once is not None
    assert once.best.config == A


def test_rows_of_constant_sizes_end_with_a_config_for_others(tmp_path: Path) -> None:
    """A row whose configs are all for few rows, which need constant sizes, ends with the best of the others."""
    few, other, slow = (
        Config.parse(f"triton_{each}")
        for each in ("few_rows 2x512 s4 w4", "mm 16x32x64 g8 s3 w4", "mm 16x16x64 g8 s3 w4")
    )
    times = {ATEN: 100.0, few: 50.0, slow: 95.0, other: 90.0}
    (entry,) = build([stored(tmp_path / "d", [record(1, times, n=7)])]).table.entries
    assert [(each.config, each.gain_permille) for each in entry.candidates] == [(few, 2000), (other, 1111)]
    (entry,) = build([stored(tmp_path / "e", [record(1, {**times, ATEN: 80.0}, n=7)])]).table.entries
    assert entry.configs == (few, ATEN)
    (entry,) = build([stored(tmp_path / "f", [record(1, {ATEN: 100.0, few: 50.0, other: 50.5}, n=7)])]).table.entries
    assert entry.configs == (few, other)


def test_what_is_combined_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More problems or timings than fit in memory are an error as soon as they are read."""
    records = [Record(Problem.of("mm", m, 8, 8, dtype="float16", layout="nn"), (Timing(ATEN, 9.0),)) for m in (1, 2, 3)]
    for each in records:
        Columns(3).add(each)
    columns = Columns(2)
    columns.add(records[0])
    columns.add(records[1])
    columns.add(records[0])
    with pytest.raises(DatasetError, match="more than 2 problems: leave out datasets, or divide them"):
        columns.add(records[2])
    monkeypatch.setattr(measurements, "MAX_TIMINGS", 2)
    columns = Columns()
    for each in records:
        columns.add(each)
    with pytest.raises(DatasetError, match="more than 2 timings: leave out datasets, or divide them"):
        columns.add(records[0])
