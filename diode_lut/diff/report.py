"""A comparison with the names of what was compared, and all ways to write it down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from diode_lut.diff.change import Change
from diode_lut.diff.compare import Diff
from diode_lut.table.words import key_in_words, winner_in_words

if TYPE_CHECKING:
    from diode_lut.diff.effect import Effect, Switch


class Report(NamedTuple):
    """What is different between the tables called ``old`` and ``new``, and what it does to time if that was asked."""

    old: str
    new: str
    diff: Diff
    effect: Effect | None = None


def key_of(change: Change) -> str:
    """What the row covers; what it covered before, where that is different."""
    now = key_in_words(change.row)
    return f"{key_in_words(change.old)} -> {now}" if change.old and change.kind in ("narrowed", "widened") else now


def winner_of(change: Change) -> str:
    """The row's first config; from which to which, where it changed."""
    now = winner_in_words(change.row)
    return f"{winner_in_words(change.old)} -> {now}" if change.old and change.new_winner else now


def details_of(change: Change) -> list[str]:
    """In words, which other things are different in a row whose key and winner are the same."""
    old, new = change.old, change.new
    if old is None or new is None or change.kind != "details":
        return []
    fields = {
        "gain": (_gain(old.candidates[0].gain_permille), _gain(new.candidates[0].gain_permille)),
        "after it": (_others(old.configs), _others(new.configs)),
        "problems": (str(old.problems), str(new.problems)),
        "note": (json.dumps(old.note, ensure_ascii=False), json.dumps(new.note, ensure_ascii=False)),
    }
    found = [f"{name} {was} -> {now}" for name, (was, now) in fields.items() if was != now]
    return found or ["gains of configs that are not the first"]


def summary(diff: Diff) -> str:
    """How many changes there are of which kind."""
    words = {"winner": "with another winner", "details": "changed in details"}
    rows = ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in diff.counts.items())
    unpaired = "; not all that were narrowed or widened were looked for" if diff.unpaired else ""
    return f"rows: {rows}{unpaired}" if rows else "rows: no changes"


def effect_in_words(effect: Effect) -> list[str]:
    """Coverage, the problems affected, and how much faster or slower they are."""
    was, now = (f"{covered / effect.problems:.1%}" for covered in (effect.old_covered, effect.new_covered))
    lines = [
        f"coverage: {was} -> {now} of {effect.problems} measured problems",
        f"problems affected: {len(effect.switches)}, of which {len(effect.changes)} with both times known",
    ]
    if effect.mean_change is not None:
        worst, best = effect.changes[0], effect.changes[-1]
        lines.append(
            f"time: {effect.mean_change:+.2%} in the geometric mean, {worst:+.2%} at worst, {best:+.2%} at best"
        )
    return lines


def switch_in_words(switch: Switch) -> str:
    """One problem that gets another config."""
    change = "unknown" if switch.change is None else f"{switch.change:+.2%}"
    return f"{change} on {switch.problem}: {switch.old} -> {switch.new}"


def _gain(gain_permille: int | None) -> str:
    return "none" if gain_permille is None else f"{gain_permille / 1000:.3f}"


def _others(configs: tuple[object, ...]) -> str:
    return ", ".join(map(str, configs[1:])) or "nothing"
