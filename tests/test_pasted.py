"""Commands that messages show: pasted into a shell, they do what they are shown for, whatever files are called."""

import json
import logging
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import diode_lut
from diode_lut import config, doctor, errors
from diode_lut.cli import main
from diode_lut.cli.arguments import Typed
from diode_lut.cli.programs import command_line
from diode_lut.contribute.judge import review
from diode_lut.decide.catalog import open_table
from diode_lut.errors import DiodeLutError, as_command, install_command
from diode_lut.model.weights import write_model
from diode_lut.problem import Problem
from diode_lut.programs.comparison import Comparison, losers, not_answered, require_answers
from diode_lut.programs.page import as_page
from diode_lut.programs.run import run_program
from diode_lut.programs.times import GemmChange, GemmTime
from diode_lut.receipts import Device, Hit, Miss, Receipt, SourceRecord
from diode_lut.table import read_table
from tests.commands import call
from tests.model.small import model

PACKAGE = Path(diode_lut.__file__).parent
WORDS = [
    "plain",
    "-x",
    "--help",
    "two words",
    "it's",
    '"$(touch PWNED)"',
    "`touch PWNED`;touch PWNED&touch PWNED|touch PWNED>PWNED",
    "~*?[a]{b,c}#!\\",
    "a\ntouch PWNED\n",
    "\x1b[2K\u202e\u200b",
    "déjà\u2028☂😀",
    "\udcff\udc80x",
]
NAMES = ("--help", "".join(WORDS[3:8]) + "\n -x", "".join(WORDS[8:]))
"""Names of files and arguments: one that would be an option, and all that shells and terminals take for something."""
PROGRAMS = ("python", "git", "pip", "cp", "ssh-keygen", "diode-lut")
HARDWARE = {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132}


def table_text(*ops: str, **header: object) -> str:
    rows = [{"op": op, "configs": [{"template": "aten"}]} for op in ops]
    return json.dumps({"schema_version": 2, "hardware": HARDWARE, **header, "entries": rows})


def words_of(command: str, *programs: str) -> list[str]:
    """The words that a program gets if a command is pasted into bash."""
    defined = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\"; }}\n" for name in (*PROGRAMS, *programs))
    bash = ["bash", "-c", f"{defined}{command}"]
    printed = subprocess.run([os.fsencode(part) for part in bash], capture_output=True, check=True).stdout
    return [os.fsdecode(word) for word in printed.split(b"\0")[:-1]]


def shown(message: str, pattern: str) -> str:
    """The part of a message that the pattern's group is."""
    found = re.search(pattern, message)
    assert found is not None, message
    assert message.isprintable()
    return found[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; nothing that a name says was done there."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "PWNED").exists()


Paste = Callable[[str, pytest.MonkeyPatch, pytest.LogCaptureFixture], None]


def paste_doctors(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """``doctor`` names the command that says what is wrong with a table."""
    file = f"{name}.json"
    Path(file).write_text(table_text("nonsense"))
    with config.patch(tables=(file,)):
        remedies = [finding.remedy for finding in doctor.unusable([]) if " check " in finding.remedy]
    words = words_of(remedies[0])
    assert words[:3] == ["python", "-m", "diode_lut"]
    result = call(*words[3:])
    assert (result.exit_code, '"nonsense" is not allowed' in result.stdout) == (1, True)


def paste_warnings(name: str, _patch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
    """A table with many wrong rows has a warning with that command, too."""
    Path(f"{name}.json").write_text(table_text(*(f"op{number}" for number in range(40))))
    with log.at_level(logging.WARNING):
        open_table(Path(f"{name}.json"))
    words = words_of(shown(log.messages[-1], "rows skipped; `(.*)` lists them"))
    assert words[:3] == ["python", "-m", "diode_lut"]
    assert call(*words[3:]).stderr == "1 file, 40 faults\n"


def paste_resolves(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """``resolve`` names the command with which git brings a conflict back."""
    file = Path(f"{name}.json")

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], check=False, capture_output=True)

    def commit(branch: str) -> None:
        file.write_text(table_text("mm", provenance={"torch": branch}))
        git("add", "-A")
        git("-c", "user.name=n", "-c", "user.email=a@b", "commit", "-qm", branch)

    git("init", "-q", "-b", "main")
    commit("base")
    git("checkout", "-qb", "side")
    commit("side")
    git("checkout", "-q", "main")
    commit("main")
    git("merge", "side")
    conflict = file.read_text()
    assert "<<<<<<<" in conflict
    file.write_text(table_text("bmm"))
    result = call("resolve", "--ours", "--", file)
    git(*words_of(shown(result.stderr.strip(), "merge: `(.*)` brings the conflict back"))[1:])
    assert "<<<<<<<" in file.read_text()


def paste_evaluates(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """``evaluate`` says how a model is evaluated."""
    file = Path(f"{name}.mlp.safetensors")
    write_model(model(), file)
    Path("d.msgpack").write_bytes(b"")
    result = call("evaluate", "--", file, "d.msgpack")
    options = shown(result.stderr.splitlines()[-1], "a model is evaluated by (.*)")
    words = words_of(f"diode-lut evaluate {options} d.msgpack")
    assert call(*words[1:]).stderr == "error: d.msgpack: the file is empty\n"


def paste_copies(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """A shipped table that is to be changed is copied first."""
    Path(f"{name}.json").write_text(table_text("mm"))
    with pytest.raises(DiodeLutError) as caught:
        _ = Typed(Path(f"{name}.json"), shipped_as="h200").target
    subprocess.run(words_of(shown(str(caught.value), r"such as that of a copy: (.*)\)")), check=True)
    assert Path("mine.json").read_text() == table_text("mm")


def paste_programs(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """``run`` names the ``tune`` of a program, and ``tune`` its ``compare``."""
    command = ["python", f"{name}.py", name, "--table", name]
    context = click.Context(main, info_name="diode-lut")
    assert words_of(command_line(context, "tune", command)) == ["diode-lut", "tune", "--", *command]
    first, verb, table, path, *rest = words_of(command_line(context, "compare", command, Path(f"{name}.json")))
    assert (first, verb, table, Path(path), rest) == (
        *("diode-lut", "compare", "--table", Path(f"{name}.json")),
        ["--", *command],
    )


def paste_compares(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """``compare`` names the ``tune`` of a program of which nothing is answered, and its page has the program."""
    command = ["python", f"{name}.py", name]
    problem = diode_lut.Problem.of("mm", 8, 8, 8, dtype="float16", layout="nn")
    asked = Receipt(devices={diode_lut.Hardware(**HARDWARE): Device(misses=Counter({Miss(problem): 1}))})
    with pytest.raises(DiodeLutError) as caught:
        require_answers(asked, command)
    assert words_of(shown(str(caught.value), "`(.*)` measures")) == ["diode-lut", "tune", "--", *command]
    (line,) = not_answered(Comparison(command, {}, asked, {}, False, []))
    assert words_of(shown(line, "to measure them: (.*)")) == ["diode-lut", "tune", "--", *command]


def paste_pages(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """The page of ``compare`` has the program."""
    from html import unescape

    command = ["python", f"{name}.py", name]
    page = as_page(Comparison(command, {}, Receipt(), {}, False, []))
    assert words_of(unescape(shown(page.replace("\n", " "), "<code>(python.*?)</code>"))) == command


def paste_compares_and_losses(name: str, patch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
    """``compare`` names commands in both its places."""
    paste_compares(name, patch, log)
    paste_losses(name, patch, log)


def paste_losses(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """``compare`` names the command after which a row of one's own that lost has the library's kernel, for good."""
    path, problem = Path(f"{name}.json"), Problem.of("bmm", 8, 64, 32, b=2, dtype="float16", layout="nt")
    configs = [{"template": "decompose_k", "k_split": 2}]
    row = {"op": "bmm", "dtype": "float16", "m": [1, 8], "align": 16, "configs": configs}
    path.write_text(json.dumps({"schema_version": 2, "hardware": HARDWARE, "entries": [row]}))
    hits = Counter({Hit(problem, "user", "0" * 64, "bmm", ("decompose_k 2",)): 1})
    device = Device(hits=hits, sources={SourceRecord("user", str(path), "0" * 64, 1): None})
    receipt = Receipt(devices={diode_lut.Hardware(**HARDWARE): device})
    times = {100.0: "aten::bmm", 188.0: "triton_tem_fused_bmm_0"}
    without, tuned = ([GemmTime(10, ns, kernel)] * 2 for ns, kernel in times.items())

    def lines(without: list[GemmTime], tuned: list[GemmTime]) -> list[str]:
        change = GemmChange("2x8x64x32 float16", without, tuned, is_clear=True)
        return list(map(str, losers(Comparison([], {}, receipt, {}, True, [change]))))

    assert lines(tuned, without) == []
    (line,) = lines(without, tuned)
    words = words_of(shown(line, f"{problem} is slower with its row; for aten instead: (.*)"))
    assert call(*words[1:]).exit_code == 0
    (entry,) = read_table(path).entries
    assert (str(entry.best.config), entry.note, entry.m, entry.align) == ("aten", "slower in a program", (1, 8), 16)


def paste_scripts(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """A script that is no program is run by Python."""
    Path(f"{name}.py").write_text("")
    with pytest.raises(DiodeLutError) as caught:
        run_program([f"./{name}.py"], dict(os.environ))
    python, script = words_of(shown(str(caught.value), "to run a script: (.*)"), *PYTHONS)
    assert python in PYTHONS
    assert Path(script) == Path(f"{name}.py")


PYTHONS = ("python", "python3", *(f"python3.{minor}" for minor in range(10, 16)))


def paste_signatures(name: str, _patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """A table that was edited after it was signed is signed again."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("there is no ssh-keygen")
    path = Path(f"{name}.json").absolute()
    path.write_text(table_text("mm"))
    path.with_name(f"{path.name}.sig").write_text("")
    reasons = [fault.reason for fault in review(path, path.read_bytes())]
    command = shown(next(each for each in map(as_shown, reasons) if "ssh-keygen" in each), r"sign again: (.*)\)")
    assert words_of(command)[:-1] == ["ssh-keygen", "-Y", "sign", "-n", "diode-lut", "-f", "KEY"]
    assert Path(words_of(command)[-1]) == Path(path.name)


def as_shown(reason: str) -> str:
    from diode_lut.errors import printable

    return printable(reason)


def paste_installs(name: str, patch: pytest.MonkeyPatch, _log: pytest.LogCaptureFixture) -> None:
    """A clone installs its own requirements."""
    clone = Path.cwd() / name
    clone.mkdir()
    (clone / "pyproject.toml").write_text("")
    patch.setattr(errors, "__file__", str(clone / "diode_lut" / "errors.py"))
    assert words_of(install_command("torch")) == ["pip", "install", f"{clone}[torch]"]


PASTED: dict[str, Paste] = {
    "contribute/judge.py": paste_signatures,
    "cli/evaluate.py": paste_evaluates,
    "cli/git.py": paste_resolves,
    "cli/programs.py": paste_programs,
    "cli/arguments.py": paste_copies,
    "doctor.py": paste_doctors,
    "errors.py": paste_installs,
    "programs/comparison.py": paste_compares_and_losses,
    "programs/run.py": paste_scripts,
    "programs/page.py": paste_pages,
    "decide/catalog.py": paste_warnings,
}
"""By module: what pastes the commands that it shows."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="pastes into bash")
@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("module", PASTED)
@pytest.mark.usefixtures("here")
def test_a_command_that_is_shown_can_be_pasted(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every command does what it is shown for, and nothing that the name of a file, or an argument, says."""
    PASTED[module](name.replace("/", ""), monkeypatch, caplog)


def test_every_command_is_pasted() -> None:
    """Commands are made in one way, and each module that shows some is tried here."""
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert {name for name, text in sources.items() if re.search(r"\bas_command\b", text)} == {*PASTED, "errors.py"}
    assert {name for name, text in sources.items() if "shlex.quote" in text} == {"errors.py", "cli/git.py"}
    shell = r"(?:python -m diode_lut|diode-lut|git checkout|pip|cp|ssh-keygen) [^`\"']*\{(?!as_command|wanted)"
    assert [name for name, text in sources.items() if re.search(shell, text)] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="pastes into bash")
def test_words_stay_words() -> None:
    """Each word comes through a shell as it was, and what is shown is printable."""
    assert words_of(as_command("python", *WORDS, "")) == ["python", *WORDS, ""]
    assert as_command("python", *WORDS).isprintable()
    assert as_command("a", "-x", Path("-x"), Path("./-y"), Path("/-z")) == "a -x ./-x ./-y /-z"
