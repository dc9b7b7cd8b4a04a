"""JSON documents that are not quite what they were, for properties of what reads them."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


def containers(value: Any) -> Iterator[Any]:
    """All objects and lists in a document, itself included."""
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def mutate(draw: Any, document: Any, names: SearchStrategy[str], junk: SearchStrategy[Any]) -> None:
    """Replaces, removes or adds one value anywhere in the document."""
    container = draw(st.sampled_from(list(containers(document))))
    steps = list(container) if isinstance(container, dict) else list(range(len(container)))
    action = draw(st.sampled_from(["replace", "remove", "add"])) if steps else "add"
    if action == "remove":
        del container[draw(st.sampled_from(steps))]
    elif action == "replace":
        container[draw(st.sampled_from(steps))] = draw(junk)
    elif isinstance(container, dict):
        container[draw(names)] = draw(junk)
    else:
        container.append(draw(junk))
