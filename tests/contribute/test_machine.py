from pathlib import Path

import pytest

from diode_lut.contribute import adopt as machine
from diode_lut.contribute.adopt import GpuState, Machine, busy, clocks_text, parse_sample, slowed

IDLE = GpuState(345, 1980, 30, 0, 0x1)
LOADED = GpuState(1755, 1980, 65, 99, 0x4)
HOT = GpuState(900, 1980, 89, 99, 0x24)


def nvidia_smi(directory: Path, monkeypatch: pytest.MonkeyPatch, line: str, unknown: str = "throttle") -> None:
    """A program that answers as nvidia-smi does: with ``line`` for the GPU, two processes, and an unknown field."""
    program = directory / "nvidia-smi"
    error = f'*{unknown}*) echo "Field is not a valid field to query."; exit 2'
    answers = f'*compute-apps*) printf "11\\n12\\n";; {error};; *) echo "{line}"'
    program.write_text(f'#!/bin/sh\ncase "$*" in {answers};; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    monkeypatch.setattr(machine, "_INTERVAL_S", 0.01)


def test_a_line_of_nvidia_smi_is_a_sample() -> None:
    """Numbers come without units, and the reasons in hexadecimal; a GPU that does not know one has no sample."""
    assert parse_sample("1755, 1980, 65, 99, 0x0000000000000004") == LOADED
    assert parse_sample("[N/A], 1980, 65, 99, 0x0000000000000004") is None
    assert parse_sample("") is None


def test_heat_is_a_fault_and_a_power_cap_is_none() -> None:
    """A few samples with heat do no harm."""
    assert slowed([LOADED] * 10) == []
    assert slowed([LOADED] * 10 + [HOT]) == []
    (fault,) = slowed([LOADED] * 5 + [HOT] * 5)
    assert fault.startswith("the GPU was slowed down in 5 of 10 samples (heat; up to 89 degrees Celsius)")
    assert slowed([]) == []


def test_others_on_the_gpu_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is in use before measuring begins is refused; one that is idle is not, whoever has memory on it."""
    nvidia_smi(tmp_path, monkeypatch, "1755, 1980, 65, 99, 0x0000000000000004")
    (fault,) = Machine("cuda").faults_before()
    assert fault == "others use the GPU, up to 99 % of the time (2 processes are on it): stop them"
    nvidia_smi(tmp_path, monkeypatch, "345, 1980, 30, 0, 0x0000000000000001")
    assert Machine("cuda").faults_before() == []
    assert busy([IDLE, LOADED, IDLE], None) == []


@pytest.mark.parametrize("unknown", ["clocks_throttle_reasons", "clocks_event_reasons"])
def test_both_names_of_the_reasons_for_low_clocks_are_known(
    unknown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA renamed the field: old drivers know one name, the latest ones will know the other."""
    nvidia_smi(tmp_path, monkeypatch, "1755, 1980, 65, 99, 0x0000000000000004", unknown)
    (fault,) = Machine("cuda").faults_before()
    assert "others use the GPU" in fault


def test_without_nvidia_smi_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no samples then, and no faults."""
    monkeypatch.setenv("PATH", "")
    machine = Machine("cuda")
    assert machine.faults_before() == []
    with machine.watched():
        pass
    assert clocks_text(machine.samples) == "not known: no nvidia-smi"
    assert clocks_text([IDLE, LOADED, HOT]) == "345 to 1755 MHz, median 900 of at most 1980; up to 89 degrees Celsius"
