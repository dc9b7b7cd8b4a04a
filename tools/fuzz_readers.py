"""Feeds every reader files that are almost right, or not at all: prints what broke, and how long it took.

Only the errors that diode_lut raises on purpose may come out, soon, and in bounded memory. For example
``python tools/fuzz_readers.py --bytes 100_000_000 --seed 7 table``; ``--replay table:7:1234`` repeats one run.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgpack
import zstandard
from safetensors.numpy import load, save

from diode_lut.collect.problems import read_problems
from diode_lut.dataset import Dataset, Header, Record, Timing, read_dataset
from diode_lut.dataset.frames import holds_frames
from diode_lut.dataset.record import UNFRAMED, header_to_wire, record_to_wire
from diode_lut.dataset.writer import write_stream
from diode_lut.domain.errors import DiodeLutError
from diode_lut.domain.hardware import Hardware
from diode_lut.domain.problem import Problem
from diode_lut.exchange.content import Facts
from diode_lut.exchange.formats import FORMATS, read, write_table, write_timings
from diode_lut.kernels.config import ATEN, Config
from diode_lut.model.head import KEY, metadata_of, read_model_hardware
from diode_lut.model.header import header_in_words
from diode_lut.model.weights import read_model, write_model
from diode_lut.receipt.read import decode_receipt, read_receipt
from diode_lut.receipt.receipt import Device, Hit, Receipt, Skip, Source, Versions
from diode_lut.receipt.show import as_json as receipt_as_json
from diode_lut.receipt.show import as_text as receipt_in_words
from diode_lut.receipt.write import receipt_bytes
from diode_lut.table import Candidate, Entry, Table, read_hardware, read_table, to_bytes
from diode_lut.table.check import check_file
from diode_lut.table.write import as_text

SECONDS = 20
"""That a single file may take: a hundred times what it does on an idle machine."""

MEMORY = 4 << 30
H200 = Hardware("NVIDIA H200", "sm_90", 132, ("H200",))
GEMM = Config("triton_mm", (128, 64, 32, 8, 3, 4))
MM = Problem.of("mm", 256, 512, 1024, dtype="float16", layout="nn")
PROBLEMS = (MM, MM._replace(op="addmm", m=77), MM._replace(op="bmm", b=3))
RECORDS = [Record(problem, (Timing(ATEN, 1500.0), Timing(GEMM, None, "compile")), "final") for problem in PROBLEMS]
HEADER = Header(H200, "2.11.0", "3.6.0", "13.0", "580.1", "fuzz", "2026-11-21")
FACTS = Facts(H200, "mm", "float16", "nn")
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


class Reader(NamedTuple):
    """What reads a file and uses what it read, and good files to begin with."""

    use: Callable[[Path], object]
    seeds: list[bytes]
    wrap: Callable[[bytes], bytes] = bytes
    """Makes the file of what was changed."""


def main() -> int:
    """Fuzz the readers that were named, or all; 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="READER", help="by default all")
    parser.add_argument("--bytes", type=int, default=10_000_000, help="to feed each of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="READER:SEED:RUN", help="one run, with its traceback; the file stays")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as directory:
        all_readers = readers(Path(directory))
        if options.replay:
            name, seed, run = options.replay.split(":")
            shutil.copy(write_input(Path(directory), name, all_readers[name], int(seed), int(run)), "fuzzed")
            all_readers[name].use(Path("fuzzed"))
            return 0
        names = options.names or list(all_readers)
        failed = [fuzz(Path(directory), name, all_readers[name], options.bytes, options.seed) for name in names]
        return int(any(failed))


def fuzz(directory: Path, name: str, reader: Reader, size: int, seed: int) -> list[str]:
    """What failed, as arguments of --replay; a line is printed for each, and one in the end."""
    failures, fed, slowest, refused = [], 0, 0.0, 0
    started = time.perf_counter()
    for run in count():
        if fed >= size:
            break
        path = write_input(directory, name, reader, seed, run)
        fed += path.stat().st_size
        began = time.perf_counter()
        try:
            with limited():
                reader.use(path)
        except DiodeLutError:
            refused += 1
        except Exception as error:  # noqa: BLE001 (what nobody expected is what this looks for)
            failures.append(f"{name}:{seed}:{run}")
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(f"  {failures[-1]}: {type(error).__name__}: {str(error)[:100]} ({place.filename}:{place.lineno})")
        slowest = max(slowest, time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:20} {run:>8} files {fed:>12,} bytes, {refused / run:4.0%} refused, {len(failures)} failed, "
        f"{time.perf_counter() - started:6.1f} s, slowest {slowest:.2f} s, peak {peak:.0f} MB",
        flush=True,
    )
    return failures


def write_input(directory: Path, name: str, reader: Reader, seed: int, run: int) -> Path:
    """The file of one run, always the same."""
    draw = random.Random(f"{name}:{seed}:{run}")
    path = directory / f"{name}.fuzzed"
    path.write_bytes(reader.wrap(mutated(draw, reader.seeds)))
    return path


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
    containers = list(_containers(document))
    container = draw.choice(containers)
    steps: list[Any] = list(container) if isinstance(container, dict) else list(range(len(container)))
    junk = copy.deepcopy(draw.choice((*JUNK, draw.choice(containers))))
    if steps and draw.random() < 0.9:
        container[draw.choice(steps)] = junk
    elif isinstance(container, dict):
        container["x"] = junk
    else:
        container.append(junk)


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _containers(inner)


MUTATIONS = (_flip, _remove, _repeat, _insert, _replace, _number, _cut, _splice, *[_value] * 6)


class limited:  # noqa: N801 (used like a function)
    """Has what runs inside raise TimeoutError after so many seconds."""

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._late)
        signal.alarm(SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)

    @staticmethod
    def _late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {SECONDS} s")


def readers(directory: Path) -> dict[str, Reader]:
    """Everything that reads files."""
    table = example_table()
    stream = directory / "stream"
    write_stream(stream, HEADER, RECORDS)
    dataset = read_dataset(stream)
    return {
        "table": Reader(use_table, list(table_files(table))),
        "check": Reader(check_file, list(table_files(table))),
        "dataset": Reader(use_dataset, list(dataset_files(stream))),
        "compact-dataset": Reader(use_dataset, [stream.read_bytes()], zstandard.ZstdCompressor().compress),
        "weights": Reader(use_model, [weights_file(directory)]),
        "weights-metadata": Reader(use_model, [metadata(weights_file(directory))], with_metadata(directory)),
        "problems": Reader(read_problems, [problem_file(), receipt_file()]),
        "receipt": Reader(use_receipt, [receipt_file()]),
        **{name: Reader(importing(name), list(exchange_files(name, table, dataset))) for name in FORMATS},
    }


def example_table() -> Table:
    """A few rows of every kind."""
    rows = [
        Entry(
            each.op,
            each.dtype,
            each.layout,
            each.align,
            None,
            (each.m,) * 2,
            (each.n,) * 2,
            (each.k,) * 2,
            (Candidate(GEMM, 1063), Candidate(ATEN)),
            9,
        )
        for each in PROBLEMS[:2]
    ]
    anything = Entry(None, None, None, None, None, (1, 512), None, None, (Candidate(Config("decompose_k", (4,))),))
    return Table(H200, [*rows, anything._replace(note="by hand: \u00e9")], {"torch": "2.11.0", "datasets": ["0"]})


def table_files(table: Table) -> Iterator[bytes]:
    """The same table in several forms."""
    data = to_bytes(table)
    yield data
    yield json.dumps(json.loads(data)).encode()
    yield json.dumps(json.loads(data), indent=2, sort_keys=True).encode()


def use_table(path: Path) -> None:
    """All that is done with tables in a compile, and to show them."""
    error = None
    try:
        read_hardware(path)
    except DiodeLutError as expected:
        error = expected
    table = read_table(path)
    assert error is None, "the head is worse than the file"
    for problem in PROBLEMS:
        entry = table.lookup(problem)
        if entry is not None:
            table.line_of(entry)
    as_text(table)
    assert read_back(to_bytes(table), path) == table


def read_back(data: bytes, beside: Path) -> Table:
    """The table that is read from what was written."""
    path = beside.with_suffix(".written")
    path.write_bytes(data)
    return read_table(path)


def dataset_files(stream: Path) -> Iterator[bytes]:
    """Our own, plain, compact and of version 1, and torch-diode's, JSON and msgpack."""
    data = stream.read_bytes()
    yield data
    yield b"".join(map(msgpack.packb, (header_to_wire(HEADER, UNFRAMED), *map(record_to_wire, RECORDS))))
    yield zstandard.ZstdCompressor(write_checksum=True).compress(data)
    document = torch_diode_document()
    yield json.dumps(document).encode()
    yield msgpack.packb(document)


def torch_diode_document() -> dict[str, object]:
    """As torch-diode's collector writes it."""
    shape = {"B": 1, "M": 64, "N": 32, "K": 16, "M_dtype": "float16", "K_dtype": "float16", "out_dtype": "float16"}
    solution = {"timed_configs": [{"config": {**GEMM.to_json(), "ALLOW_TF32": True}, "time": 0.125}]}
    return {"hardware": {"H200": {"operation": {"mm": {"solution": {json.dumps(shape): solution}}}}}}


def use_dataset(path: Path) -> None:
    """All records; of a file with checksums, none that was never written."""
    framed = holds_frames(path.read_bytes()[:4096])
    for record in read_dataset(path, hardware=H200):
        assert record.problem.m > 0
        assert not framed or record in RECORDS


def weights_file(directory: Path) -> bytes:
    """A model as small as they come."""
    from tests.model.small import model

    path = directory / "small.mlp.safetensors"
    write_model(model(), path)
    return path.read_bytes()


def metadata(data: bytes) -> bytes:
    """All that a model says besides its tensors."""
    return json.dumps(metadata_of(data, Path())).encode()


def with_metadata(directory: Path) -> Callable[[bytes], bytes]:
    """Makes a whole file of other metadata."""
    tensors = load(weights_file(directory))
    return lambda data: save(tensors, {KEY: data.decode(errors="replace")})


def use_model(path: Path) -> None:
    """Its head, its words, and a ranking for each problem."""
    read_model_hardware(path)
    header_in_words(path)
    model = read_model(path)
    for problem in PROBLEMS:
        model.rank(problem)


def receipt_file() -> bytes:
    """With a bit of everything."""
    mm, addmm, bmm = PROBLEMS
    device = Device(
        {Source("device", "/t.json", "ab", 3): None},
        {"/u.json: it is for another device": None},
        Counter({Hit(mm, "device", "ab", "mm float16", ("aten",)): 3}),
        Counter({addmm: 2}),
        {addmm: 1063},
        Counter({Skip(bmm, "device", "ab", "bmm", str(GEMM), "needs more shared memory"): 1}),
    )
    return receipt_bytes(Receipt(1, {Versions("0.1.0", "3.12.3", "2.11.0", "3.6.0"): None}, 12345, {H200: device}))


def use_receipt(path: Path) -> None:
    """Read it, and sum up what it says."""
    receipt = read_receipt(path)
    receipt_in_words(receipt)
    receipt_as_json(receipt)
    assert decode_receipt(json.loads(receipt_bytes(receipt)), "") == receipt


def problem_file() -> bytes:
    """As collect takes it."""
    return json.dumps(
        [
            {"op": problem.op, "dtype": problem.dtype, "layout": problem.layout, "align": problem.align}
            | dict(zip("BMNK", problem.sizes, strict=True))
            for problem in PROBLEMS
        ]
    ).encode()


def exchange_files(name: str, table: Table, dataset: Dataset) -> Iterator[bytes]:
    """A file of each format of other tools: what we export, or by hand."""
    if name == "t4":
        yield write_timings(name, dataset)
    elif name == "torch-diode-dataset":
        yield json.dumps(torch_diode_document()).encode()
    elif name == "inductor-mm-log":
        blocks = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_stages": 3, "num_warps": 4}
        triton = {"type": "triton", "time": 0.5, **blocks}
        yield json.dumps([{"(64, 16, 32)": [triton, {"type": "cublas", "time": 1}], "kernel_type": "mm"}]).encode()
    elif name == "inductor-cache":
        operands = "[('cuda', 'torch.float16', 64, 16, 16, 1, 0), ('cuda', 'torch.float16', 16, 32, 32, 1, 0)]"
        system = {"device": {"name": "NVIDIA H200"}, "version": {"triton": "3.6.0abc", "cuda": "13.0"}}
        choices = {"mm": 0.5, "triton_mm-cabc": 0.25, "decompose_k_mm_4_split": 1.0}
        yield json.dumps({"system": system, "cache": {"mm": {operands: {"highest": choices}}}}).encode()
    else:
        yield write_table(name, table, PROBLEMS, FACTS)[0]


def importing(name: str) -> Callable[[Path], object]:
    """Reads a file of that format, where the format has it."""

    def use(path: Path) -> object:
        if name != "inductor-cache":
            return read(name, path, FACTS)
        directory = path.with_suffix(".directory")
        (directory / "cache").mkdir(parents=True, exist_ok=True)
        (directory / "ab").mkdir(exist_ok=True)
        (directory / "ab" / "cabc.py").write_bytes(path.read_bytes()[:2000])
        shutil.copy(path, directory / "cache" / "hash")
        return read(name, directory, FACTS)

    return use


if __name__ == "__main__":
    sys.exit(main())
