"""The list of guards, which tools/break_guards.py takes away one by one, is up to date."""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from guards import GUARDS
from source_changes import Instead, Without

ROOT = Path(__file__).parent.parent


@cache
def read(path: Path) -> tuple[str, str]:
    """A file of the repository, and what it means to Python."""
    source = (ROOT / path).read_text(encoding="utf-8")
    return source, ast.dump(ast.parse(source))


@cache
def functions(path: str) -> set[str]:
    return {node.name for node in ast.parse(read(Path(path))[0]).body if isinstance(node, ast.FunctionDef)}


def test_guards_are_where_the_list_has_them() -> None:
    """What is changed is in its module, and without it the module is still Python, and another one."""
    for name, guard in GUARDS.items():
        source, meaning = read(guard.path)
        assert ast.dump(ast.parse(guard.taken_from(source))) != meaning, name


def test_tests_of_guards_exist() -> None:
    """Every test that is to fail without a guard is a function of the file that it is said to be in."""
    assert all(guard.tests for guard in GUARDS.values())
    named = {
        (file, test) for guard in GUARDS.values() for file, _, test in (each.partition("::") for each in guard.tests)
    }
    assert [f"{file}::{test}" for file, test in sorted(named) if test not in functions(file)] == []


MODULE = """
from os.path import basename as name_of
LIMIT = 3

def fits(size, strict=False):
    if strict or size > LIMIT:
        return False
    return True

class Box:
    path = "a/bc"

    @property
    def size(self):
        return len(name_of(self.path))

    def put(self, items):
        self.path = "a/bcd"
        items.append(self.size)
        return dict(items=items, empty=False)
"""


@pytest.mark.parametrize(
    ("name", "change", "expression", "before", "after"),
    [
        ("fits", Instead("lambda *_, **__: True"), "fits(9)", False, True),
        ("LIMIT", Instead("original * 3"), "fits(9)", False, True),
        ("name_of", Instead("lambda path: original(path) * 2"), "Box().size", 2, 4),
        ("Box.size", Instead("property(lambda self: -original.fget(self))"), "Box().size", 2, -2),
        ("fits", Without("strict"), "[fits(1, True), fits(9)]", [False, False], [True, False]),
        ("fits", Without("LIMIT"), "[fits(1, True), fits(9)]", [False, False], [False, True]),
        ("Box.put", Without("path"), "Box().put([])", {"items": [3], "empty": False}, {"items": [2], "empty": False}),
        ("Box.put", Without("append"), "Box().put([])", {"items": [3], "empty": False}, {"items": [], "empty": False}),
        ("Box.put", Without("empty"), "Box().put([])", {"items": [3], "empty": False}, {"items": [3]}),
    ],
)
def test_a_change_is_one_of_behaviour(name: str, change: Any, expression: str, before: Any, after: Any) -> None:
    """A function, a value or an import is replaced; or a function does without one thing, and all else as before."""
    for source, expected in ((MODULE, before), (change.made_in(MODULE, name), after)):
        values: dict[str, Any] = {}
        exec(source, values)
        assert eval(expression, values) == expected


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gone", Instead("None"), "gone: expected one definition, found 0"),
        ("Gone.put", Instead("None"), "Gone: expected one definition, found 0"),
        ("fits", Without("weight"), "fits does nothing about weight"),
    ],
)
def test_what_is_not_there_is_refused(name: str, change: Any, message: str) -> None:
    """A guard whose code has gone is an error that names it."""
    with pytest.raises(ValueError, match=message):
        change.made_in(MODULE, name)
