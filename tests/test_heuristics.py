"""NVIDIA's heuristics as a chooser, where the package is installed."""

import os
import re

import pytest

import diode_lut
from diode_lut.decide import heuristics
from diode_lut.errors import SettingError
from diode_lut.hardware import Hardware, known_gpu
from diode_lut.problem import DOMAINS, MATMULS, Problem
from diode_lut.templates.config import Config

L4 = Hardware("NVIDIA L4", "sm_89", 58)
MM = Problem.of("mm", 512, 2048, 1024, dtype="bfloat16", layout="nt")


def test_missing_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setattr(heuristics, "_PACKAGE", "no-such-package")
    with pytest.raises(SettingError, match=r"need no-such-package: pip install .*\[heuristics\]"):
        heuristics.digest()


def test_a_forked_process_does_not_wait_for_a_thread_that_is_not_there() -> None:
    """A process that is forked while a thread asks the library can ask it, too."""
    with heuristics._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(heuristics._lock.locked())
    assert os.waitpid(pid, 0) == (pid, 0)


def test_all_gpus_are_known() -> None:
    """Each name of ours is that of a GPU, and no two are of the same one."""
    found = [known_gpu(name) for name in heuristics._GPUS]
    assert None not in found
    assert len(set(found)) == len(found)


def test_gpus_without_a_name_there() -> None:
    """For another vendor's GPU, one with other SMs than its name says, and float32, there is no answer."""
    assert heuristics.nvidia(MM, Hardware("AMD Instinct MI300X", "gfx942", 304)) == []
    assert heuristics.nvidia(MM, L4._replace(sm_count=20)) == []
    assert heuristics.nvidia(MM._replace(dtype="float32"), L4) == []


def test_all_names_are_nvidias() -> None:
    """Each GPU is one that NVIDIA's package knows."""
    library = pytest.importorskip("nvMatmulHeuristics")
    assert set(heuristics._GPUS.values()) <= set(library.NvMatmulHeuristicsNvidiaGpu.__members__)


@pytest.mark.parametrize("op", [op for op in MATMULS if "float16" in DOMAINS[op].dtypes])
def test_configs_of_the_search_space(op: str) -> None:
    """It answers with some configs that a sweep would try, the same each time."""
    pytest.importorskip("nvMatmulHeuristics")
    problem = Problem.of(op, 512, 2048, 1024, dtype="float16", layout="nn")
    found = heuristics.nvidia(problem, L4)
    assert found
    assert len(set(found)) == len(found)
    assert all(config.params in set(config.kernel.search(problem, L4)) for config in found)
    assert heuristics.nvidia(problem, L4) == found


@pytest.mark.usefixtures("no_tables")
def test_as_a_chooser() -> None:
    """Registered behind the models, it answers where nothing else does."""
    pytest.importorskip("nvMatmulHeuristics")
    registered = diode_lut.register_chooser(
        heuristics.nvidia, name="nvidia", digest=heuristics.digest(), after_models=True
    )
    with registered:
        decision = diode_lut.select(MM, hardware=L4)
    assert decision.tier == "chooser"
    assert isinstance(decision.configs[0], Config)
    assert re.match(r"nvidia-matmul-heuristics \d", heuristics.digest())
