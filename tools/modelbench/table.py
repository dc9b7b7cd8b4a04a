"""Results as tables in Markdown: run times, compile times with what was benchmarked, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from modelbench.labels import AUTOTUNE, DEFAULT
from modelbench.summary import LabelSummary, ModelSummary, labels_of, mean

NOTHING = "–"  # noqa: RUF001 (a dash, as tables have it)


def markdown(models: list[ModelSummary]) -> str:
    """Where it was measured, and the three tables; a model that has no result of a label has a dash there."""
    labels = labels_of(models)
    parts = [_run_times(models, labels), _compile_times(models, labels), _errors(models, labels)]
    where = "; ".join(sorted({model.where for model in models}))
    return "\n\n".join([f"Measured on: {where}.", *("\n".join(map(_row, part)) for part in parts)])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> list[str]:
    return ["---"] * columns


def _run_times(models: list[ModelSummary], labels: list[str]) -> Iterator[list[str]]:
    others = [label for label in labels if label != DEFAULT]
    ours = [label for label in others if label != AUTOTUNE]
    heads = [f"{label}, µs" for label in labels] + [f"{label} to default" for label in others]
    heads += [f"{label} to the better of both" for label in ours]
    yield ["model", *heads]
    yield _rule(1 + len(heads))
    for model in models:
        times = [_spread(model.labels[label].us, ".1f") if label in model.labels else NOTHING for label in labels]
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
        seconds = [_spread(each.seconds, ".1f") if each else NOTHING for each in found]
        benchmarks = [str(each.kernels_timed + each.pad_benchmarks) if each else NOTHING for each in found]
        answers = [_answers(model.labels.get(label)) or NOTHING for label in answered]
        yield [model.about, *seconds, *(_ratio(model.compile_ratio(label)) for label in others), *benchmarks, *answers]
    means = [mean(model.compile_ratio(label) for model in models) for label in others]
    yield ["geometric mean", *[""] * len(labels), *map(_ratio, means), *[""] * (len(labels) + len(answered))]


def _errors(models: list[ModelSummary], labels: list[str]) -> Iterator[list[str]]:
    yield ["model", "eager, error", *(f"{label}, error" for label in labels), "wrong"]
    yield _rule(3 + len(labels))
    for model in models:
        found = [model.labels.get(label) for label in labels]
        errors = [f"{max(each.errors):.1e}" if each else NOTHING for each in found]
        yield [model.about, f"{model.eager_error:.1e}", *errors, ", ".join(model.wrong()) or "none"]


def _answers(label: LabelSummary | None) -> str:
    """Who answered, and which epilogues were fused; empty if nothing was asked."""
    if label is None:
        return ""
    receipt: dict[str, Any] = label.receipt
    parts = [f"{tier} {calls}" for tier, calls in receipt["tiers"].items()]
    parts += [f"missed {receipt['misses']}"] if receipt["misses"] else []
    for name, outcomes in receipt["epilogues"].items():
        parts.append(f"{name} fused {outcomes.get('fused', 0)} of {sum(outcomes.values())}")
    return ", ".join(parts)


def _spread(values: list[float], form: str) -> str:
    """The median, with the least and the greatest if there are several."""
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    if len(ordered) == 1:
        return f"{middle:{form}}"
    return f"{middle:{form}} ({ordered[0]:{form}} to {ordered[-1]:{form}})"


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"
