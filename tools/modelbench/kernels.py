"""The GPU's kernels in a trace of torch's profiler."""

from collections import defaultdict
from typing import Any

from torch._C._autograd import DeviceType

_COPIES = ("Memcpy", "Memset")


def kernel_times(profile: Any) -> dict[str, list[float]]:
    """Return the microseconds of each launch, by the kernels' names."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            times[event.name].append(float(event.time_range.elapsed_us()))
    return {name: each for name, each in times.items() if not name.startswith(_COPIES)}
