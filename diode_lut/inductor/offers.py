"""What a finished list of candidates is about: the problem behind it, read off the candidates themselves.

That is how products are known which never pass a choices handler: on the CPU, a product with frozen weights becomes a
"packed linear" of MKL or oneDNN.
"""

from __future__ import annotations

from torch._inductor.ir import ChoiceCaller, FixedLayout, ReinterpretView
from torch._inductor.kernel_inputs import MMKernelInputs
from torch._inductor.lowering import permute
from torch._inductor.select_algorithm import realize_inputs

from diode_lut.domain.problem import Problem
from diode_lut.inductor.describe import MKL_LINEAR, describe
from diode_lut.inductor.problems import problem_of
from diode_lut.inductor.templates import UIDS
from diode_lut.kernels.config import ATEN

_OP_OF_UID = {uid: op for op, uids in UIDS["aten"].items() for uid in uids}


def problem_of_aten(aten: ChoiceCaller) -> Problem | None:
    """The problem that the aten candidate of a list computes; None if it is none that a table can speak of."""
    ktc = aten.annotations.get("ktc")
    if ktc is not None:
        return problem_of(ktc.inputs, _OP_OF_UID[ktc.template.uid])
    return _linear_problem(aten)


def _linear_problem(aten: ChoiceCaller) -> Problem | None:
    """The problem of a packed linear: x (M, K) times a frozen weight (N, K), whose bias only oneDNN's form knows of.

    oneDNN's weight has no strides to read any more; it counts as column-major, as ``nn.Linear`` has it.
    """
    x, *others = aten.input_nodes
    x = realize_inputs(x)  # type: ignore[no-untyped-call]  # it may still be what computes it, without strides
    if aten.name == MKL_LINEAR:
        return problem_of(MMKernelInputs([x, permute(others[-1], [1, 0])]), "mm")
    n, k = others[0].get_size()
    layout = FixedLayout(x.get_device_or_error(), others[0].get_dtype(), [k, n], [1, k])
    weight = ReinterpretView(data=others[0], layout=layout)
    problem = problem_of(MMKernelInputs([x, weight]), "mm")
    return problem if problem is None or len(others) == 1 else problem._replace(op="addmm")


def aten_of(choices: list[ChoiceCaller]) -> ChoiceCaller | None:
    """The candidate that calls a library, as PyTorch does without Inductor: cuBLAS, MKL, oneDNN."""
    return next((choice for choice in choices if describe(choice) == ATEN), None)
