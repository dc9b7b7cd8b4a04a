"""The hook and the filter in real compiles on the CPU."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.exc import InductorError
from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache
from torch._inductor.utils import clear_caches, fresh_cache, run_and_get_code

import diode_lut
from diode_lut.measure.problems import read_problems
from diode_lut.problem import Problem
from diode_lut.receipts import FREEZABLE, Miss, receipt_bytes
from diode_lut.receipts.recorder import Counts, own_receipt
from diode_lut.receipts.summary import as_text

Rows = Callable[..., None]
A, B = torch.randn(4, 64, 128), torch.randn(4, 128, 96)


@pytest.fixture
def own_rows(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Makes rows for this machine's CPU the user's own table."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = diode_lut.get_detected_hardware()
    hardware = {"name": found.name, "arch": found.arch, "sm_count": found.sm_count}
    return lambda *entries: rows(*entries, hardware=hardware)


@pytest.fixture(autouse=True, scope="module")
def libraries() -> Iterator[None]:
    """A directory in which a C++ kernel that two tests have in common is compiled once, by its source."""
    with fresh_cache():
        yield


@pytest.fixture(autouse=True)
def cold(libraries: None) -> Iterator[None]:
    """No test gets a graph or a time from another one: each has Inductor choose, and benchmark, by itself."""
    torch._dynamo.reset()
    clear_caches()
    with (
        inductor_config.patch(fx_graph_cache=False, autotune_local_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        yield


@pytest.fixture
def benchmarked() -> Iterator[list[str]]:
    """The names of the ops that Inductor benchmarked."""
    names: list[str] = []

    def save(_timings: Any, name: str, *_: Any) -> None:
        names.append(name)

    add_feedback_saver(save)
    yield names
    get_algorithm_selector_cache().feedback_saver_fns.remove(save)


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("template", "calls_library"), [("aten", True), ("cpp_gemm", False)])
def test_row_decides_bmm(template: str, calls_library: bool, own_rows: Rows, benchmarked: list[str]) -> None:
    """The row's choice between the library and the C++ template is the code, in either mode, with no benchmark."""
    own_rows({"op": "bmm", "configs": [{"template": template}]})
    result, (code,) = run_and_get_code(torch.compile(torch.bmm), A, B)
    torch.testing.assert_close(result, torch.bmm(A, B))
    assert ("extern_kernels.bmm" in code) is calls_library
    assert benchmarked == []


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("template", "library"), [("aten", True), ("cpp_gemm", False)])
def test_row_decides_frozen_linear(template: str, library: bool, own_rows: Rows, benchmarked: list[str]) -> None:
    """So it is for nn.Linear with frozen weights, which never passes a choices handler."""
    own_rows({"op": "mm", "configs": [{"template": template}]})
    model, x = torch.nn.Linear(128, 64).eval(), torch.randn(32, 128)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        result, (code,) = run_and_get_code(torch.compile(model), x)
    torch.testing.assert_close(result, model(x))
    assert ("_mkl_linear" in code) is library
    assert benchmarked == []


@pytest.mark.slow
def test_linear_after_something_fused(own_rows: Rows) -> None:
    """A frozen linear whose input is not computed yet when Inductor chooses is served like any other."""
    own_rows({"op": "mm", "configs": [{"template": "cpp_gemm"}]})
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 48)).eval()
    x = torch.randn(16, 32)
    with torch.no_grad(), inductor_config.patch(freezing=True), diode_lut.profile_predictions() as counts:
        result = torch.compile(model)(x)
    torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    assert counts.hits["user"] == 2


def test_miss_is_inductors_own_business(own_rows: Rows, benchmarked: list[str]) -> None:
    """Under max-autotune a GEMM without a row is benchmarked, or is aten with ``fallback_to_autotune=False``."""
    own_rows({"op": "mm", "configs": [{"template": "aten"}]})
    with inductor_config.patch(max_autotune=True):
        torch.compile(torch.bmm)(A, B)
        assert benchmarked == ["bmm"]
        torch._dynamo.reset()
        with diode_lut.config.patch(fallback_to_autotune=False), fresh_cache():
            _, (code,) = run_and_get_code(torch.compile(torch.bmm), A, B)
    assert "extern_kernels.bmm" in code
    assert benchmarked == ["bmm"]


def test_verify_lets_inductor_time_the_choice_against_aten(own_rows: Rows, benchmarked: list[str]) -> None:
    """With the policy ``verify`` Inductor gets the row's choice and aten, and times the two."""
    own_rows({"op": "bmm", "configs": [{"template": "cpp_gemm"}]})
    with diode_lut.config.patch(policy="verify"):
        torch.compile(torch.bmm)(A, B)
    assert benchmarked == ["bmm"]


@pytest.mark.parametrize(
    ("bias", "settings", "mode"),
    [
        pytest.param(False, {"policy": "verify"}, "max-autotune", marks=pytest.mark.slow),
        (False, {"top_k": 2}, "default"),
        pytest.param(True, {"policy": "verify"}, "default", marks=pytest.mark.slow),
        (True, {"top_k": 2}, "max-autotune"),
    ],
)
def test_frozen_linear_with_several_candidates(
    bias: bool, settings: dict[str, Any], mode: str, own_rows: Rows, benchmarked: list[str]
) -> None:
    """Where Inductor cannot time a frozen linear, which is in default mode, it gets the first candidate alone."""
    own_rows({"configs": [{"template": "cpp_gemm"}, {"template": "aten"}]})
    model, x = torch.nn.Linear(128, 64, bias=bias).eval(), torch.randn(32, 128)
    autotuning = mode == "max-autotune"
    with (
        torch.no_grad(),
        inductor_config.patch(freezing=True, max_autotune=autotuning),
        diode_lut.config.patch(**settings),
    ):
        result, (code,) = run_and_get_code(torch.compile(model), x)
    torch.testing.assert_close(result, model(x))
    assert bool(benchmarked) is autotuning
    assert autotuning or "_mkl_linear" not in code


def test_other_threads_are_served(own_rows: Rows) -> None:
    """A thread that the hook was not installed in gets the table's kernels too."""
    own_rows({"op": "bmm", "configs": [{"template": "cpp_gemm"}]})
    codes: list[str] = []

    def compile_there() -> None:
        codes.extend(run_and_get_code(torch.compile(torch.bmm), A, B)[1])

    thread = threading.Thread(target=compile_there)
    thread.start()
    thread.join()
    assert "extern_kernels.bmm" not in codes[0]


def test_strict_miss_is_the_users_error(own_rows: Rows) -> None:
    """With ``strict``, a miss is an error of torch.compile that says how to measure the problem."""
    own_rows({"op": "mm", "configs": [{"template": "aten"}]})
    collect = r"""echo '\[\{"op": "bmm", .*"K": 128\}\]' > missed.json && python -m diode_lut collect --problems"""
    with (
        diode_lut.config.patch(strict=True),
        pytest.raises(InductorError, match=rf"^LoweringException: MissError: bmm 4x64x96x128 .*no model.*{collect}"),
    ):
        torch.compile(torch.bmm)(A, B)


def test_strict_counts_what_cannot_run_as_missed(own_rows: Rows) -> None:
    """A row of which no config can run is no answer; without ``strict`` Inductor decides, and the receipt says miss."""
    own_rows({"op": "bmm", "configs": [{"template": "decompose_k", "k_split": 2}]})
    with diode_lut.profile_predictions() as counts:
        torch.compile(torch.bmm)(A, B)
    assert (counts.hits["user"], counts.skipped_configs, counts.unserved) == (1, 1, 1)
    torch._dynamo.reset()
    with (
        diode_lut.config.patch(strict=True),
        pytest.raises(InductorError, match=r"no config of \S+rows0.json:\d+ can run"),
    ):
        torch.compile(torch.bmm)(A, B)


def test_strict_gives_way_to_suppressed_errors(own_rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Where Dynamo is to suppress errors, a miss runs eagerly, with Dynamo's warning, which names it."""
    own_rows({"op": "mm", "configs": [{"template": "aten"}]})
    dynamo_log = logging.getLogger("torch._dynamo")
    dynamo_log.addHandler(caplog.handler)
    try:
        with diode_lut.config.patch(strict=True), torch._dynamo.config.patch(suppress_errors=True):
            torch.testing.assert_close(torch.compile(torch.bmm)(A, B), torch.bmm(A, B))
    finally:
        dynamo_log.removeHandler(caplog.handler)
    assert "MissError: bmm 4x64x96x128 float32" in caplog.text


def linear(dtype: torch.dtype, frozen: bool) -> Counts:
    """What is counted while a linear layer is compiled."""
    model, x = torch.nn.Linear(128, 64).eval().to(dtype), torch.randn(32, 128, dtype=dtype)
    with torch.no_grad(), inductor_config.patch(freezing=frozen), diode_lut.profile_predictions() as counts:
        torch.testing.assert_close(torch.compile(model)(x), model(x))
    return counts


@pytest.mark.parametrize("row", [{"template": "aten"}, {"template": "cpp_gemm"}, None], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_choice_is_no_miss(row: Any, dtype: torch.dtype, own_rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    """Where Inductor has nothing but the library, that is counted, and is no miss, no error and no warning."""
    if row:
        own_rows({"op": "addmm", "configs": [row]}, {"op": "mm", "configs": [row]})
    with diode_lut.config.patch(strict=True):
        counts = linear(dtype, frozen=False)
    assert (counts.no_choice, counts.total_predictions, counts.unserved) == (1, 0, 0)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


CASES = ["plain", "bfloat16", "frozen", "gradients", "dynamic", "activations"]


@pytest.mark.parametrize("case", CASES)
def test_freezing_is_advised_where_it_helps(case: str, own_rows: Rows) -> None:
    """Only in float32, where it is off, where there are no gradients, for fixed sizes, and for weights."""
    k = 160 + 16 * CASES.index(case)
    model = torch.nn.Linear(k, 64).eval().to(torch.bfloat16 if case == "bfloat16" else torch.float32)
    function = torch.compile(multiply if case == "activations" else model, dynamic=case == "dynamic")
    operands = [torch.randn(32, k, dtype=model.weight.dtype), *([torch.randn(64, k)] if case == "activations" else [])]
    with torch.set_grad_enabled(case == "gradients"), inductor_config.patch(freezing=case == "frozen"):
        function(*operands)
    device = own_receipt().devices[diode_lut.get_detected_hardware()]
    reasons = {each.reason for each in device.no_choice if each.problem.k == k}
    assert (FREEZABLE in reasons) == (case == "plain" and torch._C.has_mkl)
    assert bool(reasons) == (case != "frozen" or not torch._C.has_mkl)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A linear layer of two tensors that change."""
    return a @ b.T


def test_receipt_of_a_linear_layer_has_nothing_to_collect(own_rows: Rows, tmp_path: Path) -> None:
    """What has no choice is in the receipt, and not among the problems that ``collect`` takes from it."""
    linear(torch.float32, frozen=False)
    receipt = own_receipt()
    device = receipt.devices[diode_lut.get_detected_hardware()]
    problem = Problem.of("addmm", 32, 64, 128, dtype="float32", layout="nt")
    assert problem in {each.problem for each in device.no_choice}
    assert Miss(problem) not in device.misses
    assert "without a choice" in as_text(receipt)
    missed = problem._replace(op="mm")
    device.misses[Miss(missed)] += 1
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(receipt))
    collected = read_problems(path)
    assert missed in collected
    assert problem not in collected


def test_autotuning_has_a_choice(own_rows: Rows) -> None:
    """A frozen linear layer in bfloat16, which has a choice under max-autotune only, is answered there."""
    own_rows({"op": "addmm", "configs": [{"template": "aten"}]})
    counts = linear(torch.bfloat16, frozen=True)
    assert (counts.no_choice, counts.total_predictions) == (1, 0)
    torch._dynamo.reset()
    with inductor_config.patch(max_autotune=True):
        counts = linear(torch.bfloat16, frozen=True)
    assert (counts.no_choice, counts.hits["user"]) == (0, 1)
