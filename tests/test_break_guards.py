"""The list of guards, which tools/break_guards.py takes away one by one, is up to date."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.guards import GUARDS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", GUARDS)
def test_guard_is_where_the_list_has_it(name: str) -> None:
    """Its text is in its module once, and without it the module is still Python, and another one."""
    guard = GUARDS[name]
    source = (ROOT / guard.module).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(guard.taken_from(source))) != ast.dump(ast.parse(source))


@pytest.mark.parametrize("name", GUARDS)
def test_its_tests_exist(name: str) -> None:
    """Every test that is to fail without it is a function of the file that it is said to be in."""
    assert GUARDS[name].tests
    for file, _, test in (each.partition("::") for each in GUARDS[name].tests):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert test in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
