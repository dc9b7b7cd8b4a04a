"""The ways to measure and their stages, by name: nothing here imports what they need."""

from __future__ import annotations

METHODS = {"autotune": ("autotune",), "sweep": ("sweep", "final")}
"""The ways to measure, each with its stages: all problems go through one stage, then all go through the next."""

MEASURERS = {
    "autotune": "diode_lut.collect.autotuned:measure",
    "sweep": "diode_lut.collect.sweep:measure",
    "final": "diode_lut.collect.final:measure",
}
"""Where each stage's Measurer is."""

FINALISTS = "diode_lut.collect.final:finalists"
"""Where the function is that makes the tasks of stage ``final`` of the records of stage ``sweep``."""
