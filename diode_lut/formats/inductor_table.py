"""PyTorch Inductor's lookup table: ``torch._inductor.config.lookup_table.table``, as a JSON object.

A key is ``DEVICE+((torch.bfloat16, [M, K], [strides]), (torch.bfloat16, [K, N], [strides]))+mm``. DEVICE and a plus
sign may be left out, and keys with DEVICE are asked first. On ROCm, DEVICE is the architecture with modes of the
driver: ``gfx942:sramecc+:xnack-``. addmm and baddbmm have their bias first, and ``alpha=1&beta=1+`` before the op. In
PyTorch's README keys end with ``+tf32=False``. A value is a list of ``{"template_id": "triton::mm", "BLOCK_M": 64,
...}``. In 2.11 an entry replaces all keyword arguments of the template, in 2.13 only its own. Ours name all. Source:
torch/_inductor/lookup_table/choices.py of torch 2.11 and 2.13.

There are two keys for addmm. In 2.13 its bias is a vector if only ATen is looked up, else expanded to (M, N).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.formats.content import Facts, Skipped, answers, counting, exact_table, known_hardware, literal, read_json
from diode_lut.hardware import Hardware, is_called
from diode_lut.hook.versions import KWARGS, TEMPLATE_OF_UID, UIDS
from diode_lut.problem import INTEGER, VARIANTS, Operand, Problem, letters, packed_operands, problem_of
from diode_lut.table import Table
from diode_lut.templates.config import Config

_KEY = re.compile(
    r"(?:(?P<device>.*?)\+)?(?P<operands>\(\(torch\..*\)\))(?:\+(?P<scalars>[^+]*))?\+(?P<op>[\w-]+)"
    r"(?:\+tf32=(?P<tf32>True|False))?"
)
_DTYPE = re.compile(r"torch\.(\w+)")
_SCALARS = "alpha=1&beta=1"
_TMA = {
    "TMA_SIZE": 128,
    "TMA_EXPERIMENTAL_API": False,
    "tma_store": False,
    "transpose_discontiguous_tensor_descriptors_override": True,
}
"""More arguments of the template for tensor descriptors, with Triton 3.4 or later and Inductor's default settings."""


def read(path: Path, facts: Facts, skipped: Skipped) -> Table:
    """Return the table. Rows for another device, or without a config for them, are skipped."""
    answers_of: dict[Problem, list[Config]] = {}
    document = read_json(path, dict, "Inductor's lookup table, an object", facts.contents)
    devices = dict.fromkeys(found["device"] for key in document if (found := _KEY.fullmatch(key)) and found["device"])
    hardware = known_hardware(facts, path, *devices)
    for key, rows in sorted(document.items(), key=lambda item: _rank(item[0])):
        if not isinstance(rows, list):
            raise ExchangeError(f"{path}: not Inductor's lookup table: {key}: {type(rows).__name__} instead of a list")
        with counting(skipped, len(rows)):
            configs = answers_of.setdefault(_problem(key, hardware, tf32=facts.dtype == "tf32"), [])
            configs += (config for config in _configs(rows, skipped) if config not in configs)
    return exact_table(hardware, answers_of)


def write(table: Table, problems: Iterable[Problem], facts: Facts, skipped: Skipped) -> bytes:
    """Return the dictionary for packed operands on the table's device.

    Sizes must be static, because EVEN_K depends on them. Keys do not distinguish float32 and tf32, so problems of only
    one type are written: tf32 if ``facts`` names it.
    """
    document: dict[str, list[dict[str, Any]]] = {}
    for problem, entry in answers(table, problems, skipped):
        with counting(skipped):
            if problem.dtype == ("float32" if facts.dtype == "tf32" else "tf32"):
                raise ProblemError(
                    f"{problem.dtype}: keys do not tell float32 from tf32 (--dtype says which to export)"
                )
            rows = [row for config in entry.configs for row in _rows(config, problem, table.hardware)]
            document |= {key: rows for key, rows in _keyed(problem, table.hardware, rows).items() if rows}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def _problem(text: str, hardware: Hardware, *, tf32: bool) -> Problem:
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
    *_, a, b = (Operand(tuple(sizes), tuple(strides)) for _, sizes, strides in _literal(key["operands"]))
    tf32 = key["tf32"] == "True" if key["tf32"] else tf32
    return problem_of(key["op"], "tf32" if tf32 and dtype == "float32" else dtype, a, b)


def _literal(operands: str) -> Any:
    try:
        return literal(_DTYPE.sub(r"'\1'", operands))
    except ValueError:
        raise ProblemError("keys that are not Inductor's") from None


def _configs(rows: Iterable[Any], skipped: Skipped) -> Iterator[Config]:
    for row in rows:
        with counting(skipped):
            yield _config(row["template_id"], row)


def _config(uid: str, row: dict[str, Any]) -> Config:
    template = TEMPLATE_OF_UID.get(uid)
    if template is None:
        raise ProblemError(f"template {uid!r}")
    fields = {name: row.get(kwarg) for name, kwarg in KWARGS[template].items()}
    return Config.from_json({"template": template, **fields})


def _kwargs(config: Config) -> dict[str, int]:
    """Return the tunables as Inductor's keyword arguments. ProblemError if a tunable has none."""
    names = KWARGS[config.template]
    for name in config.tunables:
        if name not in names:
            raise ProblemError(f"{name}, which Inductor's table has no name for")
    return {names[name]: value for name, value in config.tunables.items()}


def _rows(config: Config, problem: Problem, hardware: Hardware) -> Iterator[dict[str, Any]]:
    """Yield the config with all arguments of the template, or nothing if the template cannot compute the op."""
    for uid in UIDS[config.template].get(problem.op, ())[:1]:
        row: dict[str, Any] = {"template_id": uid, **_kwargs(config)}
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


def _rank(key: str) -> tuple[bool, bool]:
    """Return the order of a problem's keys: with a device first, with a vector as bias (for ATen alone) last."""
    return key.startswith("(("), re.search(r"\(\(torch\.\w+, \[\d+\],", key) is not None
