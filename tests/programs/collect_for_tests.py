"""The ``collect`` command with the measurers for tests, whose marks go where ``--search-space`` says."""

import sys

import click

from diode_lut.cli import main
from diode_lut.cli.timings import collect_command
from diode_lut.measure import MEASURERS

MEASURERS["autotune"] = "tests.measure.measurers:measure"
next(each for each in collect_command.params if each.name == "search_space").type = click.STRING

if __name__ == "__main__":
    main(["collect", *sys.argv[1:]])
