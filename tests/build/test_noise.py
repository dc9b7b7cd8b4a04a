"""Building from times on a CPU, which other processes disturb."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from diode_lut.build import build
from diode_lut.build.measurements import doubt
from diode_lut.dataset import DatasetWriter, Header, Record, Timing, read_dataset
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, DEFAULT, Config
from tests.commands import call

CPU, H200 = Hardware("A CPU", "cpu-avx512", 2), Hardware("NVIDIA H200", "sm_90", 132)
CPP = Config("cpp_gemm")
QUIET_ATEN, QUIET_CPP = (120, 121, 121, 122, 125), (100, 101, 101, 102, 9000)  # one was interrupted
LOUD_ATEN, LOUD_CPP = (110, 125, 130, 180, 400), (100, 115, 120, 170, 900)


def record(m: int, aten: Sequence[float], cpp: Sequence[float]) -> Record:
    """The times in nanoseconds of both kernels on the problem with M of ``m``."""
    timings = [Timing(config, float(ns)) for config, times in ((ATEN, aten), (CPP, cpp)) for ns in times]
    return Record(Problem.of("mm", m, 64, 64, dtype="float32", layout="nt"), tuple(timings))


def dataset(path: Path, *records: Record, hardware: Hardware = CPU) -> Path:
    with DatasetWriter(path, Header(hardware)) as writer:
        for each in records:
            writer.append(each)
    return path


def first_configs(path: Path) -> dict[int, Config]:
    """What the table built from the dataset says for the problems that it has a row for, by M."""
    table = build([read_dataset(path)]).table
    problems = [record.problem for record in read_dataset(path)]
    return {problem.m: entry.configs[0] for problem in problems if (entry := table.lookup(problem)) is not None}


def test_clear_gain_is_taken(tmp_path: Path) -> None:
    """A kernel that is faster in three quarters of its times answers, whatever became of the others."""
    assert first_configs(dataset(tmp_path / "d", record(8, QUIET_ATEN, QUIET_CPP))) == {8: CPP}


def test_gain_that_is_noise_is_not_taken(tmp_path: Path) -> None:
    """Where the times of a faster kernel overlap those of aten, the row says aten, and the summary how many do."""
    records = [record(8, LOUD_ATEN, LOUD_CPP), record(16, QUIET_ATEN, QUIET_CPP), record(32, QUIET_CPP, QUIET_ATEN)]
    path = dataset(tmp_path / "d.msgpack", *records)
    assert first_configs(path) == {8: ATEN, 16: CPP, 32: ATEN}
    built = call("build", path, "-o", tmp_path / "t.json")
    assert "  too noisy to decide: 1 of 3 problems, whose rows say aten" in built.stdout.splitlines()


def test_table_of_noise_is_not_built(tmp_path: Path) -> None:
    """Where most gains are noise, there is no table, and the error says of how many problems and what to do."""
    records = [record(m, LOUD_ATEN, LOUD_CPP) for m in (8, 16, 32)]
    records += [record(m, QUIET_ATEN, QUIET_CPP) for m in (64, 128)]
    path = dataset(tmp_path / "d.msgpack", *records)
    built = call("build", path, "-o", tmp_path / "t.json")
    assert built.exit_code == 1
    assert built.stderr.startswith(
        "error: too noisy to decide: 3 of 5 problems (times of the same kernel are up to 7.5"
    )
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("times", [1, 5])
def test_implausible_gain_is_refused(times: int, tmp_path: Path) -> None:
    """A gain of 172 is no gain: the row says aten, and the summary has the reason."""
    wrong = record(8, [17200.0] * times, [100.0] * times)
    path = dataset(tmp_path / "d.msgpack", wrong, record(16, [120.0], [100.0]))
    assert first_configs(path) == {8: ATEN, 16: CPP}
    reason = f"{wrong.problem}: cpp_gemm would be 172 times as fast as aten"
    built = call("build", path, "-o", tmp_path / "t.json")
    assert f"  implausible, so the row says aten: {reason}" in built.stdout.splitlines()


def test_times_of_a_gpu_are_not_judged(tmp_path: Path) -> None:
    """On a GPU nothing else runs, and times are taken as they are."""
    path = dataset(tmp_path / "d", record(8, LOUD_ATEN, LOUD_CPP), hardware=H200)
    assert first_configs(path) == {8: CPP}


BUSY = (28e6, 30e6, 30e6, 31e6, 33e6, 35e6, 90e6)  # nanoseconds of a GEMM of 10 us that never had the CPU to itself
UNSTEADY = (1e4, 1e4, 2e4, 3e4, 5e4, 6e4, 9e4)


@pytest.mark.parametrize(
    ("aten", "cpp", "reason"),
    [
        (BUSY, QUIET_CPP, "aten took 31.0 ms, where 0.00"),
        (BUSY, tuple(ns / 2 for ns in BUSY), "aten took 31.0 ms, where 0.00"),
        (UNSTEADY, QUIET_CPP, "times of aten are from 0.01 to 0.09 ms"),
        (UNSTEADY, tuple(ns / 4 for ns in UNSTEADY), "times of aten are from 0.01 to 0.09 ms"),
        (QUIET_ATEN, UNSTEADY, ""),
        ((5.0, *QUIET_ATEN, 9e4), QUIET_CPP, ""),
    ],
)
def test_times_that_cannot_be_true_are_not_believed(
    aten: Sequence[float], cpp: Sequence[float], reason: str, tmp_path: Path
) -> None:
    """Times far above what the device could do, or spread over five times, leave the GEMM without a row."""
    busy = record(8, aten, cpp)
    assert doubt(busy, CPU).startswith(reason)
    assert bool(doubt(busy, CPU)) == bool(reason)
    path = dataset(tmp_path / "d.msgpack", busy, record(16, QUIET_ATEN, QUIET_CPP))
    assert (8 in first_configs(path)) == (not reason)
    if reason:
        built = call("build", path, "-o", tmp_path / "t.json").stdout
        assert f"  left out, because these cannot be its times: {busy.problem}: {reason}" in built
        assert "measure while nothing else runs" in built


def test_a_gemm_that_is_measured_again_is_believed(tmp_path: Path) -> None:
    """Only the record with such times is left out, not the problem."""
    path = dataset(tmp_path / "d.msgpack", record(8, BUSY, QUIET_CPP), record(8, QUIET_ATEN, QUIET_CPP))
    assert first_configs(path) == {8: CPP}


def test_nothing_that_can_be_believed_is_an_error(tmp_path: Path) -> None:
    """Without any other record there is no table, and the error says why."""
    path = dataset(tmp_path / "d.msgpack", record(8, BUSY, QUIET_CPP))
    built = call("build", path, "-o", tmp_path / "t.json")
    assert built.exit_code == 1
    assert f"no usable timing ({record(8, BUSY, QUIET_CPP).problem}: aten took 31.0 ms" in built.stderr


def test_attention_may_take_long() -> None:
    """Inductor's default for attention takes up to 2,000 times the least possible time, and is believed."""
    problem = Problem.of(
        "flex_decoding", 16, 32768, 192, dtype="bfloat16", layout="nt", b=1, h=32, g=4, variant="full", align=16
    )
    assert doubt(Record(problem, (Timing(DEFAULT, 77756737.0),)), H200) == ""
