"""The formats there are: the one registry of what can be imported and exported, which itself imports nothing."""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """One format: what it is, and what can be imported from it and exported to it: a ``table`` or ``timings``.

    ``module`` has a function ``read(path, facts, skipped)``, which gives a Table or Timings, and for export ``write``,
    which gives the bytes of a file: ``write(table, problems, facts, skipped)`` or ``write(dataset)``.
    """

    description: str
    holds: str
    module: str
    exported: bool = True


FORMATS = {
    "inductor-table": Format(
        "the dictionary for torch._inductor.config.lookup_table.table", "table", "diode_lut.exchange.inductor_table"
    ),
    "torch-diode-table": Format("torch-diode's table, JSON", "table", "diode_lut.exchange.torch_diode_table"),
    "torch-diode-dataset": Format(
        "torch-diode's dataset, JSON or msgpack", "timings", "diode_lut.exchange.torch_diode_dataset", exported=False
    ),
    "inductor-cache": Format(
        "Inductor's cache directory, $TORCHINDUCTOR_CACHE_DIR",
        "timings",
        "diode_lut.exchange.inductor_cache",
        exported=False,
    ),
    "inductor-mm-log": Format(
        "the file of TORCHINDUCTOR_MM_LOGGING_FILE", "timings", "diode_lut.exchange.inductor_mm_log", exported=False
    ),
    "t4": Format("T4 results of Kernel Tuner and others, JSON", "timings", "diode_lut.exchange.t4"),
}
"""The formats by the names that the command line has for them."""
