"""The problems to measure: from files of all kinds, from shipped sets, and drawn at random."""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
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
    GENERATED,
    ITEMSIZES,
    LAYOUTS,
    NO_EPILOGUE,
    NO_VARIANT,
    OF_KERNELS,
    OP_SIZES,
    OPS,
    VARIANTS,
    Problem,
    needed_sizes,
)
from diode_lut.receipts import decode_receipt
from diode_lut.receipts.summary import joinable, losses
from diode_lut.table import Entry, table_of

_log = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_MAX_VALUES = 5_000_000

REQUIRED = ("op", "dtype", "M", "N", "K")  # the keys required of a problem, but not of a generated kernel
_KEYS = {*REQUIRED, "B", "layout", "align", "epilogue", "variant", *map(str.upper, (*ATTENTION_ONLY, *OF_KERNELS))}
_CLOSE = 0.7  # least similarity of a key to one of _KEYS, of 1, to be a misspelling of it
BLOCK = 32  # number of neighbours in a shipped set with the same op, dtype, layout and alignment, which share kernels
SETS_DIRECTORY = Path(__file__).with_name("problem_sets")  # from tools/choose_problems.py and write_problem_sets.py

_QUICK = 128


def problem_set(name: str) -> list[Problem]:
    """Return the problems of a set in SETS, the most useful first."""
    if name in ("llm", "quick", "fp8"):
        models = problem_set("models")
        if name == "fp8":
            return list(dict.fromkeys(_in_float8(models)))
        return models[:_QUICK] if name == "quick" else [each for each in models if each.dtype == "bfloat16"]
    return read_problems(SETS_DIRECTORY / f"{name}.json")


_FORWARD = ("tensor-bfloat16-fast", "row-bfloat16-fast")
_BACKWARD = "tensor-bfloat16"  # libraries add up float8 fast in a forward pass, precisely for gradients

_MOST_ROWS, _TRAINING_ROWS = 8192, (2048, 8192)


def _in_float8(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield linear layers without a bias as scaled_mm: forward, and both gradients of the large layers."""
    linear = [
        problem
        for problem in problems
        if (problem.op, problem.dtype, problem.layout) == ("mm", "bfloat16", "nt")
        if problem.n % FLOAT8_UNIT == problem.k % FLOAT8_UNIT == 0 and problem.m <= _MOST_ROWS
    ]
    for start in range(0, len(linear), BLOCK):
        for variant, problem in product(_FORWARD, linear[start : start + BLOCK]):
            sizes = problem.m, problem.n, problem.k
            yield Problem.of("scaled_mm", *sizes, dtype=FLOAT8[0], layout="nt", variant=variant)
    for problem in linear:
        m, n, k = problem.m, problem.n, problem.k
        if m in _TRAINING_ROWS:
            for sizes in ((m, k, n), (n, k, m)):
                yield Problem.of("scaled_mm", *sizes, dtype=FLOAT8[1], layout="nt", variant=_BACKWARD)


def read_problems(
    path: Path, find_hardware: Callable[[], Hardware] | None = None, contents: bytes | None = None
) -> list[Problem]:
    """Return the problems of a JSON list of ``{"op", "M", "N", "K", "dtype"}``, each once, in file order.

    ``B`` is 1 and ``layout`` is ``nn``, or ``nt`` for scaled_mm and attention, unless given. ``align`` and ``epilogue``
    may be given, too. Without them the operands are packed and nothing follows the GEMM. scaled_mm and attention need a
    ``variant``. Attention's ``H`` and ``G`` are 1 unless given, and ``V`` is K. A generated kernel has ``{"op",
    "variant", "X"}`` and ``R``, or ``Y`` and ``LOADS``, instead. Other keys are ignored. CollectError, with file, index
    and key, if the file is not such a list, a key is misspelt or a problem cannot exist. torch-diode's shape sets are
    read as well.

    A receipt gives its misses, those with the largest loss first, and matmuls that could be joined. With
    ``find_hardware``, it gives only those on devices of the same architecture and SM count as the returned hardware.
    ReceiptError if the receipt is not valid, CollectError if there was nothing. A dataset gives all its problems. A
    table gives the smallest and the largest problem of each row without open fields, the rows with the largest gain
    first. DatasetError or TableError if the file is not valid. ``contents`` are the bytes of a file that is not on
    disk.
    """
    data = read_at_most(path, _MAX_BYTES) if contents is None else contents
    if is_dataset(data):
        found = list(dict.fromkeys(record.problem for record in read_dataset(path, contents=data)))
        if not found:
            raise CollectError(f"{path}: a dataset without a problem")
        return found
    if has_more_values(data, _MAX_VALUES):
        raise CollectError(f"{path}: more than {_MAX_VALUES} values")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CollectError(f"{path}:{error.lineno}: not JSON: {error.msg} (expected one list of problems)") from error
    if isinstance(document, dict) and "entries" in document:
        rows = sorted(table_of(path, data).entries, key=lambda entry: -(entry.best.gain_permille or 0))
        found = list(dict.fromkeys(problem for row in rows for problem in ends(row)))
        if not found:
            raise CollectError(f"{path}: no row names op, dtype, layout, align and all sizes")
        return found
    if isinstance(document, dict) and "schema_version" in document:
        receipt, hardware = decode_receipt(document, str(path)), find_hardware() if find_hardware else None
        missed = [miss.problem for miss in losses(receipt) if hardware is None or miss.hardware.same_arch(hardware)]
        for device, problems in joinable(receipt).items():
            missed += sorted(problems) if hardware is None or device.same_arch(hardware) else []
        if not missed:
            devices = ", ".join(str(device) for device in receipt.devices) or "no device"
            raise CollectError(f"{path}: no miss on {hardware or 'any device'} (the receipt is of: {devices})")
        return list(dict.fromkeys(missed))
    if isinstance(document, dict) and not {"operations", "shapes"}.isdisjoint(document):
        return _shape_set(document, path)
    if not isinstance(document, list) or not document:
        raise CollectError(f"{path}: expected a list of problems, found {_kind(document)}")
    return list(dict.fromkeys(problem_of(fields, f"{path}: [{index}]") for index, fields in enumerate(document)))


def _shape_set(document: dict[str, Any], path: Path) -> list[Problem]:
    """Return the problems of torch-diode's shape set, row-major as its collector multiplies them.

    The set is ``{"operations": {"mm": {"shapes": [{"B", "M", "N", "K", "M_dtype", "K_dtype", "out_dtype"}]}}}``, or
    ``{"shapes": [...]}`` with op bmm if B is not 1, else mm. Source: torch_diode/types/matmul_types.py.
    """
    try:
        operations = document.get("operations", {})
        shapes = [(op, dict(shape)) for op in operations for shape in operations[op]["shapes"]]
        shapes += [("mm" if shape.get("B", 1) == 1 else "bmm", dict(shape)) for shape in document.get("shapes", ())]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CollectError(f"{path}: not a shape set: expected lists 'shapes' of objects") from None
    problems: dict[Problem, None] = {}
    left_out: Counter[str] = Counter()
    for op, shape in shapes:
        try:
            problems[problem_of_shape(op, shape, "nn")] = None
        except ProblemError as error:  # noqa: PERF203
            left_out[str(error)] += 1
    for reason, count in sorted(left_out.items()):
        _log.warning("%s: shapes left out: %d (%s)", printable(str(path)), count, reason)
    if not problems:
        raise CollectError(f"{path}: a shape set without a GEMM that tables know")
    return list(problems)


def ends(row: Entry) -> tuple[Problem, ...]:
    """Return the smallest and the largest problem of a row without epilogue, or none if its key has open fields."""
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


def problem_of(fields: Any, where: str) -> Problem:
    """Return the problem of a JSON object. CollectError, with ``where``, if there is no such problem."""
    if not isinstance(fields, dict):
        raise CollectError(f"{where}: expected an object with {', '.join(REQUIRED)}, found {_kind(fields)}")
    unread = [name for name in ("b", "batch", "batch_size") if name in fields and "B" not in fields]
    if unread:
        raise CollectError(f"{where}.{unread[0]}: not read: the batch is B")
    op = op_of(fields.get("op", ""))
    generated = op in GENERATED
    required: tuple[str, ...] = REQUIRED
    if generated:
        required = ("op", "variant", *map(str.upper, needed_sizes(op, fields.get("variant"))))
    missing = [key for key in required if key not in fields]
    if missing:
        small = "; sizes are in capitals" if missing[0].lower() in fields else ""
        raise CollectError(f"{where}.{missing[0]}: missing (needed: {', '.join(required)}{small})")
    for name in fields:
        meant = "" if name in _KEYS else _meant(name)
        if meant and meant not in fields:
            raise CollectError(f"{where}.{name}: not read: did you mean {meant}?")
    layout = DOMAINS[op].layouts[0] if op in OPS else LAYOUTS[0]
    try:
        if generated:
            if of_gemm := [name for name in ("dtype", "layout", "align", "epilogue", *"BMNK") if name in fields]:
                raise CollectError(f"{where}.{of_gemm[0]}: not read: {op} has a variant and sizes alone: leave it out")
            sizes = {name: fields[name.upper()] for name in OF_KERNELS if name.upper() in fields}
            return Problem.generated(op, fields["variant"], **sizes)
        return Problem.of(
            fields["op"],
            fields["M"],
            fields["N"],
            fields["K"],
            dtype=fields["dtype"],
            layout=fields.get("layout", layout),
            b=fields.get("B", 1),
            align=fields.get("align"),
            epilogue=fields.get("epilogue", NO_EPILOGUE),
            variant=fields.get("variant", NO_VARIANT),
            **{name: fields[name.upper()] for name in ATTENTION_ONLY if name.upper() in fields},
        )
    except ProblemError as error:
        raise CollectError(f"{where}.{error}") from error


@cache
def _meant(key: str) -> str:
    """Return the key of a problem that another key is a misspelling of, or nothing."""
    return next(iter(get_close_matches(key, _KEYS, 1, _CLOSE)), "")


class RecordedKernel(NamedTuple):
    """A kernel that Inductor generated: an argument is a number, or the dtype, shape and strides of a tensor."""

    problem: Problem
    source: str
    arguments: tuple[Any, ...]


def read_kernels(directory: Path) -> list[RecordedKernel]:
    """Return the kernels recorded in a directory: for each problem that with the largest tensors, or CollectError."""
    found: dict[Problem, tuple[int, RecordedKernel]] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            fields = orjson.loads(path.read_bytes())
            source, arguments = fields["source"], tuple(fields["arguments"])
            kernel = RecordedKernel(problem_of(fields, str(path)), source, arguments)
            elements = sum(math.prod(each[1]) for each in kernel.arguments if isinstance(each, list))
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
            raise CollectError(f"{path}: is not a kernel that was recorded: remove it") from error
        if kernel.problem not in found or elements > found[kernel.problem][0]:
            found[kernel.problem] = elements, kernel
    return [kernel for _, kernel in found.values()]


def _kind(value: Any) -> str:
    """Return a text for a JSON value that is not a list of problems, with a remedy for an object."""
    if not isinstance(value, dict):
        return "an empty list" if value == [] else type(value).__name__
    lists = [name for name, each in value.items() if isinstance(each, list)]
    return f"one object: leave only its list {lists[0]}" if lists else "one object: put it in []"


LOG_NORMAL = {"m": (6.5725, 2.5562), "n": (5.9139, 1.6697), "k": (6.2049, 2.1647)}  # mean and deviation of logarithms
LARGEST_UNIFORM = 16384  # sizes not drawn log-normally are from 1 to this, with uniformly distributed logarithms
LARGEST_BATCH = 512  # batches of bmm and baddbmm are from 1 to this, with uniformly distributed logarithms
ROUNDED = 0.75  # share of problems whose sizes of at least UNIT are multiples of it, like most in real models

UNIT = 8

MAX_BYTES = 2**31  # of A, B, bias and result, the same on every machine, so that a seed draws the same everywhere


def random_problems(
    count: int, *, seed: int, log_normal: bool, ops: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]
) -> list[Problem]:
    """Draw ``count`` different problems with packed operands, the same for the same arguments on every machine.

    Op, dtype and layout are drawn evenly from those given. Sizes are integers, at least 1, and the largest of M, N and
    K is halved until everything fits in MAX_BYTES. Then a share ROUNDED of the problems is rounded.
    """
    source = random.Random(seed)  # noqa: S311 - no secret depends on it

    def log_uniform(largest: int) -> int:
        return round(math.exp(source.uniform(0, math.log(largest))))

    problems: dict[Problem, None] = {}
    while len(problems) < count:
        op, dtype, layout = source.choice(ops), source.choice(dtypes), source.choice(layouts)
        batch = log_uniform(LARGEST_BATCH) if op in BATCHED else 1
        if log_normal:
            sizes = [max(1, round(source.lognormvariate(*LOG_NORMAL[name]))) for name in "mnk"]
        else:
            sizes = [log_uniform(LARGEST_UNIFORM) for _ in "mnk"]
        while True:
            m, n, k = sizes
            if batch * (m * k + k * n + 2 * m * n) * ITEMSIZES[dtype] <= MAX_BYTES:
                break
            sizes[sizes.index(max(sizes))] //= 2
        if source.random() < ROUNDED:
            m, n, k = (size if size < UNIT else size // UNIT * UNIT for size in sizes)
        problems[Problem.of(op, m, n, k, dtype=dtype, layout=layout, b=batch)] = None
    return list(problems)
