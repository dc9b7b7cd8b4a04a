"""The last word on a list of candidates, after backends that ask no choices handler have added theirs.

CUTLASS, Composable Kernel, external matmuls and the CPU's C++ templates are appended behind the hook's back. Inductor
lets a preprocessing function see the whole list.
"""

from __future__ import annotations

from torch._inductor.ir import ChoiceCaller

from diode_lut.domain.errors import MissError
from diode_lut.inductor.answer import MARK, CannotRun, answer, in_force
from diode_lut.inductor.cpp import cpp_caller
from diode_lut.inductor.describe import describe
from diode_lut.inductor.offers import aten_of, problem_of_aten
from diode_lut.inductor.snapshot import snapshot
from diode_lut.inductor.switch import leave
from diode_lut.kernels.config import Config


def filter_choices(choices: list[ChoiceCaller]) -> list[ChoiceCaller]:
    """Those that the hook marked, where there are any; what the table says, on the CPU; else all."""
    marked = [choice for choice in choices if MARK in choice.annotations]
    if marked:
        return marked
    try:
        return (_from_table(choices) if in_force() else None) or choices
    except MissError:
        raise  # as the setting strict has it
    except Exception as error:
        leave("a product", error)
        return choices


def _from_table(choices: list[ChoiceCaller]) -> list[ChoiceCaller] | None:
    """What the table says about a product on the CPU, where the hook has not been asked or did not see all."""
    aten = aten_of(choices)
    if aten is None or aten.input_nodes[0].get_device_or_error().type != "cpu":
        return None
    problem = problem_of_aten(aten)
    if problem is None:
        return None

    def find(config: Config) -> ChoiceCaller:
        offered = next((choice for choice in choices if describe(choice) == config), None)
        if offered is None and config.template == "cpp_gemm":
            offered = cpp_caller(aten, problem)
        if offered is None:
            raise CannotRun("Inductor does not offer it here")
        return offered

    found = answer(snapshot().decide(problem, "cpu"), find)
    return found if found is None or _can_be_timed(choices) else found[:1]


def _can_be_timed(choices: list[ChoiceCaller]) -> bool:
    """Whether Inductor could benchmark candidates for this product: it needs to know the layout of their result.

    Its lowerings of packed linears work that out under max-autotune alone.
    """
    return all(choice.layout is not None for choice in choices)
