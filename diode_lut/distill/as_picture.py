"""How training went, as a picture; matplotlib is needed, the optional extra ``report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from diode_lut.distill.training import Epoch
from diode_lut.picture import write_figure


def save_history(histories: Mapping[str, list[Epoch]], path: Path, title: str) -> None:
    """Loss in training and regret in the test by epoch, in a file whose name says the format, for example ``.png``."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    loss, regret = figure.subplots(1, 2)
    for name, history in histories.items():
        epochs = range(1, len(history) + 1)
        loss.plot(epochs, [epoch.loss for epoch in history], label=name)
        regret.plot(epochs, [epoch.regret for epoch in history], label=name)
    loss.set(xlabel="epoch", ylabel="mean loss in training", yscale="log")
    regret.set(xlabel="epoch", ylabel="mean regret on the test problems", ylim=(0, 0.1))
    regret.yaxis.set_major_formatter(PercentFormatter(1))
    for axes in (loss, regret):
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    write_figure(figure, path)
