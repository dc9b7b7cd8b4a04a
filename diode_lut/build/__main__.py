"""``python -m diode_lut.build`` is ``python -m diode_lut build``."""

from __future__ import annotations

import sys

from diode_lut.cli import main

main(["build", *sys.argv[1:]], prog_name="python -m diode_lut")
