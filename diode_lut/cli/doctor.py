"""``doctor``: why tables are used here, or are not."""

from __future__ import annotations

import logging

import click

from diode_lut.cli.output import say
from diode_lut.printable import printable


@click.command("doctor")
@click.pass_context
def doctor_command(ctx: click.Context) -> None:
    """Look at PyTorch, the hook, its caches, the settings, the devices, and the tables that match them or do not.

    Prints what was found, and what to do about it; exits with 1 if something is wrong. Nothing is compiled.
    """
    from diode_lut.doctor import examine

    logging.getLogger("diode_lut").addHandler(logging.NullHandler())  # the findings say it all
    found = False
    for finding in examine():
        say(printable(f"{finding.state:5}  {finding.topic}: {finding.text}"))
        if finding.remedy:
            say(printable(f"       to do: {finding.remedy}"))
        found |= finding.state == "wrong"
    ctx.exit(1 if found else 0)
