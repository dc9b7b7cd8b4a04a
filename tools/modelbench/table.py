"""Results in Markdown: a table of run times and compile times, and lines about benchmarks and errors."""

from collections.abc import Iterator
from statistics import median
from typing import Any

from modelbench.labels import DEFAULT
from modelbench.summary import LabelSummary, ModelSummary, labels_of, mean

NOTHING = "–"  # noqa: RUF001 (a dash, as tables have it)


def markdown(models: list[ModelSummary]) -> str:
    """Say where it was measured, and show a table and errors. A model without a result of a label has a dash there."""
    labels = labels_of(models)
    where = "; ".join(sorted({model.where for model in models}))
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in _table(models, labels))
    return f"Measured on: {where}.\n\n{table}\n\n{_benchmarks(models, labels)}\n\n{_errors(models, labels)}"


def _table(models: list[ModelSummary], labels: list[str]) -> Iterator[list[str]]:
    """Run times, compile times relative to default mode, and who answered."""
    others = [label for label in labels if label != DEFAULT]
    answered = [label for label in labels if any(_answers(model.labels.get(label)) for model in models)]
    heads = ["model", *(f"{label}, µs" for label in labels), *(f"{label}, times as fast" for label in others)]
    heads += [f"{DEFAULT}, s to compile", *(f"{label}, times as long" for label in others)]
    heads += [f"{label}, answered" for label in answered]
    yield heads
    yield ["---"] * len(heads)
    for model in models:
        found = [model.labels.get(label) for label in labels]
        seconds = model.seconds(DEFAULT)
        yield [
            model.about,
            *(_spread(each.us) if each else NOTHING for each in found),
            *(_ratio(model.speed(label)) for label in others),
            NOTHING if seconds is None else f"{seconds:.1f}",
            *(_ratio(model.compile_ratio(label)) for label in others),
            *(_answers(model.labels.get(label)) or NOTHING for label in answered),
        ]
    speeds = [_ratio(mean(model.speed(label) for model in models)) for label in others]
    compiles = [_ratio(mean(model.compile_ratio(label) for model in models)) for label in others]
    yield ["geometric mean", *[""] * len(labels), *speeds, "", *compiles, *[""] * len(answered)]


def _benchmarks(models: list[ModelSummary], labels: list[str]) -> str:
    """Say how many kernels and operators Inductor timed in a compile, as the least and the most of all models."""
    ranges = []
    for label in labels:
        counts = [each.kernels_timed + each.pad_benchmarks for model in models if (each := model.labels.get(label))]
        ranges.append(f"{label} {min(counts)} to {max(counts)}")
    return f"Benchmarks in a compile: {', '.join(ranges)}."


def _errors(models: list[ModelSummary], labels: list[str]) -> str:
    """Compare the errors of each label with those of eager mode, as the least and the greatest ratio of all models."""
    ranges = []
    for label in labels:
        found = [(model.labels[label], model.eager_error) for model in models if label in model.labels]
        ratios = [max(each.errors) / eager for each, eager in found]
        ranges.append(f"{label} {min(ratios):.2f} to {max(ratios):.2f}")
    wrong = [f"{label} ({model.about})" for model in models for label in model.wrong()]
    return f"Error over that of eager mode: {', '.join(ranges)}. Wrong: {', '.join(wrong) or 'none'}."


def _answers(label: LabelSummary | None) -> str:
    """Return who answered, and how many GEMMs were missed; empty if nothing was asked."""
    if label is None:
        return ""
    receipt: dict[str, Any] = label.receipt
    parts = [f"{tier} {calls}" for tier, calls in receipt["tiers"].items()]
    parts += [f"missed {receipt['misses']}"] if receipt["misses"] else []
    return ", ".join(parts)


def _spread(values: list[float]) -> str:
    """The median, with the least and the greatest if there are several."""
    extremes = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{median(values):.1f}{extremes}"


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"
