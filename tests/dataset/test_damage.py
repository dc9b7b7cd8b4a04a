"""Damaged datasets: what is lost is said, nothing is altered, and what can be read is never cut off."""

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from diode_lut.dataset import (
    RECORD,
    Dataset,
    DatasetWriter,
    Frames,
    Header,
    Lost,
    Record,
    Timing,
    frame,
    header_bytes,
    pack,
    read_dataset,
    record_bytes,
)
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.strategies import share

HEADER = Header(Hardware("NVIDIA H200", "sm_90", 132), "2.13.0")
TRITON = Config("triton_mm", (128, 64, 32, 8, 3, 4))
RECORDS = tuple(
    Record(Problem("mm", "float16", "nn", 16, 1, m, 8, 8), (Timing(ATEN, 1500.25), Timing(TRITON, 1000.0 + m)), "sweep")
    for m in range(1, 31)
)
MORE = Record(Problem("bmm", "float16", "nn", 16, 4, 8, 8, 8), (Timing(ATEN, 2000.5),))
WHOLE = header_bytes(HEADER) + b"".join(map(record_bytes, RECORDS))


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def read(path: Path, data: bytes) -> tuple[list[Record], Dataset]:
    path.unlink(missing_ok=True)  # what replaces the content of a file waits for the disk
    path.write_bytes(data)
    dataset = read_dataset(path)
    return list(dataset), dataset


def append(path: Path, record: Record = MORE, header: Header = HEADER) -> None:
    with DatasetWriter(path, header) as writer:
        writer.append(record)


def test_a_flipped_bit_costs_one_record_at_most(tmp_path: Path) -> None:
    """Of many flips none alters a record, each costs at most one, which is named, and going on loses nothing more."""
    path, draw = tmp_path / "d", random.Random(8)
    for bit in draw.sample(range(8 * len(WHOLE)), share(3000)):
        found, dataset = read(path, flipped(WHOLE, bit))
        gone = [number for number, record in enumerate(RECORDS, 1) if record not in found]
        assert found == [record for record in RECORDS if record in found]
        assert [place.record for place in dataset.lost] == gone or (not gone and dataset.lost == [Lost(0, *span(bit))])
        assert all(place.start <= bit >> 3 < place.end for place in dataset.lost)
        if bit % 30 == 0:
            append(path)
            assert list(dataset) == [*found, MORE]


def span(bit: int) -> tuple[int, int]:
    """Where the copy of the header is in which the bit is."""
    size = len(header_bytes(HEADER)) // 2
    start = (bit >> 3) // size * size
    return start, start + size


def test_no_flip_makes_the_last_record_look_incomplete(tmp_path: Path) -> None:
    """Whatever bit of the last record is flipped, its length included, none of its bytes is cut off."""
    path, start = tmp_path / "d", len(WHOLE) - len(record_bytes(RECORDS[-1]))
    for bit in range(8 * start, 8 * len(WHOLE), 3):
        changed = flipped(WHOLE, bit)
        path.write_bytes(changed)
        with DatasetWriter(path, HEADER):
            assert path.read_bytes() == changed


def test_what_was_lost_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning names file, record and bytes, however often a dataset is read; many places are counted."""
    places = [place + 20 for place in ends()[:-1]]
    changed = bytearray(WHOLE)
    changed[places[3]] ^= 1
    with caplog.at_level(logging.WARNING):
        _, dataset = read(tmp_path / "d", bytes(changed))
        list(dataset)
        where = f"bytes {ends()[3]} to {ends()[4]}"
        assert caplog.messages == [f"{tmp_path / 'd'}: damaged: record 4 ({where}) cannot be read and are left out"]
        for place in places[10:17]:
            changed[place] ^= 1
        caplog.clear()
        _, dataset = read(tmp_path / "d", bytes(changed))
    assert [place.record for place in dataset.lost] == [4, *range(11, 18)]
    assert "and 3 more places cannot be read" in caplog.text


def ends() -> list[int]:
    """Where the header and each record end."""
    sizes = [len(header_bytes(HEADER)), *(len(record_bytes(record)) for record in RECORDS)]
    return [sum(sizes[: count + 1]) for count in range(len(sizes))]


def zeros(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


def removed(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + data[end:]


def repeated(data: bytes, start: int, end: int) -> bytes:
    return data[:end] + data[start:]


def inserted(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + random.Random(start).randbytes(end - start) + data[start:]


@pytest.mark.parametrize("change", [zeros, removed, repeated, inserted])
def test_any_damage_leaves_what_it_does_not_touch(tmp_path: Path, change: Callable[[bytes, int, int], bytes]) -> None:
    """A part that is zeroed, missing, doubled or foreign costs what it touches; the rest is read, and goes on."""
    path, draw, begin = tmp_path / "d", random.Random(9), ends()[0]
    for _ in range(share(200)):
        start = draw.randrange(begin, len(WHOLE) - 1)
        end = min(len(WHOLE), start + draw.choice((1, 5, 14, 60, 300)))
        found, dataset = read(path, change(WHOLE, start, end))
        spans = zip(RECORDS, pairwise(ends()), strict=True)
        kept = [record for record, (first, last) in spans if last <= start or first >= end]
        assert [record for record in found if record in kept and found.count(record) == 1] == [
            record for record in kept if found.count(record) == 1
        ]
        assert set(kept) <= set(found) <= set(RECORDS)
        append(path)
        assert list(dataset) == [*found, MORE]


def test_records_after_a_torn_one_are_found(tmp_path: Path) -> None:
    """Where somebody went on behind an incomplete record, only that one is lost."""
    torn = record_bytes(MORE)[:-1]
    found, dataset = read(tmp_path / "d", WHOLE[: ends()[4]] + torn + WHOLE[ends()[4] :])
    assert tuple(found) == RECORDS
    assert dataset.lost == [(5, ends()[4], ends()[4] + len(torn))]


def test_a_record_after_a_longer_torn_one_is_found(tmp_path: Path) -> None:
    """Where an incomplete record claims more than the rest of the file, what follows is read, and nothing cut off."""
    torn = record_bytes(MORE._replace(timings=MORE.timings * 100))[:100]
    whole = WHOLE + torn + record_bytes(MORE)
    data = whole + bytes(20)
    found, dataset = read(tmp_path / "d", data)
    assert found == [*RECORDS, MORE]
    assert dataset.lost == [(31, len(WHOLE), len(WHOLE) + len(torn)), (33, len(whole), len(data))]
    append(tmp_path / "d")
    assert (tmp_path / "d").read_bytes() == data + record_bytes(MORE)


def test_without_any_header_it_is_an_error(tmp_path: Path) -> None:
    """Where both copies of the header are damaged, reading and going on are errors, and the file stays as it is."""
    changed = flipped(flipped(WHOLE, 200), 8 * len(header_bytes(HEADER)) - 1)
    with pytest.raises(DatasetError, match="no copy of its header can be read"):
        read(tmp_path / "d", changed)
    with pytest.raises(DatasetError, match="no copy of its header can be read"):
        append(tmp_path / "d")
    assert (tmp_path / "d").read_bytes() == changed


def test_a_record_that_no_reader_would_take_is_not_written() -> None:
    """What is larger than readers allow is an error when it is written, not when it is read."""
    with pytest.raises(DatasetError, match="a record of 2097153 bytes"):
        frame(RECORD, bytes((2 << 20) + 1))


def test_frames_made_to_take_time_take_none() -> None:
    """Heads that all claim the two megabytes behind them are given up after a bounded amount of work."""
    head = frame(RECORD, bytes(2 << 20))[:14]
    frames = Frames([head * 200_000], [])
    assert list(frames) == []
    assert frames.torn + sum(place.end - place.start for place in frames.lost) == len(head) * 200_000


def test_a_flipped_bit_in_a_compact_file_is_an_error(tmp_path: Path) -> None:
    """Whatever bit is flipped in a packed dataset, reading it gives all records, or it is an error, or all are lost."""
    path = tmp_path / "d.zst"
    pack([read(tmp_path / "d", WHOLE)[1]], path)
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        with suppress(DatasetError):
            found, dataset = read(path, flipped(data, bit))
            assert tuple(found) == (() if dataset.lost else RECORDS)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A dataset that lacks record 2."""
    path = tmp_path / "d.msgpack"
    path.write_bytes(flipped(WHOLE, 8 * (ends()[1] + 30)))
    return path


def test_commands_say_that_records_are_lost(damaged: Path) -> None:
    """build, pack, evaluate, export and report do what they can, say which file is damaged, and exit with 1."""
    out, packed, exported = (damaged.with_name(name) for name in ("t.json", "p.msgpack.zst", "t.csv"))
    commands = [
        ("build", damaged, "-o", out),
        ("evaluate", out, damaged),
        ("pack", damaged, "-o", packed),
        ("export", "timings", damaged, "-o", exported),
        ("report", out, damaged, "-o", damaged.with_name("r.html")),
    ]
    for command in commands:
        result = call(*command)
        assert result.exit_code == 1, command
        assert f"{damaged}: damaged places, whose records are lost: 1 (get an undamaged copy" in result.stderr
    assert "58 timings of 29 problems" in call("build", damaged, "-o", out).stdout
    assert call("build", packed, "-o", out).exit_code == 0
    assert len(list(read_dataset(packed))) == 29
    assert exported.exists()
