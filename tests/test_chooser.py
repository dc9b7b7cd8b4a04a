"""Choosers: a user's function among the tables and models, and whatever it does wrong."""

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diode_lut
from diode_lut.decide.catalog import sources_for
from diode_lut.decide.choosers import Chooser
from diode_lut.decide.decide import Sources, decide
from diode_lut.errors import SettingError
from diode_lut.hardware import Hardware
from diode_lut.model.weights import write_model
from diode_lut.problem import Problem
from diode_lut.receipts import recorder
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.model import small

H200 = Hardware("NVIDIA H200", "sm_90", 132)
MM = Problem.of("mm", 64, 64, 64, dtype="float16", layout="nn")
FAST = Config.parse("triton_mm 64x64x32 g8 s3 w4")
SLOW = Config.parse("triton_mm 16x16x16 g8 s1 w1")
ROW = {"configs": [{"template": "aten"}]}

Write = Callable[..., Path]

pytestmark = pytest.mark.usefixtures("no_tables")


def select(problem: Problem = MM) -> tuple[str, tuple[Config, ...]]:
    decision = diode_lut.select(problem, hardware=H200)
    return decision.tier, decision.configs


def selector(*choosers: Chooser) -> Sources:
    return sources_for(H200, diode_lut.config.copy(), choosers)


def test_chooser_answers_after_tables_or_before_them(table_file: Write) -> None:
    """A chooser answers where no table has a match; one that is registered to be asked first answers always."""
    path = table_file("mine.json", {"op": "mm", **ROW})
    bmm = MM._replace(op="bmm")
    with diode_lut.config.patch(tables=(str(path),)):
        with diode_lut.register_chooser(lambda *_: FAST, name="rule", digest="1"):
            assert select() == ("user", (ATEN,))
            assert select(bmm) == ("chooser", (FAST,))
        assert select(bmm) == ("abstain", ())
        with diode_lut.register_chooser(lambda *_: [FAST, ATEN], name="rule", digest="1", before_tables=True):
            assert select() == ("chooser", (FAST, ATEN))


def test_chooser_behind_the_models(shipped: Path) -> None:
    """A chooser that is registered for that is asked last, behind the models; it cannot be first as well."""
    write_model(small.model(), shipped / "nvidia-h200.mlp.safetensors")
    known, unknown = small.MM, MM._replace(dtype="float32")
    for last, tiers in ((False, ("chooser", "chooser")), (True, ("model", "chooser"))):
        with diode_lut.register_chooser(lambda *_: FAST, name="rule", digest="1", after_models=last):
            assert (select(known)[0], select(unknown)[0]) == tiers
            assert [step.partition(":")[0] for step in diode_lut.select(unknown, hardware=H200).steps][-1] == "chooser"
    with pytest.raises(SettingError, match="chooser rule: before_tables and after_models exclude each other"):
        diode_lut.register_chooser(lambda *_: FAST, name="rule", before_tables=True, after_models=True)


def test_chooser_gets_the_problem_and_the_hardware() -> None:
    """The function sees all of the GEMM and of the device, and is asked once about each problem."""
    asked: list[Any] = []

    def note(problem: Problem, hardware: Hardware) -> None:
        asked.append((problem, hardware))

    with diode_lut.register_chooser(note, name="note", digest="1"):
        assert select() == select() == ("abstain", ())
        select(MM._replace(epilogue="light"))
    assert asked == [(MM, H200), (MM._replace(epilogue="light"), H200)]


def test_first_chooser_with_an_answer_wins() -> None:
    """Choosers are asked in the order of their registration, and one of the same name takes the other's place."""
    first = diode_lut.register_chooser(lambda *_: None, name="first", digest="1")
    second = diode_lut.register_chooser(lambda *_: FAST, name="second", digest="1")
    with first, second:
        assert select() == ("chooser", (FAST,))
        with diode_lut.register_chooser(lambda *_: SLOW, name="first", digest="2"):
            assert select() == ("chooser", (SLOW,))
            first.remove()  # which is registered no more
            assert select() == ("chooser", (SLOW,))
        assert select() == ("chooser", (FAST,))
    assert select() == ("abstain", ())


def test_tiers_can_leave_choosers_out() -> None:
    """The setting ``tiers`` decides on choosers as on tables, and explain says so."""
    with (
        diode_lut.register_chooser(lambda *_: FAST, name="rule", digest="1"),
        diode_lut.config.patch(tiers=("user", "model")),
    ):
        assert select() == ("abstain", ())
        assert "  chooser: switched off by the setting tiers" in diode_lut.explain(MM, hardware=H200).splitlines()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError


def fail(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any) -> Any:
        raise error

    return function


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (fail(ValueError("no idea\n")), "raised ValueError: no idea\\n"),
    "exits": (fail(SystemExit(3)), "raised SystemExit: 3"),
    "too few arguments": (lambda _problem: FAST, "raised TypeError"),
    "text": (lambda *_: "triton_mm", "returned 'triton_mm', not a Config, a list of them or None"),
    "list of text": (lambda *_: [FAST, "aten"], "returned 'aten' where a Config should be"),
    "unknown template": (lambda *_: Config("cublas"), "returned ('cublas', ()), which is no config"),
    "wrong block": (lambda *_: Config("triton_mm", (17, 64, 32, 8, 3, 4)), "block_m: 17 is not allowed"),
    "missing tunables": (lambda *_: Config("triton_mm", (16,)), "block_n: triton_mm needs it"),
    "too many tunables": (lambda *_: Config("aten", (1, 2, 3)), "more values than aten has tunables"),
    "tunables of another type": (lambda *_: Config("triton_mm", 5), "which is no config"),  # type: ignore[arg-type]
    "number": (lambda *_: float("nan"), "returned nan"),
    "never returns": (lambda *_: threading.Event().wait(), "took longer than 0.05 s, so it is not asked again"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_is_a_miss_with_one_warning(
    fault: str, caplog: pytest.LogCaptureFixture, table_file: Write
) -> None:
    """Whatever a chooser raises, returns or takes, the others are asked, one warning says why, and so does explain."""
    function, expected = FAULTS[fault]
    path = table_file("mine.json", {"op": "bmm", **ROW})
    with (
        diode_lut.config.patch(tables=(str(path),)),
        diode_lut.register_chooser(function, name="rule", digest="1", before_tables=True, limit_s=0.05),
    ):
        assert select() == ("abstain", ())
        assert select(MM._replace(m=65)) == ("abstain", ())
        assert select(MM._replace(op="bmm")) == ("user", (ATEN,))
        explained = diode_lut.explain(MM, hardware=H200)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("chooser rule: ")
    assert expected in warnings[0]
    assert warnings[0].endswith(f"for {MM} on {H200}; that counts as no match")
    assert expected in explained


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_errors_that_cannot_be_printed(caplog: pytest.LogCaptureFixture) -> None:
    """An error whose message raises another one is a miss, and the warning names its type."""
    with diode_lut.register_chooser(fail(UnprintableError()), name="rule", digest="1"):
        assert select() == ("abstain", ())
    assert "chooser rule: raised UnprintableError" in caplog.text


def test_slow_chooser_is_not_asked_again() -> None:
    """After a call that took too long there are no other calls, also not for another list of tables."""
    calls: list[Problem] = []

    def wait(problem: Problem, _hardware: Hardware) -> None:
        calls.append(problem)
        threading.Event().wait()

    with diode_lut.register_chooser(wait, name="rule", digest="1", limit_s=0.05):
        select()
        select(MM._replace(m=65))
        with diode_lut.config.patch(tiers=("chooser",)):
            select(MM._replace(m=66))
    assert calls == [MM]


def test_explain_shows_who_comes_next(table_file: Write) -> None:
    """Explain names the chooser that answers, its configs, and the rows that would have answered next."""
    path = table_file("mine.json", ROW)
    with (
        diode_lut.config.patch(tables=(str(path),)),
        diode_lut.register_chooser(lambda *_: [FAST, ATEN], name="rule", digest="1", before_tables=True),
    ):
        _, *lines = diode_lut.explain(MM, hardware=H200).splitlines()
    assert lines[:3] == ["  chooser: rule answers", f"    {FAST}", "    aten"]
    assert lines[3].startswith(f"  runner-up: {path}:")
    assert lines[3].endswith(": aten; user: its table is asked later")


def test_receipt_names_the_chooser() -> None:
    """The receipt lists choosers among the sources, by name, and counts their answers in their tier."""
    sources = selector(Chooser(lambda *_: FAST, "a rule of mine", "1"))
    decision = decide(sources, MM).decision
    recorder.sources_seen(sources)
    recorder.decided(decision, 0.0)
    recorder.served(decision, (FAST,))
    device = recorder.own_receipt().devices[H200]
    digest = decision.source.digest if decision.source is not None else ""
    named = [(source.tier, source.path) for source in device.sources if source.digest == digest]
    assert named == [("chooser", "a rule of mine")]
    assert [(hit.tier, hit.configs) for hit in device.hits if hit.digest == digest] == [("chooser", (str(FAST),))]


def test_digest_stands_for_the_chooser() -> None:
    """What caches are keyed by changes with the name, the digest, the place and the hardware, but not otherwise."""
    function = FAULTS["text"][0]
    base = selector(Chooser(function, "rule", "1")).digest
    assert base == selector(Chooser(lambda *_: None, "rule", "1")).digest
    others = {
        selector(Chooser(function, "other", "1")).digest,
        selector(Chooser(function, "rule", "2")).digest,
        selector(Chooser(function, "rule", "1", before_tables=True), Chooser(function, "other", "1")).digest,
        selector(Chooser(function, "other", "1"), Chooser(function, "rule", "1")).digest,
        sources_for(H200._replace(name="H200 NVL"), diode_lut.config.copy(), (Chooser(function, "rule", "1"),)).digest,
        selector().digest,
    }
    assert base not in others
    assert len(others) == 6


def test_answers_without_an_identity_are_not_kept() -> None:
    """Each compile has keys of its own as long as a chooser without a digest is there, or one that had a fault."""
    pytest.importorskip("torch")
    from diode_lut.hook.snapshot import InductorSnapshot

    def keys() -> int:
        """Of two compiles."""
        return len({InductorSnapshot().identity for _ in range(2)})

    with diode_lut.register_chooser(lambda *_: FAST, name="rule", digest="1"):
        assert keys() == 1
        select()
        assert keys() == 1
    with diode_lut.register_chooser(lambda *_: FAST, name="rule"):
        assert keys() == 2
        with diode_lut.config.patch(tiers=("user",)):
            assert keys() == 1
    with diode_lut.register_chooser(fail(ValueError()), name="rule", digest="1"):
        assert keys() == 1
        select()
        assert keys() == 2
    assert keys() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": "my_rules:rule"}, "'my_rules:rule' is not a function"),
        ({"name": ""}, "name: '' is not a name"),
        ({"digest": b"1"}, "chooser rule: digest: b'1' is neither text nor None"),
        ({"limit_s": 0}, "limit_s: 0 is not allowed (allowed: a positive number of seconds, up to 3600)"),
        ({"limit_s": float("inf")}, "limit_s: inf is not allowed"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    """An argument that cannot be is an error that names it, and nothing is registered."""
    with pytest.raises(SettingError, match="chooser") as raised:
        diode_lut.register_chooser(**{"function": lambda *_: FAST, "name": "rule", "digest": "1", **arguments})
    assert message in str(raised.value)
    assert select() == ("abstain", ())


def test_chooser_without_digest_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing stands for a chooser's answers, a warning says that caches do not hit."""
    with diode_lut.register_chooser(lambda *_: FAST, name="nameless digest"):
        pass
    assert "chooser nameless digest has no digest, so Inductor's caches never hit" in caplog.text


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with functions, in the working directory."""
    path = tmp_path / "chooser_rules.py"
    path.write_text(
        "from diode_lut import Config\n"
        "def rule(problem, hardware):\n"
        "    return Config.parse('triton_mm 64x64x32 g8 s3 w4')\n",
        encoding="utf-8",
    )
    (tmp_path / "chooser_broken.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return path


@pytest.mark.usefixtures("rules")
def test_explain_command(table_file: Write) -> None:
    """``explain --chooser`` asks a function of a module in the working directory before all tables."""
    explain = ("explain", "mm", "64", "64", "64", "--table", table_file("mine.json", ROW), "--hardware", "mine")
    with diode_lut.config.patch(tables=(str(table_file("mine.json", ROW)),)):
        asked = call(*explain, "--chooser", "chooser_rules:rule")
        assert (asked.exit_code, asked.stdout.splitlines()[1]) == (0, "  chooser: chooser_rules:rule answers")
        assert "chooser" not in call(*explain).stdout


def test_explain_command_for_generated_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``explain --chooser`` asks a function about generated kernels, too."""
    answer = "def rule(problem, hardware):\n    return Config.parse('looped_reduction x8r512 w2')\n"
    (tmp_path / "rules_for_reductions.py").write_text(f"from diode_lut import Config\n\n\n{answer}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kernel = ("reduction", "--variant", "inner", "--x", "8", "--r", "300", "--hardware", "nvidia-h100")
    asked = call("explain", *kernel, "--chooser", "rules_for_reductions:rule")
    assert asked.stdout.splitlines()[1:3] == [
        "  chooser: rules_for_reductions:rule answers",
        "    looped_reduction x8r512 w2",
    ]


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("chooser_rules", "'chooser_rules' is not MODULE:FUNCTION, for example my_rules:choose"),
        ("chooser_rules:", "'chooser_rules:' is not MODULE:FUNCTION"),
        ("no_such_module:rule", "no_such_module:rule: cannot be imported: ModuleNotFoundError: No module named"),
        ("chooser_broken:rule", "chooser_broken:rule: cannot be imported: ZeroDivisionError: division by zero"),
        ("chooser_rules:rul", "chooser_rules:rul: cannot be imported: AttributeError"),
        ("chooser_rules:Config.parse.__name__", "chooser: 'parse' is not a function of a Problem and a Hardware"),
    ],
)
def test_functions_that_are_not_there(place: str, message: str) -> None:
    """A command says in one line why a function cannot be used."""
    asked = call("explain", "mm", "64", "64", "64", "--chooser", place, "--hardware", "nvidia-h200")
    assert asked.exit_code == 2
    (line,) = asked.stderr.splitlines()
    assert message in line


def test_generated_kernels_are_asked_about_on_request() -> None:
    """A function for GEMMs is not asked about generated kernels; one that is registered for them answers."""
    kernel, config = Problem.generated("pointwise", "flat", x=4096), Config("pointwise", (512, 4))
    asked: list[Problem] = []

    def function(problem: Problem, _: Hardware) -> Config:
        asked.append(problem)
        return config

    assert decide(selector(Chooser(function, "rule", "1")), kernel).decision.configs == ()
    assert asked == []
    assert decide(selector(Chooser(function, "rule", "1", generated=True)), kernel).decision.configs == (config,)
    assert (
        selector(Chooser(function, "rule", "1")).digest
        != selector(Chooser(function, "rule", "1", generated=True)).digest
    )
