"""Whether a GPU is fit to be measured on: what nvidia-smi says of its load, its clocks and why they are low."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

MAX_UTILIZATION = 10
"""Percent of the time in which others may use the GPU before measuring begins."""

MAX_SLOWED = 0.1
"""Share of the samples in which the GPU may be slowed down by heat or power."""

_SLOWDOWNS = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""Bits of NVML's reasons for low clocks that make times wrong. A power cap is normal under load."""

_FIELDS = ("clocks.sm", "clocks.max.sm", "temperature.gpu", "utilization.gpu")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The field with the bits: its name, and that in drivers before release 535."""

_INTERVAL_S = 2.0
_IDLE_SAMPLES = 3
_TIMEOUT_S = 20.0


class GpuState(NamedTuple):
    """The state of a GPU at one moment: MHz, degrees Celsius, percent, and NVML's bits for low clocks."""

    clock: int
    max_clock: int
    temperature: int
    utilization: int
    reasons: int


def parse_sample(text: str) -> GpuState | None:
    """A line of nvidia-smi's CSV with _FIELDS and one of _REASONS; None if it does not know one of them."""
    parts = [part.strip() for part in text.split(",")]
    try:
        clock, max_clock, temperature, utilization, reasons = parts
        return GpuState(int(clock), int(max_clock), int(temperature), int(utilization), int(reasons, 16))
    except ValueError:
        return None


def busy(samples: Sequence[GpuState], processes: int | None) -> list[str]:
    """Why measuring should not begin, as text, from samples of a GPU on which we do nothing yet."""
    if not samples or median(sample.utilization for sample in samples) <= MAX_UTILIZATION:
        return []
    used = max(sample.utilization for sample in samples)
    others = f" ({processes} processes are on it)" if processes else ""
    return [f"others use the GPU, up to {used} % of the time{others}: stop them"]


def slowed(samples: Sequence[GpuState]) -> list[str]:
    """Why times that were taken meanwhile are not to be trusted, as text."""
    hit = [sample for sample in samples if any(sample.reasons & bit for bit in _SLOWDOWNS)]
    if len(hit) <= MAX_SLOWED * len(samples):
        return []
    causes = {name for sample in hit for bit, name in _SLOWDOWNS.items() if sample.reasons & bit}
    hottest = max(sample.temperature for sample in samples)
    why = f"{', '.join(sorted(causes))}; up to {hottest} degrees Celsius"
    remedy = "cool it, or set lower clocks with `nvidia-smi -lgc`"
    return [f"the GPU was slowed down in {len(hit)} of {len(samples)} samples ({why}): {remedy}"]


def clocks_text(samples: Sequence[GpuState]) -> str:
    """The clocks and temperatures while measuring."""
    if not samples:
        return "not known: no nvidia-smi"
    clocks = [sample.clock for sample in samples]
    return (
        f"{min(clocks)} to {max(clocks)} MHz, median {median(clocks):.0f} of at most {samples[0].max_clock}; up to "
        f"{max(sample.temperature for sample in samples)} degrees Celsius"
    )


class Machine:
    """The GPU of this process, as nvidia-smi sees it; without nvidia-smi, and on a CPU, there are no samples."""

    def __init__(self, device: str) -> None:
        self._program = shutil.which("nvidia-smi") if device != "cpu" else None
        self._index = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
        self._reasons = list(_REASONS)
        self.samples: list[GpuState] = []

    def faults_before(self) -> list[str]:
        """Why measuring should not begin; takes a second."""
        samples = []
        for _ in range(_IDLE_SAMPLES):
            samples += self._sample()
            threading.Event().wait(_INTERVAL_S / _IDLE_SAMPLES if samples else 0)
        return busy(samples, self._processes())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Samples are taken in a thread while the block runs."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_INTERVAL_S):
                self.samples += self._sample()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _sample(self) -> list[GpuState]:
        for name in self._reasons:
            answer = self._ask(f"--query-gpu={','.join((*_FIELDS, name))}")
            if answer:  # a field that this nvidia-smi does not know is an error
                self._reasons = [name]
                sample = parse_sample(answer[0])
                return [sample] if sample else []
        return []

    def _processes(self) -> int | None:
        answer = self._ask("--query-compute-apps=pid")
        return None if answer is None else len(answer)

    def _ask(self, query: str) -> list[str] | None:
        if self._program is None:
            return None
        command = [self._program, "-i", self._index, query, "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip().splitlines() if answer.returncode == 0 else None
