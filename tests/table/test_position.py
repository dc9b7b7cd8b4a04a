"""Places of values in JSON files, however the files are laid out."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.table.faults import JsonPath, Place, Positions, dotted, place_at

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(['"', "\\", "{", "],", ":\n"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
BLANKS = st.text(" \t\r\n", max_size=3)


def _layout(value: Any, blank: Any, path: JsonPath, places: dict[JsonPath, Place], before: str) -> str:
    """JSON text with blanks wherever they may be; notes the place where each value begins, after ``before``."""
    text = blank()
    *above, line = (before + text).split("\n")
    places[path] = Place(len(above) + 1, len(line) + 1)
    if isinstance(value, dict):
        steps = [(name, inner, f"{_json(name)}{blank()}:") for name, inner in value.items()]
    elif isinstance(value, list):
        steps = [(number, inner, "") for number, inner in enumerate(value)]
    else:
        return f"{text}{_json(value)}{blank()}"
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    text += opening
    for number, (step, inner, name) in enumerate(steps):
        text += ("," if number else "") + blank() + name
        text += _layout(inner, blank, (*path, step), places, before + text)
    return f"{text}{blank()}{closing}{blank()}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(data=st.data())
def test_places_are_right_in_any_layout(data: st.DataObject) -> None:
    """For every value of any document, the line and the column at which it begins are found."""
    document = data.draw(DOCUMENTS)
    places: dict[JsonPath, Place] = {}
    text = _layout(document, lambda: data.draw(BLANKS), (), places, "")
    assert json.loads(text) == document
    positions = Positions(text.encode())
    assert {path: positions.place(path) for path in places} == places


def test_columns_count_characters() -> None:
    """A byte's place is the number of characters before it on its line, whatever these take in UTF-8."""
    assert place_at("ä\nöü{".encode(), 7) == Place(2, 3)


@pytest.mark.parametrize(
    ("path", "line"),
    [((), 1), (("a",), 2), (("gone",), 1), (("a", "b"), 3), (("a", "c", 7), 2), (("d", 1), 5), (("d", 9, "x"), 5)],
)
def test_what_is_missing_is_where_it_should_be(path: JsonPath, line: int) -> None:
    """The line of a value that is not there is that of the innermost value around it."""
    assert Positions(b'{\n"a": {\n"b": 1},\n\n"d": [1, 2]}').place(path).line == line


def test_the_last_of_equal_names_counts() -> None:
    """As in parsing, a field that comes twice is the later one."""
    assert Positions(b'{"a": [1],\n"a": [\n2]}').place(("a", 0)) == (3, 1)


@pytest.mark.parametrize("deep", ["[" * 600 + '"]"' + "]" * 600, '{"a":' * 600 + "1" + "}" * 600])
def test_deep_values_are_passed_over(deep: str) -> None:
    """Values after one that is nested deeply are still found."""
    assert Positions(f'[\n{deep},\n{{"x": {deep},\n"y": 1}}]'.encode()).place((1, "y")) == (4, 6)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("entries", 17, "configs", 0, "block_m"), "entries[17].configs[0].block_m"),
        (("$schema",), "$schema"),
        (("a b", "c\n", ""), '"a b"."c\\n".""'),
    ],
)
def test_paths_are_written_on_one_line(path: JsonPath, text: str) -> None:
    """Names that could be mistaken for something else are quoted."""
    assert dotted(path) == text


def _paths(value: Any, path: JsonPath = ()) -> Iterator[JsonPath]:
    yield path
    for step, inner in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield from _paths(inner, (*path, step))


def test_each_path_in_a_table_has_its_line(good: str) -> None:
    """In a file in canonical form heads of rows and configs are found on their own lines."""
    positions = Positions(good.encode())
    lines = {dotted(path): positions.place(path).line for path in _paths(json.loads(good))}
    assert lines["hardware.sm_count"] == 4
    assert (lines["entries[0]"], lines["entries[0].configs[0]"], lines["entries[0].configs[1].template"]) == (7, 8, 9)
    assert (lines["entries[1].dtype"], lines["entries[1].note"]) == (11, 13)


def test_places_are_right_wherever_lines_are_counted_from() -> None:
    """Line and column are those of the text before, in files of one line and of many, in any order."""
    for form in ({"indent": 1}, {"separators": (",", ":")}):
        text = json.dumps(list(range(40)), **form)  # type: ignore[arg-type]
        positions = Positions(text.encode())
        for number in (39, 3, 20, 0):
            before = text[: re.search(rf"\b{number}\b", text).start()]  # type: ignore[union-attr]
            expected = (before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
            assert positions.place((number,)) == expected
