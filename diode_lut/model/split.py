"""The split into training and test problems. It depends on each problem alone, so it is the same in every dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from diode_lut.domain.errors import ProblemError
from diode_lut.domain.problem import ALIGNS, DTYPES, LAYOUTS, MAX_SIZE, OPS, Problem

TRAIN, TEST = "train", "test"
"""Names of the two groups that every split has."""

Family = tuple[tuple[str, Any], ...]
"""Conditions on a problem: names of fields, each with its value, or with its least and largest size."""

_KINDS = {"op": OPS, "dtype": DTYPES, "layout": LAYOUTS, "align": tuple(map(str, ALIGNS))}


class Split(NamedTuple):
    """Test problems: a fraction ``test`` of all, drawn with ``seed``, and all problems of the left-out ``families``."""

    seed: int
    test: float
    families: tuple[Family, ...] = ()

    def group(self, problem: Problem) -> str:
        """The problem's group: ``train``, ``test``, or the name of its left-out family."""
        for family in self.families:
            if belongs(problem, family):
                return family_name(family)
        return TEST if self.draw(problem) < self.test else TRAIN

    def draw(self, problem: Problem) -> float:
        """A number from 0 to 1 that depends only on the problem and the seed."""
        digest = hashlib.sha256(f"{self.seed} {problem}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48

    def to_json(self) -> dict[str, Any]:
        """The fields that ``from_json`` takes."""
        return {"seed": self.seed, "test": self.test, "families": list(map(family_name, self.families))}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Split:
        """The split of ``to_json``. Anything else raises ProblemError, KeyError or TypeError."""
        return cls(int(fields["seed"]), float(fields["test"]), tuple(map(parse_family, fields["families"])))


def belongs(problem: Problem, family: Family) -> bool:
    """Whether the problem meets all conditions of the family."""
    return all(
        value[0] <= getattr(problem, name) <= value[1] if isinstance(value, tuple) else getattr(problem, name) == value
        for name, value in family
    )


def parse_family(text: str) -> Family:
    """The family of ``op=mm,layout=nt,m=1:64``; ProblemError for an unknown field or value, or a repeated field."""
    family = tuple(_condition(part.strip()) for part in text.split(","))
    if len(dict(family)) < len(family):
        raise ProblemError(f"{text}: a field is repeated")
    return family


def _condition(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name in _KINDS:
        if value not in _KINDS[name]:
            raise ProblemError(f"{text}: {value!r} is not one of {', '.join(_KINDS[name])}")
        return name, int(value) if name == "align" else value
    low, colon, high = value.partition(":")
    sizes = [int(size) for size in (low, high if colon else low) if size.isdecimal()]
    if name not in ("b", "m", "n", "k") or len(sizes) != 2 or not 1 <= sizes[0] <= sizes[1] <= MAX_SIZE:
        raise ProblemError(f"{text!r}: not a condition such as op=mm, layout=nt or m=1:64")
    return name, (sizes[0], sizes[1])


def family_name(family: Family) -> str:
    """The text that ``parse_family`` takes."""
    return ",".join(
        f"{name}={value[0]}:{value[1]}" if isinstance(value, tuple) else f"{name}={value}" for name, value in family
    )
