"""The benchmark of programs of others: a tiny one on a CPU, and what it makes of results."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

torch = pytest.importorskip("torch")

from modelbench.labels import DEFAULT, DIODE_LUT, OFF, Label  # noqa: E402
from modelbench.real_programs import Given, Program, programs  # noqa: E402
from modelbench.real_table import draw, gpu_gain, is_wrong, markdown, told  # noqa: E402
from modelbench.real_turns import Plan, interval, measure, verdict  # noqa: E402
from modelbench.real_worker import sampled, start  # noqa: E402
from modelbench.records import Record, read  # noqa: E402

from tests.documents import ROOT  # noqa: E402

OWN = [name for name, program in programs().items() if not program.needs]


def plan(directory: Path, **fields: Any) -> Plan:
    """For a tiny program on the CPU, in default mode and with diode_lut."""
    return Plan(
        **{
            "names": ["nerf"],
            "ways": [Label(DEFAULT, settings=OFF), Label(DIODE_LUT)],
            "out": directory / "results.jsonl",
            "caches": directory / "caches",
            "traces": None,
            "device": "cpu",
            "tiny": True,
            "gpus": 1,
            "at_once": 1,
            "seconds": float("inf"),
            "turns_s": 0.1,
            **fields,
        }
    )


def record(gain: float = 1.2, error: float = 1e-3, **fields: Any) -> Record:
    """The record of a program with an interval of 0.6 % around its speed-up."""
    times = {DEFAULT: [1.2, 1.2], DIODE_LUT: [1.2 / gain] * 2}
    return {
        "program": "nerf",
        "about": "NeRF's <MLP>",
        "device_name": "a GPU",
        "torch": "2.11.0",
        "first_s": {DEFAULT: 10.0, DIODE_LUT: 11.0},
        "apart": {DEFAULT: 0.0, DIODE_LUT: 1e-3},
        "errors": {"eager": 1e-3, DEFAULT: 1e-3, DIODE_LUT: error},
        "steps_ms": times,
        "speedups": {DIODE_LUT: [gain, gain - 0.003, gain + 0.003]},
        "gpu_us": {DEFAULT: [1000.0, 1100.0, 1000.0], DIODE_LUT: [800.0, 880.0, 800.0]},
        "answered": {DIODE_LUT: {"device": 5, "missed": 1}},
        **fields,
    }


@pytest.mark.slow
def test_a_tiny_program_takes_turns(tmp_path: Path) -> None:
    """Each way has a process, whose results are compared with float64; a second run finds all done."""
    assert measure(plan(tmp_path)) == 0
    (found,) = read([tmp_path / "results.jsonl"])
    assert set(found["steps_ms"]) == {DEFAULT, DIODE_LUT}
    assert len(found["steps_ms"][DEFAULT]) == len(found["steps_ms"][DIODE_LUT]) >= 3
    assert found["errors"][DIODE_LUT] < 2 * found["errors"]["eager"]
    assert found["traced"][DEFAULT]["graphs"] == 1
    assert "gpu_us" not in found
    assert measure(plan(tmp_path)) == 0
    assert [*read([tmp_path / "results.jsonl"])] == [found]


@pytest.mark.slow
def test_a_program_that_fails_is_a_result(tmp_path: Path) -> None:
    """Its record has the line that names the exception, in each way that failed."""
    assert measure(plan(tmp_path, device="nosuch")) == 1
    (found,) = read([tmp_path / "results.jsonl"])
    assert set(found["failed"]) <= {DEFAULT, DIODE_LUT}
    assert "Error" in next(iter(found["failed"].values()))


@pytest.mark.parametrize("name", OWN)
def test_weights_are_the_same_in_float64(name: str) -> None:
    """A program without compiling has results near those in float64, from the same rounded weights and inputs."""
    with torch.compiler.set_stance("force_eager"):
        given = Given("cpu", programs()[name].dtype, tiny=True)
        one, other = (
            sampled(start(programs()[name], given_).results())
            for given_ in (given, Given("cpu", given.dtype, tiny=True, exact=True))
        )
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(one, other, strict=True)]
    assert max(errors) < 0.3


def test_programs_have_names_for_people() -> None:
    """No two have the same, and each says which packages it needs."""
    found: list[Program] = [*programs().values()]
    assert len({program.about for program in found}) == len(found) >= 40
    assert all(program.missing() == [] for name, program in programs().items() if name in OWN)


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        ([1.02, 1.01, 1.03], "faster"),
        ([0.98, 0.97, 0.99], "slower"),
        ([0.995, 0.993, 0.997], "slower by less than 1 %"),
        ([1.0, 0.997, 1.003], "equal"),
        ([1.0, 0.95, 1.05], "open"),
    ],
)
def test_an_interval_has_a_verdict(speedup: list[float], said: str) -> None:
    """An interval that is too wide leaves it open."""
    gain, low, high = speedup
    assert verdict(gain, low, high) == said


def test_the_interval_is_that_of_pairs_of_turns() -> None:
    """A change of both ways alike in a turn makes the interval no wider."""
    default = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    gain, low, high = interval({DEFAULT: default, DIODE_LUT: [time / 1.1 for time in default]}, DIODE_LUT)
    assert gain == pytest.approx(1.1)
    assert high / low - 1 < 1e-6


def test_results_are_shown() -> None:
    """The table and the picture have each program that was told, by its last record."""
    records = [record(2.0), {"program": "lstm", "failed": {DEFAULT: "RuntimeError: x"}}, record()]
    assert told(records) == [record()]
    page = markdown(records)
    assert (
        "| NeRF's <MLP> | `nerf` | 1.250 (1.250 to 1.250) | faster | 1.2 | 1.200 (1.197 to 1.203) | 10 / 11 "
        "| 5 / 0 / 1 | 0 / 0 |" in page
    )
    assert "| 1.100 times as long |" in page
    assert page.endswith("Wrong results: none.")
    assert markdown([record(error=0.1)]).endswith("Wrong results: NeRF's <MLP>.")
    assert is_wrong(record(error=float("nan")))
    texts = [element.text for element in ET.fromstring(draw(records)).iter() if element.text]
    assert "NeRF's <MLP>" in texts
    assert {"1.25\u00d7", "1.10"} <= {*texts}


def test_the_page_shows_the_results() -> None:
    """The table and the picture of docs/real-programs.md are what the tool makes of the results beside it."""
    records = [*read([ROOT / "docs" / "real-programs.jsonl"])]
    assert markdown(records) in (ROOT / "docs" / "real-programs.md").read_text(encoding="utf-8")
    assert draw(records) == (ROOT / "docs" / "real-programs.svg").read_text(encoding="utf-8")


def test_kernels_tell() -> None:
    """A program has the verdict of its kernels, with an interval if there are several; on a CPU its steps tell."""
    scattered = {DIODE_LUT: [1.0, 0.9, 1.1]}
    assert "| 1.250 (1.250 to 1.250) | faster |" in markdown([record(speedups=scattered)])
    assert "| 1.000 (0.900 to 1.100) | open |" in markdown([record(speedups=scattered, gpu_us=None)])
    once = record(speedups=scattered, gpu_us={DEFAULT: [1000.0], DIODE_LUT: [800.0]})
    assert "| 1.250 | open |" in markdown([once])
    assert ET.fromstring(draw([once])) is not None


def test_each_gpu_has_figures_of_its_own() -> None:
    """Tables, means and pictures of two GPUs are apart, that with more programs first."""
    kernels = {DEFAULT: [3000.0], DIODE_LUT: [1000.0]}
    other = record(program="lstm", device_name="another GPU", gpu_us=kernels)
    records = [other, record(), record(program="clip")]
    page = markdown(records)
    assert page.index("Measured on: a GPU") < page.index("geometric mean of 2") < page.index("Measured on: another GPU")
    assert "| geometric mean of 1 | | 3.000 |" in page
    titles = [element.text for element in ET.fromstring(draw(records)).iter() if element.text]
    assert sum(title.startswith("Speed of") for title in titles) == 2


def test_kernels_of_a_cpu_have_no_gain() -> None:
    """Without times of GPU kernels the table has none, and the geometric mean leaves the program out."""
    assert gpu_gain(record(gpu_us=None)) is None
    assert gpu_gain(record()) == pytest.approx((1.25, 1.25, 1.25))
