"""Recording the kernels that Inductor generates for a program of ``run`` or ``tune``: what it takes to measure one.

A record has the kernel's problem, its source, and the types, shapes and strides of its arguments, not their values. A
function here stands in the place of Inductor's, as ``patches`` lists it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch

from diode_lut.errors import let_pass
from diode_lut.files import write_atomically
from diode_lut.hook.generated import variant_of_reduction, variant_of_tiles
from diode_lut.hook.versions import FORMS, KWARGS
from diode_lut.log import warn_once
from diode_lut.probe import RECORDING
from diode_lut.problem import Problem

_MARK = "_diode_lut_recorded"


def run_kernel(run: Callable[..., Any], kernel: Any, *arguments: Any, **named: Any) -> Any:
    """Run a Triton kernel, and record it the first time."""
    if not hasattr(kernel, _MARK):
        setattr(kernel, _MARK, True)
        try:
            _record(kernel, arguments)
        except Exception as error:
            let_pass(error)
            warn_once(f"a generated kernel is not recorded: {error!r}")
    return run(kernel, *arguments, **named)


def _record(kernel: Any, arguments: Sequence[Any]) -> None:
    """Write what it takes to measure a kernel, unless tables have no row for any like it."""
    template = FORMS.get(kernel.heuristic_type.name)
    if template is None:
        return
    blocks = {name for name in KWARGS[template].values() if name.endswith("BLOCK")}
    sizes = {name: value for name, value in zip(kernel.fn.arg_names, arguments, strict=False) if name.endswith("numel")}
    known = {"xnumel", "ynumel"} if template == "pointwise" else {"xnumel", "r0_numel"}
    compiled = (each.config for each in (*kernel.launchers, *kernel.compile_results))  # there are no ``configs`` then
    kwargs = next(iter(kernel.configs or compiled)).kwargs
    if set(kwargs) not in (blocks, blocks - {"YBLOCK"}) or not sizes.keys() <= known:
        return
    meta, x, y = kernel.inductor_meta, sizes["xnumel"], sizes.get("ynumel", 1)
    scores = meta.get("tiling_scores") or {}
    if template == "pointwise":
        variant = variant_of_tiles(scores) if "ynumel" in sizes else "flat"
        problem = Problem.generated("pointwise", variant, x=x, y=y, loads=max(meta["num_load"], 1))
    else:
        variant = variant_of_reduction(meta["reduction_hint"], scores)
        problem = Problem.generated("reduction", variant, x=x, r=sizes["r0_numel"])
    described = [
        [str(each.dtype).removeprefix("torch."), list(each.shape), list(each.stride())]
        if isinstance(each, torch.Tensor)
        else each
        for each in arguments
    ]
    source = Path(kernel.filename).read_text(encoding="utf-8")
    record = orjson.dumps({**problem.to_json(), "source": source, "arguments": described})
    name = hashlib.sha256(record).hexdigest()[:16]
    write_atomically(Path(os.environ[RECORDING]) / f"{name}.json", record)
