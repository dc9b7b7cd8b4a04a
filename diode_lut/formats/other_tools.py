"""Files of torch-diode, TunableOp and vLLM."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from diode_lut.dataset import Header, Record, Timing, read_dataset
from diode_lut.dataset.torch_diode import hardware_by_name, pointer_config, problem_of_key
from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.evaluate import ReferenceKernels
from diode_lut.files import read_at_most
from diode_lut.formats.content import Facts, Skipped, Timings, answers, counting, exact_table, known_hardware, read_json
from diode_lut.hardware import architecture, is_called
from diode_lut.problem import BATCHED, MATMULS, Problem, contiguous_align, packed_operand, problem_of
from diode_lut.table import Table
from diode_lut.templates.config import ATEN, POINTER_TUNABLES, Config, pointer_gemm

_VERSION = {"version": 1}
_WHAT = "torch-diode's table, an object with 'hardware'"


def read_diode_dataset(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """Return the timings of the given hardware."""
    dataset = read_dataset(path, hardware=facts.hardware, layout=facts.layout or "nn", contents=facts.contents)
    records = list(dataset)
    skipped += dataset.skipped
    return Timings(dataset.header, records)


def read_diode_table(path: Path, facts: Facts, skipped: Skipped) -> Table:
    """Return torch-diode's table for the given hardware. Rows for another device are skipped. The file looks like this:

    ``{"hardware": {NAME: {"operation": {OP: {"solution": {KEY: {"config": [{"block_m": 64, ...}, ...]}}}}}}}``, where
    KEY is JSON in a string, with B, M, N, K, M_dtype, K_dtype, out_dtype, out_size and out_stride. Source:
    torch_diode/types/matmul_types.py and json_serializable.py of torch-diode 0.1.1. It has only configs of Inductor's
    plain Triton templates, and some under a float32 key may allow TF32. It has no layout: its collector multiplies
    packed row-major matrices.
    """
    document = read_json(path, dict, _WHAT, facts.contents)
    try:
        solutions: list[tuple[str, str, str, list[Any]]] = [
            (name, op, key, list(solution["config"]))
            for name, hardware in document["hardware"].items()
            for op, operation in hardware["operation"].items()
            for key, solution in operation["solution"].items()
        ]
    except (KeyError, TypeError, AttributeError):
        raise ExchangeError(f"{path}: not {_WHAT}") from None
    names = list(dict.fromkeys(name for name, *_ in solutions))
    hardware = facts.hardware or (names and hardware_by_name(path, names[0])) or known_hardware(facts, path, *names)
    found: dict[Problem, list[Config]] = {}
    for name, op, key, rows in solutions:
        if not is_called(hardware, name):
            skipped[f"hardware {name!r}"] += len(rows)
            continue
        with counting(skipped, len(rows)):
            problem = problem_of_key(op, key, facts.layout or "nn")
            for row in rows:
                with counting(skipped):
                    config = pointer_config(op, row)
                    tf32 = problem.dtype == "float32" and row.get("ALLOW_TF32") is True
                    configs = found.setdefault(problem._replace(dtype="tf32") if tf32 else problem, [])
                    if config not in configs:
                        configs.append(config)
    return exact_table(hardware, found)


def write_diode_table(table: Table, problems: Iterable[Problem], facts: Facts, skipped: Skipped) -> bytes:
    """Return the table for problems of one layout. Configs of a row end before the first without an equivalent."""
    operations: dict[str, dict[str, Any]] = {}
    for problem, entry in answers(table, problems, skipped):
        with counting(skipped):
            key, template = _key(problem, facts.layout or "nn"), pointer_gemm(problem.op)
            rows = []
            for config in entry.configs:
                if config.template != template or len(config.params) > len(config.kernel.required):
                    break
                rows.append(_row(problem, config))
            if not rows:
                raise ProblemError(f"{entry.configs[0]}, which torch-diode's table cannot say")
            solutions = operations.setdefault(problem.op, {**_VERSION, "solution": {}})["solution"]
            solutions.setdefault(key, {**_VERSION, "config": []})["config"].extend(rows)
    hardware = {table.hardware.name: {**_VERSION, "operation": operations}}
    return orjson.dumps({**_VERSION, "hardware": hardware}, option=orjson.OPT_INDENT_2) + b"\n"


def _key(problem: Problem, layout: str) -> str:
    if problem.op not in MATMULS:
        raise ProblemError(f"{problem.op} (the file is of GEMMs)")
    if problem.layout != layout:
        raise ProblemError(f"layout {problem.layout} (the file cannot say it; --layout says which to export)")
    if problem.align != contiguous_align(problem.dtype, layout, problem.m, problem.n, problem.k, problem.b):
        raise ProblemError(f"align {problem.align}, which packed matrices of these sizes do not have")
    name = "float32" if problem.dtype == "tf32" else problem.dtype
    return json.dumps(
        {
            **_VERSION,
            "B": problem.b,
            "M": problem.m,
            "M_dtype": name,
            "N": problem.n,
            "K": problem.k,
            "K_dtype": name,
            "out_dtype": name,
            "out_size": [problem.b, problem.m, problem.n],
            "out_stride": [problem.m * problem.n, problem.n, 1],
        }
    )


def _row(problem: Problem, config: Config) -> dict[str, Any]:
    return {
        **_VERSION,
        "name": f"{problem.op}_config",
        "grid": 1,
        **config.tunables,
        "EVEN_K": problem.k % config.tunables["block_k"] == 0,
        "ALLOW_TF32": problem.dtype == "tf32",
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.float32",
    }


_SOLUTION = "a max-autotune solution of torch-diode, an object with a list 'config' or 'configs'"


def read_solution(path: Path, contents: bytes | None = None) -> ReferenceKernels:
    """Return the kernels of a solution file, of which the fastest counts. ExchangeError if it is no such file."""
    parts = read_json(path, dict, _SOLUTION, contents)
    by_op = {op: parts[op] for op in MATMULS if op in parts} or dict.fromkeys(MATMULS, parts)
    configs: dict[tuple[str, Any], set[Config]] = {}  # by op and sizes, which are None if a config is for all
    faults: Counter[str] = Counter()
    for op, part in by_op.items():
        rows = part.get("configs", part.get("config")) if isinstance(part, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ExchangeError(f"{path}: not {_SOLUTION}")
        for row in rows:
            sizes = tuple(row.get(name) for name in "MNK")
            try:
                config = pointer_config(op, row)
            except ProblemError as error:
                faults[str(error)] += 1
            else:
                key = op, (sizes if all(type(size) is int for size in sizes) else None)
                configs.setdefault(key, set()).add(config)
    if not configs:
        raise ExchangeError(f"{path}: no config in it is one that tables know: {', '.join(faults) or 'it is empty'}")

    def configs_for(problem: Problem) -> set[Config]:
        sizes = problem.m, problem.n, problem.k
        return configs.get((problem.op, None), set()) | configs.get((problem.op, sizes), set())

    return ReferenceKernels(path.name, configs_for)


_MAX_BYTES = 64 << 20
_OPS = {"GemmTunableOp": "mm", "GemmAndBiasTunableOp": "addmm", "GemmStridedBatchedTunableOp": "bmm"}
_DTYPES = {"Half": "float16", "BFloat16": "bfloat16", "float": "float32", "tf32": "tf32"}
_OPERATION = re.compile(r"(\w+TunableOp)_(.+)_([NT]{2})")
_SIGNATURE = re.compile(r"([nt])([nt])_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?(?:_ld_(\d+)_(\d+)_\d+)?", re.IGNORECASE)


def read_tunableop(path: Path, facts: Facts, skipped: Skipped) -> Timings:
    """Return the time of ``aten`` on each GEMM in TunableOp's results: the tuned library's, for a program's GEMMs.

    Lines without a time, and other operations, are skipped.

    Lines are ``Validator,NAME,VALUE`` and ``OPERATION_TYPE_LAYOUT,SIGNATURE,SOLUTION,MILLISECONDS``, where SIGNATURE is
    ``tn_M_N_K[_B_BATCH][_ld_LDA_LDB_LDC]``, as BLAS sees it: column-major, so A and B, M and N change places. Every
    solution comes from a BLAS library, which is ``aten`` here. The strides of batches are missing, and batches count as
    packed. Source: ATen/cuda/tunable/GemmCommon.h and Tunable.cpp of torch 2.13.
    """
    data = read_at_most(path, _MAX_BYTES) if facts.contents is None else facts.contents
    lines = [line.split(",") for line in data.decode(errors="replace").splitlines() if line]
    validators: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line[0] == "Validator" and len(line) > 2 and validators.setdefault(line[1], line[2]) != line[2]:
            said = f"{line[1]} is {line[2]!r}, but {validators[line[1]]!r} before"
            raise ExchangeError(f"{path}: line {number}: {said}: import the results of each software by themselves")
    if not validators and not any(_OPERATION.fullmatch(line[0]) for line in lines):
        raise ExchangeError(f"{path}: not TunableOp's results: no line begins like GemmTunableOp_Half_TN,tn_8_8_8,")
    # The libraries' versions are in ``benchmarker``, so that timings of others are not mixed with these.
    device, torch, rocm = (validators.pop(name, "") for name in ("GCN_ARCH_NAME", "PT_VERSION", "ROCM_VERSION"))
    hardware = known_hardware(facts, path, *filter(None, [device]))
    rocm = rocm or validators.pop("HIP_VERSION", "")
    arch = device.partition(":")[0] or ("gfx" if rocm else "")
    if not hardware.arch.startswith(arch):
        raise ExchangeError(f"{path}: measured on a GPU of {arch}, not on {hardware}: correct --hardware")
    libraries = (f"{name} {version}" for name, version in sorted(validators.items()))
    header = Header(hardware, torch, cuda=rocm, benchmarker=", ".join(("TunableOp", *libraries)))
    records: list[Record] = []
    for line in lines:
        if line[0] == "Validator":
            continue
        with counting(skipped):
            problem = _tunableop_problem(line[0], line[1] if line[1:] else "")
            try:
                milliseconds = float(line[3])
            except (IndexError, ValueError):  # a GEMM that was only recorded
                raise ProblemError("GEMMs without a time") from None
            timing = Timing.of_milliseconds(ATEN, milliseconds if milliseconds > 0 else math.nan)
            records.append(Record(problem, (timing,)))
    return Timings(header, records)


def _tunableop_problem(operation: str, signature: str) -> Problem:
    named, found = _OPERATION.fullmatch(operation), _SIGNATURE.fullmatch(signature)
    if named is None or found is None or named[1] not in _OPS or named[2] not in _DTYPES:
        raise ProblemError(f"operation {operation.rpartition('_')[0] or operation}")
    trans_a, trans_b = found[1].casefold(), found[2].casefold()
    n, m, k = map(int, found.group(3, 4, 5))
    batch, ld_b, ld_a = (None if number is None else int(number) for number in found.group(6, 7, 8))
    op, dtype = _OPS[named[1]], _DTYPES[named[2]]
    if (op in BATCHED) != (batch is not None):
        raise ProblemError(f"operation {named[1]} with signature {signature}")
    # A matrix of column-major BLAS without transposition is row-major here.
    return problem_of(op, dtype, packed_operand(trans_b, m, k, batch, ld_a), packed_operand(trans_a, k, n, batch, ld_b))


_NAMES = dict(zip(POINTER_TUNABLES, POINTER_TUNABLES, strict=True)) | {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
}
_STAGES = {"cuda": 3, "hip": 2}  # Triton's default for each backend, for files without ``num_stages``


def read_vllm(path: Path, facts: Facts, skipped: Skipped) -> Table:
    """Return vLLM's configs of a quantized linear layer as rows for each M, of ``mm`` with layout ``nt``.

    Files are called ``N=1536,K=7168,device_name=NVIDIA_H200,dtype=...json``.

    ``{"64": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4,
    "num_stages": 3}}`` has a config for each M. The weights are N x K. They were tuned for 8-bit types, which tables do
    not have, so the user names the type to try them for. Files with ``E=`` in their names are for fused mixtures of
    experts, which tables do not know as GEMMs. Files for AMD's GPUs have its own tunables, too, and some have no
    ``num_stages``. Source: vllm/model_executor/layers/quantization/utils/configs and
    vllm/model_executor/layers/fused_moe/configs.
    """
    said = dict(re.findall(r"(\w+)=([^,]+?)(?=,|\.json$)", path.name))
    if "E" in said:
        raise ExchangeError(f"{path}: is for a fused mixture of experts, which is none of the GEMMs that tables have")
    if not {"N", "K"} <= said.keys():
        raise ExchangeError(f"{path}: the name does not say N and K, as vLLM's do: N=1536,K=7168,device_name=...json")
    if facts.dtype is None:
        known = f"its type is {said.get('dtype')}, which is none that tables have"
        what = known if "dtype" in said else "its name says no type"
        raise ExchangeError(f"{path}: {what}: give that of the GEMMs with --dtype")
    hardware = known_hardware(facts, path, said.get("device_name", "").replace("_", " "))
    found: dict[Problem, list[Config]] = {}
    for m, row in read_json(path, dict, "vLLM's configs, an object", facts.contents).items():
        with counting(skipped):
            op = facts.op or "mm"
            sizes = int(m), int(said["N"]), int(said["K"])
            problem = Problem.of(op, *sizes, dtype=facts.dtype, layout=facts.layout or "nt")
            if not isinstance(row, dict):
                raise ProblemError("configs that are no objects")
            if unknown := row.keys() - {*_NAMES.values()}:
                raise ProblemError(f"{min(unknown)}, which no config has")
            named = {"num_stages": _STAGES.get(architecture(hardware.arch).triton), **row}
            found[problem] = [pointer_config(op, {name: named.get(key) for name, key in _NAMES.items()})]
    return exact_table(hardware, found)
