"""``query``: search a table or dataset with a JMESPath expression, and explain why nothing is found."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice, pairwise
from typing import Any

import click
import jmespath
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from diode_lut.cli.arguments import TABLE, Typed
from diode_lut.cli.output import PIPE_WIDTH, format_option, say
from diode_lut.errors import ProblemError, as_json, as_lines, dtype_of, layout_of, op_of, printable, size_of, variant_of

MAX_LETTERS = 4096  # length limit of an expression
MAX_STEPS = 10_000_000  # Most steps of a search, some seconds. Each value, and each letter of a text, is a step
_MAX_REASON = 400  # Letters of an error to show. It may quote the whole document
Node = dict[str, Any]  # a part of a parsed expression: its type, its value, and its children


@click.command("query")
@click.argument("file", type=TABLE)
@click.argument("expression", metavar="JMESPATH")
@format_option(
    "json", "lines", "table", about="One JSON document, one for each element on a line of its own, or columns."
)
@click.option("--exit-status", "-e", is_flag=True, help="Exit with 1 if null, false or an empty list is found.")
def query_command(file: Typed, expression: str, form: str, exit_status: bool) -> int:
    """Search a table or dataset with a JMESPath expression.

    An example is 'entries[?op==`"bmm"` && m[1] < `64`].configs[0]'. Backquotes enclose values in JSON. jmespath.org
    describes the language.
    """
    from diode_lut.dataset import is_dataset, read_dataset
    from diode_lut.dataset.dataset import as_document
    from diode_lut.table import MAX_VALUES, parse

    contents = file.whole()
    if is_dataset(contents):
        document = as_document(read_dataset(file.path, contents=contents))
    else:
        document = parse(file.path, contents, MAX_VALUES)
    found = search(expression, document)
    items = found if isinstance(found, list) else [] if found is None else [found]
    if form == "json":
        say(as_json(found))
    elif form == "lines":
        if items:
            say(as_lines(as_json(item, indent=False) for item in items))
    else:
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        rows = [item if isinstance(item, dict) else {"": item} for item in items]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = (Column(Text(printable(name)), overflow="fold") for name in names)
        table = Table(*columns, box=None, show_edge=False, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(_cell(name, row.get(name, ""))) for name in names))
        Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
    return int(exit_status and found in (None, False, []))


def search(expression: str, document: Any, name: str = "JMESPATH") -> Any:
    """Return the result of the expression. If it is empty, print remarks. BadParameter for a wrong expression."""
    try:
        if len(expression) > MAX_LETTERS:
            raise _WrongError(f"has {len(expression)} letters (allowed: {MAX_LETTERS})")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PendingDeprecationWarning)  # of texts in backquotes
            parsed = jmespath.compile(expression).parsed
        nodes = list(_nodes(parsed))
        _require_quotes(nodes, document)
        found = _Search().visit(parsed, document)
        if found in (None, []):
            for remark in islice(_remarks(nodes, document), 5):
                say(printable(f"note: {remark}"), err=True)
        return found
    except RecursionError:
        raise click.BadParameter("is nested too deeply", param_hint=name) from None
    except (OverflowError, ValueError) as error:  # jmespath's own errors are ValueErrors
        reason = printable(" ".join(str(error).split()))
        shown = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
        remedies = (remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, expression))
        remedy = "" if isinstance(error, _WrongError) else f" ({next(remedies)})"
        raise click.BadParameter(f"{shown}{remedy}", param_hint=name) from error


def _cell(name: str, value: Any) -> str:
    """Return a value as text: sizes as ``set`` takes them, and configs as ``explain`` writes them, with their gain."""
    from diode_lut.problem import SIZE_FIELDS
    from diode_lut.table import decode_entry
    from diode_lut.table.faults import Fault

    with suppress(Fault, TypeError, ValueError):
        if name in SIZE_FIELDS:
            low, high = value
            return f"{int(low)}" if low == high else f"{int(low)}-{int(high)}"
        if name == "configs":
            gains = ((each.config, each.gain_permille) for each in decode_entry({"configs": value}).candidates)
            return "; ".join(str(config) if gain is None else f"{config} ({gain / 1000:.3f})" for config, gain in gains)
    return printable(value) if isinstance(value, str) else as_json(value, indent=False)


_REMEDIES = {
    r"[<>=]\s*-?\d": "numbers are written in backquotes: `64`",
    r"^\s*\.": "unlike in jq, an expression begins without a dot: entries[]",
    r"[^=<>!]=[^=]": "a comparison is written ==",
    r"\w\(\)": "a function has its argument in brackets: length(entries)",
    "": "jmespath.org describes the language",
}


class _WrongError(ValueError):
    """An expression without a meaning, or with too many steps."""


class _Search(TreeInterpreter):  # type: ignore[misc]  # jmespath has no types
    """Evaluates an expression in at most MAX_STEPS steps, to bound time and memory."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MAX_STEPS

    def visit(self, node: Node, *values: Any) -> Any:
        """Return the value of a node. _WrongError after too many steps.

        A list or an object may hold the same value twice: `[@,@]` forty times makes more than any memory holds. And
        every element of a list may get a value in the expression.
        """
        found = super().visit(node, *values)
        if node["type"] in ("multi_select_list", "multi_select_dict", "literal"):
            self._walked(found)
        self._spend(1 + (len(found) if isinstance(found, list | dict | str) else 0))
        return found

    def visit_comparator(self, node: Node, value: Any) -> Any:
        """Compare. _WrongError for a number and a text or a list: they have no order."""
        left, right = (self.visit(child, value) for child in node["children"])
        types = {type(left), type(right)}
        if node["value"] in ("eq", "ne"):
            self._walked(left)
        elif list in types and types & {int, float}:
            name = _last_field(node["children"][0 if isinstance(left, list) else 1]) or "it"
            raise _WrongError(f"{name} is a list, which has no order with a number: write {name}[0] or {name}[1]")
        elif types in ({int, str}, {float, str}):
            text = left if isinstance(left, str) else right
            try:
                remedy = f": write `{size_of(text)}`"
            except ProblemError:
                remedy = ""
            raise _WrongError(f'"{text}" is a text, which has no order with a number{remedy}')
        literals = [{"type": "literal", "value": each} for each in (left, right)]
        return super().visit_comparator({**node, "children": literals}, value)

    def visit_function_expression(self, node: Node, value: Any) -> Any:
        """Call a function. _WrongError if it does not take an expression (`&op`)."""
        name = node["value"]
        signature = Functions.FUNCTION_TABLE.get(name, {"signature": ()})["signature"]
        takes = any("expref" in each["types"] for each in signature)
        arguments = [
            super(_Search, self).visit_expref(child, value)
            if child["type"] == "expref" and takes
            else self.visit(child, value)
            for child in node["children"]
        ]
        if name == "contains" and len(arguments) == 2 and arguments[0] is None:
            return False  # a row without a note
        if name in ("contains", "to_string"):
            self._walked(arguments)
        if name == "join" and {*map(type, arguments)} == {str, list}:
            self._spend(len(arguments[0]) * len(arguments[1]))
        try:
            return self._functions.call_function(name, arguments)
        except TypeError as error:  # of arguments whose types jmespath does not check
            raise _WrongError(f"{name}(): {error}") from error

    def visit_expref(self, node: Node, value: Any) -> Any:
        """Raise _WrongError: an expression is no value."""
        del node, value
        raise _WrongError("& stands only before an argument of map, sort_by, min_by or max_by")

    def _walked(self, value: Any) -> None:
        """Count all of the value as steps. A part held twice counts twice."""
        left = [value]
        while left:
            each = left.pop()
            self._spend(1 + (len(each) if isinstance(each, str) else 0))
            if isinstance(each, dict):
                left += each.values()
            elif isinstance(each, list):
                left += each

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _WrongError(f"takes more than {MAX_STEPS} steps: search in fewer rows, or show less of each")


def _require_quotes(nodes: list[Node], document: Any) -> None:
    """Raise _WrongError if something is compared with an unknown field: mostly a text without quotes."""
    from diode_lut.table.row import Candidate, Entry
    from diode_lut.templates.config import TEMPLATES

    tunables = (name for template in TEMPLATES.values() for name in template.names)
    usual = {*Entry._fields, *Candidate._fields, "configs", "template", *tunables}
    unusual = [word for node in nodes for word in _compared(node) if word not in usual]
    known = _known_fields(nodes, document) if unusual else set()
    for word in unusual:
        if word not in known:
            reason = f'no field is called {word}: a text is written `"{word}"`, a field of the table without quotes'
            raise _WrongError(reason)


_SPELLINGS: dict[str, Callable[[str], str]] = {
    "op": op_of,
    "dtype": dtype_of,
    "layout": layout_of,
    "variant": variant_of,
    "template": str.casefold,
    "epilogue": str.casefold,
    "stage": str.casefold,
}
"""The fields with few values, and functions from other spellings to these values."""


def _remarks(nodes: list[Node], document: Any) -> Iterator[str]:
    """Yield reasons why an expression may find nothing."""
    known = _known_fields(nodes, document)
    for word in dict.fromkeys(node["value"] for node in nodes if node["type"] == "field"):
        if word not in known:
            close = get_close_matches(word, known, 1)
            remedy = f"; a function is written {word}(@)" if word in Functions.FUNCTION_TABLE else ""
            yield f"the file has no field {word}{f' (did you mean {close[0]}?)' if close else remedy}"
    # The fields in a filter's comparisons that are not in its objects but deeper in them
    search = _Search()
    for node in (each for each in nodes if each["type"] == "filter_projection"):
        filtered, _, condition = node["children"]
        found = search.visit(filtered, document)
        rows = [row for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]
        own = {name for row in rows for name in row}
        for word in dict.fromkeys(word for each in _nodes(condition) for word in _compared(each)):
            parents = sorted({name for row in rows for name in row if word in _fields_of(row[name])})
            if word not in own and parents:
                yield f"{word} is a field of {parents[0]}: write {parents[0]}[0].{word}"
    # The fields whose values are lists, where the expression takes a field of them
    wanted = {
        (step["value"], field["value"]): None
        for node in nodes
        for step, field in pairwise(node["children"] if node["type"] == "subexpression" else [])
        if step["type"] == field["type"] == "field"
    }
    are_lists: dict[str, bool] = {}
    for each in _objects(document):
        for name, value in each.items():
            are_lists[name] = isinstance(value, list) and are_lists.get(name, True)
    for name, field in wanted:
        if are_lists.get(name):
            yield f"{name} is a list: write {name}[0].{field}"
    # The texts in comparisons with a field that never has them
    spelled: dict[str, set[str]] = {name: set() for name in _SPELLINGS}
    for each in _objects(document):
        for name in _SPELLINGS.keys() & each.keys():
            if isinstance(each[name], str):
                spelled[name].add(each[name])
    for node in (each for each in nodes if each["type"] == "comparator"):
        names = [word for child in node["children"] if (word := _last_field(child)) in _SPELLINGS]
        texts = [child["value"] for child in node["children"] if child["type"] == "literal"]
        for name, text in zip(names, texts, strict=False):
            if spelled[name] and isinstance(text, str) and text not in spelled[name]:
                meant = _SPELLINGS[name](text)
                close = [meant] if meant in spelled[name] else get_close_matches(meant, spelled[name], 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(spelled[name]))}"
                yield f"no {name} is {text} ({hint})"


def _last_field(node: Node) -> str:
    """Return the field at the end of a path such as ``configs[0].template``, or an empty text."""
    if node["type"] == "subexpression":
        return _last_field(node["children"][-1])
    return str(node["value"]) if node["type"] == "field" else ""


def _nodes(expression: Any) -> Iterator[Node]:
    if isinstance(expression, dict):
        yield expression
        for child in expression.get("children", ()):
            yield from _nodes(child)


def _compared(node: Node) -> list[str]:
    """Return the fields on the sides of a comparison."""
    children = node["children"] if node["type"] == "comparator" else []
    return [child["value"] for child in children if child["type"] == "field"]


def _known_fields(nodes: list[Node], document: Any) -> set[str]:
    """Return the fields of the document, and of objects made by the expression itself."""
    return _fields_of(document) | {node["value"] for node in nodes if node["type"] == "key_val_pair"}


def _fields_of(document: Any) -> set[str]:
    """Return the names of all fields, at any depth."""
    return {name for each in _objects(document) for name in each}


def _objects(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the document and its parts, as far as they are objects."""
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value
