"""Results of programs in Markdown, and as a picture with a bar and an interval for each."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from statistics import geometric_mean, median

from modelbench.labels import DEFAULT, DIODE_LUT
from modelbench.picture import BAR, COLOURS, GREY, INK, NAMES, PANEL, SPACE
from modelbench.real_turns import interval, verdict
from modelbench.records import Record
from modelbench.summary import WRONG

LEAST, MOST = 0.9, 1.4  # the ends of the picture's axis


def told(records: Sequence[Record]) -> list[Record]:
    """The last record of each program, without those that failed."""
    last = {record["program"]: record for record in records}
    return [record for record in last.values() if "failed" not in record]


def is_wrong(record: Record, way: str = DIODE_LUT) -> bool:
    """Whether a program's results are farther from float64 than eager mode's and default mode's allow."""
    errors = record.get("errors")
    return errors is not None and not errors[way] <= WRONG * max(errors["eager"], errors[DEFAULT])


def gpu_gain(record: Record, way: str = DIODE_LUT) -> tuple[float, float, float] | None:
    """How many times as fast a step's GPU kernels are, and the ends of the interval; None without a GPU.

    With a single trace of each way, the ends are not numbers.
    """
    gpu_us = record.get("gpu_us")
    if not gpu_us or not all(map(all, gpu_us.values())):
        return None
    if len(gpu_us[way]) == 1:
        return gpu_us[DEFAULT][0] / gpu_us[way][0], math.nan, math.nan
    return interval(gpu_us, way)


def markdown(records: Sequence[Record]) -> str:
    """Show a table for each GPU: a row for each program, and the geometric means."""
    known = told(records)
    lines = []
    for where, on_it in _by_device(known).items():
        on_it.sort(key=lambda record: -_gains(record)[0])
        lines += [f"Measured on: {where}.", "", f"| {' | '.join(_HEADS)} |", f"|{'---|' * len(_HEADS)}"]
        lines += [f"| {' | '.join(_cells(record))} |" for record in on_it]
        means = [geometric_mean(each) for each in zip(*map(_gains, on_it), strict=True)]
        lines += [f"| geometric mean of {len(on_it)} | | {means[0]:.3f} | | | {means[1]:.3f} | |", ""]
    for record in known:
        others = [f"{way} {gain:.3f}" for way, (gain, *_) in record["speedups"].items() if way != DIODE_LUT]
        if others:
            about = f"{record['about']}, other compiles, times as fast as the first of default"
            lines += [f"{about}: {', '.join(others)}.", ""]
    compared = [errors for record in known if (errors := record.get("errors")) and errors["eager"]]
    over = [errors[DIODE_LUT] / errors["eager"] for errors in compared]
    if over:
        lines += [f"Error over that of eager mode: {min(over):.2f} to {max(over):.2f}.", ""]
    wrong = [record["about"] for record in known if is_wrong(record)]
    return "\n".join([*lines, f"Wrong results: {', '.join(wrong) or 'none'}."])


def _by_device(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by the GPU and the release of PyTorch, that with the most first."""
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[f"{record['device_name']}, PyTorch {record['torch']}"].append(record)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


_HEADS = (
    "program",
    "`--programs`",
    "times as fast (interval)",
    "verdict",
    "default, ms",
    "a step, times as fast (interval)",
    "first call, s",
)


def _gains(record: Record) -> tuple[float, float]:
    """How many times as fast the program and its steps are: a program on a GPU is told by the time of its kernels."""
    step: float = record["speedups"][DIODE_LUT][0]
    of_kernels = gpu_gain(record)
    return (of_kernels[0] if of_kernels else step), step


def _cells(record: Record) -> Iterator[str]:
    step = record["speedups"][DIODE_LUT]
    gain = gpu_gain(record) or step
    yield record["about"]
    yield f"`{record['program']}`"
    yield _with_ends(*gain)
    yield "open" if math.isnan(gain[1]) else verdict(*gain)
    yield f"{median(record['steps_ms'][DEFAULT]):.3g}"
    yield _with_ends(*step)
    first = record.get("first_s")
    yield f"{first[DEFAULT]:.0f} / {first[DIODE_LUT]:.0f}" if first else ""


def _with_ends(gain: float, low: float, high: float) -> str:
    return f"{gain:.3f}" if math.isnan(low) else f"{gain:.3f} ({low:.3f} to {high:.3f})"


def draw(records: Sequence[Record]) -> str:
    """For each GPU a bar for each program, the fastest first, by the time of its kernels, with its interval.

    The line is default mode.
    """
    devices = _by_device(told(records))
    step, width = BAR + 5, NAMES + PANEL + 90
    lines, top = [], 0.0
    for where, known in devices.items():
        known = sorted(known, key=lambda record: -_gains(record)[0])
        title = f"Speed of the kernels on {where.split(',')[0]}, default mode = 1; lines are intervals"
        lines.append(_text(width / 2, top + 22, title, ' font-weight="600" text-anchor="middle"'))
        first = top + 40
        for number, record in enumerate(known):
            gain, low, high = gpu_gain(record) or record["speedups"][DIODE_LUT]
            ends = (gain, gain) if math.isnan(low) else (low, high)
            lines += _bar(record["about"], gain, *ends, y=first + step * number)
        mean = geometric_mean([_gains(record)[0] for record in known])
        lines += _bar("geometric mean", mean, mean, mean, y=first + step * len(known))
        top = first + step * (len(known) + 1) + SPACE
        place = f'x1="{_at(1.0):.1f}" x2="{_at(1.0):.1f}" y1="{first - 6}" y2="{top - SPACE}"'
        lines.append(f'<line {place} stroke="{GREY}" stroke-dasharray="3 2"/>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
    back = f'<rect width="{width}" height="{top}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-family="system-ui, sans-serif" font-size="11">', back, *lines, "</svg>", ""])


def _at(value: float) -> float:
    return NAMES + PANEL * (min(max(value, LEAST), MOST) - LEAST) / (MOST - LEAST)


def _bar(name: str, gain: float, low: float, high: float, *, y: float) -> Iterator[str]:
    colour = COLOURS[3] if low > 1 else COLOURS[0] if high < 1 else COLOURS[2]
    begin, end = sorted((_at(1.0), _at(gain)))
    middle = y + BAR / 2
    yield _text(NAMES - 10, y + BAR - 2, name, ' text-anchor="end"')
    yield f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1):.1f}" height="{BAR}" fill="{colour}"/>'
    yield f'<line x1="{_at(low):.1f}" x2="{_at(high):.1f}" y1="{middle}" y2="{middle}" stroke="{INK}"/>'
    yield _text(max(_at(high), _at(1.0)) + 6, y + BAR - 2, f"{gain:.2f}\u00d7")


def _text(x: float, y: float, content: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}"{more}>{escape(content)}</text>'
