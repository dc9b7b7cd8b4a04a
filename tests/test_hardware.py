"""What this machine is."""

import pytest

from diode_lut.errors import HardwareError
from diode_lut.hardware import Hardware, detect_hardware, local_devices

torch = pytest.importorskip("torch")

H200, CPU = Hardware("NVIDIA H200", "sm_90", 132), Hardware("A CPU", "cpu-avx512", 4)
ONE_THREAD = (
    "PyTorch has 1 thread, not 4 (set by OMP_NUM_THREADS=1, which torchrun sets unless you do); "
    "the table is for OMP_NUM_THREADS=4"
)
TORCHRUN = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("wanted", "found", "environment", "difference"),
    [
        (H200, H200._replace(sm_count=114), {}, "it has 114 SMs, not 132"),
        (H200, H200._replace(arch="sm_100"), {}, "the architecture is sm_100, not sm_90"),
        (H200, CPU, {}, ""),
        (CPU, CPU._replace(name="Another"), {}, ""),
        (CPU, CPU._replace(arch="cpu-avx2"), {}, "the vector instructions are avx2, not avx512"),
        (
            CPU,
            CPU._replace(arch="cpu-avx2"),
            {"ATEN_CPU_CAPABILITY": "avx2"},
            "the vector instructions are avx2, not avx512 (set by ATEN_CPU_CAPABILITY=avx2)",
        ),
        (
            CPU,
            CPU._replace(arch="cpu-avx2", sm_count=1),
            TORCHRUN,
            f"the vector instructions are avx2, not avx512, and {ONE_THREAD}",
        ),
    ],
)
def test_difference(wanted: Hardware, found: Hardware, environment: dict[str, str], difference: str) -> None:
    """What differs is named, and for a CPU the variable that makes the difference, with the remedy."""
    assert wanted.difference_from(found, environment) == difference


def test_a_cpu_has_threads() -> None:
    """The text of a CPU counts threads, that of a GPU its multiprocessors."""
    texts = [str(H200), str(CPU), str(CPU._replace(sm_count=1))]
    assert texts == ["NVIDIA H200 (sm_90, 132 SMs)", "A CPU (cpu-avx512, 4 threads)", "A CPU (cpu-avx512, 1 thread)"]


def test_no_device_of_that_kind() -> None:
    """Of several devices those are named that can be compared; if there is none, there is no GPU."""
    assert H200.why_none_of([CPU]) == "PyTorch sees no GPU"
    h100 = H200._replace(sm_count=114)
    assert H200.why_none_of([CPU, h100, h100]) == "it has 114 SMs, not 132"


def test_cpu() -> None:
    """A CPU has a name, the vector instructions that torch uses as its architecture, and torch's threads."""
    found = detect_hardware("cpu")
    assert found.name
    assert found.arch == "cpu-" + torch.backends.cpu.get_cpu_capability().lower().replace(" ", "-")
    assert found.sm_count == torch.get_num_threads()


def test_threads_count_as_they_are_now() -> None:
    """What counts is the number of threads at the time of asking."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert detect_hardware("cpu").sm_count == threads + 1
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu() -> None:
    """A GPU has the driver's name for it, and is what torch computes on by default."""
    found = detect_hardware("cuda:0")
    assert found.name == torch.cuda.get_device_name(0)
    assert found.arch.startswith(("sm_", "gfx"))
    assert found == detect_hardware()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_default_without_a_gpu() -> None:
    """Without a GPU, it is the CPU."""
    assert detect_hardware() == detect_hardware("cpu")
    assert local_devices() == ["cpu"]


def test_all_local_devices_can_be_asked_about() -> None:
    """Every device that is listed has its hardware."""
    assert [detect_hardware(device).sm_count >= 1 for device in local_devices()] == [True] * len(local_devices())


@pytest.mark.parametrize("device", ["abacus", "meta", "cuda:99"])
def test_devices_that_are_not_there(device: str) -> None:
    """A device that torch does not have, or that no table can be for, is an error that names it."""
    with pytest.raises(HardwareError, match=rf"^{device}: "):
        detect_hardware(device)
