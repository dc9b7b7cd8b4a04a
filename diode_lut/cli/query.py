"""``query``: what a JMESPath expression finds in a table or dataset."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from itertools import chain, islice, pairwise
from typing import Any

import click
import jmespath
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from diode_lut.cli.arguments import TABLE, Typed
from diode_lut.cli.output import say
from diode_lut.errors import ProblemError, as_json, as_lines, dtype_of, layout_of, op_of, printable, size_of

_WIDTH = 1000
"""Columns where the output is no terminal: enough for any row of a table."""

MAX_LETTERS = 4096
"""Length limit of an expression."""

MAX_STEPS = 10_000_000
"""Most steps of a search, which take some seconds: each value and each letter of a text that is looked at or made."""

_MAX_REMARKS = 5
_MAX_REASON = 400
"""Letters of an error that are shown: it may quote the whole document."""


def _as_json(found: Any) -> None:
    say(as_json(found))


def _as_lines(found: Any) -> None:
    lines = [as_json(item, indent=False) for item in _items(found)]
    if lines:
        say(as_lines(lines))


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
    from diode_lut.table.lint import MAX_VALUES
    from diode_lut.table.read import parse

    contents = file.whole()
    if is_dataset(contents):
        from diode_lut.dataset.dataset import as_document

        return as_document(read_dataset(file.path, contents=contents))
    return parse(file.path, contents, MAX_VALUES)


class _WrongError(ValueError):
    """An expression that means nothing, or takes too long."""


class _Search(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
    """Evaluates an expression in at most MAX_STEPS steps, so that time and memory are bounded."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MAX_STEPS

    def visit(self, node: dict[str, Any], *values: Any) -> Any:
        """The value of a node; _WrongError if too many steps are needed."""
        found = super().visit(node, *values)
        self._spend(1 + (len(found) if isinstance(found, list | dict | str) else 0))
        return found

    def visit_multi_select_list(self, node: dict[str, Any], value: Any) -> Any:
        """A list, which may hold the same value twice: `[@,@]` forty times makes more than any memory holds."""
        return self._walked(super().visit_multi_select_list(node, value))

    def visit_multi_select_dict(self, node: dict[str, Any], value: Any) -> Any:
        """An object, likewise."""
        return self._walked(super().visit_multi_select_dict(node, value))

    def visit_literal(self, node: dict[str, Any], value: Any) -> Any:
        """A value from the expression, which every element of a list may get."""
        return self._walked(super().visit_literal(node, value))

    def visit_comparator(self, node: dict[str, Any], value: Any) -> Any:
        """Whether the comparison holds; _WrongError for a number and a text, which have no order."""
        left, right = (self.visit(child, value) for child in node["children"])
        if node["value"] in ("eq", "ne"):
            self._walked(left)
        elif {*map(type, (left, right))} in ({int, str}, {float, str}):
            text = left if isinstance(left, str) else right
            raise _WrongError(f'"{text}" is a text, which has no order with a number{_as_number(text)}')
        literals = [{"type": "literal", "value": each} for each in (left, right)]
        return super().visit_comparator({**node, "children": literals}, value)

    def visit_function_expression(self, node: dict[str, Any], value: Any) -> Any:
        """The result of a function; _WrongError for an expression (`&op`) that the function does not take."""
        name = node["value"]
        takes = any("expref" in each["types"] for each in Functions.FUNCTION_TABLE.get(name, _NO_FUNCTION)["signature"])
        arguments = [
            super(_Search, self).visit_expref(child, value)
            if child["type"] == "expref" and takes
            else self.visit(child, value)
            for child in node["children"]
        ]
        if name in ("contains", "to_string"):
            self._walked(arguments)
        if name == "join" and {*map(type, arguments)} == {str, list}:
            self._spend(len(arguments[0]) * len(arguments[1]))
        try:
            return self._functions.call_function(name, arguments)
        except TypeError as error:  # of arguments whose types jmespath does not check
            raise _WrongError(f"{name}(): {error}") from error

    def visit_expref(self, node: dict[str, Any], value: Any) -> Any:
        """_WrongError: an expression is no value."""
        del node, value
        raise _WrongError("& stands only before an argument of map, sort_by, min_by or max_by")

    def _walked(self, value: Any) -> Any:
        """The value, all of which counts as steps, what it holds twice twice."""
        left = [value]
        while left:
            each = left.pop()
            self._spend(1 + (len(each) if isinstance(each, str) else 0))
            if isinstance(each, dict):
                left += each.values()
            elif isinstance(each, list):
                left += each
        return value

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _WrongError(f"takes more than {MAX_STEPS} steps: search in fewer rows, or show less of each")


_NO_FUNCTION: dict[str, Any] = {"signature": ()}


def _as_number(text: str) -> str:
    """The number that a text means, as a remedy."""
    try:
        return f": write `{size_of(text)}`"
    except ProblemError:
        return ""


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
    known = _known_fields(expression, document)
    for word in dict.fromkeys(node["value"] for node in _nodes(expression) if node["type"] == "field"):
        if word not in known:
            close = get_close_matches(word, known, 1)
            remedy = f"; a function is written {word}(@)" if word in Functions.FUNCTION_TABLE else ""
            yield f"note: the file has no field {word}{f' (did you mean {close[0]}?)' if close else remedy}"


def _misplaced_fields(expression: dict[str, Any], document: Any) -> Iterator[str]:
    """A remark on each field that a filter compares and its objects lack, where something in them has it."""
    search = _Search()
    for node in _nodes(expression):
        if node["type"] != "filter_projection":
            continue
        filtered, _, condition = node["children"]
        rows = [row for row in _items(search.visit(filtered, document)) if isinstance(row, dict)]
        own = {name for row in rows for name in row}
        for word in dict.fromkeys(child["value"] for each in _nodes(condition) for child in _compared(each)):
            parents = sorted({name for row in rows for name in row if word in _fields_of(row[name])})
            if word not in own and parents:
                yield f"note: {word} is a field of {parents[0]}: write {parents[0]}[0].{word}"


def _lists_as_objects(expression: dict[str, Any], document: Any) -> Iterator[str]:
    """A remark on each field whose value is a list, of which the expression wants a field."""
    wanted = {
        (step["value"], field["value"]): None
        for node in _nodes(expression)
        for step, field in pairwise(node["children"] if node["type"] == "subexpression" else [])
        if step["type"] == field["type"] == "field"
    }
    are_lists: dict[str, bool] = {}
    for each in _objects(document):
        for name, value in each.items():
            are_lists[name] = isinstance(value, list) and are_lists.get(name, True)
    for name, field in wanted:
        if are_lists.get(name):
            yield f"note: {name} is a list: write {name}[0].{field}"


def _misspelt_values(expression: dict[str, Any], document: Any) -> Iterator[str]:
    """A remark on each text that a field is compared with, and that it never is in the document."""
    found: dict[str, set[str]] = {name: set() for name in _SPELLINGS}
    for each in _objects(document):
        for name in _SPELLINGS.keys() & each.keys():
            if isinstance(each[name], str):
                found[name].add(each[name])
    for node in _nodes(expression):
        children = node["children"] if node["type"] == "comparator" else []
        names = [word for child in children if (word := _last_field(child)) in _SPELLINGS]
        texts = [child["value"] for child in children if child["type"] == "literal"]
        for name, text in zip(names, texts, strict=False):
            if found[name] and isinstance(text, str) and text not in found[name]:
                yield f"note: no {name} is {text} ({_meant(_SPELLINGS[name](text), found[name])})"


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
    from diode_lut.table.row import Candidate, Entry
    from diode_lut.templates.config import TEMPLATES

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
    document = _document(file)
    try:
        _search(expression, document, _FORMATS[form])
    except RecursionError:
        raise click.BadParameter("is nested too deeply", param_hint="JMESPATH") from None
    except (OverflowError, ValueError) as error:  # jmespath's own errors are ValueErrors
        reason = printable(" ".join(str(error).split()))
        shown = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
        remedy = "" if isinstance(error, _WrongError) else f" ({_remedy(expression)})"
        raise click.BadParameter(f"{shown}{remedy}", param_hint="JMESPATH") from error


def _search(expression: str, document: Any, show: Callable[[Any], None]) -> None:
    """Show what is found; if it is nothing, say why that may be."""
    if len(expression) > MAX_LETTERS:
        raise _WrongError(f"has {len(expression)} letters (allowed: {MAX_LETTERS})")
    parsed = jmespath.compile(expression).parsed
    _require_quotes(parsed, document)
    found = _Search().visit(parsed, document)
    if found in (None, []):
        remarks = (_unknown_fields, _misplaced_fields, _lists_as_objects, _misspelt_values)
        for remark in islice(chain.from_iterable(each(parsed, document) for each in remarks), _MAX_REMARKS):
            say(printable(remark), err=True)
    show(found)
