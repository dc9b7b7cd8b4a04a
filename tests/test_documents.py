"""What README.md and the pages of docs/ say is complete, and what they show works."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest

import diode_lut
from diode_lut.cli import COMMANDS
from diode_lut.dataset import DatasetWriter, Record, Timing
from diode_lut.measure import METHODS
from diode_lut.measure.tasks import find_setup
from diode_lut.problem import Problem
from diode_lut.settings import _SETTINGS
from diode_lut.templates.config import ATEN
from tests.distill import synthetic
from tests.documents import COMMANDS_PAGE, PAGES, README, ROOT, blocks, sections

NOT_RUN = {
    "README.md": 2,
    "benchmarks.md": 1,
    "collecting.md": 5,
    "contributing-tables.md": 2,
    "figures.md": 1,
    "generated-kernels.md": 1,
    "from-torch-diode.md": 1,
    "gpus.md": 2,
    "programs.md": 2,
    "real-programs.md": 1,
    "serving.md": 1,
}
"""How many blocks of a document are marked as not run: those that need a GPU, distilling, and the targets of make."""

ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
    "USER": "nobody",
}


def run(script: str, directory: Path) -> str:
    """What a script for bash prints; it must not fail."""
    command = ["bash", "-euo", "pipefail", "-c", script]
    completed = subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


# What a reader of a page has, who works in a clone.


def timings(directory: Path) -> None:
    """Timings of a GPU; and of the machine at hand, so that ``collect`` has nothing left to compile."""
    synthetic.write(directory / "x1.msgpack", 120)
    problem = Problem.of("bmm", 64, 96, 128, b=4, dtype="float32", layout="nn")
    setup = find_setup(None, None, "default")
    with DatasetWriter(directory / "timings.msgpack", setup.header) as writer:
        for stage in METHODS[setup.method]:
            writer.append(Record(problem, (Timing(ATEN, 1000.0),), stage))


def others_timings(directory: Path) -> None:
    """The example of a CSV file, and Inductor's cache directory and log with the time of one kernel."""
    printed = "strides: [512, 1], [304, 1]\ndtypes: torch.bfloat16, torch.bfloat16\n  mm 0.2500 ms 100.0%"
    (directory / "train.log").write_text(f"AUTOTUNE mm(256x512, 512x304)\n{printed}\n")
    (directory / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "timings.csv", directory / "examples")
    operands = [("cuda", "torch.bfloat16", 256, 512, 512, 1, 0), ("cuda", "torch.bfloat16", 512, 304, 304, 1, 0)]
    system = {"device": {"name": "NVIDIA H200"}, "version": {"triton": "3.6.0", "cuda": "13.0"}}
    cache = directory / "torchinductor" / "cache" / "0"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"system": system, "cache": {"mm": {str(operands): {"highest": {"mm-x": 0.25}}}}}))


def files_of_torch_diode(directory: Path) -> None:
    """A dataset with two kernels on one problem, and a solution with one of them."""
    names = ("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps")
    fast, slow = (dict(zip(names, (block, 64, 32, 8, 3, 4), strict=True)) for block in (64, 128))
    shape = {"B": 1, "M": 64, "N": 64, "K": 64} | dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "float16")
    timed = [{"config": fast, "time": 0.01}, {"config": slow, "time": 0.02}]
    solution = {json.dumps(shape): {"timed_configs": timed}}
    document = {"hardware": {"NVIDIA H200": {"operation": {"mm": {"solution": solution}}}}}
    (directory / "matmul_dataset_h200.json").write_text(json.dumps(document))
    (directory / "max_autotune.json").write_text(json.dumps({"config": [slow]}))


def tables_to_compare(directory: Path) -> None:
    """Tables that people have changed, in a clone with another one beside it."""
    synthetic.write(directory / "timings.msgpack", 120)
    row = ".m == [128, 256] and .n == [512, 1024] and .k == [1024, 1024]"
    run(
        f"""
        python -m diode_lut build timings.msgpack -o old.json
        jq '(.entries[] | select({row})).configs = [{{"template": "aten"}}]' old.json > new.json
        cp old.json base.json && cp old.json ours.json && cp new.json theirs.json
        git init --quiet . && git init --quiet ../diode_lut && cd ../diode_lut
        git -c user.name=x -c user.email=x commit --quiet --allow-empty --message x
        git remote add origin https://git.example/diode_lut
        """,
        directory,
    )


def two_tables(directory: Path) -> None:
    """Tables for the device at hand and for the H200, with a row each."""
    linear = {"op": "mm", "dtype": "bfloat16", "layout": "nt", "align": 16, "m": [513, 1024], "n": [4096, 4096]}
    rows = {
        "mine": (diode_lut.get_detected_hardware(), {"op": "bmm", "m": [1, 64]}),
        "h200": (synthetic.H200, {**linear, "k": [1, 1024]}),
    }
    for name, (hardware, key) in rows.items():
        entries = [{**key, "configs": [{"template": "aten"}]}]
        table = {"schema_version": 2, "hardware": hardware._asdict(), "entries": entries}
        (directory / f"{name}.json").write_text(json.dumps(table))
    run("python -m diode_lut fmt mine.json h200.json", directory)


def contribution(directory: Path) -> None:
    """The example of one."""
    shutil.copytree(ROOT / "examples" / "contribution", directory / "examples" / "contribution")


PREPARATIONS: dict[str, Callable[[Path], None]] = {
    "collecting.md": timings,
    "contributing-tables.md": contribution,
    "exchange.md": others_timings,
    "from-torch-diode.md": files_of_torch_diode,
    "receipts.md": timings,
    "reviewing.md": tables_to_compare,
    "serving.md": two_tables,
    "troubleshooting.md": two_tables,
}


LONG = ("chooser.md", "editing.md", "exchange.md", "figures.md", "model.md", "reviewing.md")
"""The documents whose blocks take 4 s or more."""


def runnable() -> Iterator[Any]:
    """The documents with blocks to run; those that compile, or have many commands, are slow."""
    for document in (README, *PAGES):
        script = "".join(block.script for block in blocks(document))
        if script:
            marks = [pytest.mark.slow] if "torch.compile" in script or document.name in LONG else []
            yield pytest.param(document, id=document.name, marks=marks)


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq")
@pytest.mark.parametrize("document", list(runnable()))
def test_blocks_run_as_written(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Path) -> None:
    """A document's commands and programs run one after the other, and what is shown as output is in theirs."""
    found = blocks(document)
    directory = tmp_path / "work"
    directory.mkdir()
    shutil.copytree(ROOT / "tables", directory / "tables")
    monkeypatch.setitem(ENVIRONMENT, "PATH", os.pathsep.join([str(python.parent), ENVIRONMENT["PATH"]]))
    monkeypatch.setitem(ENVIRONMENT, "XDG_CONFIG_HOME", str(directory / "config"))
    if document.name == "exchange.md":
        monkeypatch.setitem(ENVIRONMENT, "TORCHINDUCTOR_CACHE_DIR", str(directory / "torchinductor"))
    PREPARATIONS.get(document.name, lambda _: None)(directory)
    printed = squeezed(run("".join(block.script for block in found), directory))
    for line in "".join(block.text for block in found if not block.kind).splitlines():
        assert squeezed(line) in printed
    if document.name == "figures.md":
        assert_gains(document.read_text(encoding="utf-8"), printed)
    if document.name == "tour.md":
        assert "user: mine.json:" in printed
        assert re.search(r"total_predictions=1, hits={'user': 1, .*fallbacks=0", printed)


def assert_gains(text: str, printed: str) -> None:
    """The page's tables of gains have the figures that its commands print, by type and in the same order."""
    figures = re.findall(r"^(float16|bfloat16) (\d+) 100.0% (\S+) (\S+) .* (\d+)$", printed, flags=re.MULTILINE)
    gains = [(dtype, gain, f"{int(problems) - int(left):,}", best) for dtype, problems, gain, best, left in figures]
    row = r"^\| (b?float16).*? \| ([\d.]+) on ([\d,]+) \| ([\d.]+) \| ([\d.]+) on ([\d,]+) \|"
    rows = re.findall(row, text, flags=re.MULTILINE)
    assert len(rows) == 4
    for number, (dtype, gain, count, best, later, count_later) in enumerate(rows):
        of_dtype = [each[1:] for each in gains if each[0] == dtype][number // 2 * 3 :]
        assert (gain, count, best) == of_dtype[0]
        assert (later, count_later) == of_dtype[1][:2]


def squeezed(text: str) -> str:
    """Lines without regard to white space."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def test_few_blocks_are_not_run() -> None:
    """Blocks are marked as not run only where there is no way."""
    marked = {document.name: sum(block.left_out for block in blocks(document)) for document in (README, *PAGES)}
    assert {name: count for name, count in marked.items() if count} == NOT_RUN


def test_blocks_that_are_not_run_can_be_typed() -> None:
    """Commands in these blocks, and in those for continuous integration, exist and have the options that are given."""
    found = (block for document in (README, *PAGES) for block in blocks(document))
    text = "".join(block.text for block in found if block.left_out or block.kind == "yaml")
    for line in re.findall(r"^[ -]*(?:run: )?diode-lut (.*)", text, flags=re.MULTILINE):
        words = shlex.shlex(line, posix=True, punctuation_chars="|>&")
        words.whitespace_split = True
        name, *arguments = takewhile(lambda word: word[0] not in "|>&", words)
        command = command_of(name)
        command.make_parser(click.Context(command)).parse_args(arguments)


def command_of(name: str) -> click.Command:
    module, _, attribute = COMMANDS[name].partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


def test_every_command_and_option_is_explained() -> None:
    """commands.md has a line for each command, with a link to the section that has all of its options."""
    for name in COMMANDS:
        row = rf"^\| \[`{name}`\]\(([\w-]+\.md)#([\w-]+)\) \|"
        link = re.search(row, COMMANDS_PAGE.read_text(), flags=re.MULTILINE)
        assert link is not None, name
        section = sections(ROOT / "docs" / link[1])[link[2]]
        options = [param.opts[0] for param in command_of(name).params if isinstance(param, click.Option)]
        missing = [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", section)]
        assert missing == [], name


def test_every_setting_is_explained() -> None:
    """Each setting has its line, with the environment variable."""
    section = sections(ROOT / "docs" / "hook.md")["settings"]
    assert [name for name in (*_SETTINGS, "autoregister") if f"| `DIODE_LUT_{name.upper()}` |" not in section] == []


def test_every_function_is_explained() -> None:
    """Each public function has its line."""
    section = sections(ROOT / "docs" / "hook.md")["from-python"]
    functions = [name for name in diode_lut.__all__ if callable(getattr(diode_lut, name)) and name.islower()]
    assert [name for name in functions if f"| `{name}(" not in section] == []


def test_links_lead_somewhere() -> None:
    """Links to files and sections of the repository are right."""
    anchors = cache(sections)
    for document in (*ROOT.glob("*.md"), *PAGES, ROOT / "tables" / "README.md"):
        targets: list[Any] = re.findall(r"\]\(([^)]+)\)", document.read_text(encoding="utf-8"))
        for target in targets:
            if not target.startswith("https://"):
                path, _, anchor = target.partition("#")
                linked = document.parent / path if path else document
                assert linked.exists(), (document.name, target)
                assert not anchor or anchor in anchors(linked), (document.name, target)


def test_every_page_is_listed() -> None:
    """README.md links to every page."""
    readme = README.read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"](docs/{page.name})" not in readme] == []
