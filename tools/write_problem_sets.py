"""Write the shipped sets of problems that follow from the shapes of published models.

``python tools/write_problem_sets.py`` writes attention.json, grouped.json and int8.json.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
from typing import NamedTuple

import orjson

from diode_lut.errors import CollectError
from diode_lut.files import write_atomically
from diode_lut.measure.problems import SETS_DIRECTORY, problem_of
from diode_lut.problem import INT8, NO_EPILOGUE, Problem


def main() -> None:
    """Write the sets."""
    for name, problems in SETS.items():
        write_atomically(SETS_DIRECTORY / f"{name}.json", as_file(problems()))


def as_file(problems: Iterable[Problem]) -> bytes:
    """Return a problem file with a line for each problem, without fields that have their default there."""
    lines = []
    for problem in problems:
        fields = problem.to_json()
        for name in ("layout", "align", "B", "H", "G", "V", "epilogue"):
            others = {each: value for each, value in fields.items() if each != name}
            with suppress(CollectError):
                fields = others if problem_of(others, "") == problem else fields
        lines.append(orjson.dumps(fields))
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


_INT8_LAYERS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    *((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
)
"""N and K of Llama 3 8B and 70B: queries, keys and values, then the output of attention, gate and up, and down."""

_INT8_ROWS = ((32, 17, 64, 128), (512, 2048, 8192))  # M, the largest gains first. PyTorch multiplies no fewer than 17


def int8() -> Iterator[Problem]:
    """Yield about 100 problems in blocks, alone and with scales of rows and columns after them, as models run them."""
    for rows in _INT8_ROWS:
        for epilogue in (NO_EPILOGUE, "light"):
            for m, (n, k) in product(rows, _INT8_LAYERS):
                yield Problem.of("int_mm", m, n, k, dtype=INT8, layout="nt", epilogue=epilogue)


_GROUPED_ROWS = (64, 256, 1024, 4096, 16384)  # tokens times experts of a token, together for all experts


class _Experts(NamedTuple):
    """Number of experts in a layer, the model's width, an expert's width, and the layout."""

    experts: int
    hidden: int
    intermediate: int
    layout: str = "nt"


_GROUPED_MODELS = {
    "Mixtral 8x7B": _Experts(8, 4096, 14336),
    "Qwen3-30B-A3B": _Experts(128, 2048, 768),
    "gpt-oss-20b": _Experts(32, 2880, 2880, "nn"),
    "DeepSeek-V2-Lite": _Experts(64, 2048, 1408),
    "OLMoE-1B-7B": _Experts(64, 2048, 1024),
    "Llama 4 Scout": _Experts(16, 5120, 8192, "nn"),
}
"""Their configurations as published."""


def grouped() -> Iterator[Problem]:
    """Yield 60 problems in bfloat16, gate and up together and down, few rows first: there gains are largest."""
    for rows in _GROUPED_ROWS:
        for experts, hidden, intermediate, layout in _GROUPED_MODELS.values():
            for n, k in ((2 * intermediate, hidden), (hidden, intermediate)):
                yield Problem.of("grouped_mm", rows, n, k, dtype="bfloat16", layout=layout, b=experts)


HEAD_DIMS = (64, 128, 96, 256, 192)  # numbers of elements of a head, the most usual first

_LENGTHS = (4096, 1024, 8192, 2048, 512, 128, 32768)
_TOKENS = 16384  # number of queries of all batches together, if a sequence has fewer

_HEADS = 16
_LARGEST_BATCH = 16


def attention() -> Iterator[Problem]:
    """Yield over 200 problems in bfloat16, the most common first."""
    yield from _forward(("causal",), _LENGTHS)
    yield from _forward(("computed", "captured"), _LENGTHS)
    for k, n in product(HEAD_DIMS, (8192, 1024, 32768)):
        yield _attention("flex_decoding", 1, n, k, "full", b=8, h=32, g=8)
        yield _attention("flex_decoding", 16, n, k, "full", b=1, h=32, g=4)
    yield from _backward(("causal", "captured"), (4096, 1024))
    yield from _forward(("full",), (2048, 512, 8192))
    yield from _forward(("causal-score-computed", "full-score-captured"), (2048, 512, 8192))
    yield from _backward(("computed",), (2048,))
    for length in (1024, 4096, 16384):  # heads of multi-head latent attention
        yield _attention("flex_attention", length, length, 192, "causal", h=32, v=128)
    for k in HEAD_DIMS:  # so few heads that a GPU has multiprocessors left
        yield _attention("flex_decoding", 1, 4096, k, "full", b=1, h=32, g=8)
        for length, variant in product((512, 2048), ("causal", "computed")):
            yield _attention("flex_attention", length, length, k, variant, h=8, g=_group(k))


def _forward(variants: tuple[str, ...], lengths: tuple[int, ...]) -> Iterator[Problem]:
    for length, k, variant in product(lengths, HEAD_DIMS, variants):
        yield _of_model("flex_attention", length, k, variant)


def _backward(variants: tuple[str, ...], lengths: tuple[int, ...]) -> Iterator[Problem]:
    for length, k, variant in product(lengths, HEAD_DIMS, variants):
        yield _of_model("flex_attention_backward", length, k, variant)


def _of_model(op: str, length: int, k: int, variant: str) -> Problem:
    """Return attention with enough batches for _TOKENS."""
    batch = min(max(1, _TOKENS // length), _LARGEST_BATCH)
    return _attention(op, length, length, k, variant, b=batch, h=_HEADS, g=_group(k))


def _group(k: int) -> int:
    return 4 if k >= 128 else 1  # large heads share keys, as in language models


def _attention(
    op: str, m: int, n: int, k: int, variant: str, *, b: int = 1, h: int = 1, g: int = 1, v: int | None = None
) -> Problem:
    return Problem.of(op, m, n, k, dtype="bfloat16", layout="nt", variant=variant, b=b, h=h, g=g, v=v)


SETS = {"attention": attention, "grouped": grouped, "int8": int8}  # the sets by name of the file


if __name__ == "__main__":
    main()
