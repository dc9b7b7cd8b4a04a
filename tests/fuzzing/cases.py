"""Cases: a table and a product, drawn from a seed and a number, the same on every machine."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from diode_lut.problem import Hardware
from tests.fuzzing.products import Product, draw_product
from tests.fuzzing.rows import Row, draw_rows

MODES = ("default", "max-autotune-no-cudagraphs", "reduce-overhead")


class Case(NamedTuple):
    """What is compiled, with which rows, in which mode of ``torch.compile``, and with which of our settings.

    ``frozen``: where it is run, all operands but the first are a module's constants.
    """

    seed: int
    number: int
    product: Product
    rows: list[Row]
    mode: str
    settings: dict[str, Any]
    frozen: bool

    @property
    def times_candidates(self) -> bool:
        """Whether the settings ask Inductor to time several candidates."""
        return self.settings.get("policy") == "verify" or self.settings.get("top_k", 1) > 1

    def write_table(self, path: Path, hardware: Hardware) -> None:
        """Make a file of the rows, as a person might have written it, for some hardware."""
        name, arch, sm_count, _ = hardware
        document = {
            "schema_version": 1,
            "hardware": {"name": name, "arch": arch, "sm_count": sm_count},
            "entries": self.rows,
        }
        path.write_text(json.dumps(document), encoding="utf-8")

    def __str__(self) -> str:
        how = f"{self.mode}{' frozen' if self.frozen else ''} {self.settings}"
        return f"seed {self.seed} case {self.number}: {self.product} {how} {json.dumps(self.rows)}"


def draw_case(seed: int, number: int) -> Case:
    """Case ``number`` of a seed."""
    random = Random(f"{seed}/{number}")
    product = draw_product(random)
    rows = draw_rows(random, product)
    mode = random.choices(MODES, [7, 2, 1])[0]
    settings: dict[str, Any] = {"fallback_to_autotune": random.random() < 0.02}
    if random.random() < 0.03:
        settings.update(random.choice([{"policy": "verify"}, {"top_k": 3}]))
    frozen = product.op.startswith("linear") and not product.dynamic and random.random() < 0.3
    return Case(seed, number, product, rows, mode, settings, frozen)
