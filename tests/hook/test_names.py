import pytest
import torch
from torch._inductor.lowering import lowerings
from torch._inductor.select_algorithm import TritonTemplate
from triton.runtime.errors import OutOfResources

from diode_lut.dataset import REASONS
from diode_lut.hook.versions import KWARGS, UIDS, failure_reason
from diode_lut.templates.config import TEMPLATES

SHARED_MEMORY = OutOfResources(327680, 232448, "shared memory")
TENSOR_MEMORY = OutOfResources(1024, 512, "tensor memory")


@pytest.mark.parametrize(
    ("error", "stage", "reason"),
    [
        (SHARED_MEMORY, "compile", "shared_memory"),
        (RuntimeError(f"No valid triton configs. OutOfResources: {SHARED_MEMORY}"), "launch", "shared_memory"),
        (TENSOR_MEMORY, "compile", "compile"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80.00 GiB."), "launch", "out_of_memory"),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "launch", "out_of_memory"),
        (TimeoutError(), "compile", "timeout"),
        (RuntimeError("benchmark timed out after 60s"), "launch", "timeout"),
        (AssertionError("Incorrect result from choice"), "launch", "wrong_result"),
        (AssertionError("bad tile"), "compile", "compile"),
        (RuntimeError("CUDA error: invalid argument"), "launch", "launch"),
        (NotImplementedError("no kernel"), "compile", "compile"),
    ],
)
def test_reason_is_what_the_error_says_else_the_stage(error: Exception, stage: str, reason: str) -> None:
    """An error that names a cause gives that cause, any other the stage in which it came; all are dataset reasons."""
    assert failure_reason(error, stage) == reason
    assert reason in REASONS


def test_inductor_has_each_triton_template_under_its_uid() -> None:
    """Once Inductor can lower a matmul, it has a template for each uid that we name for a Triton template."""
    assert lowerings
    uids = {template.uid for template in TritonTemplate.all_templates.values()}
    named = {UIDS[template.name][op][0] for template in TEMPLATES.values() if template.tiled for op in template.ops}
    assert named <= uids


def test_each_template_has_its_names_in_inductor() -> None:
    """Uids and keyword arguments are named for each template; uids only for ops that it computes."""
    assert UIDS.keys() == KWARGS.keys() == TEMPLATES.keys()
    for name, template in TEMPLATES.items():
        assert UIDS[name].keys() <= set(template.ops)
        assert KWARGS[name].keys() <= set(template.names)
