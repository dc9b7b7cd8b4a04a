"""vLLM's tuned configs of quantized linear layers: files ``N=1536,K=7168,device_name=NVIDIA_H200,dtype=...json``.

``{"64": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4,
"num_stages": 3}}`` has a config for each M. The weights are N x K. They were tuned for 8-bit types, which tables do not
have, so the user names the type to try them for. Files with ``E=`` in their names are for fused mixtures of experts,
which tables do not know as GEMMs. Files for AMD's GPUs have its own tunables, too, and some have no ``num_stages``.
Source: vllm/model_executor/layers/quantization/utils/configs and vllm/model_executor/layers/fused_moe/configs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from diode_lut.errors import ExchangeError, ProblemError
from diode_lut.formats.content import Facts, Skipped, counting, exact_table, known_hardware, read_json
from diode_lut.hardware import architecture
from diode_lut.problem import Problem
from diode_lut.table import Table
from diode_lut.templates.config import POINTER_TUNABLES, Config, pointer_gemm

_NAMES = dict(zip(POINTER_TUNABLES, POINTER_TUNABLES, strict=True)) | {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
}
_STAGES = {"cuda": 3, "hip": 2}
"""Triton's default for each backend, for files without ``num_stages``."""


def read(path: Path, facts: Facts, skipped: Skipped) -> Table:
    """Make a row for each M of the file, of ``mm`` with layout ``nt`` and the user's type."""
    said = dict(re.findall(r"(\w+)=([^,]+?)(?=,|\.json$)", path.name))
    if "E" in said:
        raise ExchangeError(f"{path}: is for a fused mixture of experts, which is none of the GEMMs that tables have")
    if not {"N", "K"} <= said.keys():
        raise ExchangeError(f"{path}: the name does not say N and K, as vLLM's do: N=1536,K=7168,device_name=...json")
    if facts.dtype is None:
        what = (
            f"its type is {said['dtype']}, which is none that tables have"
            if "dtype" in said
            else "its name says no type"
        )
        raise ExchangeError(f"{path}: {what}: give that of the GEMMs with --dtype")
    hardware = known_hardware(facts, path, said.get("device_name", "").replace("_", " "))
    found: dict[Problem, list[Config]] = {}
    for m, row in read_json(path, dict, "vLLM's configs, an object", facts.contents).items():
        with counting(skipped):
            op = facts.op or "mm"
            problem = Problem.of(
                op, int(m), int(said["N"]), int(said["K"]), dtype=facts.dtype, layout=facts.layout or "nt"
            )
            found[problem] = [_config(op, row, _STAGES.get(architecture(hardware.arch).triton))]
    return exact_table(hardware, found)


def _config(op: str, row: Any, num_stages: int | None) -> Config:
    if not isinstance(row, dict):
        raise ProblemError("configs that are no objects")
    unknown = row.keys() - {*_NAMES.values()}
    if unknown:
        raise ProblemError(f"{min(unknown)}, which no config has")
    row = {"num_stages": num_stages, **row}
    return Config.from_json({"template": pointer_gemm(op), **{name: row.get(key) for name, key in _NAMES.items()}})
