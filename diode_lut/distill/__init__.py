"""Training of a model on datasets. This package needs torch."""

from __future__ import annotations

from diode_lut.distill.distill import Distilled, distill
from diode_lut.distill.training import TrainingPlan

__all__ = ["Distilled", "TrainingPlan", "distill"]
