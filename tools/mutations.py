"""Files that are almost what they were: changes drawn at random, in bytes, in tokens, and in values of documents."""

import copy
import json
import random
from typing import Any

import msgpack

from tests.mutated import containers

TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"0.5"),
    *(b"-1", b"0", b"2147483648", b"9" * 30, b"9" * 5000, b"[" * 3000, b'{"a":' * 2000, b'"\\ud800"', b'"\\u0000"'),
    *(b"\x00", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", "\U0001f600".encode(), b"../../x", b"a" * 9000, b"(" * 300),
    *(b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1"),
    *(b"\xc7\x08\x05", b"\xd6\xff", b"\xcb\x7f\xf8" + bytes(6), b"\xcf" + b"\xff" * 8, b"\x91" * 2000, b"\x80"),
)
JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1,
        1.5,
        2**31,
        2**63,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\x00",
        "mm",
        "aten",
    ),
    *([], {}, [1], [2, 1], [[]], {"": {}}, [{"template": "aten"}] * 2, "9" * 5000, "(" * 300, "-" * 4000, "\ud800"),
)


def mutated(draw: random.Random, seeds: list[bytes]) -> bytes:
    """A good file with some changes; one in fifty is random from the beginning."""
    if draw.random() < 0.02:
        return draw.randbytes(draw.randint(0, 5000))
    data = draw.choice(seeds)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8, 30))):
        data = draw.choice(MUTATIONS)(draw, data, seeds)
    return data


def _place(draw: random.Random, data: bytes, longest: int = 40) -> tuple[int, int]:
    start = draw.randint(0, len(data))
    return start, min(len(data), start + draw.randint(1, longest))


def _flip(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, _end = _place(draw, data)
    return data[:start] + bytes([draw.randrange(256)]) + data[start + 1 :]


def _remove(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, end = _place(draw, data)
    return data[:start] + data[end:]


def _repeat(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, end = _place(draw, data, 400)
    return data[:start] + data[start:end] * draw.choice((2, 2, 5, 50)) + data[end:]


def _insert(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, _end = _place(draw, data)
    return data[:start] + draw.choice(TOKENS) + data[start:]


def _replace(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    start, end = _place(draw, data)
    return data[:start] + draw.choice(TOKENS) + data[end:]


def _number(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    """Another number where there is one, in text."""
    digits = [place for place, byte in enumerate(data[:20_000]) if chr(byte).isdigit()]
    if not digits:
        return data
    at = draw.choice(digits)
    new = draw.choice((b"0", b"-1", b"1.5", b"9" * 20, b"9" * 400, b"1e308", b"null", b'"x"', b"[]", b"{}"))
    return data[:at] + new + data[at + 1 :]


def _cut(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    return data[: draw.randint(0, len(data))]


def _splice(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    other = draw.choice(seeds)
    return data[: draw.randint(0, len(data))] + other[draw.randint(0, len(other)) :]


def _value(draw: random.Random, data: bytes, _: list[bytes]) -> bytes:
    """Another value somewhere in what is JSON, or a stream of msgpack."""
    try:
        document = json.loads(data)
        put(draw, [document])
        return json.dumps(document).encode(errors="replace")
    except (ValueError, RecursionError):
        pass
    try:
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(data)
        objects = list(unpacker)
        put(draw, objects)
        return b"".join(map(msgpack.packb, objects))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return data


def put(draw: random.Random, document: Any) -> None:
    """Replace a value, at any depth, or add one."""
    found = list(containers(document))
    container = draw.choice(found)
    steps: list[Any] = list(container) if isinstance(container, dict) else list(range(len(container)))
    junk = copy.deepcopy(draw.choice((*JUNK, draw.choice(found))))
    if steps and draw.random() < 0.9:
        container[draw.choice(steps)] = junk
    elif isinstance(container, dict):
        container["x"] = junk
    else:
        container.append(junk)


MUTATIONS = (_flip, _remove, _repeat, _insert, _replace, _number, _cut, _splice, *[_value] * 6)
