"""Compact datasets: many files in one, in zstd."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from diode_lut.dataset import Dataset, DatasetWriter, Header, Record, Timing, header_bytes, pack, read_dataset
from diode_lut.errors import DatasetError
from diode_lut.hardware import Hardware
from diode_lut.problem import Problem
from diode_lut.templates.config import ATEN, Config
from tests.commands import call
from tests.strategies import share

HEADER = Header(Hardware("NVIDIA H200", "sm_90", 132), "2.11.0", "3.6.0", "13.0", "580.1", "a clock", "2026-11-21")
CONFIGS = (ATEN, *(Config("triton_mm", (size, 64, 32, 8, 3, 4)) for size in (16, 64, 128)))

timings = st.builds(
    Timing, st.sampled_from(CONFIGS), st.sampled_from((1000.0, 1000.5, 70000.0)), st.none()
) | st.builds(Timing, st.sampled_from(CONFIGS), st.none(), st.sampled_from(("compile", "launch")))
problems = st.builds(
    Problem.of, st.just("mm"), *[st.integers(1, 3)] * 3, dtype=st.just("float16"), layout=st.just("nn")
)
records = st.lists(
    st.builds(Record, problems, st.lists(timings, max_size=4).map(tuple), st.sampled_from(("sweep", "final"))),
    max_size=8,
)


def dataset(path: Path, records: Sequence[Record], header: Header = HEADER) -> Dataset:
    with DatasetWriter(path, header) as writer:
        for record in records:
            writer.append(record)
    return read_dataset(path)


def some_records(count: int = 20) -> list[Record]:
    sizes = random.Random(0).sample(range(1, 1000), count)
    return [
        Record(
            Problem.of("mm", size, 64, 64, dtype="float16", layout="nn"),
            tuple(Timing(config, float(1000 + size * number)) for number, config in enumerate(CONFIGS)),
            "sweep",
        )
        for size in sizes
    ]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A compact file of twenty records."""
    pack([dataset(tmp_path / "plain", some_records())], tmp_path / "d.msgpack.zst")
    return tmp_path / "d.msgpack.zst"


def in_order(records: Sequence[Record]) -> set[Record]:
    """What packing does not change: the records, whatever their order, and the order of their timings."""
    return {record._replace(timings=tuple(sorted(record.timings, key=str))) for record in records}


@settings(max_examples=share(40))
@given(records, st.randoms(use_true_random=False))
def test_the_same_records_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], shuffled: random.Random
) -> None:
    """Records come back once each, sorted by problem, and in any order, split and number of copies give one file."""
    folder = tmp_path_factory.mktemp("d")
    result = pack([dataset(folder / "all", records)], folder / "one.zst")
    other = [record._replace(timings=tuple(shuffled.sample(record.timings, len(record.timings)))) for record in records]
    shuffled.shuffle(other)
    parts = [dataset(folder / "a", other[::2]), dataset(folder / "b", other[1::2]), dataset(folder / "c", other[:1])]
    pack(parts, folder / "other.zst")
    assert (folder / "one.zst").read_bytes() == (folder / "other.zst").read_bytes()
    found = list(read_dataset(folder / "one.zst"))
    assert in_order(found) == in_order(records)
    assert [record.problem for record in found] == sorted(record.problem for record in found)
    assert len(found) + result.copies == len(records)
    assert result.problems == len({record.problem for record in records})
    assert sum(result.timings.values()) == sum(len(record.timings) for record in found)


def test_a_problem_measured_twice_stays_so(tmp_path: Path) -> None:
    """Records of one problem and stage that are not equal all stay, because building takes their median."""
    first, second = some_records(1)[0], some_records(1)[0]._replace(timings=(Timing(ATEN, 5.0),))
    result = pack([dataset(tmp_path / "a", [first]), dataset(tmp_path / "b", [second, first])], tmp_path / "d.zst")
    assert in_order(list(read_dataset(tmp_path / "d.zst"))) == in_order([first, second])
    assert (result.problems, result.copies) == (1, 1)


def test_a_million_timings_are_small(tmp_path: Path) -> None:
    """A timing takes less than ten bytes, also where times are random."""
    rng = random.Random(1)
    configs = [
        Config("triton_mm", (m, n, k, 8, s, 4))
        for m in (16, 64, 128)
        for n in (64, 128)
        for k in (32, 64)
        for s in (3, 4)
    ]
    records = [
        Record(
            record.problem, tuple(Timing(config, float(rng.randrange(2000, 2_000_000))) for config in configs), "sweep"
        )
        for record in some_records(200)
    ]
    result = pack([dataset(tmp_path / "plain", records)], tmp_path / "d.zst")
    assert (tmp_path / "d.zst").stat().st_size < 10 * result.timings["sweep"]


def test_cut_off_anywhere_is_an_error(packed: Path) -> None:
    """Whatever is missing at the end of a compact file, it is an error that names the file, never fewer records."""
    content = packed.read_bytes()
    for length in range(1, len(content)):
        packed.write_bytes(content[:length])
        with pytest.raises(DatasetError, match=str(packed)):
            list(read_dataset(packed))


def test_a_changed_byte_is_an_error(packed: Path) -> None:
    """The frame's checksum finds a byte that was changed, even where what it decompresses to is a dataset."""
    content = bytearray(packed.read_bytes())
    content[-1] ^= 1
    packed.write_bytes(content)
    with pytest.raises(DatasetError, match=f"{packed}: damaged: "):
        list(read_dataset(packed))


def test_what_follows_the_frame_is_an_error(packed: Path) -> None:
    """Bytes after the end, or a second file appended to the first, are not silently left out."""
    content = packed.read_bytes()
    for more in (b"\0", content):
        packed.write_bytes(content + more)
        with pytest.raises(DatasetError, match=f"{packed}: more follows the end"):
            list(read_dataset(packed))


@pytest.mark.parametrize(
    "content", [b"", b"something else", b"\xc1", b"{}", msgpack.packb({"hardware": {}}), bytes(1 << 26)]
)
def test_other_things_in_zstd_are_refused(tmp_path: Path, content: bytes) -> None:
    """A zstd file that holds no dataset is an error that names the file."""
    (tmp_path / "d").write_bytes(zstandard.compress(content))
    with pytest.raises(DatasetError, match=str(tmp_path / "d")):
        read_dataset(tmp_path / "d")


def test_a_file_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    """Decompressing stops where no timings can be: half a gigabyte of zeros in some kilobytes is an error."""
    content = header_bytes(HEADER) + b"\xc6\x20\0\0\0" + bytes(1 << 29)
    (tmp_path / "d").write_bytes(zstandard.compress(content))
    del content
    with pytest.raises(DatasetError, match="grows to more than 200 times its size"):
        list(read_dataset(tmp_path / "d"))


def test_nothing_is_appended_to_a_compact_file(packed: Path) -> None:
    """A collector that is pointed at a compact file is refused, and the file stays as it is."""
    before = packed.read_bytes()
    with pytest.raises(DatasetError, match="nothing can be appended"):
        DatasetWriter(packed, HEADER).__enter__()
    assert packed.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"), [("torch", "2.13.0"), ("benchmarker", ""), ("hardware", Hardware("NVIDIA H100", "sm_90", 132))]
)
def test_other_hardware_or_software_is_refused(tmp_path: Path, name: str, value: object) -> None:
    """Datasets that cannot be compared are an error with both, in any order, and nothing is written."""
    datasets = [
        dataset(tmp_path / "a", some_records(1)),
        dataset(tmp_path / "b", some_records(2), HEADER._replace(**{name: value})),
    ]
    for given_order in (datasets, datasets[::-1]):
        with pytest.raises(DatasetError) as error:
            pack(given_order, tmp_path / "d.zst")
        assert all(word in str(error.value) for word in (str(tmp_path / "a"), str(tmp_path / "b"), str(value)))
    assert not (tmp_path / "d.zst").exists()


def test_the_header_speaks_for_all(tmp_path: Path) -> None:
    """The date is the earliest; a device that the files call by several names has them all."""
    named = Hardware("H200", "sm_90", 132, ("NVIDIA H200",))
    earlier = HEADER._replace(hardware=named, measured_on="2026-11-20")
    pack([dataset(tmp_path / "a", []), dataset(tmp_path / "b", [], earlier)], tmp_path / "d.zst")
    hardware = named._replace(aliases=("NVIDIA H200",))
    assert read_dataset(tmp_path / "d.zst").header == earlier._replace(hardware=hardware)


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    """Problems, timings by stage, bytes and copies are printed; the output may be among the inputs."""
    dataset(tmp_path / "a", some_records(3))
    dataset(tmp_path / "b", [record._replace(stage="final") for record in some_records(2)])
    output = tmp_path / "d.msgpack.zst"
    result = call("pack", tmp_path / "a", tmp_path / "b", "-o", output)
    size = output.stat().st_size
    problems = len({record.problem for record in (*some_records(3), *some_records(2))})
    line = f"{output}: {problems} problems, 20 timings (final: 8, sweep: 12), {size} bytes"
    assert (result.exit_code, result.stdout, result.stderr) == (0, line + "\n", "")
    before = output.read_bytes()
    again = call("pack", output, tmp_path / "b", "-o", output)
    assert again.stdout == f"{line}\n  copies of other records, left out: 2\n"
    assert output.read_bytes() == before


def test_the_command_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    """A missing file, or a missing directory for the output, is exit code 2; what is no dataset of ours is 1."""
    run = partial(call, "pack", "-o", tmp_path / "out")
    assert run(tmp_path / "gone").exit_code == 2
    assert call("pack", dataset(tmp_path / "a", []).path, "-o", tmp_path / "gone" / "out").exit_code == 2
    (tmp_path / "d").write_text('{"hardware": {"NVIDIA H200": {}}}')
    result = run(tmp_path / "d")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "out").exists()
