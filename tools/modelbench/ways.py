"""Ways to compile the same work."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from modelbench.dynamic import bound, fresh
from torch import Tensor
from torch._inductor.graph import GraphLowering

import diode_lut


class Way(NamedTuple):
    """How a case is compiled: which of its functions, the setting ``policy``, and options of Inductor."""

    function: str
    policy: str = "off"
    options: Mapping[str, Any] = {}


class Compiled(NamedTuple):
    """What runs a function, the code that Inductor generated for it, and its results."""

    step: Callable[[], Any]
    code: str
    results: Any

    @property
    def kernels(self) -> int:
        """How many kernels a call launches."""
        return len(re.findall(r"\.run\(|extern_kernels\.\w+\(|torch\.ops\.aten\.\w+\.\w+\(", self.code))


def compiled(function: Callable[..., Any], operands: Sequence[Tensor], way: Way) -> Compiled:
    """The function, compiled and called once. Inductor's ``run_and_get_code`` would forget what was compiled before."""
    codes: list[str] = []
    with diode_lut.config.patch(policy=way.policy), mock.patch.object(GraphLowering, "save_output_code", codes.append):
        run = torch.compile(fresh(function), dynamic=False, options=dict(way.options) or None)
        results = run(*operands)
    return Compiled(bound(run, operands), "\n".join(codes), results)
