"""The report: an HTML page of a table and its choices. ``as_data`` collects the data, ``as_page`` makes the page."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from itertools import islice, product
from math import prod
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import orjson
import vl_convert

from diode_lut.decide.decide import Sources, decide
from diode_lut.decide.sources import Threshold, source_of
from diode_lut.errors import printable
from diode_lut.evaluate import MISS, REGRET_CLASSES, REGRET_LIMITS, Case, Evaluation
from diode_lut.hardware import architecture
from diode_lut.model.ranking import Model
from diode_lut.problem import (
    ATTENTION,
    BATCHED,
    DOMAINS,
    DTYPES,
    GEMMS,
    GENERATED,
    GROUPED,
    LAYOUTS,
    MATMULS,
    OP_SIZES,
    OPS,
    Problem,
)
from diode_lut.settings import config
from diode_lut.table import Candidate, Entry, Table
from diode_lut.table.format import key_text
from diode_lut.table.row import KEY_FIELDS, canonical_order
from diode_lut.templates.config import ATEN, BASELINES, TEMPLATES, Config, baseline

__all__ = ["AskedProblem", "Side", "as_data", "as_page"]

JsonObject = dict[str, Any]

TrackProblems = Callable[[Sequence[Problem]], Iterable[Problem]]  # yields problems, and may show progress

FAMILIES = {"matmul": MATMULS, "attention": ATTENTION, "grouped": GROUPED, "generated": GENERATED}
"""The ops that the page treats alike. Matmuls are those that a row without an op is for."""


class Side(NamedTuple):
    """A table or model on the page, with its evaluation. ``link`` is the URL of its file, and ``file`` the content."""

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
        """The rows of a table in drawing order, the least specific first. A model has none."""
        rows = self.chooser.entries if isinstance(self.chooser, Table) else ()
        return sorted(rows, key=lambda entry: (entry.volume, canonical_order(entry)), reverse=True)

    @property
    def cases(self) -> Sequence[Case]:
        """The measured problems, with the choices for them."""
        return self.evaluation.cases if self.evaluation else ()


class AskedProblem(NamedTuple):
    """A problem in a receipt: how often it was asked, and the tier of the answer, empty for a miss."""

    problem: Problem
    calls: int
    answer: str


class ShownKind(NamedTuple):
    """Op, dtype and layout. None means any, as in a row."""

    op: str | None
    dtype: str | None
    layout: str | None

    def covers(self, other: ShownKind) -> bool:
        """Return whether all problems of the other kind are of this kind as well."""
        if self.op is None and other.op is not None and other.op not in MATMULS:
            return False
        return all(mine in (None, its) for mine, its in zip(self, other, strict=True))


def kind_of(of: Entry | Problem) -> ShownKind:
    """Return the kind of a row or of a problem."""
    return ShownKind(of.op, of.dtype or None, of.layout or None)


def kinds_of(entries: Iterable[Entry], problems: Iterable[Problem]) -> list[ShownKind]:
    """Return the sorted kinds with a panel: those of all problems and rows that cover no other kind."""
    found = {*map(kind_of, entries), *map(kind_of, problems)}
    kinds = [kind for kind in found if not any(kind != other and kind.covers(other) for other in found)]

    def order(kind: ShownKind) -> list[int]:
        pairs = zip(kind, (OPS, DTYPES, LAYOUTS), strict=True)
        return [len(names) if name is None else names.index(name) for name, names in pairs]

    return sorted(kinds, key=order)


def as_data(
    side: Side,
    *,
    beside: Side | None = None,
    datasets: Sequence[str] = (),
    missing: int = 0,
    asked: Sequence[AskedProblem] = (),
    track: TrackProblems = iter,
) -> JsonObject:
    """Return the table's name and provenance, its rows, and the problems of the evaluation, also of the other side.

    ``table`` of rows and problems is 0, or 1 for the side beside. Of the rows that cover a problem, the last answers.
    ``row`` of a problem is the index of the row with its answer, None for a miss and for a model. ``kinds`` of rows and
    problems are indices into the list ``kinds``. Gains are factors and regrets are fractions, with six digits, or None
    if not measured. Times are in nanoseconds. ``grid`` has the answers of a model beside the table at other sizes, for
    the kinds most frequent here. ``missing`` counts the datasets of the table that are not given. ``track`` may show
    its progress.
    """
    table = side.chooser
    assert isinstance(table, Table)
    sides = [side] if beside is None else [side, beside]
    problems = [case.problem for each in sides for case in each.cases] + [each.problem for each in asked]
    entries = [entry for each in sides for entry in each.entries]
    kinds = kinds_of(entries, problems)
    rows: list[JsonObject] = []
    cases: list[JsonObject] = []
    for number, each in enumerate(sides):
        answered: dict[Entry | None, list[Case]] = defaultdict(list)  # at None misses, and answers of a model
        for case in each.cases:
            asked_table = each.chooser if case.origin != MISS and isinstance(each.chooser, Table) else None
            answered[asked_table.lookup(case.problem) if asked_table else None].append(case)
        indices: dict[Entry | None, int] = {entry: len(rows) + index for index, entry in enumerate(each.entries)}
        for entry, its_cases in answered.items():
            cases += ({"table": number, **_problem(case, indices.get(entry), kinds)} for case in its_cases)
        if isinstance(each.chooser, Table):
            lines = dict(zip(each.chooser.entries, each.chooser.lines(each.file), strict=True))
            shown = (_row(entry, lines[entry], kinds, answered.get(entry, [])) for entry in each.entries)
            rows += ({"table": number, **row} for row in shown)
    grid = None
    if beside is not None and isinstance(beside.chooser, Model):
        things: list[Entry | Problem] = [*entries, *problems]
        frequent = Counter(map(kind_of, things)).most_common()
        grid = as_grid(beside.chooser, [kind for kind, _ in frequent], track)
    provenance = {
        name: printable(value if isinstance(value, str) else ", ".join(value))
        for name, value in table.provenance.items()
        if name != "datasets"
    }
    sources = [Sources.only(source_of(each.chooser)) for each in sides]
    peaks = architecture(table.hardware.arch).peaks  # operations and bytes that an SM does at most in a nanosecond
    return {
        "tables": [each.name for each in sides],
        "links": [each.link for each in sides],
        "hardware": str(table.hardware),
        "device": printable(table.hardware.name),
        "provenance": provenance,
        "ops": {
            op: {
                "sizes": OP_SIZES[op],
                "dtype": domain.dtypes,
                "layout": domain.layouts,
                "variant": domain.variants,
                "family": next((name for name, ops in FAMILIES.items() if op in ops), "other"),
                "usual": "Inductor's first config" if op in GENERATED else str(baseline(op)),
            }
            for op, domain in DOMAINS.items()
        },
        "templates": list(TEMPLATES),
        "peaks": peaks and {name: value * table.hardware.sm_count for name, value in peaks._asdict().items()},
        "classes": {"limits": REGRET_LIMITS, "labels": REGRET_CLASSES},
        "datasets": list(map(printable, datasets)),
        "missing": missing,
        "invalid": len(table.errors),
        "kinds": [kind._asdict() for kind in kinds],
        "rows": rows,
        "problems": cases,
        "asked": [_asked(each, kinds, sources) for each in asked],
        "grid": grid,
    }


def _row(entry: Entry, line: int | None, kinds: Sequence[ShownKind], cases: Sequence[Case]) -> JsonObject:
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


def _problem(case: Case, row: int | None, kinds: Sequence[ShownKind]) -> JsonObject:
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


def _asked(asked: AskedProblem, kinds: Sequence[ShownKind], sides: Sequence[Sources]) -> JsonObject:
    problem, kind = asked.problem, kind_of(asked.problem)
    decisions = [decide(sources, problem, Threshold.of(config), padding=config.pad).decision for sources in sides]
    return {
        "name": str(problem),
        "kinds": [kinds.index(kind)] if kind in kinds else [],
        **{field: getattr(problem, field) for field in KEY_FIELDS},
        "calls": asked.calls,
        "answer": printable(asked.answer),
        "now": [str(each.configs[0]) if each.configs else None for each in decisions],
    }


def _gain(candidate: Candidate) -> float | None:
    """Return the gain over aten or default. It is 1 for these themselves, which have none in tables."""
    if candidate.gain_permille is None:
        return 1.0 if candidate.config in BASELINES else None
    return candidate.gain_permille / 1000


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


MAX_KINDS = 16  # most ops, types and layouts of a grid: up to 9 s, and 0.44 MB of the page


def _powers(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(2**exponent for exponent in range(first, last + 1, step))


_ALONE = {"m": _powers(0, 14), "n": _powers(5, 15), "k": _powers(5, 14)}
_BATCHED = {"b": _powers(1, 7, 2), "m": _powers(0, 12), "n": _powers(5, 12), "k": _powers(5, 12)}


def as_grid(
    model: Model, kinds: Iterable[tuple[str | None, str | None, str | None]], track: TrackProblems = iter
) -> JsonObject:
    """Return the model's answers, for the first MAX_KINDS of ``kinds`` (op, dtype, layout) that it knows.

    Each of ``kinds`` of the result has the ``sizes`` asked, by name. ``answers`` and ``gains`` have an item for each
    combination of sizes, the last size changing fastest: an index into ``configs``, None if the model abstains, and
    the expected gain of its first config over aten, in permille, None for kinds outside of its training.
    """
    known = {(kind.op, kind.dtype, kind.layout) for kind in model.kinds}
    asked = [(op, dtype, layout) for op, dtype, layout in kinds if op and dtype and layout and op in GEMMS]
    asked = [kind for kind in asked if kind in known][:MAX_KINDS]
    problems = []
    for op, dtype, layout in asked:
        sizes = _BATCHED if op in BATCHED else _ALONE
        assert tuple(sizes) == OP_SIZES[op]
        for values in product(*sizes.values()):
            named: dict[str, Any] = dict(zip(sizes, values, strict=True))
            problems.append(Problem.of(op, **named, dtype=dtype, layout=layout, align=16))
    sources, threshold, tracked = Sources.only(source_of(model)), Threshold.of(config), iter(track(problems))
    configs: dict[Config, int] = {}
    parts = []
    for op, dtype, layout in asked:
        sizes = _BATCHED if op in BATCHED else _ALONE
        numbers, gains = list[int | None](), list[int | None]()
        for problem in islice(tracked, prod(map(len, sizes.values()))):
            decision = decide(sources, problem, threshold, padding=config.pad).decision
            ranking = None if decision.answer is None else decision.answer.ranking
            first = decision.configs[0] if ranking is not None and decision.configs else None
            numbers.append(None if first is None else configs.setdefault(first, len(configs)))
            times = {} if ranking is None else dict(zip(ranking.configs, ranking.times, strict=True))
            gains.append(None if ranking is None else round(1000 / times[first or ranking.configs[0]]))
        part = {"op": op, "dtype": dtype, "layout": layout, "sizes": sizes}
        parts.append({**part, "answers": numbers, "gains": gains})
    return {"configs": list(map(str, configs)), "kinds": parts}


_ASSETS = Path(__file__).parent / "assets"

_SCRIPTS = ("values", "charts", "details", "main")  # names of the files of the page's program, in loading order


def as_page(data: Mapping[str, Any]) -> str:
    """Return the HTML of the page for the result of ``as_data``."""
    library = _library()
    program = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    digests = (hashlib.sha256(script.encode()).digest() for script in (library, program))
    return Template(_asset("page.html")).substitute(
        title=escape(" and ".join(data["tables"])),
        hashes=" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests),
        style=_asset("style.css"),
        data=orjson.dumps(data).decode().replace("<", r"\u003c"),  # so that no note can end the script element
        library=library,
        program=program,
    )


@cache
def _library() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed, with the global name ``vegaEmbed``."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
