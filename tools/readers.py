"""Everything that reads files, each with good files to begin with, and what is done with a file that was read."""

import json
import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgpack
import zstandard
from safetensors.numpy import load, save

from diode_lut.api import explanation_of
from diode_lut.dataset import Dataset, Header, Record, Timing, holds_frames, read_dataset, write_stream
from diode_lut.decide.catalog import distrusted, find_hardware, find_tables, tiers_for
from diode_lut.decide.decide import Sources, decide
from diode_lut.decide.sources import Threshold
from diode_lut.errors import DiodeLutError
from diode_lut.formats import FORMATS, read, write_timings
from diode_lut.formats import write_table as exported
from diode_lut.formats.content import Facts, Timings
from diode_lut.formats.other_tools import read_solution
from diode_lut.hardware import Hardware
from diode_lut.measure.problems import read_problems
from diode_lut.model import KEY, header_text, metadata_of, read_model_hardware
from diode_lut.model.weights import read_model, write_model
from diode_lut.problem import Problem
from diode_lut.receipts import (
    Device,
    Hit,
    Left,
    Miss,
    Receipt,
    Skip,
    SourceRecord,
    Versions,
    decode_receipt,
    read_receipt,
    receipt_bytes,
)
from diode_lut.receipts.recorder import own_receipt, sources_seen
from diode_lut.receipts.summary import as_json as receipt_as_json
from diode_lut.receipts.summary import as_text as receipt_as_text
from diode_lut.settings import MODEL, USER
from diode_lut.table import Candidate, Entry, Table, read_hardware, read_table, to_bytes, write_table
from diode_lut.table.format import as_text
from diode_lut.table.lint import check_file
from diode_lut.templates.config import ATEN, Config

H200 = Hardware("NVIDIA H200", "sm_90", 132, ("H200",))
GEMM = Config("triton_mm", (128, 64, 32, 8, 3, 4))
MM = Problem.of("mm", 256, 512, 1024, dtype="float16", layout="nn")
PROBLEMS = (MM, MM._replace(op="addmm", m=77), MM._replace(op="bmm", b=3))
RECORDS = [Record(problem, (Timing(ATEN, 1500.0), Timing(GEMM, None, "compile")), "final") for problem in PROBLEMS]
HEADER = Header(H200, "2.11.0", "3.6.0", "13.0", "580.1", "fuzz", "2026-11-21")
FACTS = Facts(H200, "mm", "float16", "nn")


class Reader(NamedTuple):
    """What reads a file and uses what it read, and good files to begin with."""

    use: Callable[[Path], object]
    seeds: list[bytes]
    wrap: Callable[[bytes], bytes] = bytes  # makes the file of what was changed


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
        "problems": Reader(read_problems, [problem_file(), receipt_file(), shape_set()]),
        "solution": Reader(read_solution, [solution()]),
        "receipt": Reader(use_receipt, [receipt_file()]),
        "directory": Reader(use_directory, [*table_files(table), weights_file(directory)]),
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
    """Our own, plain and compact, and torch-diode's, JSON and msgpack."""
    data = stream.read_bytes()
    yield data
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
    with path.open("rb") as file:
        header_text(file, path)
    model = read_model(path)
    for problem in PROBLEMS:
        model.rank(problem)


def receipt_file() -> bytes:
    """With a bit of everything."""
    mm, addmm, bmm = PROBLEMS
    device = Device(
        {SourceRecord("device", "/t.json", "ab", 3): None},
        {"/u.json: it is for another device": None},
        Counter({Hit(mm, "device", "ab", "mm float16", ("aten",), "m from 1 to 63"): 3}),
        Counter({Miss(addmm, "m from 64"): 2}),
        {addmm: 1063},
        Counter({Skip(bmm, "device", "ab", "bmm", str(GEMM), "needs more shared memory"): 1}),
        unfused=Counter({Left(mm, "the epilogue reduces"): 1}),
    )
    return receipt_bytes(Receipt(1, {Versions("0.1.0", "3.12.3", "2.11.0", "3.6.0"): None}, 12345, {H200: device}))


def use_receipt(path: Path) -> None:
    """Read it, and sum up what it says."""
    receipt = read_receipt(path)
    receipt_as_text(receipt)
    receipt_as_json(receipt)
    assert decode_receipt(json.loads(receipt_bytes(receipt)), "") == receipt


def use_directory(path: Path) -> None:
    """Go the whole way from directories to an answer: bad files, named or found, cost themselves and nothing else."""
    draw = random.Random(path.read_bytes())
    with TemporaryDirectory(dir=path.parent) as home, quiet(), with_home(home):
        own = Path(home, "diode_lut", "tables")
        own.mkdir(parents=True)
        good = Path(home, "good.json"), own / "m.json"
        for each in good:
            write_table(example_table(), each)
        bad = [Path(draw.choice((home, str(own))), name) for name in draw.sample(NAMES, draw.randint(1, 3))]
        for each in bad:
            draw.choice(PLACES)(each, path)
        named = [*(str(each) for each in bad if each.parent == Path(home)), str(good[0])]
        draw.shuffle(named)
        try:
            assert set(good) <= {file.path for file in find_tables(named)}, "not listed"
            selector = Sources(H200, tiers_for(H200, named, (USER, MODEL)))
            assert set(good) <= {source.path for source in selector.tiers[0].sources}, "not asked"
            assert decide(selector, MM, Threshold(), padding=True).decision.configs, "not answered"
            str(explanation_of(selector, MM, Threshold(), padding=True))
            sources_seen(selector)
            decode_receipt(json.loads(receipt_bytes(own_receipt())), "")
            find_hardware("m", named)
            distrusted()
        except DiodeLutError as error:
            raise AssertionError("the good files are not used") from error


NAMES = ("a.json", "z.json", "caf\udce9.json", "x" * 250 + ".json", "new\nline.json", "-x.json", "a.mlp.safetensors")
"""Names of files, two of which come before and after that of the good one, and one of which is not UTF-8."""


def loop(path: Path, _: Path) -> None:
    """A symbolic link to itself."""
    path.symlink_to(path.name)


PLACES: tuple[Callable[[Path, Path], object], ...] = (
    *[lambda path, data: shutil.copyfile(data, path)] * 6,
    lambda path, data: path.symlink_to(data),
    lambda path, data: shutil.copyfile(data, path).chmod(0o666),
    lambda path, data: shutil.copyfile(data, path).chmod(0),
    lambda path, _: path.mkdir(),
    lambda path, _: os.mkfifo(path),
    lambda path, _: path.symlink_to("missing"),
    lambda path, _: path.symlink_to("/dev/zero"),
    lambda path, _: path.symlink_to("/proc/self/mem"),  # a regular file that cannot be read
    loop,
)
"""Files that may lie where a table is expected."""


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def with_home(directory: str) -> Iterator[None]:
    """The user's own files are in this directory."""
    before = os.environ.get("XDG_CONFIG_HOME")
    os.environ["XDG_CONFIG_HOME"] = directory
    try:
        yield
    finally:
        os.environ.pop("XDG_CONFIG_HOME")
        if before is not None:
            os.environ["XDG_CONFIG_HOME"] = before


def problem_file() -> bytes:
    """As collect takes it."""
    return json.dumps(
        [
            {"op": problem.op, "dtype": problem.dtype, "layout": problem.layout, "align": problem.align}
            | dict(zip("BMNK", problem.sizes, strict=True))
            for problem in PROBLEMS
        ]
    ).encode()


def shape_set() -> bytes:
    """Shapes as torch-diode lists them."""
    shape = {"B": 1, "M": 64, "N": 16, "K": 32} | dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "float16")
    return json.dumps({"operations": {"mm": {"shapes": [shape]}}}).encode()


def solution() -> bytes:
    """A max-autotune solution of torch-diode."""
    blocks = {"block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}
    return json.dumps({"mm": {"configs": [blocks, {**blocks, "M": 64, "N": 16, "K": 32}]}}).encode()


def exchange_files(name: str, table: Table, dataset: Dataset) -> Iterator[bytes]:
    """A file of each format of other tools: what we export, or by hand."""
    if name == "timings":
        yield write_timings(name, dataset, Path("t.csv"))
        yield write_timings(name, dataset, Path("t.json"))
        strides = b"64x1,1x64,aten,2.5,NVIDIA H200,sm_90,132,2026-11-21,20"
        yield (
            b"op,dtype,m,n,k,strides_a,strides_b,config,time_us,device,arch,sm_count,date,repetitions\nmm,f16,8,8,64,"
            + strides
        )
    elif name == "torch-diode-dataset":
        yield json.dumps(torch_diode_document()).encode()
    elif name == "inductor-cache":
        operands = "[('cuda', 'torch.float16', 64, 16, 16, 1, 0), ('cuda', 'torch.float16', 16, 32, 32, 1, 0)]"
        system = {"device": {"name": "NVIDIA H200"}, "version": {"triton": "3.6.0abc", "cuda": "13.0"}}
        choices = {"mm": 0.5, "triton_mm-cabc": 0.25, "decompose_k_mm_4_split": 1.0}
        yield json.dumps({"system": system, "cache": {"mm": {operands: {"highest": choices}}}}).encode()
    elif name == "autotune-log":
        yield (
            b"AUTOTUNE mm(64x32, 32x16)\nstrides: [32, 1], [16, 1]\ndtypes: torch.float16, torch.float16\n"
            b"  mm 0.5 ms 100.0%\n  triton_mm_1 0.6 ms 83.3% BLOCK_K=16, BLOCK_M=64, num_stages=3\n"
        )
    elif name == "tunableop":
        yield b"Validator,PT_VERSION,2.13.0\nGemmTunableOp_Half_TN,tn_16_64_32_ld_32_32_16,Gemm_Rocblas_1,0.5\n"
    elif name == "vllm":
        blocks = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
        yield json.dumps({"64": {**blocks, "num_warps": 4, "num_stages": 3}}).encode()
    else:
        yield exported(name, table, PROBLEMS, FACTS)[0]


def importing(name: str) -> Callable[[Path], object]:
    """Reads a file of that format, where the format has it."""

    def use(path: Path) -> object:
        if name == "vllm":
            named = path.with_name("N=512,K=256,device_name=NVIDIA_H200,dtype=fp8.json")
            return read(name, Path(shutil.copy(path, named)), FACTS)
        if name != "inductor-cache":
            content, _ = read(name, path, FACTS)
            return list(content.records) if isinstance(content, Timings) else content
        directory = path.with_suffix(".directory")
        (directory / "cache").mkdir(parents=True, exist_ok=True)
        (directory / "ab").mkdir(exist_ok=True)
        (directory / "ab" / "cabc.py").write_bytes(path.read_bytes()[:2000])
        shutil.copy(path, directory / "cache" / "hash")
        return read(name, directory, FACTS)

    return use
