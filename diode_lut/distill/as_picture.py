"""How training went, as a picture; matplotlib is needed, the optional extra ``report``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, ScalarFormatter

from diode_lut.distill.training import Epoch
from diode_lut.picture import write_figure

_PANELS = (("loss", "mean loss in training"), ("regret", "mean regret on the test problems"))
"""Fields of Epoch, and what they are called."""


def save_history(histories: Mapping[str, list[Epoch]], path: Path, title: str) -> None:
    """Loss in training and, with a test, regret there by epoch, in a file whose name says the format: ``.png``."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    tested = not all(math.isnan(epoch.regret) for history in histories.values() for epoch in history)
    panels = [_PANELS[0], *([_PANELS[1]] if tested else [])]
    for axes, (field, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, history in histories.items():
            values = [getattr(epoch, field) for epoch in history]
            axes.plot(range(1, len(history) + 1), values, marker=".", label=name)
        axes.set(xlabel="epoch", ylabel=label, yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(PercentFormatter(1) if field == "regret" else ScalarFormatter())
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    write_figure(figure, path)
