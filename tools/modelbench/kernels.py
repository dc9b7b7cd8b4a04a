"""The GPU's kernels in a trace of torch's profiler."""

from collections import defaultdict
from typing import Any

from torch._C._autograd import DeviceType

_COPIES = ("Memcpy", "Memset")


def kernel_times(profile: Any, gap_us: float = 0.0) -> dict[str, list[float]]:
    """Return the microseconds of each launch, by the kernels' names.

    A launch is said to begin where the one before it ends, if that is at most ``gap_us`` before.
    """
    times: defaultdict[str, list[float]] = defaultdict(list)
    events = (each for each in profile.events() if each.device_type == DeviceType.CUDA and not each.is_user_annotation)
    last = float("-inf")
    for event in sorted(events, key=lambda each: each.time_range.start):
        start, end = event.time_range.start, event.time_range.end
        gap = start - last
        times[event.name].append(float(end - start + (gap if 0 < gap <= gap_us else 0.0)))
        last = max(last, end)
    return {name: each for name, each in times.items() if not name.startswith(_COPIES)}
