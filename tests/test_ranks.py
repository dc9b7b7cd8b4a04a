"""The ranks of a job, which are processes on like and unlike machines, decide alike."""

import json
import subprocess
import sys
from pathlib import Path
from platform import machine

import numpy as np
import pytest

from diode_lut.model import Kind
from diode_lut.model.ranking import Calibration, Weights
from diode_lut.model.weights import write_model
from diode_lut.templates.config import ATEN, Config
from tests.forks import Forks, environment
from tests.model import small

PROGRAM = Path(__file__).parent / "programs" / "decide.py"
ELSEWHERE = {
    "PYTHONHASHSEED": "1",
    "LC_ALL": "C",
    "TZ": "Pacific/Auckland",
    "OMP_NUM_THREADS": "3",
    "OPENBLAS_NUM_THREADS": "3",
    "OPENBLAS_THREAD_TIMEOUT": "4",  # idle threads sleep at once, instead of taking turns with the one that works
    "MKL_NUM_THREADS": "3",
    **(
        {
            "OPENBLAS_CORETYPE": "Nehalem",
            "NPY_DISABLE_CPU_FEATURES": "AVX512F",
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
        }
        if machine() == "x86_64"
        else {}
    ),
}
"""Another environment, on a processor whose BLAS and C library compute otherwise, as far as this machine can be one."""


def close_model(path: Path) -> str:
    """A model for which many configs are about as good, and whose sums would lose digits in single precision."""
    draw = np.random.default_rng(5)
    blocks = [(m, n, k) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128) for k in (16, 32, 64)]
    tiled = [Config("triton_mm", (*block, 8, stages, 4)) for block in blocks for stages in (2, 3, 4)]
    configs = (*tiled, ATEN)
    shapes = small.weights(0)._replace(second=np.zeros((64, 96), np.float32)).shapes(len(configs))
    weights = Weights(
        **{name: draw.normal(scale=0.05, size=shape).astype(np.float32) for name, shape in shapes.items()}
    )
    weights.second[32:] = weights.second[:32]  # each neuron twice, and large weights that cancel out but for little
    weights.second_bias[32:] = weights.second_bias[:32]
    weights.last[:, 32:] -= np.float32(900)
    weights.last[:, :32] += np.float32(900)
    kinds = [
        Kind("mm", dtype, layout, 16, *[(1, 2**20)] * 4) for dtype in ("float16", "bfloat16") for layout in ("nn", "nt")
    ]
    calibration = Calibration(8.0, (0.0,), (1.0,))
    write_model(small.model(candidates=configs, kinds=kinds, weights=weights, calibration=calibration), path)
    return str(path)


@pytest.mark.slow
def test_every_process_decides_alike(tmp_path: Path, after_inductor: Forks) -> None:
    """Decisions and cache keys are the same whatever hash seed, locale, directory, zone, processor and threads are."""
    command = [str(PROGRAM), "1000", json.dumps([close_model(tmp_path / "close.safetensors")])]
    elsewhere = {**environment(), **ELSEWHERE, "CUDA_VISIBLE_DEVICES": ""}
    here = after_inductor.run(*command)
    there = subprocess.run(
        [sys.executable, *command], env=elsewhere, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    decided = json.loads(here.stdout)
    assert json.loads(there.stdout) == decided
    assert {tier for tier, *_ in decided["decisions"]} >= {"device", "model", "abstain"}
