"""Why nothing is fused behind a matmul, once Inductor's scheduler has fused what it fuses."""

from __future__ import annotations

from collections.abc import Iterator

from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import BaseSchedulerNode, ExternKernelSchedulerNode, NopKernelSchedulerNode, Scheduler

NOTHING = "no pointwise work follows, but another op or nothing"
UNKNOWN = "no row and no model knows the epilogue"
SLOWER = "a second kernel for the epilogue is faster"
ROWS = "rows are not aligned, and the epilogue reads other tensors or writes padded rows"
LAYOUT = "a layout is not the one that the kernel is for"
ELSEWHERE = "the epilogue is fused into another matmul"
REDUCES = "the epilogue reduces"
MUTATES = "the epilogue writes into a tensor that is there already"
ORDER = "the epilogue reads the result in another order, or a part of it"
OTHER_KERNEL = "another matmul follows, or another op with a kernel of its own"
INDUCTOR = "Inductor does not fuse what follows"

_BY_PRIORITY = (ELSEWHERE, REDUCES, MUTATES, ORDER, INDUCTOR, OTHER_KERNEL)
"""Which reason is given where several nodes read the result and each has a reason of its own."""


def why_unfused(scheduler: Scheduler, matmul: BaseSchedulerNode) -> str:
    """Why the scheduler has not even asked whether to fuse something behind a matmul."""
    found = {_why_not(scheduler, matmul, reader) for reader in _readers(matmul)}
    return next((reason for reason in _BY_PRIORITY if reason in found), NOTHING)


def _readers(node: BaseSchedulerNode) -> Iterator[BaseSchedulerNode]:
    for buffer in node.get_outputs():
        for user in buffer.users:
            if isinstance(user.node, BaseSchedulerNode) and not user.is_weak:
                yield user.node


def _why_not(scheduler: Scheduler, matmul: BaseSchedulerNode, reader: BaseSchedulerNode) -> str:
    if isinstance(reader, NopKernelSchedulerNode):
        return NOTHING  # a concatenation that the matmul has written already
    if reader.is_template() or isinstance(reader, ExternKernelSchedulerNode):
        return OTHER_KERNEL
    fused = scheduler.name_to_fused_node[reader.get_name()]
    if fused.is_template():
        return ELSEWHERE
    if fused.is_reduction():
        return REDUCES
    if reader.has_aliasing_or_mutation():
        return MUTATES
    return INDUCTOR if shared(matmul, reader) else ORDER


def shared(node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> set[MemoryDep]:
    """What one node writes and the other reads, behind views too.

    Torch 2.11 does not see that: indices with another number of variables are different ones to it.
    """
    writes, reads = node1.read_writes.writes, node2.read_writes.reads
    return {dep.normalize() for dep in writes if isinstance(dep, MemoryDep)} & {
        dep.normalize() for dep in reads if isinstance(dep, MemoryDep)
    }
