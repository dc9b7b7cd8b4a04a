"""Pictures as files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from diode_lut.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figure(figure: Figure, path: Path) -> None:
    """Draw the figure in the format that the file's name ends with, and replace the file."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=120, format=path.suffix.removeprefix("."))
    write_atomically(path, drawn.getvalue())
