"""Results as a picture in SVG: on the left how fast each model runs, on the right how long it takes to compile."""

import math
from collections.abc import Callable, Iterator
from html import escape
from typing import NamedTuple

from modelbench.labels import DEFAULT
from modelbench.summary import ModelSummary, labels_of, mean

NAMES, PANEL, GAP, VALUE = 430, 300, 40, 62
BAR, SPACE, TOP = 11, 12, 78
COLOURS = ("#b8860b", "#1f6feb", "#6e7781", "#1a7f37", "#8250df")
GREY, INK = "#8c959f", "#1f2328"


class Panel(NamedTuple):
    """A ratio of each model and label, and where a value is on the axis, from 0 to 1."""

    title: str
    value: Callable[[ModelSummary, str], float | None]
    position: Callable[[float], float]
    left: int


def draw(models: list[ModelSummary]) -> str:
    """A group of bars for each model, and one for the geometric mean; the line is default mode."""
    labels = [label for label in labels_of(models) if label != DEFAULT]
    speeds = [speed for model in models for label in labels if (speed := model.speed(label))]
    ratios = [ratio for model in models for label in labels if (ratio := model.compile_ratio(label))]
    panels = (
        Panel("Speed, default mode = 1", ModelSummary.speed, _linear(max([1.2, *speeds])), NAMES),
        Panel(
            "Compile time, default mode = 1 (logarithmic)",
            ModelSummary.compile_ratio,
            _logarithmic(min([0.8, *ratios]), max([2.0, *ratios])),
            NAMES + PANEL + VALUE + GAP,
        ),
    )
    group = BAR * len(labels) + SPACE
    height = TOP + group * (len(models) + 1) + 8
    width = NAMES + 2 * (PANEL + VALUE) + GAP + 10
    lines = [*_legend(labels), *_names(models, group)]
    for panel in panels:
        lines += _panel(panel, models, labels, group)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    background = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([f"{head} {font}>", background, *lines, "</svg>", ""])


def _linear(most: float) -> Callable[[float], float]:
    return lambda value: value / most


def _logarithmic(least: float, most: float) -> Callable[[float], float]:
    return lambda value: math.log(value / least) / math.log(most / least)


def _legend(labels: list[str]) -> Iterator[str]:
    x = NAMES
    for label, colour in zip(labels, _colours(labels), strict=True):
        yield f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 18, 24, label)
        x += 40 + 8 * len(label)
    yield f'<line x1="{x + 6}" x2="{x + 6}" y1="12" y2="28" stroke="{GREY}" stroke-dasharray="3 2"/>'
    yield _text(x + 16, 24, "default mode")


def _names(models: list[ModelSummary], group: int) -> Iterator[str]:
    for index, name in enumerate([*(model.about for model in models), "geometric mean"]):
        weight = ' font-weight="600"' if index == len(models) else ""
        middle = TOP + group * index + (group - SPACE) / 2 + 4
        yield _text(NAMES - 10, middle, name, f' text-anchor="end"{weight}')


def _panel(panel: Panel, models: list[ModelSummary], labels: list[str], group: int) -> Iterator[str]:
    yield _text(panel.left, TOP - 22, panel.title, ' font-weight="600"')
    for index in range(len(models) + 1):
        chosen = models[index : index + 1] or models
        for number, (label, colour) in enumerate(zip(labels, _colours(labels), strict=True)):
            value = mean(panel.value(model, label) for model in chosen)
            if value is not None:
                yield from _bar(panel, value, TOP + group * index + BAR * number, colour)
    x = panel.left + PANEL * panel.position(1)
    bottom = TOP + group * (len(models) + 1) - SPACE
    yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{GREY}" stroke-dasharray="3 2"/>'


def _bar(panel: Panel, value: float, y: float, colour: str) -> Iterator[str]:
    length = PANEL * panel.position(value)
    yield f'<rect x="{panel.left}" y="{y}" width="{max(length, 1):.1f}" height="{BAR - 2}" fill="{colour}"/>'
    text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
    yield _text(panel.left + length + 5, y + BAR - 3, f"{text}\u00d7", ' font-size="10"')


def _text(x: float, y: float, content: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}"{more}>{escape(content)}</text>'


def _colours(labels: list[str]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(labels))]
