"""All templates, and configs: a template with the values of its tunables.

A new template needs a module beside this one, a line here, and its names in ``hook/versions.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from diode_lut.errors import ProblemError
from diode_lut.hardware import Architecture
from diode_lut.problem import (
    ATTENTION,
    FUSED,
    GENERATED,
    GROUPED,
    ITEMSIZES,
    JOINED,
    MATMULS,
    ROW_BYTES,
    Problem,
    contiguous_align,
)
from diode_lut.templates.flex_attention import (
    TRITON_FLEX_ATTENTION,
    TRITON_FLEX_ATTENTION_BACKWARD,
    TRITON_FLEX_DECODING,
)
from diode_lut.templates.generated import LOOPED_REDUCTION, PERSISTENT_REDUCTION, POINTWISE, SPLIT_REDUCTION
from diode_lut.templates.template import (
    CPP_GEMM,
    DECOMPOSE_K,
    DEFAULT_CONFIG,
    LIBRARY,
    PAD,
    SMALLEST_BLOCK,
    Template,
    Tiles,
)
from diode_lut.templates.together import QUACK_GEMM, TRITON_FEW_ROWS, TRITON_JOINED_MM
from diode_lut.templates.triton_gemm import TRITON_BMM, TRITON_GROUPED_MM, TRITON_MM, TRITON_MM_PERSISTENT_TMA

TEMPLATES: dict[str, Template] = {
    template.name: template
    for template in (
        LIBRARY,
        *(TRITON_MM, TRITON_BMM, TRITON_MM_PERSISTENT_TMA, DECOMPOSE_K, CPP_GEMM),
        *(DEFAULT_CONFIG, TRITON_FLEX_ATTENTION, TRITON_FLEX_ATTENTION_BACKWARD, TRITON_FLEX_DECODING),
        *(TRITON_GROUPED_MM, TRITON_JOINED_MM, TRITON_FEW_ROWS, QUACK_GEMM),
        *(POINTWISE, LOOPED_REDUCTION, PERSISTENT_REDUCTION, SPLIT_REDUCTION),
    )
}
"""All templates by the name tables use, in the fixed order in which equally good configs are chosen."""

POINTER_TUNABLES = TRITON_MM.names  # the tunables of all of Inductor's plain Triton templates


def pointer_gemm(op: str) -> str:
    """Return the name of Inductor's plain Triton template for an op. ProblemError if there is none."""
    for template in (TRITON_MM, TRITON_BMM):
        if op in template.ops:
            return template.name
    raise ProblemError(f"{op}, for which there is no plain Triton template")


def templates_for(architecture: Architecture, op: str | None = None) -> list[str]:
    """Return the names of an architecture's templates for ops of this kind, by default GEMMs."""
    like = next((ops for ops in (ATTENTION, GROUPED, JOINED, FUSED, GENERATED) if op in ops), MATMULS)
    running = (template for template in TEMPLATES.values() if template.runs_on(architecture))
    return [template.name for template in running if not set(like).isdisjoint(template.ops)]


def _unknown(template: object) -> ProblemError:
    """Return the error for a name that no template has."""
    text = str(template).casefold()
    close = [LIBRARY.name] if text in _LIBRARIES else get_close_matches(text, TEMPLATES, 1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return ProblemError(f"template: {template!r} is not one of {', '.join(TEMPLATES)}{meant}")


_LIBRARIES = ("cublas", "cublaslt", "hipblas", "hipblaslt", "library", "mkl", "onednn", "rocblas")
"""Other names of the library's kernel."""


class Config(NamedTuple):
    """A template and the values of its tunables, in the order of ``TEMPLATES[template].parameters``.

    Optional tunables come last. ``make`` leaves out defaults at the end of ``params``, so that equal configs are equal
    tuples.

    Blocks are in elements, and ``group_m`` in rows of tiles. ``num_stages`` is the depth of the pipeline, ``num_warps``
    the number of groups of 32 threads, and ``k_split`` the number of parts into which K is cut. A config has nothing
    that can be derived from the problem.
    """

    template: str
    params: tuple[int, ...] = ()

    @classmethod
    def make(cls, template: str, values: Mapping[str, int]) -> Config:
        """Return the config with these values of tunables. Optional ones may be left out. Nothing is checked."""
        return cls(template, TEMPLATES[template].params(values))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Config:
        """Return the config of ``{"template": ..., "block_m": ..., ...}``. ProblemError names the field at fault."""
        template = fields.get("template")
        if not isinstance(template, str) or template not in TEMPLATES:
            raise _unknown(template)
        parameters = TEMPLATES[template].parameters
        unknown = fields.keys() - {"template", *TEMPLATES[template].names}
        if unknown:
            raise ProblemError(f"{min(unknown)}: {template} has no such field")
        for parameter in parameters:
            value = fields.get(parameter.name)
            if value is None and parameter.default is not None:
                continue
            if value is None:
                raise ProblemError(f"{parameter.name}: {template} needs it (allowed: {parameter.allowed})")
            if type(value) is not int or value not in parameter.values:
                raise ProblemError(f"{parameter.name}: {value!r} is not allowed (allowed: {parameter.allowed})")
        return cls.make(template, {name: value for name, value in fields.items() if value is not None})

    @classmethod
    def parse(cls, text: str) -> Config:
        """Return the config that ``str`` writes as ``text``, with any blanks. ProblemError names the form expected."""
        template, *values = text.split() or [""]
        if template not in TEMPLATES:
            raise _unknown(template)
        parameters = TEMPLATES[template].parameters
        patterns = ((rf"{each.letter}(?P<{each.name}>\d+)", each.default) for each in parameters)
        pattern = "".join(each if default is None else f"(?:{each})?" for each, default in patterns)
        required = TEMPLATES[template].required
        found = re.fullmatch(pattern, f"{'' if required or not values else ' '}{' '.join(values)}")
        if found is None:
            expected = "".join(parameter.letter + parameter.name.upper() for parameter in required)
            blocks = (each for each in parameters if each.default is not None and each.name.startswith("block_"))
            expected += "".join(f"[{each.letter}{each.name.upper()}]" for each in blocks)
            raise ProblemError(f"{text!r} is not a config (expected: {f'{template} {expected}'.rstrip()})")
        written = {name: int(value) for name, value in found.groupdict().items() if value is not None}
        return cls.from_json({"template": template, **written})

    @property
    def kernel(self) -> Template:
        """The template."""
        return TEMPLATES[self.template]

    @property
    def tiles(self) -> Tiles:
        """The required tunables by name. The template must be tiled."""
        return Tiles.of(self.params)

    def with_tiles(self, tiles: Tiles) -> Config:
        """Return the config with other tiles. The template must be tiled."""
        return Config(self.template, (*tiles, *self.params[len(tiles) :]))

    @property
    def masks_rows(self) -> bool:
        """Whether its kernel masks rows that A has not: with blocks of 16 rows, and steps of at most 128 along K.

        With a step of 256 and two warps, a masked kernel takes up to 1.6 times as long, because the assembler then
        computes each address right before its load.
        """
        return self.kernel.masks_rows and self.tiles.block_m == SMALLEST_BLOCK and self.tiles.block_k <= 128

    @property
    def k_split(self) -> int:
        """The number of parts into which K is cut. 1 for most templates."""
        return self.kernel.k_split(self.params)

    @property
    def tunables(self) -> dict[str, int]:
        """The values of the tunables by name, in the template's order, without defaults."""
        values = zip(self.kernel.parameters, self.params, strict=False)
        return {parameter.name: value for parameter, value in values if value != parameter.default}

    @property
    def pad(self) -> int:
        """Operands are padded to multiples of this number of elements. 1 for no padding."""
        has_optional = len(self.params) > len(TEMPLATES[self.template].required)
        return self.tunables.get(PAD.name, 1) if has_optional else 1

    def padded(self, pad: int) -> Config:
        """Return the config with another ``pad``, or itself if its template has no such tunable."""
        return self if pad == self.pad else Config.make(self.template, {**self.tunables, PAD.name: pad})

    def to_json(self) -> dict[str, Any]:
        """Return the fields ``from_json`` takes, in canonical order."""
        return {"template": self.template, **self.tunables}

    def __str__(self) -> str:
        letters = {parameter.name: parameter.letter for parameter in self.kernel.parameters}
        values = "".join(f"{letters[name]}{value}" for name, value in self.tunables.items())
        return f"{self.template} {values.lstrip()}".rstrip()


ATEN = Config("aten")  # the library that PyTorch calls without Inductor's help: cuBLAS, rocBLAS, oneDNN, ..

DEFAULT = Config("default")
"""Inductor's own config for attention, and the first that it would try for a generated kernel.

For matmuls that could be joined, it means that they stay apart.
"""

BASELINES = (ATEN, DEFAULT)  # the configs with which others are compared


def baseline(op: str) -> Config:
    """Return the config with which others for an op are compared. The op gets it without a table."""
    return ATEN if op in ATEN.kernel.ops else DEFAULT


PADDED_OPS = ("mm", "addmm", "bmm")  # the ops Inductor pads


def pad_multiple(dtype: str) -> int:
    """Return the number of elements in 16 bytes. Inductor pads M, N and K to multiples of it."""
    return ROW_BYTES // ITEMSIZES[dtype]


def on_its_own(config: Config) -> Config | None:
    """Return the config for a single matmul with a joined kernel's blocks. For few rows, it is the same config."""
    if config.template == TRITON_JOINED_MM.name:
        return Config(TRITON_MM.name, config.params)
    return config if config.kernel.few_rows else None


def is_copied(problem: Problem, multiple: int) -> tuple[bool, bool]:
    """Return whether padding to ``multiple`` copies A, because of M or K, and whether it copies B, for K or N."""
    m, n, k = (padded_size(size, multiple) != size for size in (problem.m, problem.n, problem.k))
    return m or k, n or k


def copied_bytes(problem: Problem, multiple: int) -> int:
    """Return the bytes that copies of operands for padding read and write."""
    larger = padded(problem, multiple)
    a, b = is_copied(problem, multiple)
    elements = a * (problem.m * problem.k + larger.m * larger.k) + b * (problem.k * problem.n + larger.k * larger.n)
    return ITEMSIZES[problem.dtype] * problem.b * elements


def needed_pad(problem: Problem, pad: int) -> int:
    """Return ``pad``, or 1 if the problem's sizes are multiples of it already, so that nothing is padded."""
    return pad if pad > 1 and any(is_copied(problem, pad)) else 1


def padded(problem: Problem, multiple: int) -> Problem:
    """Return the problem with M, N and K padded to ``multiple``, but not 1. Copies are packed and row-major."""
    copied = is_copied(problem, multiple)
    layout = "".join("n" if copy else letter for copy, letter in zip(copied, problem.layout, strict=True))
    m, n, k = (padded_size(size, multiple) for size in (problem.m, problem.n, problem.k))
    align = contiguous_align(problem.dtype, layout, m, n, k, problem.b) if any(copied) else problem.align
    return problem._replace(layout=layout, align=align, m=m, n=n, k=k)


def padded_size(size: int, multiple: int) -> int:
    """Return M, N or K after it is padded to a multiple. A size of 1 stays, as Inductor leaves it."""
    return size if size == 1 else -(-size // multiple) * multiple
