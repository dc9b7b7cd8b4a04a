"""The benchmark of whole models: tiny ones on a CPU, and what it makes of results."""

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from modelbench.labels import DEFAULT, LABELS, Label, parse_label
from modelbench.models import MODELS, ON_REQUEST, Workload, build
from modelbench.picture import draw
from modelbench.records import Record, append, read
from modelbench.scheduling import Plan, error_in, measure
from modelbench.summary import summarize
from modelbench.table import markdown
from modelbench.timing import Errors

DOCS = Path(__file__).parent.parent / "docs"
OWN = [name for name, model in (MODELS | ON_REQUEST).items() if not model.needs]


def plan(directory: Path, **fields: Any) -> Plan:
    """For a tiny model on the CPU, compiled once in default mode."""
    defaults = {"models": ["dlrm"], "labels": {LABELS[0]: 1}, "device": "cpu", "tiny": True, "processes": 2}
    places = {"out": directory / "results.jsonl", "caches": directory / "caches"}
    return Plan(
        **{**defaults, **places, "share": False, "seconds": float("inf"), "timeout": 400, "retry": False, **fields}
    )


def compiled(label: str, seconds: float, model: str = "dlrm", **receipt: Any) -> Record:
    """The record of one compile."""
    answers = {"tiers": {}, "kernels": {}, "epilogues": {}, "misses": 0, "skipped": 0, **receipt}
    fields = {"kind": "compile", "model": model, "label": Label(label).to_json(), "repetition": 0, "seconds": seconds}
    return {**fields, "timed": {"ops": 2, "kernels": 30}, "counters": {"pad_mm_bench": 4}, "receipt": answers}


def timed(us: dict[str, list[float]], errors: dict[str, list[float]], model: str = "dlrm") -> Record:
    """The record of one model's times."""
    return {"kind": "run", "model": model, "us": us, "errors": errors, "device_name": "a GPU", "torch": "2.11.0"}


def results(diode_lut_error: float = 1e-3) -> list[Record]:
    """Those of one model, once for each label, the last one first."""
    seconds = {"default": 10.0, "max-autotune": 200.0, "diode_lut": 11.0}
    receipts: dict[str, Any] = {"diode_lut": {"tiers": {"device": 5}, "misses": 1}}
    compiles = [compiled(label, value, **receipts.get(label, {})) for label, value in seconds.items()]
    us = {"default": [100.0], "max-autotune": [80.0], "diode_lut": [84.0, 76.0]}
    errors = {"eager": [1e-3], "default": [2e-3], "max-autotune": [2e-3], "diode_lut": [1e-3, diode_lut_error]}
    return [*reversed(compiles), timed(us, errors)]


@pytest.fixture
def in_forks(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the benchmark starts need not import Inductor again."""
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.slow
@pytest.mark.usefixtures("in_forks")
def test_a_tiny_model_is_compiled_and_timed(tmp_path: Path) -> None:
    """A compile begins with an empty cache, and is then timed from that cache; a second run finds all done."""
    assert measure(plan(tmp_path)) == 0
    compile_, run = read([tmp_path / "results.jsonl"])
    assert compile_["counters"]["fxgraph_cache_miss"] == 1
    assert (run["cache_hits"], run["cache_misses"]) == (1, 0)
    assert run["errors"][DEFAULT][0] < 3 * run["errors"]["eager"][0]
    assert summarize([compile_, run])[0].us(DEFAULT) == run["us"][DEFAULT][0]
    assert measure(plan(tmp_path)) == 0
    assert list(read([tmp_path / "results.jsonl"])) == [compile_, run]


@pytest.mark.slow
@pytest.mark.usefixtures("in_forks")
def test_results_say_their_conditions(tmp_path: Path) -> None:
    """What is compiled without waiting for Inductor's compile workers says so, and what several GPUs share."""
    assert measure(plan(tmp_path, models=["linears"], processes=1, gpus=2, warm=False)) == 0
    assert [(each["warm"], each["gpus"]) for each in read([tmp_path / "results.jsonl"])] == [(False, 2), (False, 2)]
    assert sorted(path.name for path in (tmp_path / "caches").glob("lock*")) == ["lock0", "lock1"], "both took a task"


def test_a_failure_is_named_by_its_error() -> None:
    """Of the output of a process that failed, the result has the line with the error, not the advice that follows."""
    log = "Traceback\n  File x\ntorch._inductor.exc.InductorError: RuntimeError: no\n\nSet TORCHDYNAMO_VERBOSE=1\n\n"
    assert error_in(log) == "torch._inductor.exc.InductorError: RuntimeError: no"
    assert error_in("Segmentation fault\n") == "Segmentation fault"


@pytest.mark.parametrize("name", OWN)
def test_tiny_models_compute_what_they_do_in_float64(name: str) -> None:
    """Each model that needs no other package has finite results, close to those in float64, all of their shapes."""
    workload = build(name, "cpu", tiny=True)
    reference = workload.in_float64()
    found, exact = workload.step(workload.module), reference.step(reference.module)
    assert len(found) == (1 + len([*workload.module.parameters()]) if workload.training else 1)
    for one, other in zip(found, exact, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).norm() <= 0.05 * other.norm()


def test_a_model_that_computes_zeros_has_no_errors() -> None:
    """A model whose last layer is zero, as some are before training, is refused with the reason."""
    module = torch.nn.Linear(4, 4)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    with pytest.raises(ValueError, match="all are zero"):
        Errors(Workload(module, (torch.randn(2, 4),)))


def test_no_time_is_an_exit_code(tmp_path: Path) -> None:
    """Without time left, nothing is started, and the exit code is 3."""
    assert measure(plan(tmp_path, seconds=0.0)) == 3
    assert not (tmp_path / "results.jsonl").exists()


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    """What was written whole is read."""
    path = tmp_path / "results.jsonl"
    append(path, {"kind": "run"})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": ')
    assert list(read([path])) == [{"kind": "run"}]


def test_ratios_are_of_medians() -> None:
    """Speeds and compile times are relative to default mode."""
    (model,) = summarize(results())
    assert model.speed("diode_lut") == pytest.approx(100 / 80)
    assert model.compile_ratio("max-autotune") == 20


def test_large_errors_are_wrong() -> None:
    """A label with an error over three times that of eager mode in any of its compiles is reported; NaN is one too."""
    assert summarize(results(2.9e-3))[0].wrong() == []
    assert summarize(results(3.1e-3))[0].wrong() == ["diode_lut"]
    assert summarize(results(float("nan")))[0].wrong() == ["diode_lut"]


def test_tables_have_all_labels() -> None:
    """Times, ratios and answers are in the table, a dash where a model lacks a label; then benchmarks and errors."""
    times = timed({"default": [5.0]}, {"eager": [0.1], "default": [0.1]}, model="unet")
    other = [compiled("default", 4.0, model="unet"), times]
    text = markdown(summarize([*results(), *other]))
    assert "| 80.0 (76.0 to 84.0) | 1.250 | 1.250 |" in text
    assert "| device 5, missed 1 |" in text
    assert "| 5.0 | – | – | – | – | 4.0 | – | – | – |" in text  # noqa: RUF001 (a dash, as tables have it)
    assert "Measured on: a GPU, PyTorch 2.11.0." in text
    assert "Error over that of eager mode: default 1.00 to 2.00, max-autotune 2.00 to 2.00, diode_lut 1.00" in text
    assert text.endswith("Wrong: none.")
    assert markdown(summarize(results(3.1e-3))).endswith("Wrong: diode_lut (DLRM's MLPs, batch 4,096).")


def test_the_picture_has_a_bar_for_each_value() -> None:
    """The SVG is well-formed, and has a bar for each model and label, and for their means, in both halves."""
    root = ET.fromstring(draw(summarize(results())))
    background, legend, panels = 1, 2, 2
    assert len(root.findall("{*}rect")) == background + legend + panels * 2 * 2


def test_labels_are_written_as_settings() -> None:
    """A label has settings of diode_lut, options of Inductor's and a mode, with values as Python writes them."""
    label = parse_label("own=policy=verify,top_k=3,inductor.shape_padding=False,mode=max-autotune-no-cudagraphs")
    assert label == Label(
        "own", "max-autotune-no-cudagraphs", (("shape_padding", False),), (("policy", "verify"), ("top_k", 3))
    )
    assert label.autotunes
    assert Label.from_json(label.to_json()) == label
    with_tables = parse_label("apart=tables=['apart.json']")
    assert {with_tables: 1} == {Label("apart", settings=(("tables", ("apart.json",)),)): 1}


@pytest.mark.parametrize("results", sorted(DOCS.glob("benchmarks*.jsonl")), ids=lambda path: path.stem)
def test_the_page_shows_the_results(results: Path) -> None:
    """The tables of docs/benchmarks.md are what the tool makes of the results beside it."""
    assert markdown(summarize(read([results]))) in (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def test_the_picture_shows_the_results() -> None:
    """The picture in docs/ is what the tool draws of the results beside it."""
    models = summarize(read([DOCS / "benchmarks.jsonl"]))
    assert draw(models) == (DOCS / "benchmarks.svg").read_text(encoding="utf-8")
