"""Record the answers of the shipped tables and models, and compare those of another checkout with them.

``python tools/golden.py`` writes the answers of this checkout to tests/golden.msgpack.zst. With ``--compare`` it prints
the answers that differ from those in the file, and exits with 1 if there are any. ``--every 20`` asks a twentieth.

An answer is its tier, its file, the key of its row, and its first configs. The problems are those of all datasets, the
corners of every row and the problems just outside of them, problems drawn at random, and problems with sizes that may
change. The hardware is the H200 and the H100.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zstandard

from diode_lut.dataset import read_dataset
from diode_lut.decide.catalog import find_hardware, sources_for
from diode_lut.decide.decide import Axis, Sources, decide
from diode_lut.decide.sources import Decision, Threshold
from diode_lut.measure.problems import random_problems
from diode_lut.problem import DOMAINS, GEMMS, GENERATED, MAX_SIZE, OP_SIZES, RANKED, TOGETHER, Problem
from diode_lut.settings import Settings
from diode_lut.table import Entry, read_table
from diode_lut.table.format import key_text

TABLES = Path(__file__).parents[1] / "tables"
HARDWARE = ("nvidia-h200", "nvidia-h100")
DRAWN, DYNAMIC = 100_000, 200  # numbers of problems that are drawn at random, and of those whose sizes may change
LEFT_OUT = (*GENERATED, *TOGETHER)  # their rows are good on average, and other timings make other rows
CONFIGS = 3  # number of configs of an answer that are compared; the first of them is what runs

Ask = Callable[[Sources], str]


def main() -> None:
    """Write the answers, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=TABLES.parent / "tests" / "golden.msgpack.zst")
    parser.add_argument("--compare", action="store_true", help="compare with FILE instead of writing it")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="compare one of N questions")
    arguments = parser.parse_args()
    if not arguments.compare:
        write(arguments.file)
        return
    different = list(differences(arguments.file, arguments.every))
    print("\n".join(different[:50]))
    print(f"{len(different)} answers differ")
    raise SystemExit(bool(different))


def write(path: Path) -> None:
    """Write the answers of this checkout to ``path``, each text once."""
    texts: dict[str, int] = {}
    groups = dict(all_questions())
    answers = {
        f"{hardware} {name}": np.array(
            [texts.setdefault(answer, len(texts)) for _, answer in answered(hardware, questions)], np.uint32
        ).tobytes()
        for hardware in HARDWARE
        for name, questions in groups.items()
    }
    path.write_bytes(zstandard.compress(msgpack.packb({"texts": list(texts), "answers": answers}), 19))


def differences(path: Path, every: int) -> Iterator[str]:
    """Each question whose answer is not the one in the file, with both answers; one of ``every`` questions is asked."""
    golden = msgpack.unpackb(zstandard.decompress(path.read_bytes()))
    groups = dict(all_questions())
    for hardware in HARDWARE:
        for name, questions in groups.items():
            expected = np.frombuffer(golden["answers"][f"{hardware} {name}"], np.uint32)
            assert len(expected) == len(questions), f"{name}: other questions than in {path}"
            before = [golden["texts"][number] for number in expected[::every]]
            for (question, answer), known in zip(answered(hardware, questions[::every]), before, strict=True):
                if answer != known:
                    yield f"{hardware} {name}: {question}\n  before: {known}\n  now:    {answer}"


def answered(hardware: str, questions: Sequence[tuple[str, Ask]]) -> Iterator[tuple[str, str]]:
    """Each question with its answer under the default settings."""
    settings = Settings()
    sources = sources_for(find_hardware(hardware, ()), settings, ())
    for question, ask in questions:
        yield question, ask(sources)


def all_questions() -> Iterator[tuple[str, list[tuple[str, Ask]]]]:
    """The questions in groups, each with the group's name."""
    every = (record.problem for path in _datasets() for record in read_dataset(path))
    measured = list(dict.fromkeys(problem for problem in every if problem.op not in LEFT_OUT))
    for padding in (True, False):
        yield f"measured, padding {padding}", [_one(problem, padding) for problem in measured]
    for name in HARDWARE:
        entries = read_table(TABLES / f"{name}.json").entries
        corners = list(
            dict.fromkeys(problem for entry in entries if entry.op not in LEFT_OUT for problem in _corners(entry))
        )
        yield f"corners of {name}", [_one(problem, padding=True) for problem in corners]
    yield "drawn", [_one(problem, padding=True) for problem in _drawn(DRAWN)]
    choose = random.Random(3)
    gemms = [problem for problem in measured if problem.op in GEMMS]
    yield "dynamic", [question for problem in choose.sample(gemms, DYNAMIC) for question in _dynamic(problem)]


def _datasets() -> list[Path]:
    return sorted((TABLES / "datasets").rglob("*.msgpack.zst"))


def _corners(entry: Entry) -> Iterator[Problem]:
    """The problems at all ends of the row's ranges, and those that are one step outside of one range."""
    assert entry.op is not None
    sizes = OP_SIZES[entry.op]
    ranges: dict[str, Any] = {name: getattr(entry, name) or (1, 1 << 14) for name in sizes}
    dtypes, layouts, epilogues, variants = DOMAINS[entry.op]
    first = Problem(
        entry.op,
        entry.dtype or dtypes[0],
        entry.layout or layouts[0],
        entry.align or 16,
        *(1, 1, 1, 1),
        entry.epilogue or epilogues[0],
        entry.variant or variants[0],
    )
    for ends in product(*(dict.fromkeys(ranges[name]) for name in sizes)):
        corner: dict[str, Any] = dict(zip(sizes, ends, strict=True))
        yield first._replace(**corner)
    lowest: dict[str, Any] = {name: low for name, (low, _) in ranges.items()}
    for name, (low, high) in ranges.items():
        for size in (low - 1, high + 1):
            if 1 <= size <= MAX_SIZE:
                yield first._replace(**{**lowest, name: size})


def _drawn(count: int) -> Iterator[Problem]:
    """Plain GEMMs of all kinds, some with epilogues, and a tenth as many matmuls of bytes near measured layers."""
    kinds = {"ops": GEMMS, "dtypes": DOMAINS["mm"].dtypes, "layouts": DOMAINS["mm"].layouts}
    choose = random.Random(5)
    for number, log_normal in enumerate((True, False)):
        for problem in random_problems(count * 45 // 100, seed=number, log_normal=log_normal, **kinds):
            yield problem._replace(epilogue=choose.choice(DOMAINS["mm"].epilogues))
    for _ in range(count // 10):
        op = choose.choice([op for op in RANKED if op not in GEMMS])
        domain = DOMAINS[op]
        m, n, k = (round(2 ** choose.uniform(low, high)) for low, high in ((0, 13), (5, 14), (5, 14)))
        values = (choose.choice(domain.dtypes), choose.choice(domain.layouts), 16, 1, m, n // 16 * 16, k // 16 * 16)
        yield Problem(op, *values, choose.choice(domain.epilogues), choose.choice(domain.variants))


def _one(problem: Problem, padding: bool) -> tuple[str, Ask]:
    def ask(sources: Sources) -> str:
        return _text(decide(sources, problem, Threshold.of(Settings()), padding=padding).decision)

    return str(problem), ask


def _dynamic(problem: Problem) -> Iterator[tuple[str, Ask]]:
    """One decision for all values of M, and its pieces, with bounds and without; and for M and N that change alike."""
    threshold, most = Threshold.of(Settings()), Settings().dynamic_kernels

    def over(*axes: Axis) -> Ask:
        return lambda sources: _text(decide(sources, problem, threshold, axes=axes).decision)

    def pieces(axis: Axis) -> Ask:
        def ask(sources: Sources) -> str:
            found = decide(sources, problem, threshold, axes=(axis,)).pieces(most, library=True)
            return "; ".join(f"{piece.high} {piece.config} {_text(piece.decision)}" for piece in found)

        return ask

    for low, high in ((1, None), (2, 64), (16, 4096)):
        axis = Axis(("m",), low, high)
        yield f"{problem}, {axis}", over(axis)
        yield f"{problem}, pieces of {axis}", pieces(axis)
    both = (Axis(("m",), 2, 4096), Axis(("n",), 16, 4096))
    yield f"{problem}, {both[0]} and {both[1]}", over(*both)


def _text(decision: Decision) -> str:
    file = "" if decision.source is None or decision.source.path is None else decision.source.path.name
    row = "" if decision.entry is None else key_text(decision.entry)
    return " | ".join((decision.tier, file, row, ", ".join(map(str, decision.configs[:CONFIGS]))))


if __name__ == "__main__":
    main()
