"""Choose the order of the shipped problem set from timings: ``python tools/choose_problems.py OUT DATASET...``.

GEMMs whose best kernel gains most over ``aten`` come first. They come in blocks of one op, dtype, layout and alignment,
which share compiled kernels, and blocks of all dtypes take turns. GEMMs with an epilogue follow at the end.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from write_problem_sets import as_file

from diode_lut.build.measurements import measurements_of
from diode_lut.dataset import Record, read_dataset
from diode_lut.files import write_atomically
from diode_lut.measure.problems import BLOCK
from diode_lut.measure.tasks import Family, family_of
from diode_lut.problem import NO_EPILOGUE, Problem

Block = list[tuple[float, Problem]]  # problems with the best time over that of aten


def main() -> None:
    """Write the set."""
    out, *inputs = map(Path, sys.argv[1:])
    records = (record for path in inputs for record in read_dataset(path))
    write_atomically(out, as_file(ordered(records)))


def ordered(records: Iterable[Record]) -> Iterator[Problem]:
    """The problems of the records, the most useful first; epilogues last."""
    measurements = measurements_of(records)
    ratios = 1 / measurements.aten
    found = sorted(zip(ratios.tolist(), measurements.problems, strict=True))
    for fused in (False, True):
        chosen = [each for each in found if (each[1].epilogue != NO_EPILOGUE) == fused]
        for block in _taking_turns(_blocks(chosen)):
            yield from (problem for _, problem in block)


def _blocks(found: Block) -> list[Block]:
    """Blocks of one family each, that which gains most first."""
    families: defaultdict[tuple[Family, str], Block] = defaultdict(list)
    for ratio, problem in found:
        families[family_of(problem), problem.epilogue].append((ratio, problem))
    blocks = [family[at : at + BLOCK] for family in families.values() for at in range(0, len(family), BLOCK)]
    return sorted(blocks, key=lambda block: sum(ratio for ratio, _ in block) / len(block))


def _taking_turns(blocks: list[Block]) -> list[Block]:
    """The blocks of each dtype in their order, spread evenly over the whole."""
    dtypes: defaultdict[str, list[Block]] = defaultdict(list)
    for block in blocks:
        dtypes[block[0][1].dtype].append(block)
    placed = [
        ((number + 0.5) / len(queue), dtype, block)
        for dtype, queue in dtypes.items()
        for number, block in enumerate(queue)
    ]
    return [block for *_, block in sorted(placed, key=lambda each: each[:2])]


if __name__ == "__main__":
    main()
