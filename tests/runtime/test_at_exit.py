"""Which file a process leaves behind, in fresh processes that ask by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import diode_lut
from diode_lut.receipt.read import read_receipt
from diode_lut.receipt.receipt import Device, Miss, Receipt
from diode_lut.runtime.at_exit import write_receipt

PROGRAM = Path(__file__).parents[1] / "programs" / "ask.py"
Ask = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Starts the program, which is to write ``receipt.json`` in the test's directory."""

    def start(*steps: str, **environment: str) -> subprocess.Popen[str]:
        paths = os.pathsep.join([str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, "PYTHONPATH": paths, "DIODE_LUT_RECEIPT": "receipt.json", **environment}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, str(PROGRAM), *steps]
        return subprocess.Popen(command, cwd=tmp_path, env=variables, text=True, **pipes)  # type: ignore[call-overload, no-any-return]

    return start


def end(process: subprocess.Popen[str], code: int = 0) -> list[str]:
    """The words that the program printed."""
    out, err = process.communicate("\n", timeout=300)
    assert (process.returncode, err) == (code, "")
    return out.split()


def calls(directory: Path) -> dict[str, int]:
    """The files there, each with the calls in it."""
    return {
        path.name: sum(device.calls for device in read_receipt(path).devices.values()) for path in directory.iterdir()
    }


def test_a_process_alone_writes_exactly_the_path(ask: Ask, tmp_path: Path) -> None:
    """Also if it replaces the receipt of an earlier run, and if it ends with an error."""
    end(ask("ask"))
    assert calls(tmp_path) == {"receipt.json": 1}
    end(ask("ask", "ask", "exit=3"), 3)
    assert calls(tmp_path) == {"receipt.json": 2}


@pytest.mark.parametrize(
    ("rank", "world_size", "name"),
    [("3", "8", "receipt.3.json"), ("0", "2", "receipt.0.json"), ("0", "1", "receipt.json")],
)
def test_a_rank_of_several_adds_its_number(ask: Ask, tmp_path: Path, rank: str, world_size: str, name: str) -> None:
    """As torchrun numbers them; a world of one is a process alone."""
    end(ask("ask", RANK=rank, WORLD_SIZE=world_size))
    assert calls(tmp_path) == {name: 1}


@pytest.mark.parametrize("way", ["fork", "mp-fork", "mp-spawn", "mp-forkserver"])
def test_a_child_adds_its_number(ask: Ask, tmp_path: Path, way: str) -> None:
    """However it was started; what its parent asked before is not in its receipt."""
    (number,) = end(ask("ask", "ask", way))
    assert calls(tmp_path) == {"receipt.json": 2, f"receipt.{number}.json": 1}


@pytest.mark.parametrize("way", ["mp-fork=idle", "mp-spawn=idle"])
def test_an_idle_worker_writes_nothing(ask: Ask, tmp_path: Path, way: str) -> None:
    """A child that asked nothing has nothing to say, even if it knows torch."""
    end(ask("torch", way, "ask"))
    assert calls(tmp_path) == {"receipt.json": 1}


def test_a_child_of_a_rank_adds_both_numbers(ask: Ask, tmp_path: Path) -> None:
    """The rank's, then its own."""
    (number,) = end(ask("fork", RANK="1", WORLD_SIZE="2"))
    assert calls(tmp_path) == {f"receipt.1.{number}.json": 1}


def test_strangers_at_the_same_time_lose_nothing(ask: Ask, tmp_path: Path) -> None:
    """Of processes that only have the path in common, those that end later add their numbers."""
    processes = [ask("ask", "wait") for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        end(process)
    found = calls(tmp_path)
    assert len(found) == sum(found.values()) == 4
    numbered = {f"receipt.{process.pid}.json" for process in processes}
    assert set(found) - {"receipt.json"} < numbered


def test_a_receipt_with_the_time_of_the_earlier_one_is_kept(ask: Ask, tmp_path: Path) -> None:
    """What was written over a receipt in the meantime is not replaced, even if the file has its old time again."""
    end(ask("ask"))
    path = tmp_path / "receipt.json"
    before = path.stat()
    process = ask("ask", "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    end(process)
    assert set(calls(tmp_path)) == {"receipt.json", f"receipt.{process.pid}.json"}


def test_nothing_asked(ask: Ask, tmp_path: Path) -> None:
    """A program with torch that asked nothing says so, but never over a receipt; one without torch writes nothing."""
    end(ask())
    assert calls(tmp_path) == {}
    end(ask("torch"))
    assert calls(tmp_path) == {"receipt.json": 0}
    end(ask("ask"))
    end(ask("torch"))
    assert calls(tmp_path) == {"receipt.json": 1}


def test_the_setting_counts_from_where_it_was_made(ask: Ask, tmp_path: Path) -> None:
    """A program may set the path itself, after it asked; a relative one does not move with the working directory."""
    (tmp_path / "elsewhere").mkdir()
    end(ask("ask", "set=mine", "cd=elsewhere", DIODE_LUT_RECEIPT=""))
    assert read_receipt(tmp_path / "mine").processes == 1


@pytest.mark.parametrize("path", ["missing/receipt.json", "."])
def test_unwritable_path_is_one_warning(ask: Ask, path: str) -> None:
    """The program's exit code stays what it is."""
    process = ask("ask", "exit=5", DIODE_LUT_RECEIPT=path)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 5
    (line,) = err.splitlines()
    assert ": the receipt cannot be written: " in line


@pytest.mark.parametrize("name", ["/", ".", "..", "a/.."])
@pytest.mark.parametrize("ranks", [{}, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_what_names_no_file_is_one_warning(ask: Ask, tmp_path: Path, name: str, ranks: dict[str, str]) -> None:
    """A setting that no file can have as its name is one line at exit, and the program ends as it would without it."""
    process = ask("ask", **ranks, DIODE_LUT_RECEIPT=name)
    _, errors = process.communicate("\n", timeout=300)
    assert (process.returncode, len(errors.splitlines())) == (0, 1)
    assert "the receipt cannot be written: " in errors
    assert list(tmp_path.rglob("*")) == []
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))


@pytest.mark.parametrize("rank", ["a/b", "../../x", "", "-1", "\u0663", "9" * 300])
def test_a_rank_that_is_no_number_is_not_in_the_name(ask: Ask, tmp_path: Path, rank: str) -> None:
    """Such a rank's receipt has the process's number instead, and is in the directory that was named."""
    process = ask("ask", RANK=rank, WORLD_SIZE="2")
    end(process)
    assert [path.name for path in tmp_path.rglob("*")] == [f"receipt.{process.pid}.json"]


def test_a_name_with_the_process_number_is_taken_as_it_is(ask: Ask, tmp_path: Path) -> None:
    """``%p`` stands for the number of each process, also of ranks and of those that were forked."""
    process = ask("ask", "fork", DIODE_LUT_RECEIPT="%p.json", RANK="3", WORLD_SIZE="8")
    (child,) = end(process)
    assert calls(tmp_path) == {f"{process.pid}.json": 1, f"{child}.json": 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_it_is_written(tmp_path: Path, number: signal.Signals) -> None:
    """A second signal, for a process that ends because of the first, takes effect when the receipt is written."""
    problem = diode_lut.Problem.of("bmm", 2, 3, 4, dtype="float32", layout="nn")
    hardware = diode_lut.Hardware("A GPU", "sm_10", 1)

    def own() -> Receipt:
        signal.raise_signal(number)
        return Receipt(1, devices={hardware: Device(misses=Counter([Miss(problem)]))})

    before = signal.signal(number, signal.default_int_handler)
    try:
        with diode_lut.config.patch(receipt=str(tmp_path / "mine.json")), pytest.raises(KeyboardInterrupt):
            write_receipt(os.getpid(), own)
    finally:
        signal.signal(number, before)
    assert calls(tmp_path) == {"mine.json": 1}
