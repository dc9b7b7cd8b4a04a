"""PyTorch Inductor's own files: its lookup table, its cache directory, and its log under max-autotune."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from diode_lut.dataset import Header, Record, Timing
from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.files import read_at_most
from diode_lut.formats import content
from diode_lut.hardware import Hardware, is_called
from diode_lut.hook.versions import KWARGS, TEMPLATE_OF_UID, TEMPLATES_OF_CHOICES, UIDS
from diode_lut.problem import INTEGER, MATMULS, SCALED, VARIANTS, Operand, Problem, letters, packed_operands, problem_of
from diode_lut.table import Table
from diode_lut.templates.config import ATEN, Config

_MAX_LITERAL_CHARS = 4096


def _literal(text: str) -> Any:
    """Return the value of a Python literal. Any other text is a ValueError, and none is run."""
    if len(text) > _MAX_LITERAL_CHARS:
        raise ValueError(f"{len(text)} characters (allowed for shapes: {_MAX_LITERAL_CHARS})")
    try:
        return ast.literal_eval(text)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"{text[:60]!r} is no literal") from error


PACKED = "packed_linear"  # on a CPU, an mm with a frozen weight: A, the weight as MKL packs it, and with N rows
_MKL_LINEAR = "_mkl_linear"  # the library's kernel for it
_ARGUMENT = re.compile(r"'?\b(\w+)'?[:=] ?(\d+)")  # of a template or the compiler: ``'BLOCK_M': 64``, ``num_warps=4``


def problem_of_inputs(op: str, dtypes: Sequence[str], inputs: Sequence[Operand]) -> Problem:
    """Return the problem of all inputs of a choice, the last two of which are A and B. ProblemError if it has none."""
    if op not in (*MATMULS, PACKED):
        raise ProblemError(f"op {op}")
    if not 2 <= len(inputs) == len(dtypes):
        raise ProblemError(f"{op} of {len(inputs)} inputs")
    first = 0 if op == PACKED else -2
    a, b, mixed = inputs[first], inputs[-1], {dtypes[first], dtypes[-1]}
    if len(mixed) > 1:
        raise ProblemError(f"a mix of {' and '.join(sorted(mixed))}")
    if op == PACKED:
        op, b = "mm", Operand(b.sizes[::-1], b.strides[::-1], b.offset)
    return problem_of(op, dtypes[-1], a, b)


def triton_config(op: str, name: str, arguments: str) -> Config:
    """Return the config of a Triton template from all its arguments. ProblemError if tables have no such config."""
    template = TEMPLATE_OF_UID.get(f"triton::{name}")
    if template is None or op not in UIDS[template]:
        raise ProblemError(f"template {name}")
    values = {name: int(value) for name, value in _ARGUMENT.findall(arguments)}
    return Config.from_json({"template": template, **{name: values.get(kw) for name, kw in KWARGS[template].items()}})


def other_config(op: str, name: str) -> Config:
    """Return the config of any other choice. ProblemError if tables have no such config."""
    for template, beginning in TEMPLATES_OF_CHOICES.items():
        if found := beginning.match(name):
            tunables = {tunable: int(value) for tunable, value in found.groupdict().items()}
            return Config.from_json({"template": template, **tunables})
    name = name.partition("-")[0]
    if (op == PACKED and name == _MKL_LINEAR) or f"aten::{name}" in UIDS[ATEN.template].get(op, ()):
        return ATEN
    raise ProblemError(f"kernel {name}")


def best_times(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    """Return the best time of each config: the library may have two ways of adding a bias."""
    best: dict[Config, Timing] = {}
    for timing in timings:
        best[timing.config] = min(best.get(timing.config, timing), timing, key=lambda each: each.ns or math.inf)
    return tuple(best.values())


_KEY = re.compile(
    r"(?:(?P<device>.*?)\+)?(?P<operands>\(\(torch\..*\)\))(?:\+(?P<scalars>[^+]*))?\+(?P<op>[\w-]+)"
    r"(?:\+tf32=(?P<tf32>True|False))?"
)
_WITH_VECTOR = re.compile(r"\(\(torch\.\w+, \[\d+\],")
_DTYPE = re.compile(r"torch\.(\w+)")
_SCALARS = "alpha=1&beta=1"
_TMA = {
    "TMA_SIZE": 128,
    "TMA_EXPERIMENTAL_API": False,
    "tma_store": False,
    "transpose_discontiguous_tensor_descriptors_override": True,
}
"""More arguments of the template for tensor descriptors, with Triton 3.4 or later and Inductor's default settings."""


def read_table(path: Path, facts: content.Facts, skipped: content.Skipped) -> Table:
    """Return the table in ``torch._inductor.config.lookup_table.table``, as a JSON object.

    Rows for another device, or without a config for them, are skipped.

    A key is ``DEVICE+((torch.bfloat16, [M, K], [strides]), (torch.bfloat16, [K, N], [strides]))+mm``. DEVICE and a plus
    sign may be left out, and keys with DEVICE are asked first. On ROCm, DEVICE is the architecture with modes of the
    driver: ``gfx942:sramecc+:xnack-``. addmm and baddbmm have their bias first, and ``alpha=1&beta=1+`` before the op.
    In PyTorch's README keys end with ``+tf32=False``. A value is a list of ``{"template_id": "triton::mm", "BLOCK_M":
    64, ...}``. In 2.11 an entry replaces all keyword arguments of the template, in 2.13 only its own. Ours name all.
    Source: torch/_inductor/lookup_table/choices.py of torch 2.11 and 2.13.

    There are two keys for addmm. In 2.13 its bias is a vector if only ATen is looked up, else expanded to (M, N).
    """
    answers_of: dict[Problem, list[Config]] = {}
    document = content.read_json(path, dict, "Inductor's lookup table, an object", facts.contents)
    devices = dict.fromkeys(found["device"] for key in document if (found := _KEY.fullmatch(key)) and found["device"])
    hardware = content.known_hardware(facts, path, *devices)
    # A problem's keys with a device go first, and keys with a vector as bias (for ATen alone) last.
    in_order = sorted(document, key=lambda key: (key.startswith("(("), bool(_WITH_VECTOR.search(key))))
    for key in in_order:
        rows = document[key]
        if not isinstance(rows, list):
            raise ExchangeError(f"{path}: not Inductor's lookup table: {key}: {type(rows).__name__} instead of a list")
        with content.counting(skipped, len(rows)):
            configs = answers_of.setdefault(_problem_of_key(key, hardware, tf32=facts.dtype == "tf32"), [])
            for row in rows:
                with content.counting(skipped):
                    template = TEMPLATE_OF_UID.get(row["template_id"])
                    if template is None:
                        raise ProblemError(f"template {row['template_id']!r}")
                    fields = {name: row.get(kwarg) for name, kwarg in KWARGS[template].items()}
                    config = Config.from_json({"template": template, **fields})
                    if config not in configs:
                        configs.append(config)
    return content.exact_table(hardware, answers_of)


def write_table(table: Table, problems: Iterable[Problem], facts: content.Facts, skipped: content.Skipped) -> bytes:
    """Return the dictionary for packed operands on the table's device.

    Sizes must be static, because EVEN_K depends on them. Keys do not distinguish float32 and tf32, so problems of only
    one type are written: tf32 if ``facts`` names it.
    """
    document: dict[str, list[dict[str, Any]]] = {}
    for problem, entry in content.answers(table, problems, skipped):
        with content.counting(skipped):
            if problem.dtype == ("float32" if facts.dtype == "tf32" else "tf32"):
                reason = "keys do not tell float32 from tf32 (--dtype says which to export)"
                raise ProblemError(f"{problem.dtype}: {reason}")
            rows = [row for config in entry.configs for row in _rows(config, problem, table.hardware)]
            document |= {key: rows for key, rows in _keyed(problem, table.hardware, rows).items() if rows}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def _problem_of_key(text: str, hardware: Hardware, *, tf32: bool) -> Problem:
    key = _KEY.fullmatch(text)
    if key is None:
        raise ProblemError("keys that are not Inductor's")
    device = key["device"]
    if device and not is_called(hardware, device) and device.partition(":")[0] != hardware.arch:
        raise ProblemError(f"device {device!r}")
    if any(value not in ("1", "1.0") for value in re.findall(r"=([^&]+)", key["scalars"] or "")):
        raise ProblemError("alpha or beta that is not 1")
    dtypes = set(_DTYPE.findall(key["operands"]))
    if len(dtypes) > 1:
        raise ProblemError(f"a mix of {' and '.join(sorted(dtypes))}")
    (dtype,) = dtypes
    try:
        operands = _literal(_DTYPE.sub(r"'\1'", key["operands"]))
    except ValueError:
        raise ProblemError("keys that are not Inductor's") from None
    *_, a, b = (Operand(tuple(sizes), tuple(strides)) for _, sizes, strides in operands)
    tf32 = key["tf32"] == "True" if key["tf32"] else tf32
    return problem_of(key["op"], "tf32" if tf32 and dtype == "float32" else dtype, a, b)


def _rows(config: Config, problem: Problem, hardware: Hardware) -> Iterator[dict[str, Any]]:
    """Yield the config with all arguments of the template, if it computes the op. ProblemError if one is missing."""
    names = KWARGS[config.template]
    for uid in UIDS[config.template].get(problem.op, ())[:1]:
        for name in config.tunables:
            if name not in names:
                raise ProblemError(f"{name}, which Inductor's table has no name for")
        row: dict[str, Any] = {"template_id": uid, **{names[name]: each for name, each in config.tunables.items()}}
        if "BLOCK_K" in row:
            even_k = problem.k % row["BLOCK_K"] == 0
            accumulator = "tl.int32" if problem.op in INTEGER else "tl.float32"
            row |= {"EVEN_K": even_k, "ACC_TYPE": accumulator, "USE_FAST_ACCUM": False, "hint_override": None}
        if config.kernel.tma:
            letter_a, letter_b = letters(problem.layout)
            row |= {
                "A_ROW_MAJOR": letter_a == "n",
                "B_ROW_MAJOR": letter_b == "n",
                "NUM_SMS": hardware.sm_count,
                **_TMA,
            }
        yield row


def _keyed(problem: Problem, hardware: Hardware, rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows under each key of Inductor's lookup."""
    if problem.op in VARIANTS:
        raise ProblemError(f"{problem.op}, of whose variants keys say too little")
    a, b = packed_operands(problem)
    if not rows:
        raise ProblemError("configs that Inductor's table has no name for")
    sizes = (problem.m, problem.n)
    if problem.op == "addmm":
        expanded, vector = Operand(sizes, (0, 1)), Operand(sizes[1:], (1,))
        of_aten = [row for row in rows if row["template_id"].startswith("aten::")]
        return {_key(problem, hardware, expanded, a, b): rows, _key(problem, hardware, vector, a, b): of_aten}
    if problem.op == "baddbmm":
        bias = Operand((problem.b, *sizes), (problem.m * problem.n, problem.n, 1))
        return {_key(problem, hardware, bias, a, b): rows}
    return {_key(problem, hardware, a, b): rows}


def _key(problem: Problem, hardware: Hardware, *operands: Operand) -> str:
    dtype = "float32" if problem.dtype == "tf32" else problem.dtype
    matrices = ", ".join(f"(torch.{dtype}, {list(each.sizes)}, {list(each.strides)})" for each in operands)
    scalars = [_SCALARS] if len(operands) > 2 else []
    device = [] if hardware.arch.startswith("gfx") else [hardware.name]  # on ROCm, the name has modes of the driver
    return "+".join([*device, f"({matrices})", *scalars, problem.op])


_KERNEL_BYTES = 4 << 20
_BENCHMARKER = "Inductor's cache"
_OPERANDS = re.compile(r"(\[.*\])(:benchmark_policy=\w+)?")
_TRITON = re.compile(r"triton_(\w+)-(\w{1,200})")


def read_cache(path: Path, facts: content.Facts, skipped: content.Skipped) -> content.Timings:
    """Return the timings of the given hardware in Inductor's cache directory, which are already paid for.

    Timings of other devices or software are skipped.

    Files ``cache/HASH`` hold ``{"system": {...}, "cache": {OP: {OPERANDS: {PRECISION: {CHOICE: milliseconds}}}}}``.
    OPERANDS is the repr of ``[(device type, dtype, *sizes, *strides, offset), ...]``. 2.15 appends the way of
    benchmarking. A Triton CHOICE is ``triton_mm-KEY``. Its config is in the file ``KEY[1:3]/KEY.py``. Without the file
    it is skipped. Another CHOICE begins with the ATen function's name, with ``decompose_k_mm_SPLIT_split``, or, for the
    C++ template, with ``CppMicroGemm``. On a machine without a GPU, the system is empty. Source: codecache.py
    (PersistentCache) and select_algorithm.py (hash_key) of torch 2.11, 2.13 and 2.15, and files from 2.13.
    """
    if facts.contents is not None:
        raise ExchangeError(f"{path}: not Inductor's cache directory")
    path.stat()  # OSError if there is no such directory
    files = sorted(file for file in path.glob("cache/*") if file.is_file())
    if not files:
        raise ExchangeError(f"{path}: not Inductor's cache directory, or without timings: it has no file in cache/")
    documents = [content.read_json(file, dict, "a file of Inductor's timings") for file in files]
    names = sorted({str(_system(document, "device", "name") or "no GPU") for document in documents})
    hardware = content.known_hardware(facts, path, *names)
    headers = [_header(document, hardware) for document in documents]
    header = max(filter(None, headers), key=lambda header: (header.triton, header.cuda), default=None)
    if header is None:
        raise ExchangeError(f"{path}: no timings of {hardware.name}: they are of {', '.join(names)}")
    records: list[Record] = []
    for document, found in zip(documents, headers, strict=True):
        if found == header:
            device = "cpu" if hardware.arch.startswith("cpu") else "cuda"
            records += _records_of_cache(document, path, device, skipped)
        else:
            skipped["timings of another device, or of other software"] += 1
    return content.Timings(header, records)


def _header(document: Any, hardware: Hardware) -> Header | None:
    """Return the header of the document's timings, of ``cpu`` if it is of the CPU, or None for another device."""
    if hardware.arch.startswith("cpu"):
        return Header(hardware, benchmarker=_BENCHMARKER)
    if not is_called(hardware, str(_system(document, "device", "name"))):
        return None
    # The key is Triton's version and, without anything between them, hashes of its files.
    triton = re.match(r"\d+\.\d+\.\d", str(_system(document, "version", "triton")))
    cuda = _system(document, "version", "cuda")
    return Header(hardware, triton=triton[0] if triton else "", cuda=str(cuda or ""), benchmarker=_BENCHMARKER)


def _system(document: Any, *names: str) -> Any:
    value = document.get("system")
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _records_of_cache(document: Any, directory: Path, device: str, skipped: content.Skipped) -> Iterator[Record]:
    """Yield a record for each GEMM. Inductor caches other things in the same file."""
    for op, gemms in document.get("cache", {}).items():
        if op not in (*MATMULS, PACKED):
            skipped[f"op {op}"] += len(gemms) if isinstance(gemms, dict) else 1
            continue
        for operands, precisions in gemms.items():
            for precision, choices in precisions.items():
                with content.counting(skipped, len(choices)):
                    problem = _problem_of_operands(op, operands, precision, device)
                    timings = []
                    for choice, milliseconds in choices.items():
                        with content.counting(skipped):
                            if triton := _TRITON.fullmatch(choice):
                                file = directory / triton[2][1:3] / f"{triton[2]}.py"
                                if not file.is_file():
                                    raise ProblemError("kernels whose source is not in the directory any more")
                                source, _, _ = read_at_most(file, _KERNEL_BYTES).decode().partition("\ndef ")
                                config = triton_config(op, triton[1], source)
                            else:
                                config = other_config(op, choice)
                            timings.append(Timing.of_milliseconds(config, milliseconds))
                    yield Record(problem, best_times(timings))


def _problem_of_operands(op: str, text: str, precision: str, device: str) -> Problem:
    match = _OPERANDS.fullmatch(text)
    if match is None:
        raise ProblemError("sizes that are only hints")
    keys = _literal(match[1])
    others = [key[0] for key in keys if key[0] != device]
    if others:
        raise ProblemError(f"device type {others[0]}")
    ranks = [(len(key) - 3) // 2 for key in keys]
    operands = [Operand(key[2 : 2 + rank], key[2 + rank : -1], key[-1]) for key, rank in zip(keys, ranks, strict=True)]
    problem = problem_of_inputs(op, [key[1].removeprefix("torch.") for key in keys], operands)
    known = {"highest": "float32", "high": "tf32"}.get(precision) if problem.dtype == "float32" else problem.dtype
    if known is None:
        raise ProblemError(f"float32 with precision {precision!r}")
    return problem._replace(dtype=known)


_HEAD = re.compile(r"AUTOTUNE (\w+)\((.*)\)\s*$")
_STRIDES = re.compile(r"strides: (\[.*\])\s*$")
_DTYPES = re.compile(r"dtypes: (torch\.[\w., ]+?)\s*$")
_CHOICE = re.compile(r" (\w[\w.-]*) (\d+\.\d+|inf|nan) ms (?:(\d+\.\d)%|nan%|<DIVIDED BY ZERO ERROR>)(.*)$")
_LAST_DIGIT, _ROUNDED = 1e-4, 5e-4  # milliseconds of a printed time's last digit, and the error of a percentage
_TF32_ROWS, _TF32_COLUMNS = 16, 512  # from these M, N and K on, all releases allow TF32 in Triton as PyTorch does


class _Printed(NamedTuple):
    name: str
    time: float
    percent: float | None
    arguments: str


class _Autotuning(NamedTuple):
    op: str
    sizes: str
    strides: list[str]
    dtypes: list[str]
    choices: list[_Printed]

    @property
    def is_whole(self) -> bool:
        """Whether all times are from this block: the first is the best, and the percentages of the others agree."""
        if not self.choices:
            return False
        best = self.choices[0].time
        return self.choices[0].percent in (100, None) and all(
            percent is None or time == math.inf or abs(best - percent / 100 * time) <= _ROUNDED * time + 2 * _LAST_DIGIT
            for _, time, percent, _ in self.choices
        )


def read_log(path: Path, facts: content.Facts, skipped: content.Skipped) -> content.Timings:
    """Return the timings that Inductor prints on standard error under max-autotune, in the log of a program.

    Each block becomes a record, and mixed blocks of several processes are skipped. A block looks like this::

        AUTOTUNE mm(256x512, 512x304)
        strides: [512, 1], [304, 1]
        dtypes: torch.bfloat16, torch.bfloat16
          triton_mm_4 0.0123 ms 100.0% ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, ..., num_warps=4
          mm 0.0131 ms 93.9%
        SingleProcess AUTOTUNE benchmarking takes 0.2 seconds and 0.1 seconds precompiling for 30 choices

    Anything may stand before these on a line, such as a rank. Sizes that change are hints, and their strides have
    symbols. Source: select_algorithm.py (log_results) of torch 2.11 to 2.15.
    """
    header = Header(content.known_hardware(facts, path), benchmarker="Inductor's log")
    return content.Timings(header, _records_of_log(path, facts, header.hardware, skipped))


def _records_of_log(path: Path, facts: content.Facts, hardware: Hardware, skipped: content.Skipped) -> Iterator[Record]:
    block, after_whole = None, True
    for block in _blocks(line.decode(errors="replace") for line in content.lines(path, facts.contents)):
        trusted, after_whole = after_whole and block.is_whole, bool(block.choices)
        with content.counting(skipped, max(1, len(block.choices))):
            if not trusted:  # where a block has no choices, another one has them
                raise ProblemError("blocks that are cut, or mixed with another's (let each process write its own log)")
            problem = _problem_of_block(block, facts.dtype, hardware)
            timings = []
            for choice in block.choices:
                with content.counting(skipped):
                    name = re.sub(r"^cpp_|_\d+$", "", choice.name)  # a generated choice's name ends with its number
                    if name.startswith("triton_"):
                        config = triton_config(block.op, name.removeprefix("triton_"), choice.arguments)
                    else:
                        config = other_config(block.op, name)
                    timings.append(Timing.of_milliseconds(config, choice.time))
            yield Record(problem, best_times(timings))
    if block is None:
        raise ExchangeError(f"{path}: not a log of max-autotune: no line is like AUTOTUNE mm(1024x512, 512x256)")


def _blocks(text: Iterable[str]) -> Iterator[_Autotuning]:
    block = None
    for line in text:
        head = _HEAD.search(line)
        if block is not None and not head:
            if (found := _STRIDES.search(line)) and not block.strides:
                block.strides.append(found[1])
                continue
            if (found := _DTYPES.search(line)) and block.strides and not block.dtypes:
                block.dtypes.extend(found[1].replace("torch.", "").split(", "))
                continue
            if (found := _CHOICE.search(line)) and block.dtypes:
                percent = None if found[3] is None else float(found[3])
                block.choices.append(_Printed(found[1], float(found[2]), percent, found[4]))
                continue
        if block is not None:
            yield block
        block = _Autotuning(head[1], head[2], [], [], []) if head else None
    if block is not None:
        yield block


def _problem_of_block(block: _Autotuning, dtype: str | None, hardware: Hardware) -> Problem:
    if block.op in SCALED:
        raise ProblemError(f"{block.op}, of which the log does not say the scales")
    try:
        sizes = [tuple(map(int, each.split("x"))) for each in block.sizes.split(", ")]
        strides = [tuple(map(int, each.split(", "))) for each in block.strides[0].strip("[]").split("], [")]
        inputs = list(map(Operand, sizes, strides))
    except ValueError:
        raise ProblemError("sizes that are only hints") from None
    problem = problem_of_inputs(block.op, block.dtypes, inputs)
    if problem.dtype != "float32" or hardware.is_cpu:
        return problem
    allowed = {found for each in block.choices for found in re.findall(r"ALLOW_TF32=(\w+)", each.arguments)}
    if "True" in allowed:
        return problem._replace(dtype="tf32")
    if "False" in allowed and problem.m >= _TF32_ROWS and min(problem.n, problem.k) >= _TF32_COLUMNS:
        return problem
    if dtype not in ("float32", "tf32"):
        raise ProblemError("float32 of which the log does not say whether it is TF32 (give --dtype float32 or tf32)")
    return problem._replace(dtype=dtype)
