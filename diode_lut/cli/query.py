"""``query``: what is in a table, by JMESPath."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from diode_lut.cli.output import say
from diode_lut.printable import as_json, printable

_WIDTH = 1000
"""Columns where the output is no terminal: enough for any row of a table."""

_FILE = click.Path(dir_okay=False, path_type=Path)


def _as_json(found: Any) -> None:
    say(as_json(found))


def _as_lines(found: Any) -> None:
    for item in _items(found):
        say(as_json(item, indent=False))


def _as_table(found: Any) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    rows = [item if isinstance(item, dict) else {"": item} for item in _items(found)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(
        *(Column(Text(printable(name)), overflow="fold") for name in columns), box=None, show_edge=False, pad_edge=False
    )
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        table.add_row(
            *(Text(printable(each) if isinstance(each, str) else as_json(each, indent=False)) for each in cells)
        )
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def _items(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [] if found is None else [found]


_FORMATS: dict[str, Callable[[Any], None]] = {"json": _as_json, "lines": _as_lines, "table": _as_table}


@click.command("query")
@click.argument("file", type=_FILE)
@click.argument("expression", metavar="JMESPATH")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_FORMATS)),
    default="json",
    show_default=True,
    help="One JSON document, one for each element on a line of its own, or columns.",
)
def query_command(file: Path, expression: str, form: str) -> None:
    """Show what a JMESPath expression (jmespath.org) finds in a table.

    For example 'entries[?op==`"bmm"` && m[1] < `64`].configs[0]', where backquotes enclose values in JSON.
    """
    import jmespath
    from jmespath.exceptions import JMESPathError

    from diode_lut.table.duplicates import MAX_VALUES
    from diode_lut.table.read import parse, read_bytes

    document = parse(file, read_bytes(file), MAX_VALUES)
    try:
        found = jmespath.search(expression, document)
    except JMESPathError as error:
        raise click.BadParameter(" ".join(str(error).split()), param_hint="JMESPATH") from error
    _FORMATS[form](found)
