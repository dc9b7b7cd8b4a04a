"""Which file a process leaves behind, in fresh processes that ask by hand."""

import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import diode_lut
from diode_lut import files as locks
from diode_lut.receipts import Device, GeneratedKernel, Miss, Receipt, read_receipt, receipt_file
from diode_lut.receipts.receipt_file import write_after_graph, write_at_exit

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
    """However it was started; what its parent asked before, and may have written, is not in its receipt."""
    (number,) = end(ask("ask", "graph", "ask", way))
    assert calls(tmp_path) == {"receipt.json": 2, f"receipt.{number}.json": 1}


@pytest.mark.parametrize("way", ["mp-fork=idle", "mp-spawn=idle"])
def test_an_idle_worker_writes_nothing(ask: Ask, tmp_path: Path, way: str) -> None:
    """A child that asked nothing has nothing to say, even if it knows torch."""
    end(ask("torch", way, "ask"))
    assert calls(tmp_path) == {"receipt.json": 1}


@pytest.mark.parametrize("way", ["_exit", "SIGTERM", "SIGKILL"])
def test_a_process_that_does_not_end_by_itself(ask: Ask, tmp_path: Path, way: str) -> None:
    """Such as a server that raises SIGTERM again: what it asked until its last graph is in the receipt."""
    process = ask("ask", "graph", "ask", "graph", way)
    process.communicate(timeout=300)
    assert process.returncode == (0 if way == "_exit" else -signal.Signals[way])
    assert calls(tmp_path) == {"receipt.json": 2}


def test_a_process_that_becomes_another_program(ask: Ask, tmp_path: Path) -> None:
    """Both have the same number, and a receipt each."""
    process = ask("ask", "ask", "graph", "exec=ask", DIODE_LUT_RECEIPT="%p.json")
    end(process)
    found = calls(tmp_path)
    assert found.pop(f"{process.pid}.json") == 2
    ((name, count),) = found.items()
    assert (name.startswith(f"{process.pid}."), count) == (True, 1)


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


def test_a_file_that_is_no_receipt_is_not_replaced(ask: Ask, tmp_path: Path) -> None:
    """A table or another file with the name of the receipt stays as it is, and a warning says so."""
    (tmp_path / "receipt.json").write_text('{"entries": []}')
    process = ask("ask")
    _, err = process.communicate("\n", timeout=300)
    assert process.returncode == 0
    assert "holds something else, which is not replaced" in err
    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"entries": []}']


@pytest.mark.parametrize("ranks", [{}, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_what_names_no_file_is_one_warning(ask: Ask, tmp_path: Path, ranks: dict[str, str]) -> None:
    """A setting that no file can have as its name is one line at exit, and the program ends as it would without it."""
    processes = {name: ask("ask", **ranks, DIODE_LUT_RECEIPT=name) for name in ("/", ".", "..", "a/..")}
    for name, process in processes.items():
        _, errors = process.communicate("\n", timeout=300)
        assert (process.returncode, len(errors.splitlines())) == (0, 1), name
        assert "the receipt cannot be written: " in errors, name
    assert list(tmp_path.rglob("*")) == []
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))


@pytest.mark.parametrize("rank", ["a/b", "../../x", "", "-1", "\u0663", "9" * 300])
def test_a_rank_that_is_no_number_is_not_in_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    """Such a rank's receipt has the process's number instead, and is in the directory that was named."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with diode_lut.config.patch(receipt=str(tmp_path / "receipt.json")):
        write_at_exit(partial(receipt, 1))
    assert [path.name for path in tmp_path.rglob("*")] == [f"receipt.{os.getpid()}.json"]


def test_a_name_with_the_process_number_is_taken_as_it_is(ask: Ask, tmp_path: Path) -> None:
    """``%p`` stands for the number of each process, also of ranks and of those that were forked."""
    process = ask("ask", "fork", DIODE_LUT_RECEIPT="%p.json", RANK="3", WORLD_SIZE="8")
    (child,) = end(process)
    assert calls(tmp_path) == {f"{process.pid}.json": 1, f"{child}.json": 1}


HARDWARE = diode_lut.Hardware("A GPU", "sm_10", 1)


def receipt(misses: int) -> Receipt:
    """One of this process, without a process that asks."""
    problem = diode_lut.Problem.of("bmm", 2, 3, 4, dtype="float32", layout="nn")
    return Receipt(1, devices={HARDWARE: Device(misses=Counter({Miss(problem): misses}))})


@pytest.mark.parametrize("name", ["%p.json", "mine.json"])
def test_the_file_of_another_process_with_this_number_stays(name: str, tmp_path: Path) -> None:
    """Numbers come again in containers: then the name gets random digits, and keeps them."""
    number = os.getpid()
    others = [tmp_path / f"{number}.json", tmp_path / f"mine.{number}.json"]
    with diode_lut.config.patch(receipt=str(tmp_path / name)):
        if name == "mine.json":
            write_after_graph(partial(receipt, 1))
            (tmp_path / name).rename(others[0])  # so that it looks like another's
            (tmp_path / name).write_bytes(others[0].read_bytes())
        for path in others:
            path.write_text("another's")
        for misses in (2, 3):
            write_after_graph(partial(receipt, misses))
        write_at_exit(partial(receipt, 3))
    assert [path.read_text() for path in others] == ["another's"] * 2
    written = [path for path in tmp_path.iterdir() if path not in others and path.name != name]
    assert [read_receipt(path) for path in written] == [receipt(3)]
    assert written[0].name.startswith(name.replace("%p", str(number)).removesuffix("json"))


def test_a_stranger_that_locks_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process waits for a while, then writes a file that no other process chooses."""
    monkeypatch.setattr(locks, "_ALONE_S", 0.01)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with diode_lut.config.patch(receipt=str(tmp_path / "mine.json")):
        write_after_graph(partial(receipt, 1))
        write_at_exit(partial(receipt, 2))
    os.close(descriptor)
    ((name, count),) = calls(tmp_path).items()
    assert (name.startswith(f"mine.{os.getpid()}."), count) == (True, 2)


def test_writing_takes_no_more_than_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has spent more on it than its share writes at exit only."""
    monkeypatch.setattr(receipt_file, "_spent_s", 1e9)
    with diode_lut.config.patch(receipt=str(tmp_path / "mine.json")):
        write_after_graph(partial(receipt, 1))
        assert calls(tmp_path) == {}
        write_at_exit(partial(receipt, 1))
    assert calls(tmp_path) == {"mine.json": 1}


def test_a_graph_without_a_gemm(tmp_path: Path) -> None:
    """A process that may be killed has a receipt of its generated kernels, also if it asked about nothing else."""
    problem = diode_lut.Problem.generated("pointwise", "flat", x=64, loads=1)
    kernel = GeneratedKernel(problem, "", "", "", "", "a reason")
    asked = Receipt(1, devices={HARDWARE: Device(generated=Counter({kernel: 1}))})
    with diode_lut.config.patch(receipt=str(tmp_path / "mine.json")):
        write_after_graph(lambda: asked)
    assert read_receipt(tmp_path / "mine.json") == asked


def test_what_cannot_be_written_now_is_written_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A directory may be there after the next graph only; until the end there is no warning."""
    with diode_lut.config.patch(receipt=str(tmp_path / "later" / "mine.json")):
        write_after_graph(partial(receipt, 1))
        (tmp_path / "later").mkdir()
        write_after_graph(partial(receipt, 1))
    assert calls(tmp_path / "later") == {"mine.json": 1}
    assert (caplog.records, capfd.readouterr().err) == ([], "")


def test_an_exception_of_a_signal_handler_is_raised(tmp_path: Path) -> None:
    """It may be an OSError, but is no failure to write."""

    def alarmed() -> Receipt:
        signal.raise_signal(signal.SIGUSR1)
        return receipt(1)

    def handler(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with diode_lut.config.patch(receipt=str(tmp_path / "mine.json")), pytest.raises(TimeoutError):
            write_after_graph(alarmed)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kept", [True, False])
def test_a_process_that_outlives_run(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its receipt is put beside that of ``run``; if that writes none, nothing is written, and nothing is said."""
    path = str(tmp_path / "gone" / "%p.json")
    monkeypatch.setenv("DIODE_LUT_RECEIPT", path)
    monkeypatch.setenv(receipt_file.AFTER_RUN, str(tmp_path / "all.json") if kept else "")
    with diode_lut.config.patch(receipt=path):
        write_at_exit(partial(receipt, 1))
    assert calls(tmp_path) == ({f"all.{os.getpid()}.json": 1} if kept else {})
    assert caplog.records == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_it_is_written(tmp_path: Path, number: signal.Signals) -> None:
    """A second signal, for a process that ends because of the first, takes effect when the receipt is written."""

    def own() -> Receipt:
        signal.raise_signal(number)
        return receipt(1)

    before = signal.signal(number, signal.default_int_handler)
    try:
        with diode_lut.config.patch(receipt=str(tmp_path / "mine.json")), pytest.raises(KeyboardInterrupt):
            write_at_exit(own)
    finally:
        signal.signal(number, before)
    assert calls(tmp_path) == {"mine.json": 1}
