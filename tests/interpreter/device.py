"""``interpreter_cuda()``: a CUDA device on which torch.compile runs end to end without a GPU.

Tensors on "cuda" lie in the host's memory (device.cpp), library kernels are the CPU's, and Triton's interpreter
executes what Inductor generates, forward and backward. It is for results, not for times: a kernel takes milliseconds.

Loading the device changes what "cuda" means in the whole process, for good, so a process of its own is needed::

    from tests.interpreter.device import interpreter_cuda

    with interpreter_cuda():
        import torch

        torch.compile(torch.relu)(torch.randn(4, 4).to("cuda"))
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.interpreter.library import load


@contextmanager
def interpreter_cuda() -> Iterator[None]:
    """Have "cuda" be such a device, with the properties of an H200.

    torch must not be imported yet when this is entered for the first time; RuntimeError if it is. UnavailableError
    where there can be no such device.
    """
    load()
    from tests.fake_cuda import fake_cuda
    from tests.interpreter.inductor import patched_inductor
    from tests.interpreter.triton_language import complete_triton

    with ExitStack() as stack:
        stack.enter_context(fake_cuda())
        stack.enter_context(complete_triton())
        stack.enter_context(patched_inductor())
        yield


def overruns() -> int:
    """How many of the device's allocations that are freed by now were written beside."""
    import torch

    return int(torch.ops.interpreter_device.overruns())
