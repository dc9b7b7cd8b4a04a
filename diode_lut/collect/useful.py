"""Candidates that sweeps have shown to be enough, for each architecture; ``tools/choose_candidates.py`` finds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from diode_lut.files import write_atomically
from diode_lut.kernels.config import Config

PATH = Path(__file__).with_suffix(".json")
"""A map from architectures to lists of configs, as tables write them, one a line."""

Useful = Mapping[str, frozenset[Config]]


def read_useful() -> Useful:
    """The Triton configs that are worth trying, by architecture."""
    document = orjson.loads(PATH.read_bytes())
    return {arch: frozenset(map(Config.from_json, configs)) for arch, configs in document.items()}


def write_useful(useful: Useful) -> None:
    """Replace the file."""
    parts = [f"{orjson.dumps(arch).decode()}: [\n{_lines(configs)}\n]" for arch, configs in sorted(useful.items())]
    write_atomically(PATH, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def _lines(configs: frozenset[Config]) -> str:
    return ",\n".join(orjson.dumps(config.to_json()).decode() for config in sorted(configs))
