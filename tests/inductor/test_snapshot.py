"""What a compile is decided by is what its cache keys say, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config

import diode_lut
from diode_lut.hardware import detect_hardware
from diode_lut.inductor.install import cache_identity
from diode_lut.inductor.snapshot import current
from diode_lut.kernels.config import ATEN, Config
from diode_lut.problem import Problem

PROGRAM = Path(__file__).parents[1] / "programs" / "compile_split.py"
KERNELS = {"cpu": Config("cpp_gemm"), "cuda": Config("triton_bmm", (32, 32, 32, 8, 2, 4))}
BMM = Problem("bmm", "float32", "nn", 16, 4, 64, 96, 128)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_compile_has_one_snapshot(device: str, tmp_path: Path, table_file: Callable[..., Path]) -> None:
    """The backward is decided as its forward was, and a setting changed in between is for the next compile."""
    hardware = {**detect_hardware(device)._asdict(), "aliases": []}
    table = table_file("kernel.json", {"op": "bmm", "configs": [KERNELS[device].to_json()]}, hardware=hardware)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), device, str(table)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout.splitlines()[-1])
    assert calls["on"] < calls["off"]
    assert calls["off, then on"] == calls["off"]
    assert calls["on, cached"] == calls["on, turned off within"] == calls["on"]


@pytest.fixture
def compiling() -> Iterator[None]:
    """The middle of a compile."""
    with tracing(TracingContext(None)):
        yield


@pytest.mark.usefixtures("compiling")
def test_settings_changed_within_a_compile_are_for_the_next() -> None:
    """In the same context neither the key nor the settings change; in another they do."""
    before = cache_identity()
    with diode_lut.config.patch(policy="off"):
        assert cache_identity() == before
        assert current().snapshot.settings.policy == "pick"
        with tracing(TracingContext(None)):
            assert cache_identity() != before
            assert current().snapshot.settings.policy == "off"


@pytest.mark.parametrize("backend", ["cuda", "mkldnn"])
def test_precision_is_in_the_key(backend: str) -> None:
    """It decides whether a product is float32 or tf32, and so which row answers."""
    matmul = getattr(torch.backends, backend).matmul
    before, precision = cache_identity(), matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        assert cache_identity() != before
    finally:
        matmul.fp32_precision = precision
    assert cache_identity() == before


def test_a_cpu_has_the_threads_that_kernels_are_compiled_for(table_file: Callable[..., Path]) -> None:
    """Inductor's setting counts before torch's: a table for that number of threads answers, and is in the key."""
    cpu = detect_hardware("cpu")
    threads = cpu.sm_count + 1
    fields = {**cpu._asdict(), "aliases": [], "sm_count": threads}
    table = str(table_file("cpu.json", {"configs": [ATEN.to_json()]}, hardware=fields))
    with diode_lut.config.patch(tables=(table,), tiers=("user",)):
        before = cache_identity()
        assert current().decide(BMM, "cpu").configs == ()
        with inductor_config.patch({"cpp.threads": threads}):
            assert current().decide(BMM, "cpu").configs == (ATEN,)
            assert cache_identity() != before
