"""Results of many processes, summarized for each model: medians over the compiles of each label."""

from collections.abc import Iterable
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from modelbench.labels import DEFAULT, EAGER, LABELS
from modelbench.models import MODELS, ON_REQUEST
from modelbench.records import Record

WRONG = 3.0  # a result is wrong if its error is larger than that of eager mode by this factor


class LabelSummary(NamedTuple):
    """Of one model, compiled in one way.

    ``seconds`` are those of cold compiles, ``us`` those of a step, one for each compile, and ``errors`` are relative.
    ``kernels_timed`` and ``pad_benchmarks`` say what the first compile benchmarked, and ``receipt`` who answered in it.
    """

    seconds: list[float]
    us: list[float]
    errors: list[float]
    kernels_timed: int
    pad_benchmarks: int
    receipt: dict[str, Any]


class ModelSummary(NamedTuple):
    """All labels of one model that were compiled and timed, the error of eager mode, and the device and PyTorch."""

    name: str
    labels: dict[str, LabelSummary]
    eager_error: float
    where: str

    @property
    def about(self) -> str:
        """A phrase that describes the model."""
        return (MODELS | ON_REQUEST)[self.name].about

    def us(self, label: str) -> float | None:
        """The median of a label's times; None if it has none."""
        return median(self.labels[label].us) if label in self.labels else None

    def seconds(self, label: str) -> float | None:
        """The median of a label's compile times; None if it has none."""
        return median(self.labels[label].seconds) if label in self.labels else None

    def speed(self, label: str) -> float | None:
        """How often a label is as fast as default mode."""
        return _ratio(self.us(DEFAULT), self.us(label))

    def compile_ratio(self, label: str) -> float | None:
        """A label's compile time divided by that of default mode."""
        return _ratio(self.seconds(label), self.seconds(DEFAULT))

    def wrong(self) -> list[str]:
        """The labels with wrong results."""
        return wrong({EAGER: [self.eager_error], **{label: each.errors for label, each in self.labels.items()}})


def wrong(errors: dict[str, list[float]]) -> list[str]:
    """The labels of which a compile has too large an error, or none that is a number."""
    limit = WRONG * errors[EAGER][0]
    return [label for label, values in errors.items() if not all(value <= limit for value in values)]


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None else over / under


def mean(ratios: Iterable[float | None]) -> float | None:
    """Their geometric mean; None if there are none."""
    known = [ratio for ratio in ratios if ratio is not None]
    return geometric_mean(known) if known else None


def summarize(records: Iterable[Record]) -> list[ModelSummary]:
    """The models that have times; of several runs of one model, the last."""
    compiles: dict[str, list[Record]] = {}
    runs: dict[str, Record] = {}
    for record in records:
        if "failed" in record:
            continue
        if record["kind"] == "compile":
            compiles.setdefault(record["model"], []).append(record)
        else:
            runs[record["model"]] = record
    return [_of_model(name, runs[name], compiles.get(name, [])) for name in MODELS | ON_REQUEST if name in runs]


def _of_model(name: str, run: Record, compiles: list[Record]) -> ModelSummary:
    by_label: dict[str, list[Record]] = {}
    for each in compiles:
        by_label.setdefault(each["label"]["name"], []).append(each)
    labels = {
        label: _of_label(found, run["us"][label], run["errors"][label])
        for label, found in by_label.items()
        if label in run["us"]
    }
    return ModelSummary(name, labels, run["errors"][EAGER][0], f"{run['device_name']}, PyTorch {run['torch']}")


def _of_label(compiles: list[Record], us: list[float], errors: list[float]) -> LabelSummary:
    first = compiles[0]
    pads = first["counters"].get("pad_mm_bench", 0)
    seconds = [each["seconds"] for each in compiles]
    return LabelSummary(seconds, us, errors, first["timed"]["kernels"], pads, first["receipt"])


def labels_of(models: Iterable[ModelSummary]) -> list[str]:
    """All labels: the usual ones in their order, then the others by name."""
    found = {label for model in models for label in model.labels}
    usual = [label.name for label in LABELS if label.name in found]
    return [*usual, *sorted(found.difference(usual))]
