"""Models that are so small that their answers are known."""

import numpy as np

from diode_lut.hardware import Hardware
from diode_lut.model import Kind, Split
from diode_lut.model.features import CONFIG_FEATURES, JOINT_FEATURES, PROBLEM_FEATURES
from diode_lut.model.ranking import PADDING_FEATURES, Calibration, Model, PaddingModel, Weights, terms_of
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config

H200 = Hardware("NVIDIA H200", "sm_90", 132)
LARGE = Config("triton_mm", (128, 128, 64, 8, 4, 8))
SMALL = Config("triton_mm", (64, 32, 64, 8, 4, 4))
BATCHED = Config("triton_bmm", (32, 32, 32, 8, 3, 4))
CUT = Config("decompose_k", (16,))
CANDIDATES = (SMALL, LARGE, BATCHED, ATEN, CUT)

MM = Problem("mm", "bfloat16", "nt", 16, 1, 1024, 1024, 1024)
BMM = Problem("bmm", "bfloat16", "nt", 16, 8, 64, 64, 64)
WIDE = (1, 65536)
KINDS = tuple(Kind(each.op, each.dtype, each.layout, each.align, (1, 64), WIDE, WIDE, WIDE) for each in (MM, BMM))


def model(
    advantage: float = 0.5, confidence: float = 0.99, candidates: tuple[Config, ...] = CANDIDATES, **fields: object
) -> Model:
    """A model that expects exp(-advantage) of aten's time from tiled configs, with the given confidence."""
    return Model(
        **{
            "hardware": H200,
            "weights": weights(advantage, candidates=len(candidates)),
            "candidates": candidates,
            "kinds": KINDS,
            "calibration": Calibration(0.0, (0.0,), (confidence,)),
            "split": Split(0, 0.2),
            **fields,
        }  # type: ignore[arg-type]
    )


def padding(log_time: float, error: float = 0.1, op: str = "mm", dtype: str = "bfloat16") -> PaddingModel:
    """A regression: ``aten`` on padded operands takes exp(log_time) of the time of the best without padding."""
    zeros, ones = (0.0,) * len(PADDING_FEATURES), (1.0,) * len(PADDING_FEATURES)
    return PaddingModel(zeros, ones, (log_time, *[0.0] * (len(terms_of(zeros)) - 1)), ((op, dtype),), error)


def weights(advantage: float, feature: str = "tiled", candidates: int = len(CANDIDATES)) -> Weights:
    """Weights of a network of one neuron, whose only input is one feature of the config."""
    config = np.zeros((1, len(CONFIG_FEATURES) + 1), np.float32)
    config[0, CONFIG_FEATURES.index(feature)] = 1
    one, zero = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
    return Weights(
        learned=np.zeros((1, candidates), np.float32),
        problem=np.zeros((1, len(PROBLEM_FEATURES)), np.float32),
        config=config,
        joint=np.zeros((1, len(JOINT_FEATURES)), np.float32),
        first_bias=zero,
        second=one,
        second_bias=zero,
        last=np.full((1, 1), -advantage, np.float32),
        last_bias=zero,
        doubt=np.zeros((1, 2), np.float32),
        doubt_bias=-one,
    )
