"""The templates of kernels that Inductor generates: pointwise work, and reductions that loop over r or keep it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from diode_lut.hardware import Architecture
from diode_lut.problem import SPLIT, Problem, rounded_up
from diode_lut.templates.template import Complaint, Covered, Parameter, Params, Template

_BLOCKS = tuple(1 << power for power in range(17))
_LARGEST_BLOCKS = {"x": 4096, "y": 1024, "r": 1 << 16}  # the largest blocks in Inductor's kernels, by dimension
MAX_ELEMENTS = 1 << 16  # of a block in all dimensions: with more, kernels spill or take minutes to compile
MAX_PER_THREAD = 128  # elements of a block for each thread: as many values leave no registers to compute with
_MAX_PERSISTENT = 1 << 13  # maximum r, rounded up to a power of two, that a persistent reduction keeps


MAX_STEPS = 256
"""Maximum steps of a loop over r, whose results are added up one after the other.

The error of a sum of random numbers grows with the root of their number, so 256 have three times that of a few.
"""


def least_step(variant: str, r: int) -> int:
    """Return the least elements along r of a step of a loop, for sums to be about as exact as Inductor's.

    Inductor's own configs always have as many: some 1,024 if r is contiguous, and otherwise at least 4.
    """
    return min(-(-r // MAX_STEPS), 512 if variant == "inner" else 4)


def _block(dimension: str, letter: str, meaning: str, default: int | None = None) -> Parameter:
    blocks = tuple(block for block in _BLOCKS if block <= _LARGEST_BLOCKS[dimension])
    return Parameter(f"block_{dimension}", letter, blocks, f"Block {dimension.upper()}", meaning, default)


_BLOCK_X = _block("x", "x", "Elements along x that one program computes.")
_WARPS = Parameter("num_warps", " w", (1, 2, 4, 8, 16, 32), "Warps", "Groups of threads in one program.", option=True)
_STAGES = Parameter(
    "num_stages", " s", range(1, 9), "Stages", "Depth of the software pipeline. Left out, 1.", default=1, option=True
)


@dataclass(frozen=True)
class Generated(Template):
    """A kernel that Inductor generates."""

    persistent: bool = False  # whether it keeps all elements along r that are reduced to one

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about blocks that leave a thread no registers for any reduction."""
        yield from super().complaints(params, covered, architecture)
        smallest = Problem(self.ops[0], "", "", 16, 1, 1, 1, 1)
        yield from self.faults_on(smallest, params, architecture)

    def faults_on(self, problem: Problem, params: Params, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about blocks that leave a thread no registers, and about an r that is too long to keep or to add."""
        values, kept = self.values(params), 1
        warps, step = values["num_warps"], values.get("block_r")
        if self.persistent:
            kept = rounded_up(problem.r)
            if kept > _MAX_PERSISTENT:
                yield Complaint(f"a persistent reduction keeps r up to {_MAX_PERSISTENT}, not {problem.r}")
        if step is not None and step < (least := least_step(problem.variant, problem.r)):
            yield Complaint(
                f"{problem.r} elements would be added up in steps of {step} (allowed: from {least})", "block_r"
            )
        elements = values["block_x"] * max(values.get("block_y", 1), 1) * (step or 1) * kept
        most = min(MAX_ELEMENTS, MAX_PER_THREAD * architecture.warp_size * warps)
        if elements > most:
            yield Complaint(f"{elements} elements in a block of {warps} warps (allowed: {most})", "num_warps")


POINTWISE = Generated(
    "pointwise",
    ("pointwise",),
    (
        _BLOCK_X,
        _WARPS,
        _block("y", "y", "Elements along y that one program computes, in a tiled kernel.", default=0),
        _STAGES,
    ),
    "A kernel that Inductor generates for pointwise work.",
)
LOOPED_REDUCTION = Generated(
    "looped_reduction",
    ("reduction",),
    (_BLOCK_X, _block("r", "r", "Elements along r that one step of the program's loop takes."), _WARPS, _STAGES),
    "A reduction that Inductor generates, in a loop over r.",
)
PERSISTENT_REDUCTION = Generated(
    "persistent_reduction",
    ("reduction",),
    (_BLOCK_X, _WARPS, _STAGES),
    "A reduction that Inductor generates, in which a program keeps all of r.",
    persistent=True,
)


@dataclass(frozen=True)
class SplitReduction(Template):
    """A number of parts into which Inductor splits a reduction."""

    def complaints(self, params: Params, covered: Covered, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about parts that are too many for the longest r."""
        yield from super().complaints(params, covered, architecture)
        if covered.r is not None:
            longest = Problem(SPLIT, "", "", 16, 1, 1, 1, 1, r=max(covered.r))
            yield from self.faults_on(longest, params, architecture)

    def faults_on(self, problem: Problem, params: Params, architecture: Architecture) -> Iterator[Complaint]:
        """Complain about parts with fewer elements along r than a warp has threads."""
        (parts,), least = params, architecture.warp_size
        if parts > 1 and problem.r < parts * least:
            yield Complaint(f"{problem.r} elements in {parts} parts (allowed: {least} in each)", "parts")


SPLIT_REDUCTION = SplitReduction(
    "in_parts",
    (SPLIT,),
    (Parameter("parts", "p", tuple(1 << power for power in range(13)), "Parts", "Number of parts; 1 does not split."),),
    "A reduction whose parts are computed by one kernel, and their results by another.",
)
