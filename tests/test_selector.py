"""The selector: tiers, decisions, what they say, and the digest."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.decide.decide import Sources, Tier, decide
from diode_lut.decide.sources import ABSTAIN, ModelSource, TableSource
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.settings import TIERS
from diode_lut.table import Candidate, Entry, Table, read_table
from diode_lut.templates.config import ATEN, Config
from tests.model import small

H200 = Hardware("NVIDIA H200", "sm_90", 132)
FAST = Config("triton_mm", (128, 128, 64, 8, 4, 8))
CPP = Config("cpp_gemm")
MM = Problem("mm", "float16", "nn", 16, 1, 64, 64, 64)


def entry(op: str | None = "mm", m: tuple[int, int] | None = None, config: Config = FAST) -> Entry:
    return Entry(op, None, None, None, None, m, None, None, (Candidate(config),))


def table(*entries: Entry) -> Table:
    return Table(H200, entries)


def selector(
    user: tuple[Table, ...] = (), device: tuple[Table, ...] = (), same_arch: tuple[Table, ...] = ()
) -> Sources:
    return Sources(H200, (tier("user", user, "none"), tier("device", device), tier("same_arch", same_arch)))


def tier(name: str, tables: Iterable[Table], *left_out: str) -> Tier:
    return Tier(name, tuple(map(TableSource, tables)), left_out)


sizes = st.integers(1, 4)
ranges = st.none() | st.tuples(sizes, sizes).map(lambda pair: (min(pair), max(pair)))
problems = st.builds(
    Problem, st.sampled_from(["mm", "addmm"]), st.just("float16"), st.just("nn"), st.just(16), st.just(1), sizes, sizes,
    st.just(1),
)  # fmt: skip
entries = st.builds(
    lambda op, m, n, config: Entry(op, None, None, None, None, m, n, None, (Candidate(config),)),
    st.none() | st.sampled_from(["mm", "addmm"]),
    ranges,
    ranges,
    st.sampled_from([ATEN, FAST, CPP]),
)
tables = st.lists(entries, max_size=4).map(lambda rows: table(*rows))
tiers = st.tuples(*(st.builds(tier, st.just(name), st.lists(tables, max_size=2)) for name in TIERS))


@given(tiers=tiers, problem=problems)
def test_first_table_of_the_strongest_tier_answers(tiers: tuple[Tier, ...], problem: Problem) -> None:
    """The answer is that of the first table, tier by tier, which covers the problem at all; else there is none."""
    expected = next(
        (
            (tier.name, source.covering(problem)[0])
            for tier in tiers
            for source in tier.sources
            if source.covering(problem)
        ),
        (ABSTAIN, None),
    )
    decision = decide(Sources(H200, tiers), problem).decision
    assert (decision.tier, decision.entry) == expected
    assert decision.configs == (() if decision.entry is None else decision.entry.configs)


def test_decision() -> None:
    """A decision says what was asked, for which hardware, and which row of which table answered."""
    row = entry()
    mine = table(row)
    decision = decide(selector(user=(mine,)), MM).decision
    assert decision[:4] == (MM, H200, "user", (FAST,))
    assert decision.entry is row
    assert decision.source is not None
    assert decision.source.digest == mine.digest


@pytest.mark.parametrize(
    ("gain", "expected", "taken"),
    [(2000, 1.25, 0.8), (2000, 4.0, 0.5), (2000, 0.5, 1.0), (800, 2.0, 1.25)],
    ids=["the model expects less", "more", "a loss", "the row has a loss"],
)
@pytest.mark.parametrize("exact", [False, True])
def test_the_gain_of_a_row_for_ranges_is_an_average(gain: int, expected: float, taken: float, exact: bool) -> None:
    """A smaller gain that a model expects of a problem counts instead; that of a row for this problem alone counts."""
    kind, point = (small.MM.op, small.MM.dtype, small.MM.layout, small.MM.align), (1024, 1024)
    sizes = ((1, 1), point, point, point) if exact else (None, None, point, point)
    row = Entry(*kind, *sizes, (Candidate(small.LARGE, gain),), epilogue="none")
    knows = ModelSource(small.model(advantage=math.log(expected)), H200)
    asked = Sources(H200, [tier("user", [table(row)]), Tier("model", (knows,))])
    _, times = asked.times(small.MM, padding=False)
    assert times[small.LARGE] == pytest.approx(1000 / gain if exact else taken, rel=1e-3)


@pytest.mark.parametrize("named", [Candidate(small.SMALL, 1250), Candidate(ATEN)], ids=["a kernel", "the library"])
def test_a_row_outweighs_what_a_model_expects_of_others(named: Candidate) -> None:
    """A config that the row does not name counts as slower than those that it names, whatever a model expects."""
    knows = ModelSource(small.model(advantage=2.0), H200)
    row = entry()._replace(candidates=(named,))
    asked = Sources(H200, [tier("user", [table(row)]), Tier("model", (knows,))])
    _, times = asked.times(small.MM, padding=False)
    assert len(times) > 2
    assert all(
        time > 1.01 * times[named.config] for config, time in times.items() if config not in (named.config, ATEN)
    )


def test_steps_end_at_the_tier_that_answers() -> None:
    """Every table asked before leaves a step, tables behind the answer leave none."""
    decision = decide(
        selector(user=(table(entry("bmm")),), device=(table(entry()),), same_arch=(table(entry()),)), MM
    ).decision
    assert decision.steps == (
        "user: none",
        "user: table for NVIDIA H200: no entry for op=mm",
        "device: table for NVIDIA H200 answers",
    )


def test_abstaining_lists_all_steps() -> None:
    """Without an answer there are no configs, and the steps end with who decides instead."""
    decision = decide(selector(device=(table(),), same_arch=(table(),)), MM).decision
    assert (decision.tier, decision.configs, decision.where) == (ABSTAIN, (), "")
    assert [step.partition(":")[0] for step in decision.steps] == ["user", "device", "same_arch", ABSTAIN]


def test_step_names_the_first_field_that_no_entry_has() -> None:
    """A step names the fields up to the one that rules out the last entry; if it is the sizes, it says so."""
    float32 = Entry("mm", "float32", "nt", 2, None, None, None, None, (Candidate(ATEN),))
    small = Entry("mm", "float16", None, None, None, (1, 8), None, None, (Candidate(ATEN),))
    only_float32, both = selector(device=(table(float32),)), selector(device=(table(float32, small),))
    assert decide(only_float32, MM).decision.steps[1].endswith(": no entry for op=mm dtype=float16")
    assert (
        decide(only_float32, MM._replace(dtype="float32", layout="nt"))
        .decision.steps[1]
        .endswith(": no entry for op=mm dtype=float32 layout=nt align=16")
    )
    assert (
        decide(both, MM)
        .decision.steps[1]
        .endswith(": no entry covers b=1 m=64 n=64 k=64, out of 1 for op=mm dtype=float16 layout=nn align=16")
    )


def test_explain_names_file_line_configs_and_gains(table_file: Callable[..., Path]) -> None:
    """For people: the row with its line, its configs with their gains, and its note."""
    aten = {"template": "aten"}
    path = table_file(
        "mine.json",
        {"op": "mm", "m": [64, 64], "configs": [{**FAST.to_json(), "gain_permille": 1063}, aten], "note": "by hand"},
        {"op": "mm", "configs": [aten]},
    )
    lines = path.read_text().splitlines()
    first = next(number for number, line in enumerate(lines, start=1) if line.startswith('{"op"'))
    decision = decide(selector(device=(read_table(path),)), MM).decision
    assert decision.where == f"{path}:{first}"
    assert decision.explain().splitlines() == [
        "mm 64x64x64 float16 nn align 16 on NVIDIA H200 (sm_90, 132 SMs)",
        "  user: none",
        f"  device: {path}:{first} answers (by hand)",
        "    triton_mm 128x128x64 g8 s4 w8 (1.063 times as fast as aten)",
        "    aten",
    ]


def test_files_below_the_working_directory_are_named_relative_to_it(
    table_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table in the directory where one works is called as one would type it."""
    path = table_file("mine.json", {"configs": [{"template": "aten"}]})
    monkeypatch.chdir(path.parent)
    assert decide(selector(user=(read_table(path),)), MM).decision.where.startswith("mine.json:")


def test_digest_depends_on_rows_order_and_tier() -> None:
    """The digest changes with a row, with the order of tables and with their tier, and with nothing else."""
    one, other = table(entry()), table(entry(config=CPP))
    selectors = [
        selector(),
        selector(user=(one,)),
        selector(user=(other,)),
        selector(device=(one,)),
        selector(user=(one, other)),
        selector(user=(other, one)),
        selector(user=(one,), device=(other,)),
    ]
    assert len({each.digest for each in selectors}) == len(selectors)
    assert selector(user=(table(entry()),)).digest == selector(user=(one,)).digest


def test_digest_ignores_why_tables_were_left_out() -> None:
    """Tables that cannot answer have no part in the digest."""
    plain, remark = Tier("user", (), ()), Tier("user", (), ("other.json: it is for another GPU",))
    assert Sources(H200, (plain,)).digest == Sources(H200, (remark,)).digest
