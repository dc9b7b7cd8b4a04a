"""Inductor's caches on disk: they never answer after a change that may matter, and always do after one that cannot."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diode_lut.hardware import detect_hardware
from diode_lut.model import Kind
from diode_lut.model.weights import write_model
from diode_lut.templates.config import ATEN, Config
from tests.forks import Forks, environment
from tests.model import small

PROGRAM = Path(__file__).parents[1] / "programs" / "compile_often.py"
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KERNELS = {"cpu": Config("cpp_gemm"), "cuda": Config("triton_bmm", (32, 32, 32, 8, 2, 4))}
KNOWN = Kind("bmm", "float32", "nn", 16, *[(1, 1024)] * 4)

Settings = dict[str, Any]


class Files:
    """Tables and models that answer with the library, or with the device's own kernel."""

    def __init__(self, device: str, directory: Path, table_file: Callable[..., Path]) -> None:
        self._kernel = KERNELS[device]
        self._directory, self._table_file = directory, table_file
        self._hardware = detect_hardware(device)

    def table(self, name: str, *, library: bool, **hardware: Any) -> str:
        """The path of a table for this machine's hardware, but for the fields of ``hardware``."""
        entry = {"op": "bmm", "configs": [(ATEN if library else self._kernel).to_json()]}
        return self._written(name, entry, **hardware)

    def table_along_m(self, name: str, gains: dict[tuple[int, int], int]) -> str:
        """The path of a table with a row for each range of M, and what the device's own kernel gains there."""
        kernel, library = self._kernel.to_json(), ATEN.to_json()
        rows = [
            {"op": "bmm", "m": list(part), "configs": sorted_by_gain({**kernel, "gain_permille": gain}, library)}
            for part, gain in gains.items()
        ]
        return self._written(name, *rows)

    def _written(self, name: str, *rows: dict[str, Any], **hardware: Any) -> str:
        fields = {**self._hardware._asdict(), "aliases": [], **hardware}
        return str(self._table_file(f"{name}.json", *rows, hardware=fields))

    def model(self, name: str, *, library: bool) -> str:
        """The path of a model that knows the GEMM."""
        path = self._directory / f"{name}.safetensors"
        candidates = (self._kernel, ATEN)
        weights = small.weights(0.5 if library else -0.5, "aten", len(candidates))
        write_model(small.model(candidates=candidates, kinds=[KNOWN], weights=weights), path)
        return str(path)


def sorted_by_gain(kernel: dict[str, Any], library: dict[str, Any]) -> list[dict[str, Any]]:
    return [kernel, library] if kernel["gain_permille"] > 1000 else [library, kernel]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def files(device: str, tmp_path: Path, table_file: Callable[..., Path]) -> Files:
    return Files(device, tmp_path, table_file)


@pytest.fixture
def outcomes(device: str, tmp_path: Path, after_inductor: Forks) -> Callable[..., dict[str, set[str]]]:
    """Compiles with each of these settings in one new process, first without AOTAutograd's cache, then with it.

    Says whether the cache in question answered, and whose kernel ran, in all that happened. With ``m`` in the settings,
    M is dynamic, and first this.
    """

    def run(**settings: Settings) -> dict[str, set[str]]:
        steps = [{"autograd_cache": on, **_step(**each)} for on in (False, True) for each in settings.values()]
        arguments, cache = (
            (str(PROGRAM), device, json.dumps(steps)),
            {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        )
        if device == "cpu":
            done = after_inductor.run(*arguments, **cache)
        else:
            command = [sys.executable, *arguments]
            done = subprocess.run(command, env=environment() | cache, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        reports = json.loads(done.stdout.splitlines()[-1])
        assert all(report["error"] < 1e-3 for report in reports)
        return {
            name: {_outcome(each) for each in reports[place :: len(settings)]} for place, name in enumerate(settings)
        }

    return run


def _step(m: int | None = None, **settings: Any) -> dict[str, Any]:
    return {"settings": settings, "m": m}


def _outcome(report: dict[str, Any]) -> str:
    return f"{'cached' if report['cached'] else 'compiled'} {'library' if report['library'] else 'kernel'}"


def test_caches_follow_what_the_answers_depend_on(files: Files, outcomes: Callable[..., Any]) -> None:
    """Neither cache is ever stale, nor cold for no reason.

    A new process with warm caches compiles again where a row was edited, the model replaced, a setting changed or the
    table removed. It does not where nothing was, where only rows of other hardware were, or where the same rows are in
    another file.
    """
    own, others = files.table("own", library=False), files.table("others", library=False, arch="sm_10")
    table, model = {"tables": (own, others)}, {"tables": (files.model("model", library=False),)}
    assert outcomes(table=table, model=model) == {"table": {"compiled kernel"}, "model": {"compiled kernel"}}

    edited, edited_others = (
        files.table("edited", library=True),
        files.table("edited-others", library=True, arch="sm_10"),
    )
    assert outcomes(
        unchanged=table,
        other_hardware_edited={"tables": (own, edited_others)},
        row_edited={"tables": (edited, others)},
        setting_changed={**table, "policy": "off"},
        table_removed={"tables": (), "tiers": ["user"]},  # a shipped model may know the GEMM, too
        model_unchanged=model,
        model_replaced={"tables": (files.model("other-model", library=True),)},
    ) == {
        "unchanged": {"cached kernel"},
        "other_hardware_edited": {"cached kernel"},
        "row_edited": {"compiled library"},
        "setting_changed": {"compiled library"},
        "table_removed": {"compiled library"},
        "model_unchanged": {"cached kernel"},
        "model_replaced": {"compiled library"},
    }

    Path(edited).replace(own)
    assert outcomes(edited_in_place=table, file_gone={"tables": (edited,), "tiers": ["user"]}) == {
        "edited_in_place": {"cached library"},
        "file_gone": {"cached library"},
    }


@pytest.mark.slow
def test_no_cache_knows_the_size_that_came_first(files: Files, outcomes: Callable[..., Any]) -> None:
    """A graph with a dynamic size has the same kernel in every process, whichever size each has first."""
    gains = {"library": {(1, 63): 1500, (64, 8192): 700}, "kernel": {(1, 31): 995, (32, 8192): 1500}}
    settings = {
        name: {"tables": (files.table_along_m(name, each),), "dynamic_kernels": 1} for name, each in gains.items()
    }
    for first, how in (((16, 4096), "compiled"), ((4096, 16), "cached")):
        steps = {name: {**each, "m": m} for (name, each), m in zip(settings.items(), first, strict=True)}
        assert outcomes(**steps) == {name: {f"{how} {name}"} for name in gains}
