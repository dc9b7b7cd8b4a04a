"""``tables``: which tables there are."""

from __future__ import annotations

import click

from diode_lut.cli.output import say
from diode_lut.printable import printable


@click.command("tables")
def tables_command() -> None:
    """List the tables and models that can be used, and the hardware that they are for."""
    from diode_lut import runtime
    from diode_lut.catalog import is_model, try_model
    from diode_lut.errors import DiodeLutError
    from diode_lut.selector import shown

    for file in runtime.list_available_tables():
        if is_model(file.path) and isinstance(try_model(str(file.path)), DiodeLutError):
            continue
        origin = "shipped" if file.shipped else "user"
        say(printable(f"{file.name}  {file.hardware}  {origin}  {shown(file.path)}"))
