"""``run``: programs as they are, with the hook armed in all of their processes."""

import ast
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from diode_lut.cli import main
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.programs.run import STARTUP, Ended, ProgramRun, summary
from diode_lut.receipts import Device, GeneratedKernel, Hit, Receipt, read_receipt
from tests.commands import run, running, started
from tests.forks import ROOT, environment

CHILDREN = """
import multiprocessing, os, subprocess, sys

def say(who):
    print(who, "diode_lut" in sys.modules, flush=True)

if __name__ == "__main__":
    say("itself")
    subprocess.run([sys.executable, "-c", "import sys; print('child', 'diode_lut' in sys.modules)"], check=True)
    child = multiprocessing.get_context("spawn").Process(target=say, args=("spawned",))
    child.start()
    child.join()
    if os.fork() == 0:
        say("forked")
        os._exit(0)
    os.wait()
"""
NO_GEMM = "Inductor asked for no GEMM (only what torch.compile compiles is asked for)"
LINEAR = "addmm 8x64x64 float32 nt align 16"
FREEZING = f"torch._inductor.config.freezing = True, set in the thread that compiles, gives it one for {LINEAR}"
ASK = str(ROOT / "tests" / "programs" / "ask.py")


def test_every_process_of_a_program_is_armed(tmp_path: Path) -> None:
    """The hook is armed in a script that does not mention it, and in what that starts, spawns and forks."""
    (tmp_path / "program.py").write_text(CHILDREN)
    done = run("run", "--", sys.executable, "program.py", cwd=tmp_path)
    assert done.stdout.split("\n") == ["itself True", "child True", "spawned True", "forked True", ""]
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="starts torchrun")
def test_the_ranks_of_torchrun_are_armed(tmp_path: Path) -> None:
    """Both ranks ask, and the receipt has both; torchrun's exit code is that of ``run``."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", ASK)
    done = run("run", "--", *torchrun, "ask", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "diode-lut: 2 questions about 1 GEMM, of 3 processes: 0 answered, 2 missed\n" in done.stderr
    assert run("run", "--", *torchrun, "exit=3", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize("how", [("-c", "import sys; print(__name__, sys.argv[1:])"), ("-m", "module")])
def test_arguments_are_the_program_s(how: tuple[str, str], tmp_path: Path) -> None:
    """Options behind the program are its own, with ``python -c`` and ``python -m`` too, and with or without ``--``."""
    (tmp_path / "module.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = run("run", "--", sys.executable, *how, "--table", "x", "-h", "--", "y", cwd=tmp_path)
    assert done.stdout == "__main__ ['--table', 'x', '-h', '--', 'y']\n"
    with running("run", sys.executable, *how, "--receipt", cwd=tmp_path) as process:
        assert process.communicate()[0] == "__main__ ['--receipt']\n"


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        (("nosuch",), 127, "error: nosuch: no such program\n"),
        (("train.py",), 127, "error: train.py: no such program; to run a script: python"),
        (("./train.py",), 126, "error: ./train.py: cannot be started: Permission denied; to run a script: python"),
        ((sys.executable, "-c", "raise SystemExit(3)"), 3, "diode-lut: nothing was answered, and there is no receipt"),
        (("sh", "-c", "kill -KILL $$"), 137, "diode-lut: nothing was answered"),
    ],
)
def test_the_exit_code_is_the_program_s(program: tuple[str, ...], code: int, error: str, tmp_path: Path) -> None:
    """As in shells: of the program, of the signal that ended it, 127 or 126 where it cannot be started."""
    (tmp_path / "train.py").write_text("")
    done = run("run", "--", *program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == 1


def test_a_program_is_not_started_in_vain(tmp_path: Path) -> None:
    """Where the receipt that is named cannot be written, or a table does not exist, nothing is run."""
    for options in (("--receipt", "nosuch/x.json"), ("--table", "nosuch.json")):
        done = run("run", *options, "--", sys.executable, "-c", "print('started')", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "nosuch" in done.stderr


def test_kernels_are_recorded(tmp_path: Path) -> None:
    """All processes get the directory, and leave generated kernels to Inductor; the last line counts the kernels."""
    program = "import os; print(os.environ['_DIODE_LUT_KERNELS'], os.environ['DIODE_LUT_GENERATED'])"
    done = run("run", "--kernels", "its/kernels", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'its' / 'kernels'} 0\n"), done.stderr
    assert done.stderr.splitlines()[-1] == "diode-lut: kernels that Inductor generated: 0 in its/kernels"
    assert list((tmp_path / "its" / "kernels").iterdir()) == []


def test_the_receipts_of_all_processes_become_one(tmp_path: Path) -> None:
    """Programs that run one after the other, and at the same time, are all in the receipt, and in the summary."""
    script = f"{sys.executable} {ASK} ask; {sys.executable} {ASK} ask ask & {sys.executable} {ASK} ask; wait"
    done = run("run", "--receipt", "all.json", "--", "sh", "-c", script, cwd=tmp_path)
    (device,) = read_receipt(tmp_path / "all.json").devices.values()
    assert device.calls == 4
    assert done.stderr.splitlines()[0].startswith("diode-lut: 4 questions about 1 GEMM, of 3 processes:")
    assert done.stderr.splitlines()[-1] == "diode-lut: receipt: all.json"
    assert [path.name for path in tmp_path.iterdir()] == ["all.json"]


@pytest.mark.parametrize(
    ("options", "variables", "first"),
    [
        ((), {"DIODE_LUT_RECEIPT": "nosuch/x.json"}, "nosuch/x.json: no receipt is written: No such file or directory"),
        (("--no-receipt",), {}, "1 question about 1 GEMM, of 1 process: 0 answered, 1 missed"),
    ],
)
def test_without_a_receipt(options: tuple[str, ...], variables: dict[str, str], first: str, tmp_path: Path) -> None:
    """The program runs, and the summary is as ever; where no receipt was refused, one line says why there is none."""
    with running("run", *options, "--", sys.executable, ASK, "ask", cwd=tmp_path, **variables) as process:
        _, err = process.communicate()
    assert process.returncode == 0
    lines = err.splitlines()
    assert lines[0].removeprefix("diode-lut: ").removeprefix(f"{tmp_path}/") == first
    assert lines[-1].startswith("diode-lut: if each ran once:")
    assert list(tmp_path.iterdir()) == []


def test_without_a_directory_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in a container in which nothing can be written: the program runs, and one line says what is missing."""
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as readonly:
        readonly.setattr(tempfile, "tempdir", None)
        readonly.setattr(tempfile, "_candidate_tempdir_list", list)
        code = main(["run", "--", sys.executable, "-c", "print('started')"], standalone_mode=False)
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (0, "started\n", 1)
    assert "no directory for temporary files" in err


@pytest.mark.parametrize("way", ["_exit", "SIGTERM", "SIGKILL"])
def test_a_program_that_does_not_end_by_itself(way: str, tmp_path: Path) -> None:
    """The receipt has all questions until its last graph."""
    done = run("run", "--", sys.executable, ASK, "ask", "graph", way, cwd=tmp_path)
    assert done.returncode == (0 if way == "_exit" else 128 + signal.Signals[way])
    assert done.stderr.startswith("diode-lut: 1 question about 1 GEMM, of 1 process: 0 answered, 1 missed\n")


def test_a_process_that_outlives_the_program(tmp_path: Path) -> None:
    """As a server that a launcher starts: ``run`` says where its receipt will be, and the process writes it there."""
    for name in ("orders", "done"):
        os.mkfifo(tmp_path / name)
    script = f"{sys.executable} {ASK} ask wait < orders > done 2> errors &"
    with (
        running("run", "--receipt", "all.json", "--", "sh", "-c", script, cwd=tmp_path) as process,
        (tmp_path / "orders").open("w") as orders,
        (tmp_path / "done").open() as done,
    ):
        assert done.readline() == "ready\n"
        _, err = process.communicate()
        print(file=orders, flush=True)
        assert done.read() == ""
    assert err.splitlines()[1:] == ["diode-lut: 1 process of the program goes on; its receipt will be all.PID.json"]
    (path,) = tmp_path.glob("*.json")
    assert path.name.startswith("all.")
    assert (tmp_path / "errors").read_text() == ""
    assert read_receipt(path).processes == 1


def test_runs_within_a_run(tmp_path: Path) -> None:
    """Each that a program starts has a receipt of its own, which is in that of the outer one."""
    inner = f"{sys.executable} -m diode_lut run -- {sys.executable} {ASK} ask"
    done = run("run", "--", "sh", "-c", f"{inner}; {inner}", cwd=tmp_path)
    assert "\ndiode-lut: 2 questions about 1 GEMM, of 2 processes: 0 answered, 2 missed\n" in done.stderr


STAYING = """
import os, subprocess, sys, time
sleeping = [sys.executable, "-c", "import time; time.sleep(100)"]
children = [subprocess.Popen(sleeping, start_new_session=apart).pid for apart in (False, True)]
with open("new", "w") as file:
    print(os.getpid(), *children, file=file)
os.rename("new", "pids")
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        (("torch",), f"nothing was answered: {NO_GEMM}"),
        (("no-choice",), f"nothing was answered: Inductor has no choice of kernels for {LINEAR} ({FREEZING})"),
        (
            ("ask", "no-choice"),
            "1 question about 1 GEMM, of 1 process: 0 answered, 1 missed; Inductor has no choice for 1 more",
        ),
    ],
)
def test_gemms_without_a_choice_are_said(steps: tuple[str, ...], line: str, tmp_path: Path) -> None:
    """They are neither answered nor missed, and a program that has no others is not one without GEMMs."""
    done = run("run", "--", sys.executable, ASK, *steps, cwd=tmp_path)
    assert done.stderr.splitlines()[0] == f"diode-lut: {line}"


def test_what_cpp_kernels_cost_is_said() -> None:
    """A line says for how many GEMMs the compiler is needed; there is none if the library computes all of them."""
    problem = Problem.of("bmm", 2, 3, 4, dtype="float32", layout="nn")
    for config, count in (("cpp_gemm", 1), ("aten", 0)):
        device = Device(hits=Counter({Hit(problem, "user", "", "", (config,)): 2}))
        receipt = Receipt(1, devices={Hardware("A CPU", "cpu-avx2", 1): device})
        lines = summary(ProgramRun(Ended(0, 1.0), receipt), None, "")
        assert sum(line.startswith("C++ kernels: for 1 GEMM; each takes the compiler ") for line in lines) == count


def test_generated_kernels_and_answers_without_a_change_are_said() -> None:
    """A program may gain by generated kernels alone, and none by answers that are the library's kernel anyway."""
    problem = Problem.of("mm", 8, 64, 64, dtype="float16", layout="nn")
    kernel = GeneratedKernel(Problem.generated("reduction", "inner", x=64, r=384), "device", "d", "a row", "x", "")
    device = Device(generated=Counter({kernel: 2, kernel._replace(config="", reason="why"): 1}))
    receipt = Receipt(1, devices={Hardware("NVIDIA H200", "sm_90", 132): device})
    said = "3 generated kernels: 2 with the config of a table or model, the others with Inductor's"
    assert summary(ProgramRun(Ended(0, 1.0), receipt), None, "") == [f"no GEMM was answered: {NO_GEMM}", said]
    device.hits = Counter({Hit(problem, "model", "", "", ("aten",)): 3, Hit(problem, "user", "", "", ("x",)): 1})
    lines = summary(ProgramRun(Ended(0, 1.0), receipt), None, "")
    assert lines[1].endswith("; 3 of the answers are aten, as by default")
    assert lines[-1] == said


def pids(directory: Path) -> list[int]:
    """The numbers of the program's processes, as soon as all have been started."""
    while not (directory / "pids").exists():
        time.sleep(0.05)
    return [int(word) for word in (directory / "pids").read_text().split()]


SIGNALS = [("run", signal.SIGINT), ("run", signal.SIGTERM), ("tune", signal.SIGTERM), ("compare", signal.SIGTERM)]


class Signalled(NamedTuple):
    """What is left of a command that has got a signal."""

    code: int
    error: str
    running: list[int]  # the numbers of the program's processes that have not ended
    files: list[str]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, signal.Signals], Signalled]:
    """By command and signal; at the same time, because each waits for five seconds before it kills anything."""
    processes, found = {}, {}
    with ExitStack() as stack:
        for name, number in SIGNALS:
            if name != "tune" or find_spec("torch"):
                directory = tmp_path_factory.mktemp(name)
                config = str(directory / "config")
                command = (name, "--", sys.executable, "-c", STAYING)
                process = stack.enter_context(running(*command, cwd=directory, XDG_CONFIG_HOME=config))
                processes[name, number] = process, directory
        numbers = {key: pids(directory) for key, (_, directory) in processes.items()}
        for (_, number), (process, _) in processes.items():
            process.send_signal(number)
        for key, (process, directory) in processes.items():
            _, error = process.communicate(timeout=300)
            files = [path.name for path in directory.rglob("*") if path.is_file()]
            found[key] = Signalled(process.returncode, error, [*filter(alive, numbers[key])], files)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), SIGNALS)
def test_a_signal_ends_the_program(
    name: str, number: signal.Signals, ended: dict[tuple[str, signal.Signals], Signalled]
) -> None:
    """All processes of the program are gone when its starter has got a signal and ends, those in other sessions too."""
    if (name, number) not in ended:
        pytest.skip("measures")
    found = ended[name, number]
    assert found.code == 128 + number, found.error
    assert found.running == [], found.error
    assert found.files == ["pids"]


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_ends_the_program(tmp_path: Path) -> None:
    """The terminal sends the signal to the program too, and nothing of the program is left."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "diode_lut", "run", "--", sys.executable, "-c", STAYING]
    owning = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", owning, *command],
        cwd=tmp_path,
        env=environment(),
        stdin=theirs,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        numbers = pids(tmp_path)
        os.write(ours, b"\x03")
        assert process.wait(300) == 128 + signal.SIGINT
    os.close(ours)
    os.close(theirs)
    assert not any(map(alive, numbers))


@pytest.mark.slow
def test_a_second_signal_kills(tmp_path: Path) -> None:
    """A program that does not end with the first signal ends with the second."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True));" + STAYING
    with running("run", "--", sys.executable, "-c", stubborn, cwd=tmp_path) as process:
        numbers = pids(tmp_path)
        process.send_signal(signal.SIGTERM)
        assert line(process.stdout) == "no\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGKILL
    assert not any(map(alive, numbers))


def line(file: IO[str] | None) -> str:
    assert file is not None
    return file.readline()


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended may still wait for its parent to ask."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_another_sitecustomize_runs_too(tmp_path: Path) -> None:
    """The module of this name that Python would have run otherwise is run, and an error in it is reported as ever."""
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "sitecustomize.py"
    other.write_text("print('other')")
    path = os.pathsep.join([STARTUP, str(other.parent), str(ROOT)])
    program = "import sys; print('diode_lut' in sys.modules)"
    cases = (("print('other')", "other\nTrue\n", ""), ("1 / 0", "True\n", "Error in sitecustomize; set PYTHONVERBOSE"))
    for text, printed, error in cases:
        other.write_text(text)
        with started(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=path) as process:
            out, err = process.communicate()
        assert out == printed
        assert err.startswith(error)


def test_a_python_that_is_too_old_is_left_alone(tmp_path: Path) -> None:
    """Programs may start one: it imports nothing of ours, runs the next module of this name, and prints nothing."""
    ast.parse(Path(STARTUP, "sitecustomize.py").read_text(), feature_version=(3, 7))
    (tmp_path / "sitecustomize.py").write_text("print('other')")
    program = (
        "import sys; sys.version_info = (3, 9, 18)\n"
        f"sys.path[:0] = [{STARTUP!r}, {str(tmp_path)!r}]\n"
        "import sitecustomize; print(sitecustomize.__file__, 'diode_lut' in sys.modules)"
    )
    with started(sys.executable, "-S", "-c", program, cwd=tmp_path) as process:
        assert process.communicate() == (f"other\n{tmp_path}/sitecustomize.py False\n", "")


def test_nothing_happens_without_the_variable(tmp_path: Path) -> None:
    """The line that is installed imports the package if ``DIODE_LUT`` is set, and not to 0 or its like."""
    pth = (ROOT / "diode_lut" / "startup" / "diode_lut.pth").read_text()
    (tmp_path / "diode_lut.pth").write_text(f"{ROOT}\n{pth}")
    program = f"import site, sys; site.addsitedir({str(tmp_path)!r}); print('diode_lut' in sys.modules)"
    off = dict.fromkeys(("", "0", "False", "no", "off"), "False")
    for value, armed in {**off, "1": "True", "yes": "True"}.items():
        with started(sys.executable, "-IS", "-c", program, cwd=tmp_path, DIODE_LUT=value) as process:
            assert process.communicate() == (f"{armed}\n", "")
