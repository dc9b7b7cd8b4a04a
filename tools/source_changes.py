"""Changes of what a function does, made in the source of its module and found by names, however the code is worded."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar


class Instead(NamedTuple):
    """Something else in the place of a function, method or value that a module defines or imports.

    ``expression`` is evaluated right after it is defined, in the same scope; ``original`` is what it was.
    """

    expression: str

    def made_in(self, source: str, name: str) -> str:
        """The module's source with the change; ValueError if it does not define the name once."""
        *owner, last = name.split(".")
        definition = _only((each for each in _body(source, owner) if last in _defined(each)), name)
        assert definition.end_lineno is not None
        lines = source.splitlines(keepends=True)
        statement = f"{last} = (lambda original: {self.expression})({last})\n"
        lines.insert(definition.end_lineno, " " * definition.col_offset + statement)
        return "".join(lines)


class Without(NamedTuple):
    """A function that does nothing about ``subject``, a name.

    It is not assigned, not called for its effect and not passed as a keyword, and no ``if`` asks about it.
    """

    subject: str

    def made_in(self, source: str, name: str) -> str:
        """The module's source with the change; ValueError if there is no such function, or nothing to leave out."""
        *owner, last = name.split(".")
        function = _only((each for each in _body(source, owner) if last in _defined(each)), name)
        places = [place for node in ast.walk(function) for place in self._places(node)]
        if not places:
            raise ValueError(f"{name} does nothing about {self.subject}")
        return _spliced(source, places)

    def _places(self, node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt | ast.keyword, str]]:
        """What is replaced, and by what."""
        if isinstance(node, ast.Assign) and self.subject in map(_last_name, node.targets):
            yield node, "pass"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if _last_name(node.value.func) == self.subject:
                yield node, "pass"
        elif isinstance(node, ast.keyword) and node.arg == self.subject:
            yield node, "**{}"
        elif isinstance(node, ast.If) and self._is_in(node.test):
            operands = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            neutral = str(isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And))
            yield from ((operand, neutral) for operand in operands if self._is_in(operand))

    def _is_in(self, test: ast.expr) -> bool:
        names = (node.value if isinstance(node, ast.Constant) else _last_name(node) for node in ast.walk(test))
        return self.subject in names


TRUE, FALSE, NONE = (Instead(f"lambda *_, **__: {value}") for value in (True, False, None))
RAISES = Instead("lambda *given: (_ for _ in ()).throw(given[-1] if given else RuntimeError())")
"""Raises the last argument where that is an error, else a RuntimeError."""
UNREGISTERED = Instead("lambda function: function")  # replaces a decorator that registers a function


class Guard(NamedTuple):
    """A function, method or value of a module, and the change of it that takes the guard away.

    At least one of the tests, which need no GPU, fails then.
    """

    module: str
    name: str
    change: Instead | Without
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The module's file, from the top of the repository."""
        return Path(*self.module.split(".")).with_suffix(".py")

    def taken_from(self, source: str) -> str:
        """The module's source without it; ValueError if it is not there."""
        try:
            return self.change.made_in(source, self.name)
        except ValueError as error:
            raise ValueError(f"{self.module}: {error}") from error


_Found = TypeVar("_Found", bound=ast.stmt)


def _body(source: str, owner: list[str]) -> list[ast.stmt]:
    """The statements of the module, or of the class in it that is the owner."""
    body = ast.parse(source).body
    for name in owner:
        body = _only((each for each in body if isinstance(each, ast.ClassDef) and each.name == name), name).body
    return body


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a statement of a module or class gives a meaning."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _only(found: Iterable[_Found], name: str) -> _Found:
    every = list(found)
    if len(every) != 1:
        raise ValueError(f"{name}: expected one definition, found {len(every)}")
    return every[0]


def _spliced(source: str, places: list[tuple[ast.expr | ast.stmt | ast.keyword, str]]) -> str:
    """The source with texts in the place of nodes, none of which is within another one."""
    lines = source.encode().splitlines(keepends=True)  # columns count bytes
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = b"".join(lines)
    for node, text in sorted(places, key=lambda place: (place[0].lineno, place[0].col_offset), reverse=True):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        data = data[:start] + text.encode() + data[end:]
    return data.decode()
