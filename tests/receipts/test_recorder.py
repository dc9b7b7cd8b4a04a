"""What goes into the receipt of a process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from diode_lut.decide.decide import Sources, Tier, decide
from diode_lut.decide.sources import ModelSource, TableSource
from diode_lut.problem import Problem
from diode_lut.receipts import Device, Hit, Left, Miss, Skip, SourceRecord, recorder
from diode_lut.table import Candidate, Entry, Table
from diode_lut.templates.config import ATEN, Config
from tests.model.small import H200, MM, SMALL, model

MISSED = MM._replace(op="baddbmm", b=2)
ROW = Entry("mm", "float16", None, None, None, (1, 2**20), None, None, (Candidate(SMALL), Candidate(ATEN)))
TABLE = Table(H200, [ROW])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing was asked before, and nothing is left behind."""
    recorder._devices.clear()
    recorder._present.clear()
    recorder._asked.clear()
    yield
    recorder._devices.clear()
    recorder._present.clear()
    recorder._asked.clear()


def selector(confidence: float = 0.0) -> Sources:
    return Sources(
        H200,
        [
            Tier("user", (TableSource(TABLE),), ("left out: bad",)),
            Tier("model", (ModelSource(model(confidence=confidence), H200),)),
        ],
    )


def device() -> Device:
    (found,) = recorder.own_receipt().devices.values()
    return found


def test_hits_have_the_row() -> None:
    """An answer that Inductor got is a hit, with tier, digest of the table, the row's key and the configs."""
    decision = decide(selector(), MM._replace(dtype="float16")).decision
    for _ in range(3):
        recorder.served(decision, (SMALL,))
    hit = Hit(decision.problem, "user", TABLE.digest, "mm float16 m 1-1048576", (str(SMALL),))
    assert (device().hits, device().misses) == ({hit: 3}, {})


def test_a_model_has_no_row() -> None:
    """What a model answered names its file's digest alone."""
    decision = decide(selector(0.99), MM._replace(dtype="bfloat16")).decision
    recorder.served(decision, decision.configs[:2])
    (hit,) = device().hits
    assert (hit.tier, hit.digest, hit.row, len(hit.configs)) == ("model", "", "", 2)


def test_misses_have_what_the_model_expects() -> None:
    """Abstentions, and answers of which nothing could run, are misses; some with what a model expects of them."""
    unsure = decide(selector(), MM._replace(dtype="bfloat16")).decision
    assert unsure.expected_time is not None
    unknown = decide(selector(), MISSED).decision
    answered = decide(selector(), MM._replace(dtype="float16")).decision
    for decision in (unsure, unknown, answered):
        recorder.served(decision, ())
    assert device().misses == dict.fromkeys(map(Miss, (unsure.problem, MISSED, answered.problem)), 1)
    permille = int(1000 / unsure.expected_time)
    assert device().expected_permille == {unsure.problem: permille}


def test_skipped_configs_have_their_reason() -> None:
    """A config that could not run is noted for the problem, with its row."""
    decision = decide(selector(), MM._replace(dtype="float16")).decision
    recorder.skipped(decision, Config("decompose_k", (4,)), "no K")
    skip = Skip(decision.problem, "user", TABLE.digest, "mm float16 m 1-1048576", "decompose_k 4", "no K")
    assert device().skipped == {skip: 1}


def test_sources_are_those_of_this_machine() -> None:
    """Tables and reasons against others are noted, once the machine turns out to have the hardware."""
    recorder.sources_seen(selector())
    assert recorder.own_receipt().devices == {}
    recorder.devices_seen([H200])
    assert list(device().sources) == [
        SourceRecord("user", "table for NVIDIA H200", TABLE.digest, 1),
        SourceRecord("model", "model for NVIDIA H200", "", 0),
    ]
    assert list(device().left_out) == ["user: left out: bad"]
    assert device().calls == 0


def test_file_names_need_not_be_text() -> None:
    """A path that JSON cannot say is written as far as it can be."""
    recorder.devices_seen([H200])
    recorder.sources_seen(Sources(H200, [Tier("user", (), ("left out: \udcff.json",))]))
    assert list(device().left_out) == ["user: left out: ?.json"]


def test_threads_lose_nothing() -> None:
    """Calls from many threads add up, while others take the receipt."""
    problems = [MISSED._replace(m=m) for m in range(1, 9)]
    decisions = [decide(selector(), problem).decision for problem in problems]
    with ThreadPoolExecutor(8) as pool:
        for number in range(4000):
            pool.submit(recorder.served, decisions[number % 8], ())
            if number % 100 == 0:
                pool.submit(recorder.own_receipt)
    assert device().misses == dict.fromkeys(map(Miss, problems), 500)


def test_a_receipt_does_not_change_any_more() -> None:
    """What was handed out stays as it was."""
    decision = decide(selector(), MISSED).decision
    recorder.served(decision, ())
    before = device()
    recorder.served(decision, ())
    assert (before.misses[Miss(MISSED)], device().misses[Miss(MISSED)]) == (1, 2)


def test_problem_json_is_what_collect_takes() -> None:
    """The fields are those of a problem file."""
    assert Problem.of("bmm", 2, 3, 4, b=5, dtype="float32", layout="nt").to_json() == {
        "op": "bmm",
        "dtype": "float32",
        "layout": "nt",
        "align": 16,
        "B": 5,
        "M": 2,
        "N": 3,
        "K": 4,
    }


def test_what_is_not_fused_is_told_again() -> None:
    """Why nothing was fused after a matmul is noted, collected, and told again where the graph comes from a cache."""
    with recorder.collecting() as collected:
        recorder.unfused(MM, H200, "the epilogue reduces")
    recorder.told(collected.counts, collected.devices, cached=True)
    assert device().unfused == {Left(MM, "the epilogue reduces"): 2}


def test_generated_kernels_of_a_failed_graph_are_noted() -> None:
    """Generated kernels are noted at the end of collecting, also after an error."""
    decision = decide(selector(), MM).decision
    with suppress(ZeroDivisionError), recorder.collecting() as collected:
        recorder.generated(decision, SMALL)
        raise ZeroDivisionError
    assert [*device().generated.values()] == [*collected.devices[H200].generated.values()] == [1]
