"""Results of programs in Markdown, and as a picture with a bar and an interval for each."""

from collections.abc import Iterator, Sequence
from html import escape
from statistics import geometric_mean, median

from modelbench.labels import DEFAULT, DIODE_LUT
from modelbench.picture import BAR, COLOURS, GREY, INK, NAMES, PANEL, SPACE
from modelbench.real_turns import verdict
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


def gpu_gain(record: Record, way: str = DIODE_LUT) -> float | None:
    """How many times as fast a step's GPU kernels are, by the medians of traces; None without a GPU."""
    gpu_us = record.get("gpu_us")
    if not gpu_us or not gpu_us[way] or not median(gpu_us[way]):
        return None
    gain: float = median(gpu_us[DEFAULT]) / median(gpu_us[way])
    return gain


def markdown(records: Sequence[Record]) -> str:
    """Say where it was measured, and show a row for each program, and the geometric mean."""
    known = told(records)
    where = "; ".join(sorted({f"{record['device_name']}, PyTorch {record['torch']}" for record in known}))
    lines = [f"Measured on: {where}.", "", f"| {' | '.join(_HEADS)} |", f"|{'---|' * len(_HEADS)}"]
    lines += [f"| {' | '.join(_cells(record))} |" for record in known]
    gains = [record["speedups"][DIODE_LUT][0] for record in known]
    on_gpu = [gain for record in known if (gain := gpu_gain(record))]
    mean = f"{geometric_mean(on_gpu):.3f}" if on_gpu else ""
    lines.append(f"| geometric mean of {len(known)} | | | | {geometric_mean(gains):.3f} | | {mean} | | | |")
    for record in known:
        others = [f"{way} {gain:.3f}" for way, (gain, *_) in record["speedups"].items() if way != DIODE_LUT]
        if others:
            lines += [
                "",
                f"{record['about']}, other compiles, times as fast as the first of default: {', '.join(others)}.",
            ]
    wrong = [record["about"] for record in known if is_wrong(record)]
    return "\n".join([*lines, "", f"Wrong results: {', '.join(wrong) or 'none'}."])


_HEADS = (
    "program",
    "`--programs`",
    "default, ms",
    "diode_lut, ms",
    "times as fast (interval)",
    "verdict",
    "kernels, times as fast",
    "first call, s",
    "error over eager",
    "answered by",
)


def _cells(record: Record) -> Iterator[str]:
    gain, low, high = record["speedups"][DIODE_LUT]
    yield record["about"]
    yield f"`{record['program']}`"
    for way in (DEFAULT, DIODE_LUT):
        yield f"{median(record['steps_ms'][way]):.3g}"
    yield f"{gain:.3f} ({low:.3f} to {high:.3f})"
    yield verdict(record)
    gain_of_kernels = gpu_gain(record)
    yield f"{gain_of_kernels:.3f}" if gain_of_kernels else ""
    first = record.get("first_s")
    yield f"{first[DEFAULT]:.0f} / {first[DIODE_LUT]:.0f}" if first else ""
    errors = record.get("errors")
    yield f"{errors[DIODE_LUT] / errors['eager']:.2f}" if errors and errors["eager"] else ""
    answers = record["answered"].get(DIODE_LUT, {})
    yield ", ".join(f"{name} {count}" for name, count in answers.items()) or "nothing asked"


def draw(records: Sequence[Record]) -> str:
    """A bar for each program, the fastest first, its interval, and a dot for its kernels; the line is default mode."""
    known = sorted(told(records), key=lambda record: -record["speedups"][DIODE_LUT][0])
    step, top = BAR + 5, 40
    width, height = NAMES + PANEL + 90, top + step * (len(known) + 1) + SPACE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [f'{head} font-family="system-ui, sans-serif" font-size="11">']
    lines.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    title = "Speed, default mode = 1; lines are intervals, dots the GPU kernels alone"
    lines.append(_text(NAMES, 22, title, ' font-weight="600"'))
    mean = geometric_mean([record["speedups"][DIODE_LUT][0] for record in known])
    for number, record in enumerate(known):
        lines += _bar(record["about"], *record["speedups"][DIODE_LUT], y=top + step * number)
        if gain := gpu_gain(record):
            place = f'cx="{_at(gain):.1f}" cy="{top + step * number + BAR / 2}"'
            lines.append(f'<circle {place} r="3" fill="#ffffff" stroke="{INK}"/>')
    lines += _bar("geometric mean", mean, mean, mean, y=top + step * len(known))
    place = f'x1="{_at(1.0):.1f}" x2="{_at(1.0):.1f}" y1="{top - 6}" y2="{height - SPACE}"'
    lines.append(f'<line {place} stroke="{GREY}" stroke-dasharray="3 2"/>')
    return "\n".join([*lines, "</svg>", ""])


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
