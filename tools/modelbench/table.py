"""Results in Markdown: tables of run times and of compile times with what was benchmarked, and a line about errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from modelbench.labels import AUTOTUNE, DEFAULT
from modelbench.summary import LabelSummary, ModelSummary, labels_of, mean

NOTHING = "–"  # noqa: RUF001 (a dash, as tables have it)


def markdown(models: list[ModelSummary]) -> str:
    """Say where it was measured, and show tables and errors. A model without a result of a label has a dash there."""
    labels = labels_of(models)
    tables = [_run_times(models, labels), _compile_times(models, labels)]
    where = "; ".join(sorted({model.where for model in models}))
    parts = [f"Measured on: {where}.", *("\n".join(map(_row, table)) for table in tables), _errors(models, labels)]
    return "\n\n".join(parts)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> list[str]:
    return ["---"] * columns


def _run_times(models: list[ModelSummary], labels: list[str]) -> Iterator[list[str]]:
    others = [label for label in labels if label != DEFAULT]
    ours = [label for label in others if label != AUTOTUNE] if AUTOTUNE in labels else []
    heads = [f"{label}, µs" for label in labels] + [f"{label} to default" for label in others]
    heads += [f"{label} to the better of both" for label in ours]
    yield ["model", *heads]
    yield _rule(1 + len(heads))
    for model in models:
        times = [_spread(model.labels[label].us) if label in model.labels else NOTHING for label in labels]
        ratios = [model.speed(label) for label in others] + [model.speed_to_better(label) for label in ours]
        yield [model.about, *times, *map(_ratio, ratios)]
    means = [mean(model.speed(label) for model in models) for label in others]
    means += [mean(model.speed_to_better(label) for model in models) for label in ours]
    yield ["geometric mean", *[""] * len(labels), *map(_ratio, means)]


def _compile_times(models: list[ModelSummary], labels: list[str]) -> Iterator[list[str]]:
    others = [label for label in labels if label != DEFAULT]
    heads = [f"{label}, s" for label in labels] + [f"{label} to default" for label in others]
    heads += [f"{label}, benchmarks" for label in labels]
    answered = [label for label in labels if any(_answers(model.labels.get(label)) for model in models)]
    heads += [f"{label}, answered" for label in answered]
    yield ["model", *heads]
    yield _rule(1 + len(heads))
    for model in models:
        found = [model.labels.get(label) for label in labels]
        seconds = [f"{median(each.seconds):.1f}" if each else NOTHING for each in found]
        benchmarks = [str(each.kernels_timed + each.pad_benchmarks) if each else NOTHING for each in found]
        answers = [_answers(model.labels.get(label)) or NOTHING for label in answered]
        yield [model.about, *seconds, *(_ratio(model.compile_ratio(label)) for label in others), *benchmarks, *answers]
    means = [mean(model.compile_ratio(label) for model in models) for label in others]
    yield ["geometric mean", *[""] * len(labels), *map(_ratio, means), *[""] * (len(labels) + len(answered))]


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
