"""Run ``python -m diode_lut``. In a clone without its requirements, say how to install them."""

from __future__ import annotations

import sys

from diode_lut.errors import install_command

if __name__ == "__main__":
    try:
        from diode_lut.cli import main

        main()
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed: {install_command()}")
