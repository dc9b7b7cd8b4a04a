"""The report: one HTML page with charts of a table, and of its choices on measured problems."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import islice, product
from math import prod
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import orjson
import vl_convert

from diode_lut.decide.catalog import source_of
from diode_lut.decide.selector import Selector, Tier
from diode_lut.decide.sources import Threshold
from diode_lut.errors import printable
from diode_lut.evaluate import MISS, REGRET_CLASSES, REGRET_LIMITS, Case, Evaluation
from diode_lut.hardware import Hardware
from diode_lut.model.ranking import Model
from diode_lut.problem import ATTENTION, BATCHED, DOMAINS, DTYPES, GEMMS, GROUPED, LAYOUTS, OP_SIZES, OPS, Problem
from diode_lut.settings import MODEL, config
from diode_lut.table import Candidate, Entry, Table
from diode_lut.table.format import canonical_order, key_text
from diode_lut.table.row import KEY_FIELDS
from diode_lut.templates.architecture import architecture
from diode_lut.templates.config import ATEN, BASELINES, TEMPLATES, Config, baseline

__all__ = ["Asked", "Side", "as_data", "as_page"]


_ASSETS = Path(__file__).parent / "assets"

_SCRIPTS = (
    *("words", "filters", "colours", "view", "coverage", "charts"),
    *("details", "model", "ask", "rows", "address", "main"),
)
"""Names of the files of the page's program, in loading order."""


def as_page(data: Mapping[str, Any]) -> str:
    """The HTML of the page for the result of ``as_data``."""
    program = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    return Template(_asset("page.html")).substitute(
        title=escape(" and ".join(data["tables"])),
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in (_library(), program)),
        style=_asset("style.css"),
        data=orjson.dumps(data).decode().replace("<", r"\u003c"),  # so that no note can end the script element
        library=_library(),
        program=program,
    )


@cache
def _library() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed, with the global name ``vegaEmbed``."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_ORDER = (OPS, DTYPES, LAYOUTS)


class ShownKind(NamedTuple):
    """Op, dtype and layout; None means any, as in a row."""

    op: str | None
    dtype: str | None
    layout: str | None

    def covers(self, other: ShownKind) -> bool:
        """Whether all problems of the other kind are of this kind as well."""
        if self.op is None and other.op in (*ATTENTION, *GROUPED):
            return False
        return all(mine in (None, its) for mine, its in zip(self, other, strict=True))


def kind_of(of: Entry | Problem) -> ShownKind:
    """The kind of a row or of a problem."""
    return ShownKind(of.op, of.dtype, of.layout)


def kinds_of(entries: Iterable[Entry], problems: Iterable[Problem]) -> list[ShownKind]:
    """The kinds that get a panel, sorted: all kinds of problems and rows, without kinds that cover another one."""
    found = {*map(kind_of, entries), *map(kind_of, problems)}
    kinds = [kind for kind in found if not any(kind != other and kind.covers(other) for other in found)]
    return sorted(kinds, key=_order)


def _order(kind: ShownKind) -> list[int]:
    """The sort key: names as they are ordered in ``problem.py``, any last."""
    pairs = zip(kind, _ORDER, strict=True)
    return [len(names) if name is None else names.index(name) for name, names in pairs]


_DIGITS = 6
"""Digits after the point of gains and regrets."""

Plain = dict[str, Any]
"""A JSON object."""


class Side(NamedTuple):
    """A table or model that the page shows, with the evaluation of its choices.

    ``link`` is the URL of the table's file, and ``file`` its content, which is read again by default.
    """

    chooser: Table | Model
    evaluation: Evaluation | None = None
    link: str = ""
    file: bytes | None = None

    @property
    def name(self) -> str:
        """The file's name, or the hardware."""
        return printable(self.chooser.path.name) if self.chooser.path else str(self.chooser.hardware)

    @property
    def entries(self) -> Sequence[Entry]:
        """The rows of a table in drawing order, the least specific first; a model has none."""
        rows = self.chooser.entries if isinstance(self.chooser, Table) else ()
        return sorted(rows, key=lambda entry: (entry.volume, canonical_order(entry)), reverse=True)

    @property
    def cases(self) -> Sequence[Case]:
        """The measured problems, with the choices for them."""
        return self.evaluation.cases if self.evaluation else ()


class Asked(NamedTuple):
    """A problem that programs asked for, by a receipt: how often, and what answered, empty for a miss."""

    problem: Problem
    calls: int
    answer: str


def as_data(
    side: Side,
    *,
    beside: Side | None = None,
    datasets: Sequence[str] = (),
    asked: Sequence[Asked] = (),
    track: Track = iter,
) -> Plain:
    """The table's name and provenance, its rows, and the problems of the evaluation; the same of what is beside it.

    ``table`` of rows and problems is 0, or 1 for what is beside. Of the rows that cover a problem, the last one
    answers. ``row`` of a problem is the index of the row that answers it, None for a miss and for a model. ``kinds`` of
    rows and problems are indices into the list ``kinds``. Gains are factors and regrets are fractions, with six digits;
    they are None if not measured. Times are in nanoseconds. ``grid`` has what a model beside it answers at other sizes,
    of the kinds that are most frequent here; ``track`` may show how far asking is.
    """
    table = side.chooser
    assert isinstance(table, Table)
    sides = [side] if beside is None else [side, beside]
    problems = [case.problem for each in sides for case in each.cases] + [each.problem for each in asked]
    entries = [entry for each in sides for entry in each.entries]
    kinds = kinds_of(entries, problems)
    rows: list[Plain] = []
    cases: list[Plain] = []
    for number, each in enumerate(sides):
        answered = _by_entry(each)
        indices = {entry: len(rows) + index for index, entry in enumerate(each.entries)}
        cases += (
            {"table": number, **_problem(case, None if entry is None else indices[entry], kinds)}
            for entry, its_cases in answered.items()
            for case in its_cases
        )
        rows += ({"table": number, **row} for row in _rows(each, kinds, answered))
    return {
        "tables": [each.name for each in sides],
        "links": [each.link for each in sides],
        "hardware": str(table.hardware),
        "device": printable(table.hardware.name),
        "provenance": {
            name: printable(_listed(value)) for name, value in table.provenance.items() if name != "datasets"
        },
        "ops": {op: _op(op) for op in OPS},
        "templates": list(TEMPLATES),
        "peaks": _peaks(table.hardware),
        "classes": {"limits": REGRET_LIMITS, "labels": REGRET_CLASSES},
        "datasets": list(map(printable, datasets)),
        "invalid": len(table.errors),
        "kinds": [kind._asdict() for kind in kinds],
        "rows": rows,
        "problems": cases,
        "asked": [_asked(each, sides, kinds) for each in asked],
        "grid": None if beside is None else _grid(beside, [*entries, *problems], track),
    }


def _grid(side: Side, things: Iterable[Entry | Problem], track: Track) -> Plain | None:
    """None for a table."""
    if not isinstance(side.chooser, Model):
        return None
    return as_grid(side.chooser, [kind for kind, _ in Counter(map(kind_of, things)).most_common()], track)


def _rows(side: Side, kinds: Sequence[ShownKind], answered: Mapping[Entry | None, list[Case]]) -> list[Plain]:
    if not isinstance(side.chooser, Table):
        return []
    lines = dict(zip(side.chooser.entries, side.chooser.lines(side.file), strict=True))
    return [_row(entry, lines[entry], kinds, answered.get(entry, [])) for entry in side.entries]


def _by_entry(side: Side) -> Mapping[Entry | None, list[Case]]:
    """The cases by the row that answers them; misses, and those that a model answers, are at None."""
    answered: dict[Entry | None, list[Case]] = defaultdict(list)
    for case in side.cases:
        table = side.chooser if case.origin != MISS and isinstance(side.chooser, Table) else None
        answered[table.lookup(case.problem) if table else None].append(case)
    return answered


def _asked(asked: Asked, sides: Sequence[Side], kinds: Sequence[ShownKind]) -> Plain:
    """A problem of a receipt, with what each side answers today."""
    problem = asked.problem
    return {
        "name": str(problem),
        "kinds": [kinds.index(kind_of(problem))] if kind_of(problem) in kinds else [],
        **{field: getattr(problem, field) for field in KEY_FIELDS},
        "calls": asked.calls,
        "answer": printable(asked.answer),
        "now": [_answer(side.chooser, problem) for side in sides],
    }


def _answer(chooser: Table | Model, problem: Problem) -> str | None:
    """The first config of the answer; None if there is none."""
    answer = source_of(chooser).ask(problem, Threshold.of(config), padding=config.pad)
    return str(answer.configs[0]) if answer is not None and answer.configs else None


def _row(entry: Entry, line: int | None, kinds: Sequence[ShownKind], cases: Sequence[Case]) -> Plain:
    measured = Evaluation(cases, 0, str(ATEN)).summary
    return {
        "line": line,
        "key": key_text(entry),
        "kinds": [number for number, kind in enumerate(kinds) if kind_of(entry).covers(kind)],
        **{field: getattr(entry, field) for field in KEY_FIELDS},
        "configs": [{"config": str(each.config), "gain": _gain(each)} for each in entry.candidates],
        "template": entry.best.config.template,
        "measured": entry.problems,
        "note": None if entry.note is None else printable(entry.note),
        "gain": _rounded(_gain(entry.best) if measured.gain is None else measured.gain),
        "regret": _rounded(measured.regret),
        "worst": _rounded(measured.worst_regret),
    }


def _problem(case: Case, row: int | None, kinds: Sequence[ShownKind]) -> Plain:
    problem = case.problem
    return {
        "row": row,
        "missed": case.origin == MISS,
        "name": str(problem),
        "kinds": [kinds.index(kind_of(problem))],
        **{field: getattr(problem, field) for field in KEY_FIELDS},
        "ns": case.ns,
        "best_ns": case.best_ns,
        "baseline_ns": case.baseline_ns,
        "choice": str(case.choice),
        "template": case.choice.template,
        "best": str(case.best),
        "gain": _rounded(case.gain),
        "best_gain": _rounded(case.best_gain),
        "regret": None if case.ns is None else _rounded(case.regret),
    }


def _op(op: str) -> Plain:
    """What the problems of an op have, and what their gains are over."""
    domain = DOMAINS[op]
    return {
        "sizes": OP_SIZES[op],
        "dtype": domain.dtypes,
        "layout": domain.layouts,
        "variant": domain.variants,
        "attention": op in ATTENTION,
        "grouped": op in GROUPED,
        "usual": str(baseline(op)),
    }


def _peaks(hardware: Hardware) -> dict[str, float] | None:
    """Operations and bytes in a nanosecond that the whole device does at most; None where they are not known."""
    peaks = architecture(hardware.arch).peaks
    return peaks and {name: value * hardware.sm_count for name, value in peaks._asdict().items()}


def _gain(candidate: Candidate) -> float | None:
    """The gain over aten or default; 1 for these themselves, whose gain is not in tables."""
    if candidate.gain_permille is None:
        return 1.0 if candidate.config in BASELINES else None
    return candidate.gain_permille / 1000


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def _listed(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


MAX_KINDS = 16
"""Number of ops, types and layouts of which a model is asked: that takes up to 9 s and 0.44 MB of the page."""


def _powers(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(first, last + 1, step))


_ALONE = {"m": _powers(0, 14), "n": _powers(5, 15), "k": _powers(5, 14)}
_BATCHED = {"b": _powers(1, 7, 2), "m": _powers(0, 12), "n": _powers(5, 12), "k": _powers(5, 12)}

Track = Callable[[Sequence[Problem]], Iterable[Problem]]
"""Passes problems on, and may show progress."""


def as_grid(
    model: Model, kinds: Iterable[tuple[str | None, str | None, str | None]], track: Track = iter
) -> dict[str, Any]:
    """The model's answers, for the first MAX_KINDS of ``kinds`` (op, dtype, layout) that it knows, open ones left out.

    Each of ``kinds`` of the result has the ``sizes`` asked, by name. ``answers`` and ``gains`` have an item for each
    combination of sizes, the last size changing fastest: an index into ``configs``, None where the model abstains; and
    the expected gain over aten of its first config, in permille, None for what it was not trained for.
    """
    known = {(kind.op, kind.dtype, kind.layout) for kind in model.kinds}
    asked = [(op, dtype, layout) for op, dtype, layout in kinds if op and dtype and layout and op in GEMMS]
    asked = [kind for kind in asked if kind in known][:MAX_KINDS]
    problems = [problem for kind in asked for problem in _problems(*kind)]
    answers = _answers(model, track(problems))
    configs: dict[Config, int] = {}
    parts = []
    for op, dtype, layout in asked:
        sizes = _sizes(op)
        found = list(islice(answers, prod(map(len, sizes.values()))))
        numbers = [None if first is None else configs.setdefault(first, len(configs)) for first, _ in found]
        part = {"op": op, "dtype": dtype, "layout": layout, "sizes": sizes}
        parts.append({**part, "answers": numbers, "gains": [gain for _, gain in found]})
    return {"configs": list(map(str, configs)), "kinds": parts}


def _sizes(op: str) -> Mapping[str, Sequence[int]]:
    return _BATCHED if op in BATCHED else _ALONE


def _problems(op: str, dtype: str, layout: str) -> Iterator[Problem]:
    sizes = _sizes(op)
    assert tuple(sizes) == OP_SIZES[op]
    for values in product(*sizes.values()):
        named: dict[str, Any] = dict(zip(sizes, values, strict=True))
        yield Problem.of(op, **named, dtype=dtype, layout=layout, align=16)


def _answers(model: Model, problems: Iterable[Problem]) -> Iterator[tuple[Config | None, int | None]]:
    """The first config, None for none, and the gain in permille."""
    selector, threshold = Selector(model.hardware, [Tier(MODEL, (source_of(model),))]), Threshold.of(config)
    for problem in problems:
        decision = selector.select(problem, threshold, padding=config.pad)
        if decision.answer is None or decision.answer.ranking is None:
            yield None, None
            continue
        ranking = decision.answer.ranking
        first = decision.configs[0] if decision.configs else None
        times = dict(zip(ranking.configs, ranking.times, strict=True))
        yield first, round(1000 / times[first or ranking.configs[0]])
