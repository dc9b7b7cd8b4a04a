"""Our own dataset files."""

import hashlib
import logging
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from diode_lut.dataset import HEADER as HEADER_FRAME
from diode_lut.dataset import (
    REASONS,
    RECORD,
    STAGES,
    DatasetWriter,
    Header,
    Record,
    Timing,
    frame,
    header_bytes,
    read_dataset,
    record_bytes,
    write_stream,
)
from diode_lut.dataset.dataset import MAX_NS, MIN_NS, header_to_wire
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import DOMAINS, EPILOGUES, NO_EPILOGUE, Problem
from diode_lut.templates.config import ATEN, TEMPLATES, Config
from tests.strategies import kinds

HEADER = Header(
    Hardware("NVIDIA H200", "sm_90", 132, ("H200",)), "2.13.0", "3.7.0", "13.0", "580.1", "a clock", "2026-11-21"
)
TRITON = Config("triton_mm", (128, 64, 32, 8, 3, 4))
RECORDS = (
    Record(Problem("mm", "bfloat16", "nt", 16, 1, 1, 2, 3), (Timing(ATEN, 1500.0), Timing(TRITON, 1000.5))),
    Record(Problem("bmm", "tf32", "nn", 2, 7, 1, 2, 2**31 - 1), (Timing(TRITON, None, "shared_memory"),)),
    Record(Problem("addmm", "float16", "tn", 16, 1, 64, 64, 64), ()),
)

configs = st.sampled_from(sorted(TEMPLATES)).flatmap(
    lambda template: st.fixed_dictionaries(
        {each.name: st.sampled_from(each.values) for each in TEMPLATES[template].parameters}
    ).map(lambda values: Config.make(template, values))
)
timings = st.builds(Timing, configs, st.floats(MIN_NS, MAX_NS), st.none()) | st.builds(
    Timing, configs, st.none(), st.sampled_from(REASONS)
)
problems = st.builds(
    lambda kind, align, m, n, k, epilogue: Problem(
        *kind[:3], align, 1, m, n, k, epilogue if epilogue in DOMAINS[kind[0]].epilogues else NO_EPILOGUE, kind[3]
    ),
    kinds(),
    st.sampled_from((2, 16)),
    *[st.integers(1, 2**31 - 1)] * 3,
    st.sampled_from(list(EPILOGUES)),
)
records = st.builds(Record, problems, st.lists(timings, max_size=4).map(tuple), st.sampled_from(STAGES))


def written(path: Path, *records: Record, header: Header = HEADER) -> Path:
    with DatasetWriter(path, header) as writer:
        for record in records:
            writer.append(record)
    return path


@given(st.lists(records, max_size=4))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    """Header and records come back equal, and a second iteration gives them again."""
    dataset = read_dataset(written(tmp_path_factory.mktemp("d") / "d.msgpack", *records))
    assert dataset.header == HEADER
    assert list(dataset) == records
    assert list(dataset) == records


def test_appends_to_an_existing_file(tmp_path: Path) -> None:
    """A second writer goes on where the first one ended."""
    path = written(tmp_path / "d", RECORDS[0])
    written(path, *RECORDS[1:])
    assert tuple(read_dataset(path)) == RECORDS


def test_an_empty_file_becomes_a_dataset(tmp_path: Path) -> None:
    """An empty file, as mktemp makes it, is as good as none."""
    (tmp_path / "d").touch()
    assert tuple(read_dataset(written(tmp_path / "d", *RECORDS))) == RECORDS


def test_a_record_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    """A reader sees a record while the writer is still open."""
    with DatasetWriter(tmp_path / "d", HEADER) as writer:
        writer.append(RECORDS[0])
        assert tuple(read_dataset(tmp_path / "d")) == RECORDS[:1]


@pytest.mark.parametrize("cut", range(1, len(record_bytes(RECORDS[0]))))
def test_a_torn_record_costs_itself_only(tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture) -> None:
    """A record cut off anywhere is left out with one warning, and a writer replaces it."""
    path = written(tmp_path / "d", RECORDS[1], RECORDS[2], RECORDS[0])
    os.truncate(path, path.stat().st_size - cut)
    with caplog.at_level(logging.WARNING):
        assert tuple(read_dataset(path)) == (RECORDS[1], RECORDS[2])
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [str(path)]
    caplog.clear()
    written(path, RECORDS[0])
    assert tuple(read_dataset(path)) == (RECORDS[1], RECORDS[2], RECORDS[0])
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch", "2.11.0"),
        ("driver", ""),
        ("benchmarker", "another clock"),
        ("hardware", Hardware("NVIDIA H100", "sm_90", 132)),
        ("hardware", Hardware("NVIDIA H200", "sm_90", 78)),
    ],
)
def test_refuses_to_mix_what_cannot_be_compared(tmp_path: Path, name: str, value: object) -> None:
    """Appending with other hardware or software than the file's is an error that names both, and changes nothing."""
    path = written(tmp_path / "d", *RECORDS)
    before = path.read_bytes()
    with pytest.raises(DatasetError) as error:
        written(path, header=HEADER._replace(**{name: value}))
    assert str(path) in str(error.value)
    assert str(value) in str(error.value)
    assert path.read_bytes() == before


def test_the_same_device_by_an_alias_and_another_day_go_on(tmp_path: Path) -> None:
    """A device that is called by its alias is the same one, and the date is the first record's."""
    path = written(tmp_path / "d", RECORDS[0])
    later = HEADER._replace(hardware=Hardware("h200", "sm_90", 132), measured_on="2027-01-01")
    written(path, RECORDS[1], header=later)
    assert read_dataset(path).header == HEADER
    assert tuple(read_dataset(path)) == RECORDS[:2]


@pytest.mark.parametrize("ns", [math.nan, math.inf, -math.inf, 0.0, -1.0, 5e-324, 0.99, 1.01e12, 1e300])
def test_a_time_that_is_none_is_a_failure(tmp_path: Path, ns: float) -> None:
    """NaN, infinite, zero, negative and impossible times are read as failures, and never written as times."""
    path = written(tmp_path / "d")
    with path.open("ab") as file:
        file.write(record_bytes(Record(RECORDS[0].problem, (Timing(ATEN, ns),))))
    (record,) = read_dataset(path)
    assert record.timings == (Timing(ATEN, None, "invalid_time"),) == (Timing.of(ATEN, ns),)
    with pytest.raises(DatasetError, match="mm 1x2x3"):
        written(path, Record(RECORDS[0].problem, (Timing(ATEN, ns),)))


PROBLEM = list(RECORDS[0].problem)


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        (0, "0 is not [problem, timings, stage]"),
        ({}, "{} is not [problem, timings, stage]"),
        ([PROBLEM], "is not [problem, timings, stage]"),
        ([PROBLEM[:7], [], "final"], "is not [problem, timings, stage]"),
        ([["mul", *PROBLEM[1:]], [], "sweep"], "op: 'mul' is not one of mm, addmm, bmm, baddbmm"),
        ([[*PROBLEM[:7], 0], [], "sweep"], "k: 0 is not an integer"),
        ([[*PROBLEM[:7], 1.0], [], "sweep"], "k: 1.0 is not an integer"),
        ([PROBLEM, [1], "sweep"], "1 is not [config, time]"),
        ([PROBLEM, [[["aten", []]]], "sweep"], "is not [config, time]"),
        ([PROBLEM, [["ab", 1.0]], "sweep"], "is not [config, time]"),
        ([PROBLEM, [[["cublas", []], 1.0]], "sweep"], "template: 'cublas' is not one of aten"),
        ([PROBLEM, [[["cpp_gemm", [1]], 1.0]], "sweep"], "cpp_gemm: (1,) are not values of nothing"),
        (
            [PROBLEM, [[["triton_mm", [96, 64, 32, 8, 3, 4]], 1.0]], "sweep"],
            "block_m: 96 is not allowed (allowed: 16, 32",
        ),
        ([PROBLEM, [[["triton_mm", [64, {}, 32, 8, 3, 4]], 1.0]], "sweep"], "block_n: {} is not allowed"),
        ([PROBLEM, [[["aten", []], True]], "sweep"], "aten: True is neither a time nor one of compile"),
        ([PROBLEM, [[["aten", []], "tired"]], "sweep"], "aten: 'tired' is neither a time nor one of compile"),
        ([PROBLEM, [], "swept"], "stage: 'swept' is none of autotune, sweep, final"),
        ([PROBLEM, [[["aten", []], None]], "sweep"], "aten: None is neither a time nor one of compile"),
    ],
)
def test_an_invalid_record_is_named(tmp_path: Path, wire: object, says: str) -> None:
    """A record that decodes but means nothing is an error with file, number and the value at fault."""
    path = written(tmp_path / "d", *RECORDS)
    with path.open("ab") as file:
        file.write(frame(RECORD, msgpack.packb(wire)))
    with pytest.raises(DatasetError) as error:
        list(read_dataset(path))
    assert str(error.value).startswith(f"{path}: record 4: ")
    assert says in str(error.value)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xc1",
        b"\xd9\x02\xff\xfe",
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff" + bytes(20 << 20),
        msgpack.packb([PROBLEM, "x" * (17 << 20)]),
    ],
    ids=["unused byte", "not UTF-8", "deep", "claims 4 G items", "claims 4 GB", "too large"],
)
def test_garbage_is_refused_in_bounded_memory(tmp_path: Path, garbage: bytes) -> None:
    """Bytes that are no record, or claim to be a huge one, are passed over, and what was lost there is named."""
    path = written(tmp_path / "d", *RECORDS)
    position = path.stat().st_size
    with path.open("ab") as file:
        file.write(garbage)
        file.write(record_bytes(RECORDS[0]))
    dataset = read_dataset(path)
    assert tuple(dataset) == (*RECORDS, RECORDS[0])
    assert dataset.lost == [(4, position, position + len(garbage))]


WIRE = header_to_wire(HEADER)


@pytest.mark.parametrize(
    ("wire", "says"),
    [
        ({**WIRE, "diode_lut_dataset": 3}, "expected 2, found 3 (written by a newer diode_lut: upgrade)"),
        ({**WIRE, "diode_lut_dataset": "1"}, "expected 2, found '1' (not a version that ever existed)"),
        ({**WIRE, "diode_lut_dataset": True}, "expected 2, found True (not a version that ever existed)"),
        ({**WIRE, "colour": "red"}, "colour: a header has no such field"),
        ({**WIRE, "torch": 2.13}, "torch: 2.13 is not a text"),
        ({**WIRE, "hardware": "H200"}, "hardware: 'H200' is not a map"),
        ({**WIRE, "hardware": {"name": "H200", "arch": "sm_90"}}, "hardware: sm_count: None is not a positive integer"),
        ({"diode_lut_dataset": 2}, "torch: None is not a text"),
    ],
)
def test_an_invalid_header_is_named(tmp_path: Path, wire: object, says: str) -> None:
    """A header with a wrong version or field is an error with the file and the value at fault."""
    (tmp_path / "d").write_bytes(frame(HEADER_FRAME, msgpack.packb(wire)))
    with pytest.raises(DatasetError) as error:
        read_dataset(tmp_path / "d")
    assert str(error.value).startswith(f"{tmp_path / 'd'}: ")
    assert says in str(error.value)


def test_a_writer_leaves_foreign_files_alone(tmp_path: Path) -> None:
    """A writer that is given something else than a dataset raises and changes no byte."""
    (tmp_path / "d").write_bytes(b"something dear")
    with pytest.raises(DatasetError):
        written(tmp_path / "d", *RECORDS)
    assert (tmp_path / "d").read_bytes() == b"something dear"


def test_the_digest_is_of_the_bytes(tmp_path: Path) -> None:
    """The digest is SHA-256 as sha256sum computes it."""
    path = written(tmp_path / "d", *RECORDS)
    assert read_dataset(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_digest_is_of_what_was_read(tmp_path: Path) -> None:
    """After an iteration the file need not be read again: the digest is of the bytes that the records came from."""
    path = tmp_path / "d"
    write_stream(path, HEADER, RECORDS)
    dataset, digest = read_dataset(path), hashlib.sha256(path.read_bytes()).hexdigest()
    assert tuple(dataset) == RECORDS
    path.unlink()
    assert dataset.digest == digest


def test_two_collections_do_not_share_a_file(tmp_path: Path, impatient: None) -> None:
    """A second writer, in this process or another, and a pack of the file are refused with the first one's number."""
    path = tmp_path / "d"
    with DatasetWriter(path, HEADER) as writer:
        with pytest.raises(DatasetError, match=rf"d: being written by process {os.getpid()}: wait for it"):
            written(path, RECORDS[0])
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()}"):
            write_stream(path, HEADER, RECORDS)
        writer.append(RECORDS[0])
    assert tuple(read_dataset(written(path, RECORDS[1]))) == RECORDS[:2]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_two_collections_that_create_a_file_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Where one begins while the other creates the file, it is refused, or its records stay."""
    path, stay = tmp_path / "d", [RECORDS[1]]
    real = os.fsync

    def link(*_: object) -> None:
        raise PermissionError

    def fsync(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        with suppress(DatasetError):
            written(path, RECORDS[0])
            stay.append(RECORDS[0])
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if not links:
        monkeypatch.setattr(os, "link", link)
    written(path, RECORDS[1])
    assert os.fsync is real
    assert sorted(read_dataset(path)) == sorted(stay)


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.rename(path.with_name("else"))])
def test_nothing_is_written_into_a_file_that_is_gone(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """A dataset that is removed or moved away while it is collected stops the collection at the next record."""
    with DatasetWriter(tmp_path / "d", HEADER) as writer:
        change(writer.path)
        with pytest.raises(DatasetError, match="removed or replaced while it was written: run again"):
            writer.append(RECORDS[0])


@pytest.mark.parametrize("length", [1, 10, 13, 14, 100])
def test_a_header_that_was_cut_off_is_written_again(tmp_path: Path, length: int) -> None:
    """A power cut within the header, on another day, leaves nothing that would be missed."""
    header = header_bytes(HEADER._replace(measured_on="2020-01-01"))
    (tmp_path / "d").write_bytes(header[:length])
    assert tuple(read_dataset(written(tmp_path / "d", *RECORDS))) == RECORDS


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    """Something that only looks like the beginning of a header is not taken for one that was cut off."""
    (tmp_path / "d").write_bytes(b"\x88\xb1diode_lut is great")
    with pytest.raises(DatasetError, match="not a dataset: it begins with"):
        written(tmp_path / "d")
    assert (tmp_path / "d").read_bytes() == b"\x88\xb1diode_lut is great"


@pytest.mark.parametrize("compact", [False, True])
def test_a_dataset_that_is_replaced_while_it_is_read(tmp_path: Path, compact: bool) -> None:
    """Records of another file never come under the header that was read before."""
    path = tmp_path / "timings.msgpack"

    def write(header: Header) -> None:
        write_stream(path, header, RECORDS)
        if compact:
            path.write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))

    write(HEADER)
    dataset = read_dataset(path)
    write(HEADER._replace(hardware=Hardware("NVIDIA A100", "sm_80", 108)))
    with pytest.raises(DatasetError, match="was replaced by another dataset while it was read"):
        list(dataset)
