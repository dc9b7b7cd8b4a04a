"""The hook with ROCm's heuristics, on an MI300X that is not there: which kernels Inductor generates for gfx942."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from diode_lut.hook.versions import splits_large_batches
from tests.forks import Forks

pytestmark = pytest.mark.slow

PLAIN = "triton_mm 128x128x64 g8 s2 w8"
TUNED = "triton_mm 64x64x64 g4 s3 w4 mfma32 waves3 kpack1"
UNPIPELINED = "triton_mm 64x64x32 g4 s1 w4 mfma0 waves2 kpack2"
FULL = "triton_mm 128x128x64 g8 s3 w8"
TOO_LARGE = "triton_mm 128x128x64 g8 s4 w8"
TMA = "triton_mm_persistent_tma 64x64x32 g8 s2 w4"
BATCHED = "triton_bmm 32x64x32 g8 s2 w4 waves1 kpack1"

CASES = {
    "mm": [PLAIN, TUNED, UNPIPELINED, FULL, TOO_LARGE, TMA],
    "odd K": [TUNED],
    "gelu": [TUNED],
    "bmm": [BATCHED],
    "large batch": [BATCHED],
}


@pytest.fixture(scope="module")
def made(after_torch: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the process says about each case."""
    directory = tmp_path_factory.mktemp("rocm")
    program = Path(__file__).parents[1] / "programs" / "rocm.py"
    done = after_torch.run(str(program), str(directory), json.dumps(CASES))
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def written(kernel: str) -> dict[str, int]:
    """The tunables in a kernel's source."""
    names = ("num_stages", "num_warps", "matrix_instr_nonkdim", "waves_per_eu", "kpack")
    values = {name: re.search(rf"\b{name}'?[:=] ?(\d+)", kernel) for name in names}
    return {name: int(value[1]) for name, value in values.items() if value}


OPTIONS = {
    TUNED: {"num_stages": 3, "num_warps": 4, "matrix_instr_nonkdim": 32, "waves_per_eu": 3, "kpack": 1},
    UNPIPELINED: {"num_stages": 1, "num_warps": 4, "matrix_instr_nonkdim": 0, "waves_per_eu": 2, "kpack": 2},
}


@pytest.mark.parametrize(("name", "text"), [("mm", TUNED), ("mm", UNPIPELINED), ("odd K", TUNED), ("gelu", TUNED)])
def test_a_kernel_has_the_tunables_of_its_config(name: str, text: str, made: dict[str, Any]) -> None:
    """The one kernel has the stages and the options of AMD's compiler that the row names, with an epilogue as well."""
    found = made[name][text]
    (kernel,) = found["templates"]
    assert written(kernel) == OPTIONS[text]
    assert (found["extern"], found["kernels"]) == ([], 1)


@pytest.mark.parametrize(("text", "stages"), [(PLAIN, 1), (TUNED, 2), (UNPIPELINED, 1), (FULL, 2)])
def test_triton_compiles_it(text: str, stages: int, made: dict[str, Any]) -> None:
    """Triton's AMD backend compiles what Inductor generates; one stage takes no shared memory, and 64 KB are enough."""
    m, n, k = map(int, re.findall(r"(\d+)x(\d+)x(\d+)", text)[0])
    (shared,) = made["mm"][text]["shared"]
    assert shared <= 2 * k * (m + n) * stages <= 65536


def test_what_does_not_fit_is_refused(made: dict[str, Any]) -> None:
    """A kernel that takes more than 64 KB gives way to the library, and so does one with TMA."""
    for text in (TOO_LARGE, TMA):
        assert (made["mm"][text]["extern"], made["mm"][text]["templates"]) == (["mm"], [])
        assert made["mm"][text]["described"] is None


def test_a_collection_times_the_config_it_says(made: dict[str, Any]) -> None:
    """The kernel that a collection would time is described as the config that it was made of."""
    for text in (TUNED, UNPIPELINED):
        assert made["mm"][text]["described"] == text
    assert made["bmm"][BATCHED]["described"] == BATCHED


def test_batches(made: dict[str, Any]) -> None:
    """Batched GEMMs have such a kernel too, large batches where the release of PyTorch can split them."""
    assert len(made["bmm"][BATCHED]["templates"]) == 1
    assert len(made["large batch"][BATCHED]["templates"]) == splits_large_batches()
