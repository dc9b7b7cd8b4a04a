"""``python -m diode_lut``."""

from __future__ import annotations

from diode_lut.cli import main

if __name__ == "__main__":
    main()
