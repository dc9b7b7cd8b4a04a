"""Guards that take real compiles, threads and processes; tools/guards.py lists them all."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

import diode_lut
from tests.forks import Forks

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "compile_for_guards.py"
ATEN = {"op": "bmm", "dtype": "float32", "configs": [{"template": "aten"}]}


@pytest.fixture
def table(table_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table for this machine's CPU, which says aten for each bmm, is in the settings and in the environment."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = diode_lut.get_detected_hardware()
    path = table_file("own.json", ATEN, hardware={"name": found.name, "arch": found.arch, "sm_count": found.sm_count})
    monkeypatch.setenv("DIODE_LUT_TABLES", str(path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))  # for spawn
    torch._dynamo.reset()
    with diode_lut.config.patch(tables=(str(path),)), fresh_cache():
        yield path


@pytest.mark.usefixtures("table")
def test_unbacked_size(caplog: pytest.LogCaptureFixture) -> None:
    """A size that only the data tell is answered over its range, here that of a batch that a mask selects from."""

    def function(mask: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a[mask], b[mask])

    mask, a, b = torch.tensor([True, False, True]), torch.randn(3, 16, 32), torch.randn(3, 32, 24)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        diode_lut.profile_predictions() as counts,
        caplog.at_level(logging.WARNING, "diode_lut"),
    ):
        result = torch.compile(function, fullgraph=True)(mask, a, b)
    torch.testing.assert_close(result, function(mask, a, b))
    assert (counts.total_predictions, counts.hits["user"]) == (1, 1)
    assert [record for record in caplog.records if record.name.startswith("diode_lut")] == []


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(("whose", "precision", "asked"), [("mkldnn", "bf16", 0), ("cuda", "tf32", 1)])
def test_precision_on_the_cpu(whose: str, precision: str, asked: int) -> None:
    """It is oneDNN's precision that counts there: rows answer unless float32 may be bfloat16, which no table knows."""
    matmul = getattr(torch.backends, whose).matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    try:
        with diode_lut.profile_predictions() as counts:
            torch.compile(torch.bmm)(torch.randn(4, 16, 32), torch.randn(4, 32, 24))
    finally:
        matmul.fp32_precision = before
    assert (counts.total_predictions, counts.hits["user"]) == (asked, asked)


@pytest.mark.usefixtures("table")
def test_two_threads_at_once() -> None:
    """Threads that compile at the same time are both served, and right."""
    together = threading.Barrier(2)
    errors: list[float] = []

    def compile_one(rows: int) -> None:
        a, b = torch.randn(4, rows, 32), torch.randn(4, 32, 24)
        together.wait()
        errors.append((torch.compile(torch.bmm, dynamic=False)(a, b) - torch.bmm(a, b)).abs().max().item())

    threads = [threading.Thread(target=compile_one, args=(rows,)) for rows in (16, 48)]
    with diode_lut.profile_predictions() as counts:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts.hits["user"] == 2
    assert len(errors) == 2
    assert max(errors) < 1e-4


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_forked_and_spawned_processes(method: str, after_inductor: Forks) -> None:
    """A process that one with loaded tables starts is served, whether it inherits them or not."""
    done = after_inductor.run(str(PROGRAM), method)
    assert done.returncode == 0, done.stderr
    hits, error = done.stdout.split()
    assert int(hits) == 1
    assert float(error) < 1e-4


@pytest.mark.slow
def test_subprocess_compile_workers(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_inductor: Forks
) -> None:
    """Where Inductor compiles whole graphs in another process, GEMMs are asked for there, with the settings of here."""
    monkeypatch.delenv("DIODE_LUT_TABLES")
    program = tmp_path / "program.py"
    program.write_text(
        """
import diode_lut, sys, torch
from torch._dynamo.utils import counters
from torch._inductor import compile_fx
if __name__ == "__main__":
    _, mode, *diode_lut.config.tables = sys.argv
    compile_fx.fx_compile_mode, diode_lut.config.strict = compile_fx.FxCompileMode[mode], True
    try:
        torch.compile(torch.bmm)(torch.randn(4, 16, 32), torch.randn(4, 32, 24))
        print("cached" if counters["aot_autograd"]["autograd_cache_hit"] else "compiled")
        torch.backends.mkldnn.matmul.fp32_precision = "tf32"
        torch.compile(torch.bmm)(torch.randn(2, 16, 32), torch.randn(2, 32, 24))
    except Exception as error:
        assert "bmm 2x16x24x32 tf32" in str(error), error
        counts = diode_lut.get_prediction_stats()
        print(counts["hits"]["user"], counts["cached"], counts["fallbacks"])
""",
        encoding="utf-8",
    )
    cache = str(tmp_path / "cache")
    outputs = []
    for mode in ("SUBPROCESS", "NORMAL"):
        receipt = str(tmp_path / f"{mode}.%p.json")
        done = after_inductor.run(
            str(program), mode, str(table), TORCHINDUCTOR_CACHE_DIR=cache, DIODE_LUT_RECEIPT=receipt
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split())
        assert len(list(tmp_path.glob(f"{mode}.*.json"))) == 1
    assert outputs == [["compiled", "1", "0", "0"], ["cached", "1", "1", "1"]]


@pytest.mark.slow
def test_aot_inductor(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTInductor's packages are made with the table's kernels, and are right."""
    monkeypatch.setenv("TORCHINDUCTOR_DEBUG_COMPILE", "1")

    class Matmul(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.bmm(a, b)

    a, b = torch.randn(4, 16, 32), torch.randn(4, 32, 24)
    program = torch.export.export(Matmul(), (a, b))
    headers = inductor_config.patch({"aot_inductor.precompile_headers": False})  # they take 10 s for a single compile
    with headers, diode_lut.profile_predictions() as counts:
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    assert counts.hits["user"] == 1
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(a, b), torch.bmm(a, b))


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("how", ["V.set_choices_handler(Theirs())", "config.inductor_choices_class = Theirs"])
def test_handler_of_another_library_after_ours(how: str, after_inductor: Forks) -> None:
    """A handler that is set after ours is asked instead, and nothing breaks."""
    program = f"""
import diode_lut, torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V
asked = []
class Theirs(InductorChoices):
    def uuid(self): return "theirs"
    def get_template_configs(self, kernel_inputs, templates, op_name, kwarg_overrides=None):
        asked.append(op_name)
        return super().get_template_configs(kernel_inputs, templates, op_name, kwarg_overrides)
{how}
a, b = torch.randn(4, 16, 32), torch.randn(4, 32, 24)
torch.testing.assert_close(torch.compile(torch.bmm)(a, b), torch.bmm(a, b))
assert asked == ["bmm"], asked
"""
    done = after_inductor.run("-c", program)
    assert done.returncode == 0, done.stderr
    assert "diode_lut" not in done.stderr
