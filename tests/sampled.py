"""Cases of which ``make test`` runs a sample, and ``make test-all`` all."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def sampled(cases: Iterable[Any], *sample: Any) -> list[Any]:
    """The cases for ``parametrize``: those that are not in the sample are marked slow."""
    cases = list(cases)
    assert not [case for case in sample if case not in cases]
    return [case if case in sample else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def named(cases: Mapping[str, tuple[Any, ...]], *sample: str) -> list[Any]:
    """The same of cases that have names."""
    assert cases.keys() >= {*sample}
    return [
        pytest.param(*values, id=name, marks=[] if name in sample else pytest.mark.slow)
        for name, values in cases.items()
    ]


def chosen(request: pytest.FixtureRequest, name: str) -> list[str]:
    """The values of a parameter in the tests of this module that are to run, here or in another process of pytest."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    values = [item.callspec.params.get(name) for item in items if hasattr(item, "callspec")]
    return [*dict.fromkeys(value for value in values if value is not None)]
