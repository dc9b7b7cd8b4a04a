"""Labels: ways to compile a model, which are compared."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

MODE = "mode"
INDUCTOR = "inductor."


class Label(NamedTuple):
    """A name, a mode of ``torch.compile``, options of Inductor's and settings of diode_lut, by their names."""

    name: str
    mode: str = "default"
    options: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def autotunes(self) -> bool:
        """Whether Inductor compares kernels by benchmarks, which other work on the device would disturb."""
        return self.mode.startswith("max-autotune")

    def compile(self, module: Callable[..., Any]) -> Callable[..., Any]:
        """What ``torch.compile`` makes of the module; it compiles at the first call, which has to be ``in_force``."""
        import torch

        modes: Any = torch._inductor.list_mode_options()
        compiled: Callable[..., Any] = torch.compile(
            module, options={**modes[self.mode], **dict(self.options)}, dynamic=False
        )
        return compiled

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The settings of diode_lut, for the calls that compile."""
        import diode_lut

        with diode_lut.config.patch(**dict(self.settings)):
            yield

    def to_json(self) -> dict[str, Any]:
        """The fields of the JSON object that ``from_json`` reads."""
        return {**self._asdict(), "options": dict(self.options), "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Label:
        """The label that ``to_json`` wrote."""
        return cls(fields["name"], fields["mode"], tuple(fields["options"].items()), tuple(fields["settings"].items()))


OFF = (("policy", "off"),)
DEFAULT, AUTOTUNE, DIODE_LUT = "default", "max-autotune", "diode_lut"
EAGER = "eager"  # what errors in eager mode are called; it is not timed
LABELS = (Label(DEFAULT, settings=OFF), Label(AUTOTUNE, "max-autotune-no-cudagraphs", settings=OFF), Label(DIODE_LUT))
"""What is always compared. ``max-autotune`` captures no CUDA graphs itself, because all labels run in one."""


def parse_label(text: str) -> Label:
    """A label as ``NAME=SETTING=VALUE,...``; ValueError if it is not of this form.

    ``inductor.NAME`` is an option of Inductor's, and ``mode`` one of ``torch.compile``'s modes. Tables are a list of
    one file: ``tables=['own.json']``.
    """
    name, _, rest = text.partition("=")
    pairs = dict(part.split("=", 1) for part in rest.split(",") if part)
    mode = pairs.pop(MODE, "default")
    options = tuple(
        (key.removeprefix(INDUCTOR), _value(pairs.pop(key))) for key in list(pairs) if key.startswith(INDUCTOR)
    )
    return Label(name, mode, options, tuple((key, _value(value)) for key, value in pairs.items()))


def _value(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
    return tuple(value) if isinstance(value, list) else value
