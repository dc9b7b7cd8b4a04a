"""The problems to measure: from files, from named sets, and drawn at random."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from diode_lut.dataset import is_dataset, read_dataset
from diode_lut.dataset.torch_diode import problem_of_shape
from diode_lut.errors import CollectError, ProblemError, op_of, printable
from diode_lut.files import has_more_values, read_at_most
from diode_lut.hardware import Hardware
from diode_lut.problem import (
    ATTENTION_ONLY,
    BATCHED,
    DOMAINS,
    FLOAT8,
    FLOAT8_UNIT,
    INT8,
    ITEMSIZES,
    LAYOUTS,
    NO_EPILOGUE,
    NO_VARIANT,
    OP_SIZES,
    OPS,
    VARIANTS,
    Problem,
)
from diode_lut.receipts.read import decode_receipt
from diode_lut.receipts.receipt import Receipt
from diode_lut.receipts.summary import losses
from diode_lut.table import Entry, Table
from diode_lut.table.read import table_of

_log = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_MAX_VALUES = 5_000_000

REQUIRED = ("op", "dtype", "M", "N", "K")
"""The keys that a problem must have."""

BLOCK = 32
"""Number of neighbours in a shipped set that have the same op, dtype, layout and alignment, and share kernels."""

_SHIPPED = Path(__file__).with_name("problem_sets") / "models.json"
_QUICK = 128


def problem_set(name: str) -> list[Problem]:
    """The problems of one of SETS, the most useful first."""
    if name == "attention":
        return list(attention_problems())
    if name == "int8":
        return list(int8_problems())
    if name == "grouped":
        return list(grouped_problems())
    problems = read_problems(_SHIPPED)
    if name == "fp8":
        return list(dict.fromkeys(_in_float8(problems)))
    if name == "llm":
        return [problem for problem in problems if problem.dtype == "bfloat16"]
    return problems[:_QUICK] if name == "quick" else problems


_FORWARD = ("tensor-bfloat16-fast", "row-bfloat16-fast")
_BACKWARD = "tensor-bfloat16"
"""What libraries for float8 ask for: fast accumulation in a forward pass, precise one for gradients."""

_MOST_ROWS, _TRAINING_ROWS = 8192, (2048, 8192)


def _in_float8(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The linear layers without a bias among ``problems`` as scaled_mm: forward, then both gradients of the large ones.

    Blocks of both variants take turns.
    """
    linear = [
        problem
        for problem in problems
        if (problem.op, problem.dtype, problem.layout) == ("mm", "bfloat16", "nt")
        if problem.n % FLOAT8_UNIT == problem.k % FLOAT8_UNIT == 0 and problem.m <= _MOST_ROWS
    ]
    for start in range(0, len(linear), BLOCK):
        for variant in _FORWARD:
            for problem in linear[start : start + BLOCK]:
                yield Problem.of(
                    "scaled_mm", problem.m, problem.n, problem.k, dtype=FLOAT8[0], layout="nt", variant=variant
                )
    for problem in linear:
        m, n, k = problem.m, problem.n, problem.k
        if m in _TRAINING_ROWS:
            for sizes in ((m, k, n), (n, k, m)):
                yield Problem.of("scaled_mm", *sizes, dtype=FLOAT8[1], layout="nt", variant=_BACKWARD)


def read_problems(
    path: Path, find_hardware: Callable[[], Hardware] | None = None, contents: bytes | None = None
) -> list[Problem]:
    """The problems of a JSON list of ``{"op", "M", "N", "K", "dtype"}``, each once, in file order.

    ``B`` is 1 and ``layout`` is ``nn``, or ``nt`` for scaled_mm and attention, unless given. ``align`` and ``epilogue``
    may be given too; without them the operands are packed and nothing follows the GEMM. scaled_mm and attention need a
    ``variant``; attention's ``H`` and ``G`` are 1 unless given, and ``V`` is K. Other keys are ignored. CollectError,
    with file, index and key, if the file is not such a list or one of its problems cannot exist.

    torch-diode's shape sets are read as well.

    The file may be a receipt: then these are its misses, those that lost most time first; with ``find_hardware``, only
    the misses on devices of the same architecture and SM count as the hardware that it returns. ReceiptError if the
    receipt is not valid, CollectError if there was no miss. Of a dataset it is every problem, of a table the smallest
    and the largest problem of each row that leaves nothing open; the rows with the largest gain come first.
    DatasetError or TableError if the file is not valid. ``contents`` are those of a file that is not on disk.
    """
    data = read_at_most(path, _MAX_BYTES) if contents is None else contents
    if is_dataset(data):
        return _of_dataset(path, data)
    if has_more_values(data, _MAX_VALUES):
        raise CollectError(f"{path}: more than {_MAX_VALUES} values")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CollectError(f"{path}:{error.lineno}: not JSON: {error.msg} (expected one list of problems)") from error
    if isinstance(document, dict) and "entries" in document:
        return _of_table(table_of(path, data))
    if isinstance(document, dict) and "schema_version" in document:
        return _misses(decode_receipt(document, str(path)), path, find_hardware() if find_hardware else None)
    if isinstance(document, dict) and not {"operations", "shapes"}.isdisjoint(document):
        return _shape_set(document, path)
    if not isinstance(document, list) or not document:
        raise CollectError(f"{path}: expected a list of problems, found {_kind(document)}")
    return list(dict.fromkeys(_problem(fields, f"{path}: [{index}]") for index, fields in enumerate(document)))


def _shape_set(document: dict[str, Any], path: Path) -> list[Problem]:
    """The problems of torch-diode's shape set, row-major as its collector multiplies them.

    That is ``{"operations": {"mm": {"shapes": [{"B", "M", "N", "K", "M_dtype", "K_dtype", "out_dtype"}]}}}``, or only
    ``{"shapes": [...]}``, whose op is bmm where B is not 1, else mm. Source: torch_diode/types/matmul_types.py.
    """
    problems: dict[Problem, None] = {}
    left_out: Counter[str] = Counter()
    for op, shape in _shapes(document, path):
        try:
            problems[problem_of_shape(op, shape, "nn")] = None
        except ProblemError as error:  # noqa: PERF203
            left_out[str(error)] += 1
    for reason, count in sorted(left_out.items()):
        _log.warning("%s: shapes left out: %d (%s)", printable(str(path)), count, reason)
    if not problems:
        raise CollectError(f"{path}: a shape set without a GEMM that tables know")
    return list(problems)


def _shapes(document: dict[str, Any], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The op of each shape, and the shape."""
    try:
        for op, operation in document.get("operations", {}).items():
            yield from ((op, dict(shape)) for shape in operation["shapes"])
        for shape in document.get("shapes", ()):
            yield "mm" if shape.get("B", 1) == 1 else "bmm", dict(shape)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CollectError(f"{path}: not a shape set: expected lists 'shapes' of objects") from None


def _of_dataset(path: Path, data: bytes) -> list[Problem]:
    found = list(dict.fromkeys(record.problem for record in read_dataset(path, contents=data)))
    if not found:
        raise CollectError(f"{path}: a dataset without a problem")
    return found


def _of_table(table: Table) -> list[Problem]:
    rows = sorted(table.entries, key=lambda entry: -(entry.best.gain_permille or 0))
    found = list(dict.fromkeys(problem for row in rows for problem in ends(row)))
    if not found:
        raise CollectError(f"{table.path}: no row names op, dtype, layout, align and all sizes")
    return found


def ends(row: Entry) -> tuple[Problem, ...]:
    """The smallest and the largest problem that a row covers, which may be the same; none if its key leaves any open.

    A row for any epilogue stands for the GEMM without one.
    """
    op, dtype, layout, align = row.op, row.dtype, row.layout, row.align
    if op is None or dtype is None or layout is None or align is None:
        return ()
    ranges = {name: getattr(row, name) for name in OP_SIZES[op]}
    variant = row.variant or NO_VARIANT
    if None in ranges.values() or (variant == NO_VARIANT and op in VARIANTS):
        return ()
    smallest = Problem(op, dtype, layout, align, 1, 1, 1, 1, row.epilogue or NO_EPILOGUE, variant)
    corners = ({name: sizes[end] for name, sizes in ranges.items()} for end in (0, 1))
    found = (smallest._replace(**corner) for corner in corners)
    return tuple(dict.fromkeys(problem for problem in found if problem.h % problem.g == 0))


def _misses(receipt: Receipt, path: Path, hardware: Hardware | None) -> list[Problem]:
    missed = [miss for miss in losses(receipt) if hardware is None or miss.hardware.same_arch(hardware)]
    if not missed:
        found = ", ".join(str(device) for device in receipt.devices) or "no device"
        raise CollectError(f"{path}: no miss on {hardware or 'any device'} (the receipt is of: {found})")
    return list(dict.fromkeys(miss.problem for miss in missed))


def _problem(fields: Any, where: str) -> Problem:
    if not isinstance(fields, dict):
        raise CollectError(f"{where}: expected an object with {', '.join(REQUIRED)}, found {_kind(fields)}")
    unread = [name for name in ("b", "batch", "batch_size") if name in fields and "B" not in fields]
    if unread:
        raise CollectError(f"{where}.{unread[0]}: not read: the batch is B")
    missing = [key for key in REQUIRED if key not in fields]
    if missing:
        small = "; sizes are in capitals" if missing[0].lower() in fields else ""
        raise CollectError(f"{where}.{missing[0]}: missing (needed: {', '.join(REQUIRED)}{small})")
    try:
        return Problem.of(
            fields["op"],
            fields["M"],
            fields["N"],
            fields["K"],
            dtype=fields["dtype"],
            layout=fields.get("layout", _usual_layout(fields["op"])),
            b=fields.get("B", 1),
            align=fields.get("align"),
            epilogue=fields.get("epilogue", NO_EPILOGUE),
            variant=fields.get("variant", NO_VARIANT),
            **{name: fields[name.upper()] for name in ATTENTION_ONLY if name.upper() in fields},
        )
    except ProblemError as error:
        raise CollectError(f"{where}.{error}") from error


def _usual_layout(op: Any) -> str:
    return DOMAINS[op_of(op)].layouts[0] if op_of(op) in OPS else LAYOUTS[0]


def _kind(value: Any) -> str:
    return (
        "an empty list"
        if value == []
        else f"one object: leave only its list {lists[0]}"
        if (lists := _lists_in(value))
        else "one object: put it in []"
        if isinstance(value, dict)
        else type(value).__name__
    )


def _lists_in(value: Any) -> list[str]:
    """The fields of an object that are lists."""
    return [name for name, each in value.items() if isinstance(each, list)] if isinstance(value, dict) else []


_INT8_LAYERS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
)
"""N and K of Llama 3 8B and 70B: queries, keys and values; what follows attention; gate and up; down."""

_INT8_ROWS = ((32, 17, 64, 128), (512, 2048, 8192))
"""M: tokens of a batch, those whose kernels gain most first; PyTorch multiplies no fewer than 17 rows on a GPU."""


def int8_problems() -> Iterator[Problem]:
    """About 100 problems in blocks, each alone and with scales of rows and columns behind it, as models run them."""
    for rows in _INT8_ROWS:
        for epilogue in (NO_EPILOGUE, "light"):
            for m, (n, k) in product(rows, _INT8_LAYERS):
                yield Problem.of("int_mm", m, n, k, dtype=INT8, layout="nt", epilogue=epilogue)


_GROUPED_ROWS = (64, 256, 1024, 4096, 16384)
"""Tokens times experts of a token, together for all experts."""


class _Experts(NamedTuple):
    """Experts of a layer, the model's width, an expert's width, and how B is stored."""

    experts: int
    hidden: int
    intermediate: int
    layout: str = "nt"


_GROUPED_MODELS = {
    "Mixtral 8x7B": _Experts(8, 4096, 14336),
    "Qwen3-30B-A3B": _Experts(128, 2048, 768),
    "gpt-oss-20b": _Experts(32, 2880, 2880, "nn"),
    "DeepSeek-V2-Lite": _Experts(64, 2048, 1408),
    "OLMoE-1B-7B": _Experts(64, 2048, 1024),
    "Llama 4 Scout": _Experts(16, 5120, 8192, "nn"),
}
"""Their configurations as published."""


def grouped_problems() -> Iterator[Problem]:
    """60 problems in bfloat16, gate and up in one matmul and down, those of few rows first: there gains are largest."""
    for rows in _GROUPED_ROWS:
        for experts, hidden, intermediate, layout in _GROUPED_MODELS.values():
            for n, k in ((2 * intermediate, hidden), (hidden, intermediate)):
                yield Problem.of("grouped_mm", rows, n, k, dtype="bfloat16", layout=layout, b=experts)


HEAD_DIMS = (64, 128, 96, 256, 192)
"""Elements of a head, those of most models first."""

_LENGTHS = (4096, 1024, 8192, 2048, 512, 128, 32768)
_TOKENS = 16384
"""Queries of all batches together, where one sequence has fewer."""

_HEADS = 16
_LARGEST_BATCH = 16


def attention_problems() -> Iterator[Problem]:
    """Over 200 problems in bfloat16, the most common first."""
    yield from _forward(("causal",), _LENGTHS)
    yield from _forward(("computed", "captured"), _LENGTHS)
    for k, n in product(HEAD_DIMS, (8192, 1024, 32768)):
        yield _attention("flex_decoding", 1, n, k, "full", b=8, h=32, g=8)
        yield _attention("flex_decoding", 16, n, k, "full", b=1, h=32, g=4)
    yield from _backward(("causal", "captured"), (4096, 1024))
    yield from _forward(("full",), (2048, 512, 8192))
    yield from _forward(("causal-score-computed", "full-score-captured"), (2048, 512, 8192))
    yield from _backward(("computed",), (2048,))
    for length in (1024, 4096, 16384):  # heads of multi-head latent attention
        yield _attention("flex_attention", length, length, 192, "causal", h=32, v=128)
    for k in HEAD_DIMS:  # so few heads that a GPU has multiprocessors left
        yield _attention("flex_decoding", 1, 4096, k, "full", b=1, h=32, g=8)
        for length, variant in product((512, 2048), ("causal", "computed")):
            yield _attention("flex_attention", length, length, k, variant, h=8, g=_group(k))


def _forward(variants: tuple[str, ...], lengths: tuple[int, ...]) -> Iterator[Problem]:
    for length, k, variant in product(lengths, HEAD_DIMS, variants):
        yield _of_model("flex_attention", length, k, variant)


def _backward(variants: tuple[str, ...], lengths: tuple[int, ...]) -> Iterator[Problem]:
    for length, k, variant in product(lengths, HEAD_DIMS, variants):
        yield _of_model("flex_attention_backward", length, k, variant)


def _of_model(op: str, length: int, k: int, variant: str) -> Problem:
    """As many batches as make _TOKENS; heads of 128 elements and more share keys, as in language models."""
    batch = min(max(1, _TOKENS // length), _LARGEST_BATCH)
    return _attention(op, length, length, k, variant, b=batch, h=_HEADS, g=_group(k))


def _group(k: int) -> int:
    return 4 if k >= 128 else 1


def _attention(
    op: str, m: int, n: int, k: int, variant: str, *, b: int = 1, h: int = 1, g: int = 1, v: int | None = None
) -> Problem:
    return Problem.of(op, m, n, k, dtype="bfloat16", layout="nt", variant=variant, b=b, h=h, g=g, v=v)


LOG_NORMAL = {"m": (6.5725, 2.5562), "n": (5.9139, 1.6697), "k": (6.2049, 2.1647)}
"""Mean and standard deviation of the natural logarithm of each size, as GEMMs of real models have them."""

LARGEST_UNIFORM = 16384
"""Sizes that are not drawn log-normally are from 1 to this, with uniformly distributed logarithms."""

LARGEST_BATCH = 512
"""Batches of bmm and baddbmm are from 1 to this, with uniformly distributed logarithms."""

ROUNDED = 0.75
"""Share of problems whose sizes of at least UNIT are rounded down to multiples of UNIT, as most in real models are."""

UNIT = 8

MAX_BYTES = 2**31
"""Most memory, in bytes, for A, B, bias and result of one problem. It is the same on every machine, so that a seed
draws the same problems everywhere."""


def random_problems(
    count: int, *, seed: int, log_normal: bool, ops: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]
) -> list[Problem]:
    """``count`` different problems with packed operands, the same for the same arguments on every machine.

    Op, dtype and layout are drawn evenly from those given. Sizes are integers, at least 1, and the largest of M, N and
    K is halved until everything fits in MAX_BYTES; then those of ROUNDED problems are rounded.
    """
    source = random.Random(seed)  # noqa: S311 - no secret depends on it
    problems: dict[Problem, None] = {}
    while len(problems) < count:
        op, dtype, layout = source.choice(ops), source.choice(dtypes), source.choice(layouts)
        batch = _log_uniform(source, LARGEST_BATCH) if op in BATCHED else 1
        sizes = [_log_normal(source, name) if log_normal else _log_uniform(source, LARGEST_UNIFORM) for name in "mnk"]
        m, n, k = _fitting(batch, sizes, ITEMSIZES[dtype])
        if source.random() < ROUNDED:
            m, n, k = (size if size < UNIT else size // UNIT * UNIT for size in (m, n, k))
        problems[Problem.of(op, m, n, k, dtype=dtype, layout=layout, b=batch)] = None
    return list(problems)


def _log_normal(source: random.Random, name: str) -> int:
    return max(1, round(source.lognormvariate(*LOG_NORMAL[name])))


def _log_uniform(source: random.Random, largest: int) -> int:
    return round(math.exp(source.uniform(0, math.log(largest))))


def _fitting(batch: int, sizes: list[int], itemsize: int) -> list[int]:
    def size_in_bytes() -> int:
        m, n, k = sizes
        return batch * (m * k + k * n + 2 * m * n) * itemsize

    sizes = list(sizes)
    while size_in_bytes() > MAX_BYTES:
        largest = sizes.index(max(sizes))
        sizes[largest] //= 2
    return sizes
