"""``query``: what a JMESPath expression finds in a table or dataset."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import click

from diode_lut.cli.output import say
from diode_lut.cli.typed import TABLE, Typed
from diode_lut.domain.printable import as_json, printable
from diode_lut.domain.spelling import dtype_of, layout_of, op_of

_WIDTH = 1000
"""Columns where the output is no terminal: enough for any row of a table."""


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


def _document(file: Typed) -> Any:
    """The JSON of a table; of a dataset, what it would be as JSON."""
    from diode_lut.dataset import is_dataset, read_dataset
    from diode_lut.table.check import MAX_VALUES
    from diode_lut.table.read import parse

    contents = file.whole()
    if is_dataset(contents):
        from diode_lut.dataset.formats import as_document

        return as_document(read_dataset(file.path, contents=contents))
    return parse(file.path, contents, MAX_VALUES)


_REMEDIES = {
    re.compile(r"[<>=]\s*-?\d"): "numbers are written in backquotes: `64`",
    re.compile(r"^\s*\."): "unlike in jq, an expression begins without a dot: entries[]",
    re.compile(r"[^=<>!]=[^=]"): "a comparison is written ==",
    re.compile(r"\w\(\)"): "a function has its argument in brackets: length(entries)",
}
"""What is in a wrong expression, and what to write instead."""


def _remedy(expression: str) -> str:
    found = (remedy for pattern, remedy in _REMEDIES.items() if pattern.search(expression))
    return next(found, "jmespath.org describes the language")


def _require_quotes(expression: dict[str, Any], document: Any) -> None:
    """BadParameter if something is compared with a field that neither the document nor any table has.

    It is a word that should have been quoted otherwise: JMESPath finds nothing then, and says nothing.
    """
    compared = {child["value"]: None for node in _nodes(expression) for child in _compared(node)}
    unusual = [word for word in compared if word not in _fields_of_tables()]
    known = _known_fields(expression, document) if unusual else set()
    for word in unusual:
        if word not in known:
            reason = f'no field is called {word}: a text is written `"{word}"`, a field of the table without quotes'
            raise click.BadParameter(reason, param_hint="JMESPATH")


def _unknown_fields(expression: dict[str, Any], document: Any) -> Iterator[str]:
    """A remark on each field of the expression that is neither in the document nor made by the expression."""
    from jmespath.functions import Functions

    known = _known_fields(expression, document)
    for word in dict.fromkeys(node["value"] for node in _nodes(expression) if node["type"] == "field"):
        if word not in known:
            close = get_close_matches(word, known, 1)
            remedy = f"; a function is written {word}(@)" if word in Functions.FUNCTION_TABLE else ""
            yield f"note: the file has no field {word}{f' (did you mean {close[0]}?)' if close else remedy}"


def _misplaced_fields(expression: dict[str, Any], document: Any) -> Iterator[str]:
    """A remark on each field that a filter compares and its objects lack, where something in them has it."""
    from jmespath.visitor import TreeInterpreter

    for node in _nodes(expression):
        if node["type"] != "filter_projection":
            continue
        filtered, _, condition = node["children"]
        rows = [row for row in _items(TreeInterpreter().visit(filtered, document)) if isinstance(row, dict)]
        own = {name for row in rows for name in row}
        for word in dict.fromkeys(child["value"] for each in _nodes(condition) for child in _compared(each)):
            parents = sorted({name for row in rows for name in row if word in _fields_of(row[name])})
            if word not in own and parents:
                yield f"note: {word} is a field of {parents[0]}: write {parents[0]}[0].{word}"


def _lists_as_objects(expression: dict[str, Any], document: Any) -> Iterator[str]:
    """A remark on each field whose value is a list, of which the expression wants a field."""
    for node in _nodes(expression):
        steps = node["children"] if node["type"] == "subexpression" else []
        for step, wanted in pairwise(steps):
            if step["type"] == wanted["type"] == "field":
                name = step["value"]
                values = [each[name] for each in _objects(document) if name in each]
                if values and all(isinstance(value, list) for value in values):
                    yield f"note: {name} is a list: write {name}[0].{wanted['value']}"


def _misspelt_values(expression: dict[str, Any], document: Any) -> Iterator[str]:
    """A remark on each text that a field is compared with, and that it never is in the document."""
    for node in _nodes(expression):
        children = node["children"] if node["type"] == "comparator" else []
        names = [word for child in children if (word := _last_field(child)) in _SPELLINGS]
        texts = [child["value"] for child in children if child["type"] == "literal"]
        for name, text in zip(names, texts, strict=False):
            found = {value for each in _objects(document) if isinstance(value := each.get(name), str)}
            if found and isinstance(text, str) and text not in found:
                yield f"note: no {name} is {text} ({_meant(_SPELLINGS[name](text), found)})"


_SPELLINGS: dict[str, Callable[[str], str]] = {
    "op": op_of,
    "dtype": dtype_of,
    "layout": layout_of,
    "template": str.casefold,
    "epilogue": str.casefold,
    "stage": str.casefold,
}
"""The fields with few values, and how people's spellings of them become values."""


def _last_field(node: dict[str, Any]) -> str:
    """The field at the end of a path such as ``configs[0].template``; empty if the expression is something else."""
    if node["type"] == "subexpression":
        return _last_field(node["children"][-1])
    return str(node["value"]) if node["type"] == "field" else ""


def _meant(text: str, values: set[str]) -> str:
    close = [text] if text in values else get_close_matches(text, values, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(values))}"


def _known_fields(expression: dict[str, Any], document: Any) -> set[str]:
    """The fields of the document, and those of objects that the expression itself makes."""
    return _fields_of(document) | {node["value"] for node in _nodes(expression) if node["type"] == "key_val_pair"}


def _fields_of_tables() -> set[str]:
    from diode_lut.kernels.registry import TEMPLATES
    from diode_lut.table.entry import Candidate, Entry

    tunables = (name for template in TEMPLATES.values() for name in template.names)
    return {*Entry._fields, *Candidate._fields, "configs", "template", *tunables}


def _nodes(expression: Any) -> Iterator[dict[str, Any]]:
    if isinstance(expression, dict):
        yield expression
        for child in expression.get("children", ()):
            yield from _nodes(child)


def _compared(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields that a comparison names directly."""
    children = node["children"] if node["type"] == "comparator" else []
    return [child for child in children if child["type"] == "field"]


def _fields_of(document: Any) -> set[str]:
    """The names of all fields, at any depth."""
    return {name for each in _objects(document) for name in each}


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    """The document and all that is in it, as far as it is an object."""
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value


@click.command("query")
@click.argument("file", type=TABLE)
@click.argument("expression", metavar="JMESPATH")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_FORMATS)),
    default="json",
    show_default=True,
    help="One JSON document, one for each element on a line of its own, or columns.",
)
def query_command(file: Typed, expression: str, form: str) -> None:
    """Search a table or dataset with a JMESPath expression.

    An example is 'entries[?op==`"bmm"` && m[1] < `64`].configs[0]'. Backquotes enclose values in JSON. jmespath.org
    describes the language.
    """
    import jmespath
    from jmespath.exceptions import JMESPathError

    document = _document(file)
    try:
        compiled = jmespath.compile(expression)
        _require_quotes(compiled.parsed, document)
        found = compiled.search(document)
    except JMESPathError as error:
        reason = f"{' '.join(str(error).split())} ({_remedy(expression)})"
        raise click.BadParameter(reason, param_hint="JMESPATH") from error
    if found in (None, []):
        for remarks in (_unknown_fields, _misplaced_fields, _lists_as_objects, _misspelt_values):
            for remark in remarks(compiled.parsed, document):
                say(printable(remark), err=True)
    _FORMATS[form](found)
