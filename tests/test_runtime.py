"""The answers of this process, on its own hardware where torch is needed, else on hardware given by name."""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import diode_lut
from diode_lut.decide.catalog import forget_tables
from diode_lut.errors import HardwareError, SettingError, TableError
from diode_lut.hardware import Hardware, detect_hardware
from diode_lut.hook.snapshot import InductorSnapshot, skip
from diode_lut.model.weights import write_model
from diode_lut.problem import Problem
from diode_lut.process import code_digest
from diode_lut.templates.config import ATEN, Config
from tests.forks import Forks
from tests.model import small
from tests.steps import lines_run

ROW = {"configs": [{"template": "aten"}]}
MM = Problem.of("mm", 64, 64, 64, dtype="float16", layout="nn")
CPP = Config("cpp_gemm")

Write = Callable[..., Path]


pytestmark = pytest.mark.usefixtures("no_tables")


@pytest.fixture
def cpu() -> Hardware:
    return detect_hardware("cpu")


def test_select_by_name(table_file: Write) -> None:
    """Hardware may be named; then the answer is the same on any machine."""
    diode_lut.register_table(str(table_file("mine.json", ROW)))
    decision = diode_lut.select(MM, hardware="NVIDIA H200")
    assert (decision.tier, decision.configs, decision.hardware.arch) == ("user", (ATEN,), "sm_90")
    assert decision == diode_lut.select(MM, hardware="mine")
    assert decision == diode_lut.select(MM, hardware=Hardware("H200 of mine", "sm_90", 132))._replace(
        hardware=decision.hardware
    )
    with pytest.raises(HardwareError, match="h300"):
        diode_lut.select(MM, hardware="h300")


def test_a_name_costs_no_files(table_file: Write) -> None:
    """Once a name was asked for, it takes hardly more steps than the Hardware; another setting is noticed."""
    path = table_file("mine.json", ROW)
    with diode_lut.config.patch(tables=(path,)):
        named, hardware = partial(diode_lut.select, MM, hardware="mine"), diode_lut.select(MM, hardware="mine").hardware
        assert lines_run(named) <= lines_run(partial(diode_lut.select, MM, hardware=hardware)) + 5
    with pytest.raises(HardwareError):
        named()


def test_explain_prints_the_decision(table_file: Write) -> None:
    """What ``explain`` says begins with what ``select`` decides."""
    diode_lut.register_table(str(table_file("mine.json", ROW)))
    assert diode_lut.explain(MM, hardware="mine").startswith(diode_lut.select(MM, hardware="mine").explain() + "\n")


def test_first_users_table_wins(table_file: Write) -> None:
    """Tables in the settings come before those that are registered later."""
    first = table_file("first.json", ROW)
    second = table_file("second.json", {"configs": [{"template": "cpp_gemm"}]})
    diode_lut.config.tables = (str(first),)
    diode_lut.register_table(str(second))
    assert diode_lut.select(MM, hardware="first").configs == (ATEN,)
    diode_lut.config.tables = (str(second), str(first))
    assert diode_lut.select(MM, hardware="first").configs == (CPP,)
    assert [file.name for file in diode_lut.list_available_tables()] == ["second", "first"]


def test_settings_take_effect_at_once(table_file: Write) -> None:
    """A table that is patched in answers within the block and no longer."""
    path = table_file("mine.json", ROW)
    hardware = Hardware("NVIDIA H200", "sm_90", 132)
    with diode_lut.config.patch(tables=(path,)):
        assert diode_lut.select(MM, hardware=hardware).tier == "user"
    assert diode_lut.select(MM, hardware=hardware).tier == "abstain"


def test_register_rejects_what_cannot_be_used(tmp_path: Path) -> None:
    """A file that is missing or no table is an error at once, and is not registered."""
    (tmp_path / "empty.json").touch()
    for name in ("empty.json", "missing.json"):
        with pytest.raises(TableError, match=name):
            diode_lut.register_table(str(tmp_path / name))
    assert diode_lut.config.tables == ()


def test_register_in_another_directory(table_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the file that it was registered for, wherever the process goes."""
    table_file("here/mine.json", ROW)
    monkeypatch.chdir(tmp_path / "here")
    diode_lut.register_table("mine.json")
    monkeypatch.chdir(tmp_path)
    assert diode_lut.select(MM, hardware=Hardware("NVIDIA H200", "sm_90", 132)).tier == "user"


def test_register_again(table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered, or named by the settings, already is neither listed nor asked twice, and keeps its place."""
    first, second = table_file("first.json", ROW), table_file("second.json", ROW)
    monkeypatch.chdir(first.parent)
    diode_lut.config.tables = ("first.json",)
    for name in ("second.json", "first.json", str(second), "second.json"):
        diode_lut.register_table(name)
    assert diode_lut.config.tables == (str(first), str(second))


def test_register_by_name(table_file: Write) -> None:
    """A shipped table can be registered by its name."""
    path = table_file("tables/nvidia-h200.json", ROW)
    diode_lut.register_table("nvidia-h200")
    assert diode_lut.config.tables == (str(path),)


def test_decide_counts(cpu: Hardware, table_file: Write) -> None:
    """The hook's decisions are those for its device, and they are counted by tier."""
    mm_only = {"op": "mm", **ROW}
    diode_lut.register_table(str(table_file("cpu.json", mm_only, hardware=cpu._asdict())))
    with diode_lut.profile_predictions() as counts:
        assert InductorSnapshot().decide(MM, "cpu", padding=False).configs == (ATEN,)
        assert InductorSnapshot().decide(MM._replace(op="addmm"), "cpu", padding=False).configs == ()
    assert (counts.total_predictions, counts.hits["user"], counts.fallbacks) == (2, 1, 1)
    assert counts.seconds > 0


def test_select_is_not_counted(table_file: Write) -> None:
    """Asking by hand does not change the statistics of what was compiled."""
    with diode_lut.profile_predictions() as counts:
        diode_lut.select(MM, hardware=Hardware("NVIDIA H200", "sm_90", 132))
    assert counts.total_predictions == 0


def test_skipped_config_warns_once(cpu: Hardware, table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """Each config that cannot run is counted, and named once with file and line, whatever the problem."""
    path = table_file("cpu.json", ROW, hardware=cpu._asdict())
    diode_lut.register_table(str(path))
    with diode_lut.profile_predictions() as counts:
        for m in (64, 128):
            decision = InductorSnapshot().decide(MM._replace(m=m), "cpu", padding=False)
            skip(decision, ATEN, "no library")
    assert counts.skipped_configs == 2
    assert caplog.messages == [
        f"{decision.where}: aten cannot run {MM} here: no library; the next config is taken, if there is one"
    ]
    assert decision.where.startswith(f"{path}:")


def test_cache_identity_follows_what_can_answer(cpu: Hardware, table_file: Write) -> None:
    """It changes with a setting and with a table for this machine, and not with a table for another."""
    plain = InductorSnapshot().identity
    other = table_file("h200.json", ROW)
    mine = table_file("cpu.json", ROW, hardware=cpu._asdict())
    edited = table_file("edited.json", {"op": "mm", **ROW}, hardware=cpu._asdict())
    identities = {plain}
    for values in (
        {"policy": "verify"},
        {"top_k": 2},
        {"default_mode": False},
        {"fallback_to_autotune": False},
        {"confidence_threshold": 0.5},
        {"min_gain": 0.05},
        {"pad": False},
        {"gain_threshold": 0.5},
        {"epilogues": False},
        {"tables": (mine,)},
        {"tables": (edited,)},
    ):
        with diode_lut.config.patch(**values):
            identities.add(InductorSnapshot().identity)
    assert len(identities) == 12
    with diode_lut.config.patch(tables=(other,)):
        assert InductorSnapshot().identity == plain
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_cache_identity_follows_the_code(cpu: Hardware) -> None:
    """What code of diode_lut made in an earlier state, of the same version, is not served."""
    assert code_digest() in InductorSnapshot().identity


def test_cache_identity_follows_the_tiers(cpu: Hardware, table_file: Write) -> None:
    """To switch off a tier that could answer changes it; to switch off one that has nothing to say does not."""
    mine = table_file("cpu.json", ROW, hardware=cpu._asdict())
    without_tables = InductorSnapshot().identity
    with diode_lut.config.patch(tables=(mine,)):
        with_table = InductorSnapshot().identity
        for tiers, identity in (("user", "same_arch"), with_table), (("device", "model"), without_tables):
            with diode_lut.config.patch(tiers=tiers):
                assert InductorSnapshot().identity == identity
                assert diode_lut.select(MM, hardware=cpu).tier == ("user" if "user" in tiers else "abstain")
    assert with_table != without_tables


def test_cache_identity_follows_the_threads_by_which_models_rank(table_file: Write, tmp_path: Path) -> None:
    """On a CPU, it changes with the number of PyTorch's threads where a model is asked, and only there."""
    model = tmp_path / "mine.safetensors"
    write_model(small.model(), model)
    threads = torch.get_num_threads()
    identities = set()
    try:
        for tables in ((), (str(model),)):
            with diode_lut.config.patch(tables=tables):
                for number in (1, 2):
                    torch.set_num_threads(number)
                    identities.add(InductorSnapshot().identity)
    finally:
        torch.set_num_threads(threads)
    assert len(identities) == 3


def test_cache_identity_follows_the_places_of_unlike_gpus(table_file: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of GPUs does not matter if the same tables are for all of them; else their order counts."""
    kinds = {name: SimpleNamespace(name=name, major=9, minor=0, multi_processor_count=132) for name in ("a", "b")}
    kinds["b"].multi_processor_count = 66
    fields = {"name": "a", "arch": "sm_90", "sm_count": 132}
    table = table_file("a.json", ROW, hardware=fields)

    def identity(machine: str) -> object:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(machine))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: kinds[machine[device.index]])
        with diode_lut.config.patch(tables=(table,)):
            return InductorSnapshot().identity

    assert identity("a") == identity("aa") != identity("b")
    assert len(set(map(identity, ("aab", "abb", "ba", "a")))) == 4


def test_a_snapshot_stays_as_it_is(cpu: Hardware, table_file: Write) -> None:
    """Neither settings that change nor a table that is replaced reach a snapshot which has been asked before."""
    path = table_file("cpu.json", ROW, hardware=cpu._asdict())
    with diode_lut.config.patch(tables=(path,)):
        snapshot = InductorSnapshot()
        identity, threads = snapshot.identity, torch.get_num_threads()
    table_file("cpu.json", {"configs": [CPP.to_json()]}, hardware=cpu._asdict())
    forget_tables()
    try:
        torch.set_num_threads(threads + 1)
        assert (snapshot.identity, snapshot.decide(MM, "cpu", padding=False).configs) == (identity, (ATEN,))
    finally:
        torch.set_num_threads(threads)


def test_cache_identity_does_not_depend_on_where_the_table_lies(cpu: Hardware, table_file: Write) -> None:
    """The same rows give the same identity, in whatever directory and under whatever name."""
    identities = set()
    for name in ("one/cpu.json", "two/other.json"):
        with diode_lut.config.patch(tables=(table_file(name, ROW, hardware=cpu._asdict()),)):
            identities.add(InductorSnapshot().identity)
    assert len(identities) == 1


def test_first_use_says_what_is_used(table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """One line at level info names the hardware, the tables and how many rows they have."""
    path = table_file("mine.json", ROW, {"op": "mm", **ROW})
    with caplog.at_level(logging.INFO, "diode_lut"), diode_lut.config.patch(tables=(path,)):
        for _ in range(2):
            diode_lut.select(MM, hardware="mine")
    assert caplog.messages == [f"NVIDIA H200 (sm_90, 132 SMs): user: {path} (2 rows for NVIDIA H200)"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_tables_are_read_reads_them_itself() -> None:
    """The thread that was reading, and held the lock, is not in the child; nothing waits for it there."""
    program = Path(__file__).parent / "programs" / "fork_while_reading.py"
    environment = {**os.environ, "PYTHONPATH": str(program.parents[2])}
    assert subprocess.run([sys.executable, str(program)], env=environment, check=False).returncode == 0


FORKED = """
import os, torch, diode_lut

def sees(expected):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(threads + 1)
        os._exit(diode_lut.get_detected_hardware().sm_count != expected)
    return os.waitpid(child, 0)[1] == 0

threads = torch.get_num_threads()
assert sees(threads + 1)
assert diode_lut.get_detected_hardware().sm_count == threads
assert sees(threads)
torch.set_num_threads(threads + 2)
assert diode_lut.get_detected_hardware().sm_count == threads + 2
assert sees(threads + 2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_process_answers_as_its_parent(after_torch: Forks) -> None:
    """A CPU has the threads with which the parent asked last, if it asked, however many a forked process sets."""
    done = after_torch.run("-c", FORKED)
    assert done.returncode == 0, done.stderr


def test_table_for_another_number_of_threads(
    table_file: Write, cpu: Hardware, caplog: pytest.LogCaptureFixture
) -> None:
    """A user's table for this CPU with other threads is one warning that says so, also where no cache is asked."""
    fields = {**cpu._replace(sm_count=cpu.sm_count + 1)._asdict(), "aliases": []}
    with diode_lut.config.patch(tables=(table_file("mine.json", ROW, hardware=fields),)):
        for _ in range(2):
            InductorSnapshot().decide(MM, "cpu", padding=True)
    (message,) = caplog.messages
    assert f"PyTorch has {cpu.sm_count} thread" in message
    assert f"the table is for OMP_NUM_THREADS={cpu.sm_count + 1}" in message


def test_threads_share_the_sources(table_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    """Tables are read once, even if many threads ask at the same time, and all get the same row."""
    rows = [{"m": [size, size], **ROW} for size in range(1, 2001)]
    with (
        caplog.at_level(logging.INFO, "diode_lut"),
        diode_lut.config.patch(tables=(table_file("mine.json", *rows),)),
        ThreadPoolExecutor(8) as pool,
    ):
        decisions = list(pool.map(lambda _: diode_lut.select(MM, hardware="mine"), range(64)))
    assert len({id(decision.entry) for decision in decisions}) == 1
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("level", ["debug", "INFO", logging.ERROR])
def test_log_level(level: str | int) -> None:
    """Levels go by logging's names in any case, or by its numbers."""
    logger = logging.getLogger("diode_lut")
    before = logger.level
    try:
        diode_lut.set_log_level(level)
        assert logger.level == (getattr(logging, level.upper()) if isinstance(level, str) else level)
    finally:
        logger.setLevel(before)


@pytest.mark.parametrize("level", ["loud", None, 1.5])
def test_wrong_log_level(level: object) -> None:
    """Anything else is an error that lists the levels."""
    with pytest.raises(SettingError, match=r"is not one of debug, info, warning, error, critical"):
        diode_lut.set_log_level(level)  # type: ignore[arg-type]
