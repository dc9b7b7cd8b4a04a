"""``compare``: a program with and without tables, and what differs beyond noise."""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from diode_lut.cli.programs import _apply
from diode_lut.decide.catalog import forget_tables, sources_for
from diode_lut.errors import as_json as printable_json
from diode_lut.hardware import Hardware
from diode_lut.probe import CALL, CLOSED, FIRST_CALL, GENERATED_KERNEL, READY, VARIABLE, await_turn
from diode_lut.problem import Problem
from diode_lut.programs.compare import ComparisonPlan, Pace, _OneRun, _run, expected, longer, printed_steps
from diode_lut.programs.comparison import (
    WITH,
    WITHOUT,
    Comparison,
    Loser,
    as_json,
    losers,
    not_answered,
    spread_text,
    summary,
)
from diode_lut.programs.costs import Cost
from diode_lut.programs.page import as_page
from diode_lut.programs.run import without_leaks
from diode_lut.programs.times import (
    GemmChange,
    GemmTime,
    GraphTimes,
    Speedup,
    change_of,
    error_of,
    graph_times,
    is_all_told,
    judge,
    judged,
    name_of,
    read_traces,
    student,
    unpadded,
)
from diode_lut.receipts import Device, GeneratedKernel, Hit, Left, Miss, Receipt, SourceRecord, Versions
from diode_lut.settings import config
from diode_lut.table import read_table
from tests.commands import run, running
from tests.forks import ROOT

ASK = str(ROOT / "tests" / "programs" / "ask.py")
PROGRAM = """
import torch

compiled = torch.compile(torch.bmm)
for _ in range(9):
    compiled(torch.randn(2, 8, 16), torch.randn(2, 16, 8))
    print("step time: 12 ms")
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="compiles")
def test_a_program_is_compared(tmp_path: Path, python: Path) -> None:
    """A page and figures tell the times of the runs, of the steps that were printed, and of each GEMM."""
    from diode_lut.hardware import detect_hardware

    hardware = detect_hardware("cpu")._asdict()
    row = {"op": "bmm", "configs": [{"template": "aten"}]}
    table = {"schema_version": 2, "hardware": hardware, "provenance": {}, "entries": [row]}
    (tmp_path / "own.json").write_text(json.dumps(table))
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("--table", "own.json", "--repetitions", "2", "--output", "page.html")
    done = run("compare", *options, "--", str(python), "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert re.search("step time: (open|the same within 3%) ", done.stderr)
    assert done.stderr.endswith("page: page.html, figures: page.json\n")
    figures = json.loads((tmp_path / "page.json").read_text())
    assert figures["answered"] == figures["questions"] == 1
    names = ("graph", "gemms", "step")
    assert {name: len(times["without"]) for name, times in figures["seconds"].items()} == dict.fromkeys(names, 2)
    assert figures["seconds"]["step"]["with"] == [0.012, 0.012]
    (gemm,) = figures["gemms"]
    assert gemm["gemm"] == "2x8x8x16 float32"
    for kind in (WITHOUT, WITH):
        assert [(time["calls"], time["kernel"]) for time in gemm[kind]] == [(8, "aten::bmm")] * 2
    assert not gemm["is_clear"], "the same kernel is no gain"


@pytest.mark.parametrize(
    ("steps", "options", "code", "line"),
    [
        (("exit=3",), (), 3, "diode-lut: the program failed with tables, with exit code 3: nothing is compared"),
        (("exit=0",), (), 1, "error: nothing to compare: Inductor asked for no GEMM"),
        (("ask",), {}, 1, "error: nothing to compare: no table and no model answered any of 1 question; `diode-lut tu"),
        (
            ("ask",),
            ("--table", "nvidia-h200"),
            1,
            "hardware: it is for NVIDIA H200 (sm_90, 132 SMs), not for A GPU (sm_10, 1 SMs)",
        ),
        (("ask",), ("-o", "nosuch/x.html"), 2, "error: nosuch: no such directory to write to"),
        (
            ("ask",),
            ("-o", "x.json"),
            2,
            "Error: --output x.json: the page is HTML, and the figures go to x.json beside",
        ),
        (("ask",), ("--repetitions", "1"), 2, "Error: Invalid value for '--repetitions' / '-n': 1 is not in the range"),
    ],
)
def test_what_cannot_be_compared_is_said(
    steps: tuple[str, ...], options: tuple[str, ...], code: int, line: str, tmp_path: Path
) -> None:
    """Where a run fails, or nothing is answered, that is said at once, and no page is written."""
    done = run("compare", *options, "--", sys.executable, ASK, *steps, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert line in done.stderr
    assert list(tmp_path.iterdir()) == []


TURNS = """
import os, sys, time
from diode_lut import probe

def note(what):
    with open("notes", "a") as file:
        file.write(f"{os.getpid()} {what}\\n")

note("compiles")
probe.await_turn()
note("runs")
time.sleep(0.2)
note("ends")
sys.exit(int(os.environ.get("DIODE_LUT_POLICY", "") == sys.argv[1]))
"""


def test_runs_compile_together_and_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program calls a graph before all have compiled their first, and while one calls graphs, the others wait."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "turns.py").write_text(TURNS)
    lines: list[str] = []

    def runs(fails: str) -> list[tuple[str, _OneRun]]:
        plan = ComparisonPlan([sys.executable, "turns.py", fails], dict(os.environ), None, 60.0, None)
        made, stopped = _run(plan, [WITH, WITHOUT, WITH], tmp_path / "kernels", lines.append)
        assert not stopped
        return made

    made = runs("never")
    assert [kind for kind, _ in made] == [WITH, WITHOUT, WITH]
    assert all(run.alone_s >= 0.2 for _, run in made[:2]), "of the last, the end may not be seen"
    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert [what for _, what in notes] == ["compiles"] * 3 + ["runs", "ends"] * 3
    assert all(notes[number][0] == notes[number + 1][0] for number in (3, 5, 7))
    assert lines == []
    assert runs("off") == []
    assert lines == ["one of 3 runs at once failed, with exit code 1: now one after the other"]


def test_a_signal_leaves_the_runs_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several at once, those that it cuts short do not count, whatever their exit codes are."""
    monkeypatch.chdir(tmp_path)
    program = f"""
import os, signal, sys, time
from pathlib import Path
from diode_lut import probe

signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
probe.await_turn()
if os.environ.get("DIODE_LUT_POLICY") == "off":
    while Path(f"/proc/{{Path('first').read_text()}}").exists():
        time.sleep(0.01)
    os.kill({os.getpid()}, signal.SIGINT)
    time.sleep(100)
Path("first").write_text(str(os.getpid()))
"""
    plan = ComparisonPlan([sys.executable, "-c", program], dict(os.environ), None, 60.0, None)
    made, stopped = _run(plan, [WITH, WITHOUT, WITH], tmp_path / "kernels", print)
    assert ([kind for kind, _ in made], stopped) == ([WITH], 130)


INTERRUPTED = """
import os, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import ask

ask.ask()
print("step time: 12 ms")
runs = Path("runs")
runs.write_text(runs.read_text() + "r" if runs.exists() else "r")
if len(runs.read_text()) == int(sys.argv[2]):
    if sys.argv[3] == "reading":
        fifo = Path(os.environ[sys.argv[4]], "0.json")
        os.mkfifo(fifo)
        Path("new").write_text(str(fifo))
    else:
        Path("new").write_text("")
    Path("new").rename("now")
    time.sleep(0 if sys.argv[3] == "reading" else 100)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "when", "which", "line"),
    [
        (signal.SIGINT, "running", 2, "interrupted: nothing is compared"),
        (signal.SIGINT, "running", 4, "interrupted: nothing is compared (1 pair of runs finished, 2 are the least)"),
        (signal.SIGINT, "running", 6, "interrupted: the verdicts are from the 2 pairs of runs that were finished"),
        (signal.SIGTERM, "running", 5, "interrupted: the verdicts are from the 2 pairs of runs that were finished"),
        (signal.SIGINT, "reading", 5, "interrupted: the verdicts are from the 2 pairs of runs that were finished"),
    ],
)
def test_an_interrupted_comparison_has_the_verdicts_of_finished_pairs(
    number: signal.Signals, when: str, which: int, line: str, tmp_path: Path
) -> None:
    """It makes its page and its figures from them, and sets no row; with too few, it says that nothing is compared."""
    row = {"op": "bmm", "configs": [{"template": "aten"}]}
    table = {"schema_version": 2, "hardware": Hardware("A GPU", "sm_10", 1)._asdict(), "entries": [row]}
    (tmp_path / "own.json").write_text(json.dumps(table))
    (tmp_path / "program.py").write_text(INTERRUPTED)
    program = (sys.executable, "program.py", str(Path(ASK).parent), str(which), when, VARIABLE)
    with running("compare", "--apply", "--table", "own.json", "--", *program, cwd=tmp_path) as process:
        while not (tmp_path / "now").exists() and process.poll() is None:
            time.sleep(0.01)
        if when == "reading":
            with Path((tmp_path / "now").read_text()).open("wb"):  # until ``compare`` reads it
                process.send_signal(number)
                _, err = process.communicate(timeout=300)
        else:
            process.send_signal(number)
            _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number, err
    assert f"diode-lut: {line}\n" in err
    figures = tmp_path / "diode-lut-compare.json"
    if which < 5:
        assert not figures.exists()
        return
    step = json.loads(figures.read_text())["seconds"]["step"]
    assert step["with"] == step["without"] == [0.012, 0.012]
    assert "stopped by a signal" in figures.with_suffix(".html").read_text()
    assert "step time: the same within 3% (1.00x to 1.00x)" in err
    assert "diode-lut: nothing is set, because the comparison was interrupted\n" in err
    assert err.endswith("page: diode-lut-compare.html, figures: diode-lut-compare.json\n")


def test_nobody_waits_for_a_comparison_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed ``compare`` gives no turns, and its program goes on."""
    (tmp_path / CLOSED).write_text(str(2**22 + 1))  # above the greatest number of a process
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    await_turn()
    assert (tmp_path / READY).exists()


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"DIODE_LUT_POLICY": "off"}, "error: DIODE_LUT_POLICY=off: no table answers; unset it\n"),
        ({"DIODE_LUT_AUTOREGISTER": "0"}, "error: DIODE_LUT_AUTOREGISTER=0: the hook is not armed; unset it\n"),
    ],
)
def test_settings_that_leave_nothing_to_compare_are_refused(
    variables: dict[str, str], line: str, tmp_path: Path
) -> None:
    """Where both kinds of runs would be the same, nothing is run."""
    done = run("compare", "--", sys.executable, "-c", "print('runs')", cwd=tmp_path, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_the_end_of_a_failing_program_s_output_is_shown(tmp_path: Path) -> None:
    """The last lines say why."""
    program = "print(*range(99), sep=chr(10), flush=True); raise SystemExit('out of memory')"
    done = run("compare", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert done.stderr.splitlines()[1:-1] == [f"diode-lut: | {line}" for line in (*range(80, 99), "out of memory")]


@pytest.mark.parametrize(
    ("printed", "seconds"),
    [
        ("step 1: 20 ms/step\nstep 2: 12.5 ms/step", [0.0125]),
        ("50%|#####| 5/10 [00:01<00:01,  4.00it/s]", [0.25]),
        ("iter 7: loss 2.1, 2.5 s/it", [2.5]),
        ("Step time: 5e-3 s", [0.005]),
        ("8 steps per second", [0.125]),
        ("loss 3.2, lr 1e-3, 100 steps, 3 ms", []),
        ("0 it/s, 0 ms/step, 1.2.3 ms/step", []),
    ],
)
def test_printed_times_of_steps_are_read(printed: str, seconds: list[float]) -> None:
    """As programs and tqdm print them; of several times, the later half counts."""
    assert printed_steps(printed) == seconds


def test_noise_is_no_difference() -> None:
    """A change counts if the confidence interval of the paired ratios has nothing of the other direction."""
    clear = change_of([2.0, 2.1, 1.9, 2.0, 2.0], [1.0, 1.0, 1.0, 1.05, 0.95])
    assert (clear.is_clear, clear.verdict) == (True, "faster, 2.00x")
    assert clear.low < clear.gain < clear.high
    noise = change_of([1.0, 1.2, 0.9], [1.1, 0.9, 1.0])
    assert (noise.is_clear, noise.verdict) == (False, "open")
    alike = change_of([1.0, 1.001, 0.999], [1.0, 1.0, 1.001])
    assert (alike.is_clear, alike.verdict) == (False, "the same within 3%")
    assert change_of([1.0, 1.0], [1.5, 1.5]).verdict == "slower, 0.67x"
    barely = Speedup([1.0], [1.0], 1.09, 1.003, 1.19)
    assert (barely.verdict, barely.interval) == ("open", "1.00x to 1.19x")
    assert change_of([1.0, 1.0], [1.5, 7.0]).interval == "under 0.01x to over 100x"
    assert spread_text([0.0015, 0.001, 0.002]) == "1.5 ms (1 to 2)"
    assert spread_text([0.0009, 0.0539]) == "27.4 ms (0.9 to 53.9)"
    assert spread_text([0.0008, 0.0009, 0.0539]) == "900 us (800 to 53900)"


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """As torch's profiler exports it; times are in microseconds."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
        "args": {key.replace("_", " "): value for key, value in args.items()},
    }


RELU = "pointwise flat x 256 loads 1: relu"


def gpu_trace(directory: Path) -> Path:
    """What a GPU leaves of two calls of a graph: aten with a kernel of its own for relu, and a Triton template."""
    halves = {"Input_type": ["c10::Half"] * 3}
    events = []
    for number, start in enumerate((0.0, 100.0, 200.0)):
        call = f"{CALL if number else FIRST_CALL} 0"
        events += [
            event("user_annotation", call, start, 90.0, External_id=10 * number + 1),
            event(
                "cpu_op", "aten::addmm", start + 1, 20.0, External_id=10 * number + 2,
                Input_Dims=[[32], [8, 64], [64, 32]], **halves,
            ),
            event("cpu_op", "aten::mm", start + 2, 10.0, External_id=10 * number + 3, Input_Dims=[[1, 1], [1, 1]]),
            event("cpu_op", f"{GENERATED_KERNEL}{RELU}", start + 29, 7.0, External_id=10 * number + 7),
            event("cpu_op", "triton_poi_fused_relu_1", start + 30, 5.0, External_id=10 * number + 4),
            event(
                "cpu_op", "Triton GEMM 16 32 64", start + 40, 5.0, External_id=10 * number + 6,
                Input_Dims=[[4, 16, 64], [4, 64, 32], [4, 16, 32], []], **halves,
            ),
            event("cpu_op", "triton_tem_fused_bmm_0", start + 41, 3.0, External_id=10 * number + 5),
            event("kernel", "cutlass_gemm", start + 50, 3.0 + number, External_id=10 * number + 2),
            event("kernel", "splitk_reduce", start + 54, 1.0, External_id=10 * number + 3),
            event("kernel", "triton_poi_fused_relu_1", start + 56, 2.0, External_id=10 * number + 4),
            event("kernel", "triton_tem_fused_bmm_0", start + 60, 7.0, External_id=10 * number + 5),
            event("gpu_user_annotation", call, start + 50, 20.0, External_id=10 * number + 1),
        ]  # fmt: skip
    events += [event("kernel", "eager", 300.0, 1000.0, External_id=99), {"ph": "M", "name": "process_name"}]
    path = directory / "1.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_kernels_on_a_gpu_are_those_of_their_gemm(tmp_path: Path) -> None:
    """A GEMM's time is that of all kernels that its op launched; eager ops and first calls do not count.

    Generated kernels are apart, by their problem and what they fuse.
    """
    found = graph_times(read_traces([gpu_trace(tmp_path)]))
    assert found is not None
    assert found.on_gpu
    assert found.calls == 2
    assert found.gemms == {
        "8x32x64 float16": GemmTime(2, 5500.0, "cutlass_gemm"),
        "4x16x32x64 float16": GemmTime(2, 7000.0, "triton_tem_fused_bmm_0"),
    }
    assert found.generated == {RELU: GemmTime(2, 2000.0, "triton_poi_fused_relu_1")}
    assert (found.call_ns, found.gemms_ns) == (14500.0, 12500.0)


@pytest.mark.parametrize(
    ("sizes", "shapes", "name"),
    [
        ("16 ? 64", [[16, 64], [64, 32], [16, 32], [], []], "16x32x64 float16"),  # a width that kernels share
        ("? 32 64", [[16, 64], [64, 32], [16, 32], []], "16x32x64 float16"),
        ("16 32 ?", [[16, 64], [64, 32], [16, 32], []], "Triton GEMM 16 32 ?"),
    ],
)
def test_sizes_that_are_arguments(sizes: str, shapes: list[list[int]], name: str) -> None:
    """The result says an M or an N that the kernel's source does not."""
    assert (
        name_of(event("cpu_op", f"Triton GEMM {sizes}", 0.0, 1.0, Input_Dims=shapes, Input_type=["c10::Half"])) == name
    )


def test_a_graph_that_runs_once_counts(tmp_path: Path) -> None:
    """Where no graph is called again, first calls are all there is; and no call is no answer."""
    path = gpu_trace(tmp_path)
    document = json.loads(path.read_text())
    document["traceEvents"] = [each for each in document["traceEvents"] if each.get("ts", 0.0) < 100]
    path.write_text(json.dumps(document))
    found = graph_times(read_traces([path]))
    assert found is not None
    assert found.calls == 1
    path.write_text('{"traceEvents": []}')
    assert graph_times(read_traces([path])) is None


class Tags(HTMLParser):
    """Whether elements end in the order in which they began."""

    VOID = ("meta", "link")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_data(self, data: str) -> None:
        self.text += data


def times(*ns: float, kernel: str = "") -> list[GemmTime]:
    """Of a run each."""
    return [GemmTime(9, each, kernel or f"kernel<{ns[0]:g}>") for each in ns]


def comparison() -> Comparison:
    """One GEMM of each kind: faster, slower, with the same kernel, and in one run only."""
    fast, slow = times(1000.0, 1100.0, 1000.0), times(2000.0, 2000.0, 1900.0)
    gemms = [
        GemmChange("8x8x8 float16", slow, fast, is_clear=True),
        GemmChange("9x9x9 float16", slow, slow),
        GemmChange("5x5x5 float16", [], slow),
        GemmChange("7x7x7 float16", fast, slow, is_clear=True),
    ]
    hit = Hit(Problem.of("mm", 8, 8, 8, dtype="float16", layout="nn"), "user", "x", "", ("aten",))
    device = Device()
    device.hits[hit] = 1
    change = change_of([2.0, 2.0], [1.0, 1.0])
    return Comparison(
        ["python", "</code><script>x.py"],
        {"DIODE_LUT_PAD": "0"},
        Receipt(devices={Hardware("NVIDIA H200", "sm_90", 132): device}),
        {"graph": change, "step": change},
        True,
        gemms,
        costs=[Cost("attention </li>", 5000.0, 0.4, "GPU time", "leave out the mask")],
        generated=[
            GemmChange("reduction inner x 64 r 384: mean", slow, fast, is_clear=True),
            GemmChange("reduction inner x 64 r 384: sum", slow, slow),
        ],
    )


def test_leaks_do_not_hide_what_a_program_printed() -> None:
    """Triton 3.9 lists leaks after a program's own last words; whatever follows them stays."""
    leaks = 'nanobind: leaked 2 types!\n - leaked type "ir.block"\nSee https://nanobind/refleaks.html\n'
    assert without_leaks(f"MemoryError\n{leaks}{leaks}end\n") == "MemoryError\nend\n"


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        (["7x9x13 float16"], {"7x9x13 float16": "7x9x13 float16"}),
        (
            ["2x7x9x13 float16", "2x8x16x16 float16"],
            dict.fromkeys(["2x7x9x13 float16", "2x8x16x16 float16"], "2x7x9x13 float16"),
        ),
        (["1x9x13 float32", "1x12x16 float32"], dict.fromkeys(["1x9x13 float32", "1x12x16 float32"], "1x9x13 float32")),
        (
            ["7x9x13 float16", "16x9x13 float16"],
            {"7x9x13 float16": "7x9x13 float16", "16x9x13 float16": "16x9x13 float16"},
        ),
        (
            ["7x9x13 float16,8x16x16 float16"],
            {"7x9x13 float16": "7x9x13 float16", "8x16x16 float16": "8x16x16 float16"},
        ),
        (["aten::mm", "Triton GEMM ? ? ?"], {"aten::mm": "aten::mm", "Triton GEMM ? ? ?": "Triton GEMM ? ? ?"}),
    ],
)
def test_a_padded_gemm_is_the_gemm_without_padding(runs: list[str], shown: dict[str, str]) -> None:
    """That is so if no run has both: then they are two GEMMs."""
    gemms = [dict.fromkeys(run.split(","), GemmTime(1, 1.0, "kernel")) for run in runs]
    assert unpadded(gemms) == shown


@pytest.mark.parametrize(
    ("error", "freedom", "t"),
    [(0.05, 1, 12.706), (0.05, 2, 4.303), (0.001, 4, 8.610), (0.05, 9, 2.262), (0.01, 60, 2.660)],
)
def test_student_s_t_is_that_of_the_tables(error: float, freedom: int, t: float) -> None:
    """For odd and even degrees of freedom, far out, too."""
    assert student(error, freedom) == pytest.approx(t, abs=5e-4)


def test_looks_share_the_chance_of_an_error() -> None:
    """However many looks there are, they err less often together than one look alone may."""
    assert error_of(0, 0.01) == 0.01
    assert sum(error_of(look, 0.01) for look in range(1, 50)) <= 0.01


@pytest.mark.parametrize(
    ("without", "tuned", "is_clear"),
    [
        (times(6, 7, 8, 9, 10), times(1, 2, 3, 4, 5), True),
        (times(1, 2, 3, 4, 5), times(6, 7, 8, 9, 10), True),
        (times(2, 4, 6, 8, 10), times(1, 3, 5, 7, 9), False),
        (times(7, 7, 8, 9, 10), times(1, 2, 3, 4, 7), False),
        (times(*range(12, 22)), times(*range(1, 11), kernel="b"), True),
        (times(*range(11, 21)), times(*range(2, 12)), True),
        (times(6, 7, 8, 9, 10, kernel="aten::mm"), times(1, 2, 3, 4, 5, kernel="aten::mm"), False),
        (times(6, 7, 8, 9, 10, kernel="triton_tem_mm_0"), times(1, 2, 3, 4, 5, kernel="triton_tem_mm_0"), True),
        (times(6, 7, 8, 9), times(1, 2, 3, 4, 5), False),
        ([], times(1, 2, 3, 4, 5), False),
    ],
)
def test_a_gemm_changed_if_a_rank_sum_test_says_so(
    without: list[GemmTime], tuned: list[GemmTime], is_clear: bool
) -> None:
    """Of five runs or more; the same kernel is noise, and Triton's kernels differ by more than the name."""
    (judged,) = judge([GemmChange("x", without, tuned)], 0.01)
    assert judged.is_clear == is_clear


def test_many_gemms_need_more_runs() -> None:
    """One of many GEMMs is often apart by chance, so the verdict on it waits, and the comparison goes on."""

    def changes(runs: int, number: int) -> list[GemmChange]:
        same = GemmChange("same", times(*range(0, 2 * runs, 2)), times(*range(1, 2 * runs, 2)))
        return judge([GemmChange("x", times(*range(90, 90 + runs)), times(*range(1, 1 + runs))), *[same] * number])

    assert [change.is_clear for change in changes(5, 3)] == [True, False, False, False]
    assert not any(change.is_clear for change in changes(5, 9))
    assert not is_all_told([], changes(5, 9)), "the GEMM that is apart may be told with more runs"
    assert changes(7, 9)[0].is_clear
    assert is_all_told([], changes(7, 9)), "GEMMs whose runs overlap are not waited for"
    assert is_all_told([change_of([1.0, 1.001, 1.0], [1.0, 1.0, 1.001])], [])
    assert not is_all_told([change_of([1.0, 1.5], [1.5, 1.0])], [])


def test_a_gemm_has_a_ratio_with_an_interval() -> None:
    """It is the median ratio; few runs have the extremes, and more runs an interval that one outlier leaves."""
    assert GemmChange("x", times(2, 4), times(2, 2)).ratios == (1.5, 1.0, 2.0)
    assert GemmChange("x", times(*[2] * 9, 99), times(*[1] * 10)).ratios == (2.0, 2.0, 2.0)
    assert GemmChange("x", [], times(1)).ratios is None


@pytest.mark.parametrize(
    ("run_s", "pairs", "budget_s", "text"),
    [
        (6.0, None, 600.0, "a run takes 6 s: it will take 60 s to 10 minutes (--budget), until it can tell"),
        (12.0, None, 130.0, "a run takes 12 s: it will take 120 s to 130 s (--budget), until it can tell"),
        (
            60.0,
            None,
            165.0,
            "a run takes 60 s: 165 s (--budget) are too short, and 2 pairs run in any case, 4 minutes",
        ),
        (
            120.0,
            None,
            600.0,
            "a run takes 120 s: 10 minutes (--budget) are enough for 2 pairs; verdicts on GEMMs need ",
        ),
        (2.0, 7, 600.0, "a run takes 2 s: 7 pairs take about 28 s"),
    ],
)
def test_the_first_line_says_how_long_it_takes(run_s: float, pairs: int | None, budget_s: float, text: str) -> None:
    """From the time of the first run, and as many runs as compile at once after the first two."""
    plan = ComparisonPlan([], {}, pairs, budget_s, None)
    found = expected(Pace(run_s, run_s / 2), plan, 1)
    assert found.startswith(text)
    assert found.endswith((text, " need 5 pairs, 10 minutes", " need 5 pairs, 20 minutes"))
    if not pairs and budget_s == 600:
        assert expected(Pace(30.0, 2.5), plan, 4).startswith(
            "a run takes 30 s, and 4 compile at once: it will take 135 s to 10 min"
        )


def test_runs_that_take_turns_take_longer_than_one() -> None:
    """Each turn counts, so that fewer runs compile at once where the budget is not enough for more."""
    alone = _OneRun(Receipt(), None, None, None, (), 8, 2.5)
    pace = Pace().after(23.0, [alone])
    assert pace == Pace(23.0, 2.5)
    assert [pace.seconds(count, 8) for count in (1, 2, 8, 10)] == [23.0, 25.5, 40.5, 66.0]
    assert pace.after(58.0, [alone] * 8) == Pace(23.0, 5.0), "they compiled more slowly than one"
    assert pace.after(30.0, [alone] * 8) == pace
    text = expected(pace, ComparisonPlan([], {}, None, 81.0, None), 8)
    enough = "81 s (--budget) are enough for 3 pairs; verdicts on GEMMs need 5 pairs, 86 s"
    assert text == f"a run takes 23 s, and 8 compile at once: {enough}"


@pytest.mark.parametrize(
    ("ran", "pairs", "option"),
    [
        (2, None, ("--budget", "600s")),
        (3, None, ("--budget", "400s")),
        (10, None, ("--budget", "400s")),
        (2, 2, ("--repetitions", "6")),
        (20, 20, ("--repetitions", "40")),
    ],
)
def test_more_runs_are_twice_as_many_and_enough_for_gemms(ran: int, pairs: int | None, option: tuple[str, str]) -> None:
    """It is no use to wait again for fewer than five pairs, which no GEMM has a verdict of."""
    found = comparison()._replace(changes={"graph": change_of([1.0] * ran, [1.0] * ran)}, spent=200.0)
    assert longer(found, ComparisonPlan([], {}, pairs, 90.0, None)) == option


def test_questions_without_an_answer_have_a_reason_and_a_remedy() -> None:
    """The misses, with the command that measures them, and the GEMMs that Inductor has no choice for."""
    problem = Problem.of("mm", 8, 8, 8, dtype="float16", layout="nn")
    device = Device(misses=Counter({Miss(problem): 1}), left_out={"user: left out: own.json: no": None})
    device.no_choice[Left(problem, "no template")] = 1
    receipt = Receipt(devices={Hardware("NVIDIA H200", "sm_90", 132): device})
    missed, unasked = not_answered(comparison()._replace(receipt=receipt, command=["python", "x.py"]))
    why = "no row and no model has them; left out: own.json: no"
    assert missed == f"not answered: {problem} ({why}); to measure them: diode-lut tune -- python x.py"
    assert unasked == f"not asked: Inductor has no choice of kernels for {problem} (no template)"
    assert list(not_answered(comparison())) == []


def test_rows_that_lose_are_set_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--apply`` does what the shown command does, with a note in the row."""
    row = {"op": "bmm", "configs": [{"template": "decompose_k", "k_split": 2}]}
    hardware = Hardware("NVIDIA H200", "sm_90", 132)._asdict()
    (tmp_path / "-.json").write_text(json.dumps({"schema_version": 2, "hardware": hardware, "entries": [row]}))
    words: list[str | Path] = [
        "diode-lut",
        "set",
        tmp_path / "-.json",
        "bmm",
        "--config",
        "aten",
        "--note",
        "slower in a program",
    ]
    _apply([Loser(Problem.of("bmm", 8, 64, 32, b=2, dtype="float16", layout="nt"), words)])
    (entry,) = read_table(tmp_path / "-.json").entries
    assert (str(entry.best.config), entry.note) == ("aten", "slower in a program")
    assert capsys.readouterr().err.endswith("diode-lut: set 1 row of your own\n")


def test_shipped_rows_that_lose_are_overruled_by_a_table_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command makes the table if need be. It is for the GEMM alone, and tables of one's own are asked first."""
    forget_tables()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    problem = Problem.of("addmm", 8, 64, 32, dtype="float16", layout="nt", epilogue="light")
    aten = problem._replace(epilogue="none")
    device = Device(
        sources={SourceRecord("device", "/shipped/nvidia-h200.json", "d", 1): None},
        hits=Counter(
            {Hit(problem, "device", "d", "a row", ("decompose_k 2",)): 1, Hit(aten, "device", "d", "b", ("aten",)): 1}
        ),
    )
    hardware = Hardware("NVIDIA H200", "sm_90", 132)
    slower = GemmChange("8x64x32 float16", times(1, 2), times(3, 4), True)
    found = comparison()._replace(receipt=Receipt(devices={hardware: device}), gemms=[slower])
    (loser,) = losers(found)
    assert str(loser).startswith(f"{problem} is slower as nvidia-h200.json answers; for aten instead: diode-lut set ")
    assert "<li><code>addmm 8x64x32" in as_page(found)
    _apply([loser])
    (table,) = (tmp_path / "diode_lut" / "tables").glob("*.json")
    (entry,) = read_table(table).entries
    assert entry.is_exact
    assert (entry.covers(problem), entry.covers(aten), entry.note) == (True, False, "slower in a program")
    assert sources_for(hardware, config.copy(), ()).tiers[0].sources[0].path == table


def test_generated_kernels_that_lose_are_left_to_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has a row for the problem, unless other kernels with the problem gain more."""
    forget_tables()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    problem = Problem.generated("reduction", "inner", x=64, r=384)
    device = Device(sources={SourceRecord("device", "/shipped/nvidia-h100.json", "d", 1): None})
    device.generated[GeneratedKernel(problem, "device", "d", "a row", "looped_reduction x8 r64 w2", "")] = 2
    device.generated[GeneratedKernel(problem._replace(x=65), "", "", "", "", "no table and no model answers")] = 1
    hardware = Hardware("NVIDIA H100", "sm_90", 132)
    slow, fast = times(3000.0, 3100.0, kernel="triton_red_fused_0"), times(1000.0, 1100.0, kernel="triton_red_fused_0")
    slower = [GemmChange(f"{each}: mean", fast, slow, True) for each in (problem, problem._replace(x=65))]
    found = comparison()._replace(receipt=Receipt(devices={hardware: device}), gemms=[], generated=slower)
    (loser,) = losers(found)
    assert str(loser).startswith(
        f"{problem} is slower as nvidia-h100.json answers; for default instead: diode-lut set "
    )
    _apply([loser])
    (table,) = (tmp_path / "diode_lut" / "tables").glob("*.json")
    (entry,) = read_table(table).entries
    assert (entry.covers(problem), entry.x, entry.r, str(entry.best.config)) == (True, (64, 64), (384, 384), "default")
    faster = GemmChange(f"{problem}: sum", times(9000.0, 9100.0), times(1000.0, 1100.0), True)
    assert list(losers(found._replace(generated=[*slower, faster]))) == []


def test_generated_kernels_of_one_kind_of_runs_are_left_out() -> None:
    """They are fused otherwise in the others. Both families share the chance of an error."""

    def runs(start: float, *names: str) -> list[GraphTimes]:
        return [
            GraphTimes(
                {"8x8x8 float16": GemmTime(1, start + number, f"kernel {start}")},
                {name: GemmTime(1, start + number, "triton_red_fused_0") for name in names},
                1,
                1.0,
                1.0,
                True,
            )
            for number in range(6)
        ]

    gemms, generated = judged(runs(100.0, "a: mean", "b: relu"), runs(10.0, "a: mean", "c: add"), 0.01)
    assert [(change.name, change.is_clear) for change in gemms] == [("8x8x8 float16", True)]
    assert [(change.name, change.is_clear) for change in generated] == [("a: mean", True)]


HOSTILE = (
    *("</script><script>alert(1)</script>", "</code>", "<!--", "-->", "<img src=x onerror=alert(1)>", "</style>"),
    *("&lt;", "&#60;", '"', "'", "$title", "${method}", "$$", "{0}", "%s", "\\", "\0", "\x1b[2J", "\r\n", "\u2028"),
    *("\u202e", "\u200b", "\ufeff", "\ud800", "\udcff", "😀", "x" * 100_000, "", "javascript:alert(1)"),
)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_the_page_has_all_text_as_text(text: str) -> None:
    """Names of GEMMs, kernels, devices, files, settings and arguments are no markup, and none is lost."""
    found, plain = (as_page(named(each)) for each in (text, "plain"))
    found.encode()
    assert Elements(found).seen == Elements(plain).seen
    assert all(letter.isprintable() or letter == "\n" for letter in found)
    figures = printable_json(as_json(named(text)))
    assert all(letter.isprintable() or letter == "\n" for letter in figures)
    assert json.loads(figures)["gemms"][0]["gemm"] == text


class Elements(HTMLParser):
    """The elements of a page, with the names of their attributes; comments, too."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.seen.append((f"/{tag}", ()))

    def handle_comment(self, data: str) -> None:
        self.seen.append(("comment", ()))


def named(text: str) -> Comparison:
    """A comparison in which everything that has a name has this one."""
    problem = Problem.of("mm", 8, 8, 8, dtype="float16", layout="nn")
    device = Device(
        sources={SourceRecord(text, text, text, 1): None},
        hits=Counter({Hit(problem, text, text, text, (text,)): 1}),
        left_out={text: None},
    )
    versions = {Versions(text, text, text, text): None}
    receipt = Receipt(devices={Hardware(text, text, 1, (text,)): device}, versions=versions)
    fast, slow = times(1000.0, 1100.0, kernel=f"{text}1"), times(2000.0, 2100.0, kernel=f"{text}2")
    gemms = [
        GemmChange(text, slow, fast, True),
        GemmChange(f"{text}2", fast, slow, True),
        GemmChange(f"{text}3", [], slow),
    ]
    changes = {"graph": change_of([2.0, 2.0], [1.0, 1.0])}
    costs = [Cost(text, 1.0, 0.1, text, text)]
    settings, generated = {f"DIODE_LUT_{text}": text}, [GemmChange(text, slow, fast, True)]
    return Comparison([text, text], settings, receipt, changes, True, gemms, costs=costs, generated=generated)


def test_the_page_says_it_all() -> None:
    """It names what gained and what lost, and shows whatever names there are as text."""
    page = as_page(comparison())
    tags = Tags(page)
    assert tags.open == []
    assert "<script" not in page
    assert "python '</code><script>x.py'" in tags.text
    gained, lost = tags.text.index("GEMMs that gained most"), tags.text.index("GEMMs that lost most")
    assert gained < tags.text.index("8x8x8 float16") < lost < tags.text.index("7x7x7 float16")
    for text in (
        "faster, 2.00x",
        "1.90x (1.73x to 2.00x)",
        "0.53x (0.50x to 0.58x)",
        "kernel<1000>",
        "DIODE_LUT_PAD=0",
        "1 more GEMM w",
        "GPU time",
        "attention </li>: 40% of GPU time; leave out the mask",
        "Generated kernels that gained most",
        "reduction inner x 64 r 384: mean",
        "1 more generated kernel without a difference beyond noise",
    ):
        assert text in tags.text
    assert "9x9x9" not in tags.text


def test_kernels_that_need_more_runs_are_open() -> None:
    """A kernel that is apart in all runs has its ratio on the page, and is not called one without a difference."""
    same = [GemmChange(f"{size}x8x8 float16", times(*range(1, 6)), times(*range(1, 6))) for size in range(8)]
    apart = GemmChange("9x9x9 float16", times(*range(6, 11), kernel="a"), times(*range(1, 6), kernel="b"))
    kernels = [GemmChange(each.name, each.without, [time._replace(kernel="b") for time in each.tuned]) for each in same]
    found = comparison()._replace(gemms=judge([apart, *kernels]), generated=[])
    assert summary(found)[2].startswith(
        "GEMMs: 0 faster, 0 slower, 1 open (apart in all runs, but too few runs for so many kernels), 8 without a diff"
    )
    text = Tags(as_page(found)).text
    assert text.index("GEMMs that are open") < text.index("9x9x9 float16") < text.index("8 more GEMMs without a diff")
    nothing = Tags(as_page(found._replace(gemms=judge(kernels)))).text
    assert "GEMMs8 GEMMs without a difference beyond noise." in nothing.replace("\n", "")


def test_figures_and_lines_say_the_same() -> None:
    """The JSON has all GEMMs, the lines count them."""
    figures = json.loads(json.dumps(as_json(comparison())))
    assert [gemm["saved_ns"] for gemm in figures["gemms"]] == [9000.0, 0.0, 0.0, -9000.0]
    assert [cost["share"] for cost in figures["costs"]] == [0.4]
    assert [kernel["saved_ns"] for kernel in figures["generated"]] == [9000.0, 0.0]
    assert summary(comparison())[-5:] == [
        "GEMMs: 1 faster, 1 slower, 2 without a difference beyond noise",
        "no verdict on GEMMs without 5 traced runs of each kind",
        "generated kernels: 1 faster, 0 slower, 1 without a difference beyond noise",
        "no verdict on generated kernels without 5 traced runs of each kind",
        "no kernel's choice removes: attention </li>: 40% of GPU time; leave out the mask",
    ]
