"""Results of programs in Markdown, and as a picture with a bar and an interval for each."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import geometric_mean, median

from modelbench.labels import DEFAULT, DIODE_LUT
from modelbench.picture import BAR, COLOURS, GAP, GREY, INK, NAMES, PANEL, SPACE, VALUE
from modelbench.real_turns import interval, verdict
from modelbench.records import Record
from modelbench.summary import WRONG

LEAST, MOST = 0.9, 1.4  # the ends of the picture's axis for speeds
SHORTEST, LONGEST = 0.5, 1.5  # and of that for first calls
FIRST = NAMES + PANEL + VALUE + GAP  # where the first calls begin


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
        longer = f"{mean:.3f} times as long" if (mean := _first_mean(on_it)) else ""
        lines += [f"| geometric mean of {len(on_it)} | | {means[0]:.3f} | | | {means[1]:.3f} | {longer} | | |", ""]
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


ANSWERS = ("matmuls by rows / models / nobody", "generated kernels answered / left")
_HEADS = (
    "program",
    "`--programs`",
    "times as fast (interval)",
    "verdict",
    "default, ms",
    "a step, times as fast (interval)",
    "first call, s",
    *ANSWERS,
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
    yield from answers(record["answered"].get(DIODE_LUT, {}))


def answers(questions: Mapping[str, int]) -> Iterator[str]:
    """Cells with who answered questions about matmuls, and about generated kernels."""
    by = Counter(questions)
    generated, left, models, nobody = (by.pop(key, 0) for key in ("generated", "generated, missed", "model", "missed"))
    yield f"{by.total()} / {models} / {nobody}"
    yield f"{generated} / {left}"


def _first_ratio(record: Record) -> float | None:
    """How many times as long as in default mode the first call takes."""
    first = record.get("first_s")
    return first[DIODE_LUT] / first[DEFAULT] if first and first[DEFAULT] else None


def _first_mean(records: Sequence[Record]) -> float | None:
    ratios = [ratio for record in records if (ratio := _first_ratio(record))]
    return geometric_mean(ratios) if ratios else None


def _with_ends(gain: float, low: float, high: float) -> str:
    return f"{gain:.3f}" if math.isnan(low) else f"{gain:.3f} ({low:.3f} to {high:.3f})"


def draw(records: Sequence[Record]) -> str:
    """For each GPU two bars for each program, the fastest first: the speed of its kernels with its interval, and how
    long its first call takes.

    The lines are default mode.
    """
    devices = _by_device(told(records))
    step, width = BAR + 5, FIRST + PANEL + VALUE
    lines, top = [], 0.0
    for where, known in devices.items():
        known = sorted(known, key=lambda record: -_gains(record)[0])
        title = f"Speed of the kernels on {where.split(',')[0]}, default mode = 1; lines are intervals"
        lines.append(text(FIRST - GAP, top + 22, title, ' font-weight="600" text-anchor="end"'))
        lines.append(text(FIRST, top + 22, "First call, default mode = 1", ' font-weight="600"'))
        first = top + 40
        for number, record in enumerate(known):
            gain, low, high = gpu_gain(record) or record["speedups"][DIODE_LUT]
            ends = (gain, gain) if math.isnan(low) else (low, high)
            y = first + step * number
            lines += bar(record["about"], gain, *ends, y=y)
            lines += _bar_of_first(_first_ratio(record), y=y)
        y = first + step * len(known)
        mean = geometric_mean([_gains(record)[0] for record in known])
        lines += [*bar("geometric mean", mean, mean, mean, y=y), *_bar_of_first(_first_mean(known), y=y)]
        top = first + step * (len(known) + 1) + SPACE
        for x in (at(1.0), _at_first(1.0)):
            place = f'x1="{x:.1f}" x2="{x:.1f}" y1="{first - 6}" y2="{top - SPACE}"'
            lines.append(f'<line {place} stroke="{GREY}" stroke-dasharray="3 2"/>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
    back = f'<rect width="{width}" height="{top}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-family="system-ui, sans-serif" font-size="11">', back, *lines, "</svg>", ""])


def at(value: float) -> float:
    """Where a speed is on the picture's axis."""
    return NAMES + PANEL * (min(max(value, LEAST), MOST) - LEAST) / (MOST - LEAST)


def _at_first(value: float) -> float:
    return FIRST + PANEL * (min(max(value, SHORTEST), LONGEST) - SHORTEST) / (LONGEST - SHORTEST)


def bar(name: str, gain: float, low: float, high: float, *, y: float) -> Iterator[str]:
    """A name, a bar from 1 to the speed, the line of its interval, and the speed as a number."""
    middle = y + BAR / 2
    yield text(NAMES - 10, y + BAR - 2, name, ' text-anchor="end"')
    yield _rectangle(at(1.0), at(gain), y, COLOURS[3] if low > 1 else COLOURS[0] if high < 1 else COLOURS[2])
    yield f'<line x1="{at(low):.1f}" x2="{at(high):.1f}" y1="{middle}" y2="{middle}" stroke="{INK}"/>'
    yield text(max(at(high), at(1.0)) + 6, y + BAR - 2, f"{gain:.2f}\u00d7")


def _bar_of_first(ratio: float | None, *, y: float) -> Iterator[str]:
    if ratio is not None:
        yield _rectangle(_at_first(1.0), _at_first(ratio), y, COLOURS[2])
        yield text(_at_first(max(ratio, 1.0)) + 6, y + BAR - 2, f"{ratio:.2f}")


def _rectangle(one: float, other: float, y: float, colour: str) -> str:
    begin, end = sorted((one, other))
    return f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1):.1f}" height="{BAR}" fill="{colour}"/>'


def text(x: float, y: float, content: str, more: str = "") -> str:
    """A text at a place, with more attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}"{more}>{escape(content)}</text>'
