"""A config: one of the kernels that can compute a problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from diode_lut.domain.errors import ProblemError
from diode_lut.kernels.registry import TEMPLATES
from diode_lut.kernels.template import Template
from diode_lut.kernels.triton_gemm import Tiles


class Config(NamedTuple):
    """A template and the values of its tunables, in the order of ``TEMPLATES[template].parameters``.

    Block sizes are elements, ``group_m`` rows of tiles, ``num_stages`` pipeline depth, ``num_warps`` groups of 32
    threads, ``k_split`` parts that K is cut into. What can be derived from the problem is not part of a config.
    """

    template: str
    params: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Config:
        """The config of ``{"template": ..., "block_m": ..., ...}``, or ProblemError naming the field at fault."""
        template = fields.get("template")
        if not isinstance(template, str) or template not in TEMPLATES:
            raise ProblemError(f"template: {template!r} is not one of {', '.join(TEMPLATES)}")
        parameters = TEMPLATES[template].parameters
        unknown = fields.keys() - {"template", *TEMPLATES[template].names}
        if unknown:
            raise ProblemError(f"{min(unknown)}: {template} has no such field")
        for parameter in parameters:
            value = fields.get(parameter.name)
            if value is None:
                raise ProblemError(f"{parameter.name}: {template} needs it (allowed: {parameter.allowed})")
            if type(value) is not int or value not in parameter.values:
                raise ProblemError(f"{parameter.name}: {value!r} is not allowed (allowed: {parameter.allowed})")
        return cls(template, tuple(fields[parameter.name] for parameter in parameters))

    @classmethod
    def parse(cls, text: str) -> Config:
        """The config that ``str(config)`` writes as ``text``, with any blanks; ProblemError says what is expected."""
        template, *values = text.split() or [""]
        if template not in TEMPLATES:
            raise ProblemError(f"template: {template!r} is not one of {', '.join(TEMPLATES)}")
        parameters = TEMPLATES[template].parameters
        found = re.fullmatch("".join(rf"{parameter.letter}(\d+)" for parameter in parameters), " ".join(values))
        if found is None:
            expected = "".join(parameter.letter + parameter.name.upper() for parameter in parameters)
            raise ProblemError(f"{text!r} is not a config (expected: {f'{template} {expected}'.rstrip()})")
        names = TEMPLATES[template].names
        return cls.from_json({"template": template, **dict(zip(names, map(int, found.groups()), strict=True))})

    @property
    def kernel(self) -> Template:
        """All that is known about the template."""
        return TEMPLATES[self.template]

    @property
    def tiles(self) -> Tiles:
        """The tunables by name; only for a tiled template."""
        return Tiles(*self.params)

    @property
    def k_split(self) -> int:
        """Into how many parts K is cut; 1 for most templates."""
        return self.kernel.k_split(self.params)

    @property
    def tunables(self) -> dict[str, int]:
        """The values of the tunables by name, in the template's order."""
        return dict(zip(self.kernel.names, self.params, strict=True))

    def to_json(self) -> dict[str, Any]:
        """The fields that ``from_json`` takes, in canonical order."""
        return {"template": self.template, **self.tunables}

    def __str__(self) -> str:
        values = "".join(f"{p.letter}{v}" for p, v in zip(self.kernel.parameters, self.params, strict=True))
        return f"{self.template} {values}".rstrip()


ATEN = Config("aten")
"""The kernel that PyTorch calls without Inductor's help: cuBLAS, rocBLAS, oneDNN, ..."""
