"""What several test files need."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from diode_lut import config, files
from diode_lut.decide import catalog
from diode_lut.errors import TableError
from diode_lut.table import read_table, write_table
from tests.forks import INDUCTOR, ROOT, Forks, first_compile, forks_after
from tests.startup import sitecustomize

PYTHON_IN_FORK = Path(__file__).parent / "programs" / "python_in_fork.py"

NEEDING_TORCH = (
    "contribute/test_adopt_command.py",
    "contribute/test_adopted_model.py",
    "contribute/test_contribution.py",
    "contribute/test_machine.py",
    "contribute/test_verify_command.py",
    "measure/test_workers.py",
    "measure/test_collect_command.py",
    "measure/test_collector.py",
    "measure/test_executor.py",
    "measure/test_final.py",
    "measure/test_gemm.py",
    "compile_check",
    "distill",
    "gpu",
    "hook",
    "interpreter",
    "templates",
    "model/test_shipped.py",
    "report/test_browser.py",
    "test_bench_dynamic.py",
    "test_bench_generated.py",
    "test_bench_models.py",
    "test_bench_quack.py",
    "test_broken_imports.py",
    "test_demo.py",
    "test_doctor.py",
    "test_documents.py",
    "test_not_files.py",
    "test_ranks.py",
    "test_runtime.py",
)
"""What ``make test-lowest`` leaves out: its packages do not include torch and a browser."""

collect_ignore = [] if find_spec("torch") else list(NEEDING_TORCH)

# Nothing is judged by the clock; and fixtures of a test function hold nothing that an example would change
settings.register_profile(
    "all", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("quick", settings.get_profile("all"), max_examples=25)

# The tables that developers have tuned for themselves are not those of the tests
os.environ["XDG_CONFIG_HOME"] = os.devnull

STARTUP = [str(Path(sitecustomize.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(STARTUP)

# A thread that waits for another, on a busy machine, makes a matmul a thousand times slower than ``collect`` believes
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One compile at a time in each process, and no trials of the C++ compiler, which take 12 s in each cold process
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Inductor's precompiled headers cost each process that compiles C++ more than they save it
os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
# Its compiler is one that remembers, here and in all processes that are started: libraries beside what pytest keeps
# from run to run, by PyTorch, the compiler and what it makes of this CPU, and headers in this run
if "CXX" not in os.environ and find_spec("torch") and shutil.which("g++") and shutil.which("bash"):
    COMMAND = ["g++", "-###", "-march=native", "-E", "-x", "c++", os.devnull]
    COMPILER = subprocess.run(COMMAND, capture_output=True, text=True).stderr + version("torch")
    KEPT = ROOT / ".pytest_cache" / "d" / "libraries" / hashlib.sha256(COMPILER.encode()).hexdigest()[:16]
    HEADERS = tempfile.TemporaryDirectory(prefix="diode-lut-headers-")
    os.environ["CXX"] = str(ROOT / "tests" / "compiler" / "g++")
    os.environ["KEPT_LIBRARIES"], os.environ["KEPT_HEADERS"] = str(KEPT), HEADERS.name

# What a shell starts in the background ignores Ctrl-C, and so would the commands that tests interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def table_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a table file in canonical form, for the H200 unless ``fields`` replace it, and gives its path."""

    def write(name: str, *entries: dict[str, Any], **fields: Any) -> Path:
        document = {
            "schema_version": 2,
            "hardware": {"name": "NVIDIA H200", "arch": "sm_90", "sm_count": 132, "aliases": ["h200-141gb"]},
            "provenance": {},
            "entries": entries,
            **fields,
        }
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")
        with suppress(TableError):
            table = read_table(path)
            if not table.errors:
                write_table(table, path)
        return path

    return write


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory that takes the place of the shipped tables, as if the package lay in a checkout next to it."""
    catalog.forget_tables()
    (tmp_path / "schemas").symlink_to(files.schemas_directory())
    monkeypatch.setattr(files, "_PACKAGE", tmp_path / "diode_lut")
    directory = tmp_path / "tables"
    directory.mkdir()
    yield directory
    catalog.forget_tables()


@pytest.fixture
def no_tables(shipped: Path) -> Iterator[None]:
    """No shipped tables, and none of the user's."""
    with config.patch(tables=()):
        yield


@pytest.fixture
def nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is writing the files that are read here, so a reader of a bad one does not wait for the rest of it."""
    monkeypatch.setattr(files, "_UNFINISHED_PAUSE_S", 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds a file locked does not wait for it."""
    monkeypatch.setattr(files, "_PATIENCE_S", files._GLANCE_S)


@pytest.fixture(scope="session")
def after_torch() -> Iterator[Forks]:
    """Programs in processes of their own, in which torch has been imported, and nothing of Inductor's."""
    with forks_after("import torch") as forks:
        yield forks


@pytest.fixture(scope="session")
def after_inductor() -> Iterator[Forks]:
    """Programs in processes of their own, in which Inductor has been imported, and diode_lut has not."""
    with forks_after(INDUCTOR + first_compile("cpu")) as forks:
        yield forks


@pytest.fixture(scope="session")
def python(after_inductor: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose programs need not import Inductor again, where they see no GPU anyway; ``diode-lut`` beside it."""
    import torch

    path = tmp_path_factory.mktemp("bin") / "python"
    fork = "" if torch.cuda.is_available() else f"-IS {PYTHON_IN_FORK} {after_inductor.pid} "
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {fork}"$@"\n')
    path.chmod(0o755)
    command = path.with_name("diode-lut")
    command.write_text(f'#!/bin/sh\nexec {path} -m diode_lut "$@"\n')
    command.chmod(0o755)
    return path


def pytest_configure(config: pytest.Config) -> None:
    """Draw a quarter of the examples where slow tests are left out."""
    settings.load_profile("quick" if config.option.markexpr == "not slow" else "all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where torch sees none."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing:
        import torch

        if not torch.cuda.is_available():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU"))
